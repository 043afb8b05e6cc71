"""What each command does: read its settings, call one step, print what a person wants to know. Steps are imported when called."""

import json
import time
from pathlib import Path

from . import cache_commands, data_commands, jobs
from . import runs as run_folders
from .cache import list_caches, open_cache
from .cache.manifest import MADE_BY, make_again
from .cache.ranks import Rank
from .config import DistillConfig, hard_label_twin, read_config
from .errors import ConfigError
from .foreground import carry_out, is_launched, is_spokesman, together_or_alone, train_here
from .judgement import table
from .parsers import Options, settings
from .paths import caches_dir, checked_name, home
from .refusals import check_settings
from .runs import Run
from .units import show_count, show_disk, show_time

RESULT_UNITS = {"heldout_nll": " nats per held-out token"}


def demo(options: Options) -> None:
    config = settings(options)
    if options.print_config:
        print(config.to_json(), end="")
        return
    check_settings(config)
    started = time.monotonic()
    print(f"1/4  capture: the teacher {config.teacher.model} reads {config.text.num_windows} windows", flush=True)
    cache = carry_out(run_folders.create_run("capture", config, label="demo", device=jobs.device_key(config.device)))["cache"]
    print("2/4  train the student on the teacher's distributions", flush=True)
    student = train_here(config, cache)
    print("3/4  train its twin on hard labels only, same budget", flush=True)
    twin = train_here(hard_label_twin(config), cache)
    print("4/4  judge both on text they never saw", flush=True)
    run = jobs.new_evaluation(student.id, twin.id)
    carry_out(run)
    _print_evaluation(run)
    print(f"\nAll of it took {show_time(time.monotonic() - started)}. Work is in {home()}.")
    print(f"Take the student home:  python -m distill_core export {student.id} --to my-student")
    print("See it all in the app:  marimo run apps/distill.py")


def data(options: Options) -> None:
    data_commands.data(options, settings(options, base=data_commands.base(options)))


def capture(options: Options) -> None:
    base = None
    if options.resume:
        folder = caches_dir() / checked_name(options.resume, "cache")
        if (folder / MADE_BY).exists():
            raise ConfigError(f"cache {options.resume} was not captured. {make_again(folder)}")
        if not (folder / "config.json").exists():
            open_cache(options.resume)  # says what is missing
        base = read_config(folder / "config.json")
        base = base.changed(capture=base.capture.changed(name=options.resume))
    config = settings(options, base=base)
    rank = Rank.from_environment()
    config = config.changed(device=rank.device(config.device, has_gpu=jobs.has_gpu()))
    if options.background:
        if rank.count > 1:
            raise ConfigError("capture --background is for one process; a launcher's processes stay in front.")
        run = jobs.submit_capture(config)
        print(f"run {run.id} is queued. Follow it: python -m distill_core runs show {run.id}")
        return
    label, queue = f"capture {config.teacher.model}{rank.words}", rank.queue(jobs.device_key(config.device))
    name = carry_out(run_folders.create_run("capture", config, label=label, device=queue))["cache"]
    if rank.number:
        return
    cache_commands.print_cache(name)
    print(f"\nTrain on it: python -m distill_core train --cache {name} --twin")


def cache(options: Options) -> None:
    cache_commands.cache(options, settings(options))


def train(options: Options) -> None:
    if options.resume:
        _resume(options.resume, here=not options.background)
        return
    if not options.cache:
        names = [found.name for found in list_caches()]
        known = f"You have: {', '.join(names)}." if names else "There is none yet; make one: python -m distill_core capture"
        raise ConfigError(f"train needs --cache NAME. {known}")
    base = DistillConfig(**open_cache(options.cache).manifest.config)
    config = settings(options, base=base)
    todo = [config, hard_label_twin(config)] if options.twin else [config]
    if options.background:
        if is_launched():
            raise ConfigError("train --background is for one process; a launcher's processes stay in front.")
        for each in todo:
            print(f"run {jobs.submit_training(each, options.cache).id} is queued")
        return
    done = [train_here(each, options.cache).id for each in todo]
    _say_how_to_judge(done[0], done[1] if options.twin else None)


def _say_how_to_judge(run_id: str, twin_id: str | None) -> None:
    if not is_spokesman():
        return
    print(f"\nJudge it: python -m distill_core evaluate {run_id}" + (f" --baseline {twin_id}" if twin_id else ""))
    if twin_id is None:
        print("For an honest comparison train its hard-label twin too: the same train command with --twin takes this run as it is.")


def _resume(run_id: str, *, here: bool) -> None:
    run = run_folders.open_run(run_id)
    kind = run.stored_status().kind
    if is_launched() and (kind != "train" or not here):
        raise ConfigError(f"run {run.id} is of kind '{kind}' or goes to the background: only training in front is for several processes.")
    if not here:
        jobs.requeue(run)
        jobs.start(run)
        print(f"run {run.id} goes on. Follow it: python -m distill_core runs show {run.id}")
        return

    def again() -> tuple[Run, bool]:
        jobs.requeue(run)
        return run, True

    together_or_alone(run.config(), again)
    if kind == "train":
        twin = f"{run.id}-hard-labels"
        _say_how_to_judge(run.id, twin if twin in [other.id for other in run_folders.list_runs("train")] else None)


def evaluate(options: Options) -> None:
    asked = {name: str(value) for name in ("lm_eval", "lm_eval_include", "lm_eval_limit") if (value := getattr(options, name)) is not None}
    if "lm_eval" in asked:
        from .benchmarks import check_installed

        check_installed()
    elif asked:
        raise ConfigError(f"--{next(iter(asked)).replace('_', '-')} is about benchmarks, but none is named: --lm-eval TASKS")
    if options.against:
        open_cache(options.against)  # one that is not there is said before there is a run
    asked |= robustness_asked(options)
    run = jobs.new_evaluation(options.run, options.baseline, against=options.against, public_benchmarks=asked)
    carry_out(run)
    _print_evaluation(run)


def robustness_asked(options: Options) -> dict[str, str]:
    """What the evaluation is told. Raises ConfigError for a radius that is none, or that nobody asked to be used."""
    if options.radius is None:
        return {"robustness": "yes"} if options.robustness else {}
    if not options.robustness:
        raise ConfigError(f"--radius {options.radius:g} is about --robustness, which is not asked for.")
    if options.radius <= 0:
        raise ConfigError(f"--radius must be above 0, got {options.radius:g}. It counts in mean embedding norms; 0.05 is usual.")
    return {"robustness": "yes", "radius": repr(options.radius)}


def _print_evaluation(run: Run) -> None:
    result = json.loads(run.evaluation_path.read_text(encoding="utf-8"))
    print("\n" + table(result["rows"]) + "\n\n" + result["verdict"] + "\n")
    print("\n".join(f"* {note}" for note in result["notes"]))
    if result.get("benchmarks"):
        from .benchmarks import benchmark_table

        print("\n" + benchmark_table(result["benchmarks"]))
    if result.get("robustness"):
        from .robustness import robustness_table

        print("\n" + robustness_table(result["robustness"]))


def plan(options: Options) -> None:
    from . import memory

    report = memory.report(settings(options))
    if options.json:
        print(json.dumps(report.to_dict()))
        return
    for who, facts in (("teacher", report.teacher), ("student", report.student)):
        print(
            f"{who}  {facts.source}: {facts.architecture}, {show_count(facts.num_parameters)} parameters, {facts.num_layers} layers, "
            f"{facts.hidden_size} wide, {facts.vocab_size_config:,} tokens, licence {facts.license or 'unknown'}"
        )
        print("\n".join(f"         {note}" for note in facts.notes), end="\n" if facts.notes else "")
    print("\n" + report.to_text())


def runs(options: Options) -> None:
    if options.what == "list":
        for run in run_folders.list_runs():
            status = run.status()
            print(f"{run.id:<40} {status.kind:<9} {status.state:<8} {status.label}")
        return
    if not options.run:
        raise ConfigError(f"runs {options.what} needs a run. See them: python -m distill_core runs list")
    run = run_folders.open_run(options.run)
    if options.what == "show":
        _show_run(run)
    elif options.what == "stop":
        print(jobs.stop(run, now=options.now))
    elif options.what == "resume":
        _resume(run.id, here=True)
    elif options.what == "delete":
        _delete_run(run, is_sure=options.yes)
    else:
        from .worker import execute

        execute(run)


def _delete_run(run: Run, *, is_sure: bool) -> None:
    """Raises ConfigError for a run that others name, where the user did not say that it may go; RunError for an active one."""
    from . import comparison
    from .comparison.views import deletion_words

    what = comparison.deletion_of("run", run.id)
    if not (is_sure or what.refused) and (what.dependents or what.twin or what.sweep or what.chain):
        raise ConfigError(f"{' '.join(deletion_words([what])[1:])} To delete it all the same, say --yes.")
    print(f"{show_disk(comparison.delete(what))} came back")


def _show_run(run: Run) -> None:
    status = run.status()
    print(f"run {run.id}: {status.kind}, {status.state}" + (f"; {status.phase}" if status.phase != status.state else ""))
    print(f"  in {run.folder}; " + ", ".join(f"{name} {value}" for name, value in run.inputs().items()))
    if job := run.job():
        print(f"  job {job.id} of {job.engine}, {job.address}")
    for name, value in status.result.items():
        if run.inputs().get(name) != value:
            print(f"  {name}: {f'{value:.4g}' if isinstance(value, float) else value}{RESULT_UNITS.get(name, '')}")
    if status.kind == "train" and run.evaluation_path.exists():
        judged = json.loads(run.evaluation_path.read_text(encoding="utf-8"))
        beside = f" beside {judged['baseline']}" if judged["baseline"] else ""
        print(f"  judged{beside}: {judged['verdict']}")
    if status.total:
        left = f", {show_time(status.time_left_s)} left" if status.time_left_s is not None else ""
        print(f"  {status.done:,} of {status.total:,} {status.unit}{left}")
    if status.error:
        print(f"  {status.error}")
    print("\n".join(f"  | {line}" for line in run.log_tail(10)))


def serve(options: Options) -> None:
    from .serve import serve_command

    serve_command(options)


def export(options: Options) -> None:
    from .export import export_model

    folder = export_model(run_folders.open_run(options.run), Path(options.to), dtype=options.dtype)
    print(f"{folder} holds the student. Load it anywhere: AutoModelForCausalLM.from_pretrained({str(folder)!r})")


def push(options: Options) -> None:
    from .push import push as send

    address = send(Path(options.folder), options.repo, is_public=options.public)
    print(f"{options.repo} holds the student: {address}")
