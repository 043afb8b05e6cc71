# The walk: nine steps from a large teacher to a small, judged student. Open it with: marimo run apps/distill.py
# Story and controls first, plumbing last. Nothing here computes: a cell asks, gates, shows, or makes one call into distill_core.
import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Distil: teach a small model what a large one knows", css_file="walk.css")

with app.setup(hide_code=True):
    import marimo as mo

    from distill_core import catalog, charts, jobs, memory, panel, runs, walk
    from distill_core.config import BUILTIN, hard_label_twin
    from distill_core.walk import controls, scoreboard, views


@app.cell(hide_code=True)
def hero():
    mo.Html(views.HERO)
    return


@app.cell(hide_code=True)
def bar(found, states):
    _target, _sentence = walk.what_next(found)
    _bar = mo.Html(views.step_bar(states, _sentence, _target, is_fixed=mo.app_meta().mode == "run"))
    column(*(trouble(_words) for _words in found.problems), _bar)
    return


@app.cell(hide_code=True)
def step_teacher(states, teacher, teacher_facts, teacher_problem):
    _facts = mo.Html(views.model_facts(teacher_facts)) if teacher_facts else trouble(teacher_problem)
    _words = "The large model to learn from. It is only read, never changed. Its facts come before anything is loaded or downloaded."
    step("teacher", states, _words, teacher["kind"], teacher["model"] if teacher.value["kind"] != BUILTIN else None, _facts)
    return


@app.cell(hide_code=True)
def step_text(states, text, token_problem, token_rows):
    _where = {BUILTIN: [], "local": ["source", "column"], "hub": ["source", "column", "subset", "split"]}[text.value["kind"]]
    _tokens = mo.Html(views.tokens(token_rows)) if token_rows else trouble(token_problem)
    _lesson = "The best lesson in this app: set the windows to train on to 100, later to 1,600. With little text a teacher helps a lot; with plenty, less."
    step(
        "text",
        states,
        "What the teacher reads and the student learns from, cut into windows of equal length. Some documents are held out, for judging.",
        text["kind"],
        side_by_side(*(text[_name] for _name in _where)),
        side_by_side(text["num_windows"], text["window_tokens"], text["packing"]),
        _tokens,
        mo.Html(views.aside(_lesson)),
    )
    return


@app.cell(hide_code=True)
def step_cache(cache_choice, capture, capture_button, config, cost, found, get_notes, loss, problem, states, stop_capture_button):
    if states["cache"] == "working":
        _press = side_by_side(stop_capture_button)
    elif problem:
        _press = trouble(problem)
    else:
        _again = "There is a cache already. Press again after a change above: a finished one is found, an unfinished one goes on."
        _press = mo.Html(
            views.press(
                capture_button.text,
                _again if found.cache else "The teacher reads the text once, and writes down what it thinks.",
                state=states["cache"],
            )
        )
    _changed = controls.differences(config, found.cache) if config and found.cache else []
    step(
        "cache",
        states,
        "For each token the teacher writes down its most likely next tokens, and how likely each is. Then it leaves memory for good: *one* reading serves every later training.",
        side_by_side(capture["top_k"], cache_choice),
        mo.Html(views.cost(cost)) if cost else None,
        _press,
        trouble(get_notes().get("cache")),
        mo.Html(views.cache_facts(found.cache, controls.kept_mass_at(found.cache, loss.value["temperature"]))) if found.cache else None,
        mo.Html(views.stale(_changed)) if _changed else None,
    )
    return


@app.cell(hide_code=True)
def capture_panel(arrived, get_capture):
    _run = controls.tried(runs.open_run, get_capture())[0] if get_capture() else None
    mo.ui.anywidget(panel.LivePanel({"capture": _run}, panel.capture_pictures("capture"), on_change=arrived)) if _run else None
    return


@app.cell(hide_code=True)
def cache_browser(found, loss, peek):
    _is_open, _at = peek.value["is_open"], loss.value["temperature"]
    _rows, _words = controls.tried(controls.window_rows, found.cache, peek.value, _at) if found.cache and _is_open else (None, "")
    column(
        side_by_side(peek["is_open"], *((peek["split"], peek["window"]) if _is_open else ())),
        trouble(_words),
        mo.Html(views.window(_rows, temperature=_at)) if _rows else None,
    ) if found.cache else None
    return


@app.cell(hide_code=True)
def step_student(plan, plan_problem, states, student, teacher_facts):
    _init = student.value["init"]
    _fields = {"fresh": ["num_layers", "hidden_size"], "prune_layers": ["num_layers"], "pretrained": ["model"]}[_init]
    step(
        "student",
        states,
        "The small model that will learn. It must share the teacher's tokens, or the cache would speak of words that it does not have.",
        student["init"],
        side_by_side(*(student[_name] for _name in _fields)),
        mo.Html(views.suggestions(controls.siblings(teacher_facts))) if _init == "pretrained" and teacher_facts else None,
        mo.Html(views.student_facts(plan.student, plan.teacher)) if plan else trouble(plan_problem),
    )
    return


@app.cell(hide_code=True)
def step_loss(found, loss, states):
    _rows = controls.kept_mass_rows(found.cache) if found.cache else []
    _at = loss.value["temperature"]
    step(
        "loss",
        states,
        "What *being wrong* means. The student is pulled towards the teacher's whole distribution (KL), towards the text's own next token (hard labels), or both.",
        side_by_side(loss["temperature"], loss["hard_share"]),
        side_by_side(loss["divergence"], loss["tail"]),
        mo.Html(views.formula(loss.value)),
        chart_of(charts.kept_mass_chart(_rows, temperature=_at)),
        mo.Html(views.kept_mass_words(_rows, _at)),
        needs="" if found.cache else "a finished cache (step 3)",
        then="Then: temperature, hard labels, and how much of the teacher's belief your cache holds.",
    )
    return


@app.cell(hide_code=True)
def step_plan(plan, plan_problem, states):
    step(
        "plan",
        states,
        "Three ways to train this student. *Online*: the teacher stays in memory. *Offline dense*: the cache replaces it. *Offline fused*, what happens here: the loss comes in chunks, and no matrix of all tokens × all vocabulary ever exists.",
        chart_of(charts.plan_chart(plan.rows.to_dicts(), limit_gib=plan.limit_gib, limit_name=plan.limit_name))
        if plan
        else trouble(plan_problem),
        mo.Html(views.plan_words(plan)) if plan else None,
    )
    return


@app.cell(hide_code=True)
def step_train(found, get_notes, problem, resume_button, states, stop_button, train, train_button):
    if found.is_training:
        _press = side_by_side(stop_button)
    elif problem:
        _press = trouble(problem)
    else:
        _again = "Change something and press again: the earlier run stays on disk."
        _press = mo.Html(
            views.press(
                train_button.text,
                _again if found.run else "The student learns, then its twin. Watch the lines below fall.",
                state=states["train"],
            )
        )
    step(
        "train",
        states,
        "Each **step** shows the student some windows and turns its weights a little. The *hard-label twin* is the honest comparison: same student, same text, same steps, no teacher.",
        side_by_side(train["max_steps"], train["batch_size"], train["learning_rate"], train["seed"]),
        train["twin"],
        _press,
        resume_button if found.can_resume else None,
        trouble(get_notes().get("train")),
        needs="" if found.cache else "a finished cache (step 3)",
        then="Then: live charts of loss, memory, and agreement with the teacher.",
    )
    return


@app.cell(hide_code=True)
def train_panel(arrived, get_training):
    _ids = dict(zip(("student", "hard-label twin"), get_training(), strict=False))
    _tracks = {_name: _run for _name, _id in _ids.items() if _id and (_run := controls.tried(runs.open_run, _id)[0])}
    mo.ui.anywidget(panel.LivePanel(_tracks, controls.training_pictures(_tracks), on_change=arrived)) if _tracks else None
    return


@app.cell(hide_code=True)
def step_judge(found, get_notes, judge_button, states):
    _to_press = found.evaluation is None and states["judge"] != "working"
    step(
        "judge",
        states,
        "How good is the student on text that it never saw? *Bits per byte* compares models whatever their tokens; *KL* says how far its beliefs are from the teacher's.",
        mo.Html(
            views.press(
                judge_button.text,
                "Student, twin and teacher are measured on the held-out text, and each writes a little.",
                state=states["judge"],
            )
        )
        if _to_press
        else None,
        trouble(get_notes().get("judge")),
        *(judged(found.evaluation) if found.evaluation else []),
        needs="" if found.is_trained else "a trained student (step 7)",
        then="Then: the student beside its teacher, its twin and its untrained self, on text none of them was trained on.",
    )
    return


@app.cell(hide_code=True)
def judge_panel(arrived, found, get_judging):
    _run = controls.tried(runs.open_run, get_judging())[0] if found.judge and found.judge.state != "done" else None
    mo.ui.anywidget(panel.LivePanel({"judging": _run}, on_change=arrived)) if _run else None
    return


@app.cell(hide_code=True)
def step_home(export_button, found, get_notes, states):
    _there = found.exported
    step(
        "home",
        states,
        "The student, its tokenizer, and a model card: teacher, cache, temperature, kept mass, measured quality. It loads without this app.",
        mo.Html(views.exported(_there))
        if _there
        else mo.Html(views.press(export_button.text, "Writes a folder that any Hugging Face program can load.", state=states["home"])),
        mo.download(data=lambda: controls.zipped(_there), filename=f"{_there.name}.zip", label="Download as .zip") if _there else None,
        trouble(get_notes().get("home")),
        needs="" if found.evaluation else "a judged student (step 8)",
        then="Then: a folder that plain from_pretrained loads, with a card that says where the student comes from.",
    )
    return


@app.cell(hide_code=True)
def one_config(config, found):
    _config = controls.for_cache(config, found.cache) if config and found.cache else config
    _terminal = f"The same in a terminal: `python -m distill_core train --config config.json --twin --cache {found.cache.name if found.cache else 'NAME'}`"
    _file = mo.download(data=_config.to_json().encode(), filename="config.json", label="Download config.json") if _config else None
    _text = mo.md(f"```json\n{_config.to_json()}```") if _config else None
    column(
        mo.accordion({"The one config behind all these controls": column(mo.md(_terminal), _file, _text)}),
        mo.Html('<div class="walk-room"></div>'),
    )
    return


@app.cell
def opening():
    # read once: a reload finds its settings again, and a later change of the address does not reset the controls
    opening = walk.opening_config(walk.place_from(mo.query_params().to_dict()))
    start = controls.control_values(opening)
    return opening, start


@app.cell
def teacher_controls(start):
    _kinds = {"built-in (tiny, no download)": BUILTIN, "Hugging Face": "hub", "folder or .gguf file": "local"}
    _at = start["teacher"]
    teacher = mo.ui.dictionary(
        {
            "kind": mo.ui.radio(_kinds, value=label_of(_kinds, _at["kind"]), inline=True),
            "model": mo.ui.text(_at["model"], placeholder="Qwen/Qwen3-8B, or a path", label="Id or path", full_width=True),
        }
    )
    return (teacher,)


@app.cell
def text_controls(start):
    _kinds = {"built-in stories": BUILTIN, "Hugging Face dataset": "hub", "local .txt, .jsonl or .parquet": "local"}
    _at = start["text"]
    _counts = stops([50, 100, 200, 400, 800, 1600, 3200, 6400, 12800], _at["num_windows"])
    _lengths = stops([64, 128, 256, 512, 1024, 2048, 4096, 8192], _at["window_tokens"])
    text = mo.ui.dictionary(
        {
            "kind": mo.ui.radio(_kinds, value=label_of(_kinds, _at["kind"]), inline=True),
            "source": mo.ui.text(_at["source"], placeholder="path, or owner/name", label="Path or id"),
            "column": mo.ui.text(_at["column"], label="Column (text, or chat messages)"),
            "subset": mo.ui.text(_at["subset"], label="Subset"),
            "split": mo.ui.text(_at["split"], label="Split"),
            "num_windows": mo.ui.slider(steps=_counts, value=_at["num_windows"], show_value=True, label="Windows to train on"),
            "window_tokens": mo.ui.dropdown(_lengths, value=_at["window_tokens"], label="Tokens in a window"),
            "packing": mo.ui.checkbox(_at["packing"], label="several documents share a window"),
        }
    )
    return (text,)


@app.cell
def capture_controls(start):
    _k = start["capture"]["top_k"]
    _top_k = mo.ui.slider(steps=stops([1, 5, 10, 20, 50, 100, 200], _k), value=_k, show_value=True, label="Tokens kept per position (K)")
    capture = mo.ui.dictionary({"top_k": _top_k})
    cache_choice = mo.ui.dropdown(walk.cache_names(), label="or use a cache that is here")
    return cache_choice, capture


@app.cell
def peek_controls():
    _splits = {"to train on": "train", "held out": "heldout"}
    peek = mo.ui.dictionary(
        {
            "is_open": mo.ui.switch(label="Look into the cache, token by token"),
            "split": mo.ui.dropdown(_splits, value="to train on", allow_select_none=False, label="Windows"),
            "window": mo.ui.number(0, 1_000_000_000, step=1, value=0, label="Number, from 0"),
        }
    )
    return (peek,)


@app.cell
def student_controls(start):
    _inits = {"fresh small model": "fresh", "the teacher with layers removed": "prune_layers", "smaller pretrained model": "pretrained"}
    _at = start["student"]
    student = mo.ui.dictionary(
        {
            "init": mo.ui.radio(_inits, value=label_of(_inits, _at["init"]), inline=True),
            "num_layers": mo.ui.number(0, 200, value=_at["num_layers"], label="Layers (0: half of the teacher's)"),
            "hidden_size": mo.ui.number(0, 16384, step=8, value=_at["hidden_size"], label="Width (0: half of the teacher's)"),
            "model": mo.ui.text(_at["model"], placeholder="Qwen/Qwen3-0.6B, or a path", label="Id or path", full_width=True),
        }
    )
    return (student,)


@app.cell
def loss_controls(start):
    _ways = {"match all it finds likely (forward KL)": "forward_kl", "match its favourites (reverse KL)": "reverse_kl"}
    _tails = {"kept as one entry (bucket)": "bucket", "spread over the kept (renormalize)": "renormalize", "left out (drop)": "drop"}
    _at = start["loss"]
    _temperatures, _shares = (
        stops([0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8], _at["temperature"]),
        stops([0, 0.1, 0.25, 0.5, 0.75, 0.9, 1], _at["hard_share"]),
    )
    loss = mo.ui.dictionary(
        {
            "temperature": mo.ui.slider(steps=_temperatures, value=_at["temperature"], show_value=True, label="Temperature T"),
            "hard_share": mo.ui.slider(steps=_shares, value=_at["hard_share"], show_value=True, label="Share of hard labels"),
            "divergence": mo.ui.dropdown(_ways, value=label_of(_ways, _at["divergence"]), label="The student should"),
            "tail": mo.ui.dropdown(_tails, value=label_of(_tails, _at["tail"]), label="What K leaves out is"),
        }
    )
    return (loss,)


@app.cell
def train_controls(start):
    _at = start["train"]
    _rates = dict.fromkeys(
        [controls.AUTOMATIC, "1e-05", "2e-05", "5e-05", "0.0001", "0.0003", "0.001", "0.003", "0.005", "0.01", _at["learning_rate"]]
    )
    train = mo.ui.dictionary(
        {
            "max_steps": mo.ui.number(1, 1_000_000, value=_at["max_steps"], label="Steps"),
            "batch_size": mo.ui.number(1, 1024, value=_at["batch_size"], label="Windows in a step"),
            "learning_rate": mo.ui.dropdown(list(_rates), value=_at["learning_rate"], label="Learning rate"),
            "seed": mo.ui.number(0, 1_000_000, value=_at["seed"], label="Seed"),
            "twin": mo.ui.checkbox(True, label="also train its hard-label twin (the same time again)"),
        }
    )
    return (train,)


@app.cell
def buttons():
    capture_button, train_button, judge_button, export_button = (
        mo.ui.run_button(kind="success", label=_name) for _name in ("Capture", "Train", "Judge", "Export")
    )
    stop_capture_button = mo.ui.run_button(kind="warn", label="Stop, keep what is finished")
    stop_button = mo.ui.run_button(kind="warn", label="Stop, keep the student as it is")
    resume_button = mo.ui.run_button(label="Go on from the last checkpoint")
    return capture_button, export_button, judge_button, resume_button, stop_button, stop_capture_button, train_button


@app.cell
def facts(teacher):
    _model = BUILTIN if teacher.value["kind"] == BUILTIN else teacher.value["model"].strip()
    _ask = "Name a model: its Hugging Face id, a folder, or a .gguf file."
    teacher_facts, teacher_problem = controls.tried(catalog.facts, _model) if _model else (None, _ask)
    return teacher_facts, teacher_problem


@app.cell
def settings(capture, loss, opening, student, teacher, text, train):
    _forms = {"teacher": teacher, "text": text, "capture": capture, "student": student, "loss": loss, "train": train}
    config, problem = controls.tried(controls.config_from, opening, {_name: _form.value for _name, _form in _forms.items()})
    return config, problem


@app.cell
def tokens_shown(opening, teacher, text):
    # not from `config`: a slider of the loss should not read the text again
    token_rows, token_problem = controls.tried(controls.preview, opening, teacher.value, text.value)
    return token_problem, token_rows


@app.cell
def costs(config, problem, teacher_facts):
    cost = controls.estimate_cache(config, teacher_facts) if config and teacher_facts else None
    plan, plan_problem = (
        controls.tried(memory.report, config) if config and teacher_facts else (None, problem or "The teacher's facts come first (step 1).")
    )
    return cost, plan, plan_problem


@app.cell
def places():
    # a panel calls `arrived` when a run's state changes; what is downstream of these shows, and makes no control anew
    _at = walk.place_from(mo.query_params().to_dict())
    get_capture, set_capture = mo.state(_at.capture)
    get_training, set_training = mo.state((_at.run, _at.baseline, 0))
    get_judging, set_judging = mo.state(_at.judge)
    get_tick, set_tick = mo.state(0)
    get_notes, set_notes = mo.state({})
    return get_capture, get_judging, get_notes, get_tick, get_training, set_capture, set_judging, set_notes, set_tick, set_training


@app.cell
def look(get_tick):
    get_tick()
    found = walk.find(walk.place_from(mo.query_params().to_dict()))
    states = walk.step_states(found)
    if found.cache:
        mo.query_params().set("cache", found.cache.name)
    return found, states


@app.cell
def moving(set_capture, set_judging, set_notes, set_tick, set_training):
    def go(**names):
        """Change where this page is: its address first, then what depends on it."""
        query = mo.query_params()
        before = walk.place_from(query.to_dict())
        place = walk.moved(before, **names)
        for name in walk.PLACES:
            if getattr(place, name):
                query.set(name, getattr(place, name))
            elif name in query:
                query.remove(name)
        set_notes({})
        if place.capture != before.capture:
            set_capture(place.capture)
        if (place.run, place.baseline) != (before.run, before.baseline):
            set_training((place.run, place.baseline, 0))
        if place.judge != before.judge:
            set_judging(place.judge)
        set_tick(lambda tick: tick + 1)

    def arrived(_states):
        set_tick(lambda tick: tick + 1)

    def attempt(key, call, *args):
        """The call's result; if it fails, nothing, and its words beside the step's button."""
        result, words = controls.tried(call, *args)
        if words:
            set_notes({key: words})
        return result

    return arrived, attempt, go


@app.cell
def launch_capture(attempt, capture_button, config, go):
    mo.stop(not capture_button.value or config is None)
    if _run := attempt("cache", jobs.submit_capture, config):
        go(capture=_run.id)
    return


@app.cell
def choose_cache(cache_choice, go):
    mo.stop(not cache_choice.value)
    go(cache=cache_choice.value)
    return


@app.cell
def launch_training(attempt, config, go, train, train_button):
    mo.stop(not train_button.value or config is None)
    # everything that a click needs is read now: a cell that launches must not run again because a state changed
    _cache = walk.find(walk.place_from(mo.query_params().to_dict())).cache
    _config = controls.for_cache(config, _cache)
    _run = attempt("train", jobs.submit_training, _config, _cache.name)
    _twin = attempt("train", jobs.submit_training, hard_label_twin(_config), _cache.name) if _run and train.value["twin"] else None
    if _run:
        go(run=_run.id, baseline=_twin.id if _twin else None)
    return


@app.cell
def launch_judging(attempt, go, judge_button):
    mo.stop(not judge_button.value)
    _ids = attempt("judge", walk.to_judge, walk.place_from(mo.query_params().to_dict()))
    if _run := _ids and attempt("judge", jobs.submit_evaluation, *_ids):
        go(judge=_run.id)
    return


@app.cell
def launch_export(attempt, export_button, go):
    mo.stop(not export_button.value)
    with mo.status.spinner("Writing the folder …", remove_on_exit=True):
        _folder = attempt("home", controls.export, walk.place_from(mo.query_params().to_dict()).run)
    if _folder:
        go()
    return


@app.cell
def stop_work(stop_button, stop_capture_button):
    mo.stop(not (stop_button.value or stop_capture_button.value))
    walk.stop_all(walk.place_from(mo.query_params().to_dict()))
    return


@app.cell
def resume_work(attempt, go, resume_button, set_training):
    mo.stop(not resume_button.value)
    if attempt("train", walk.resume_all, walk.place_from(mo.query_params().to_dict())):
        set_training(lambda training: (*training[:2], training[2] + 1))
        go()
    return


@app.function(hide_code=True)
def column(*items):
    return mo.vstack([item for item in items if item is not None], gap=0.9)


@app.function(hide_code=True)
def side_by_side(*items):
    return mo.hstack(items, justify="start", align="end", wrap=True, gap=1.5) if items else None


@app.function(hide_code=True)
def step(key, states, words, *items, needs="", then=""):
    """One step of the walk: heading, one sentence, and its controls; while it lacks something, what that is and what will come."""
    heading = mo.Html(views.step_heading(key, states))
    return column(heading, mo.Html(views.locked(needs, then))) if needs else column(heading, mo.md(words), *items)


@app.function(hide_code=True)
def trouble(words):
    return mo.callout(mo.Html(views.plain(words)), kind="warn") if words else None


@app.function(hide_code=True)
def chart_of(chart):
    return mo.ui.altair_chart(chart, chart_selection=False, legend_selection=False)


@app.function(hide_code=True)
def judged(evaluation):
    rows = evaluation["rows"]
    return [
        mo.callout(mo.Html(views.plain(evaluation["verdict"])), kind="success" if "BEATS" in evaluation["verdict"] else "neutral"),
        mo.Html(views.grid([chart_of(charts.judge_chart(rows, measure=measure)).text for measure in charts.JUDGE_QUESTIONS])),
        mo.Html(scoreboard.judge_table(rows) + views.notes(evaluation["notes"])),
        mo.Html(scoreboard.samples(evaluation["prompts"], rows)),
    ]


@app.function(hide_code=True)
def label_of(options, value):
    return next(label for label, known in options.items() if known == value)


@app.function(hide_code=True)
def stops(steps, value):
    """The stops of a slider, with the value it starts at among them."""
    return sorted({*steps, value})


if __name__ == "__main__":
    app.run()
