# /// script
# [tool.marimo.opengraph]
# title = "The walk"
# description = "Nine steps from a large teacher to a small, judged student of your own."
# ///
# The walk: nine steps from a large teacher to a small, judged student. Open it with: marimo run apps/distill.py
# Story and controls first, plumbing last. Nothing here computes: a cell asks, gates, shows, or makes one call into distill_core.
import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Distil: teach a small model what a large one knows", css_file="walk.css")

with app.setup(hide_code=True):
    import contextlib

    import marimo as mo

    from distill_core import catalog, charts, jobs, language, memory, panel, push, room, runs, walk
    from distill_core.config import BUILTIN, hard_label_twin
    from distill_core.walk import (
        controls,
        earlier,
        facts,
        glossary,
        lesson,
        lookups,
        options,
        pieces,
        reading,
        scoreboard,
        steps,
        take_home,
    )


@app.cell(hide_code=True)
def top(config, found, opening, say):
    found  # the address moves with it, and the links keep the address
    html(room.page_top(mo.app_meta().request, query(), carried=walk.carried(config, opening), say=say))
    return


@app.cell(hide_code=True)
def overview(found, say, standing, wrong):
    column(
        html(pieces.hero(say)),
        html(earlier.earlier_list(earlier.earlier_work(), query(), is_open=found.is_empty, say=say)),
        *(trouble(_words) for _words in found.problems),
        html(pieces.step_bar(standing, *walk.what_next(found, wrong, say=say), is_fixed=mo.app_meta().mode == "run", say=say)),
    )
    return


@app.cell(hide_code=True)
def the_lesson(say):
    html(lesson.lesson(say=say))
    return


@app.cell(hide_code=True)
def step_teacher(say, standing, teacher, teacher_facts, teacher_problem):
    _facts = html(facts.model_facts(teacher_facts, say=say)) if teacher_facts else trouble(teacher_problem)
    step("teacher", standing, say, teacher["kind"], fields("teacher", teacher, say), _facts)
    return


@app.cell(hide_code=True)
def facts_of_teacher(say, teacher):
    _model = BUILTIN if teacher.value["kind"] == BUILTIN else teacher.value["model"].strip()
    _ask = say("Name a model: its Hugging Face id, a folder, or a .gguf file.")
    with waiting(say("Asking for the model's facts …"), is_slow=teacher.value["kind"] == "hub"):
        teacher_facts, teacher_problem = controls.tried(catalog.facts, _model) if _model else (None, _ask)
    return teacher_facts, teacher_problem


@app.cell(hide_code=True)
def step_text(say, standing, text, token_problem, token_rows):
    _tokens = html(reading.tokens(token_rows, say=say)) if token_rows else trouble(token_problem)
    _numbers, _hint = side_by_side(text["num_windows"], text["window_tokens"]), html(pieces.aside(say(steps.LESSON_HINT)))
    step("text", standing, say, text["kind"], fields("text", text, say), _numbers, _tokens, _hint, more("text", text, say))
    return


@app.cell(hide_code=True)
def tokens_shown(opening, say, teacher, text):
    # not from `config`: a slider of the loss should not read the text again
    with waiting(say("Reading the first tokens …"), is_slow=text.value["kind"] == "hub" or teacher.value["kind"] != BUILTIN):
        token_rows, token_problem = controls.tried(lookups.preview, opening, teacher.value, text.value, say=say)
    return token_problem, token_rows


@app.cell(hide_code=True)
def step_cache(
    cache_choice,
    capture,
    capture_button,
    cost,
    found,
    get_notes,
    loss,
    problem,
    reading_config,
    say,
    standing,
    stop_capture_button,
    visitor,
):
    _cache, _at = found.cache, loss.value["temperature"]
    _changed = controls.differences(reading_config, _cache, say=say) if reading_config and _cache else []
    _not_yours = trouble(walk.not_yours(walk.runs_of(found, "cache"), visitor, say=say))
    step(
        "cache",
        standing,
        say,
        side_by_side(capture["top_k"], cache_choice),
        more("capture", capture, say),
        html(facts.cost(cost, say=say)) if cost else None,
        press("cache", standing, say, capture_button, problem=problem, stop=_not_yours or stop_capture_button, is_again=_cache is not None),
        trouble(get_notes().get("cache")),
        html(pieces.aside(say("This cache was on disk already, finished: there was nothing left to read."))) if found.was_there else None,
        html(facts.cache_facts(_cache, lookups.kept_mass_at(_cache, _at), say=say)) if _cache else None,
        html(facts.stale(_changed, say=say)) if _changed else None,
    )
    return


@app.cell(hide_code=True)
def capture_panel(captured, get_capture, say):
    live({say("capture"): get_capture()}, panel.capture_pictures(say("capture"), say=say), captured, say)
    return


@app.cell(hide_code=True)
def cache_browser(found, loss, peek, say):
    _is_open, _at = peek.value["is_open"], loss.value["temperature"]
    _rows, _words = controls.tried(lookups.window_rows, found.cache, peek.value, _at) if found.cache and _is_open else (None, "")
    _shown = html(reading.window(_rows, temperature=_at, say=say)) if _rows else trouble(_words)
    column(side_by_side(peek["is_open"], *((peek["split"], peek["window"]) if _is_open else ())), _shown) if found.cache else None
    return


@app.cell(hide_code=True)
def step_student(plan, say, standing, student, student_problem, teacher_facts, teacher_problem):
    _siblings = lookups.siblings(teacher_facts) if student.value["init"] == "pretrained" and teacher_facts else None
    _suggested = html(facts.suggestions(_siblings, say=say)) if _siblings is not None else None
    _facts = (
        html(facts.student_facts(plan.student, plan.teacher, say=say))
        if plan
        else trouble(student_problem) or waits(teacher_problem, "teacher", say)
    )
    step("student", standing, say, student["init"], fields("student", student, say), more("student", student, say), _suggested, _facts)
    return


@app.cell(hide_code=True)
def step_loss(found, loss, say, states):
    _rows, _at = lookups.kept_mass_rows(found.cache) if found.cache else [], loss.value["temperature"]
    step(
        "loss",
        states,
        say,
        side_by_side(loss["temperature"], loss["hard_share"], loss["divergence"], loss["tail"]),
        html(facts.formula(loss.value, say=say)),
        more("loss", loss, say),
        chart_of(charts.kept_mass_chart(_rows, temperature=_at, say=say)),
        html(facts.kept_mass_words(_rows, _at, say=say)),
    )
    return


@app.cell(hide_code=True)
def step_plan(plan, plan_problem, say, standing, student_problem):
    _chart = (
        charts.plan_chart(plan.rows.to_dicts(), limit_gib=plan.limit_gib, limit_name=say.known(plan.limit_name), say=say) if plan else None
    )
    _none = waits(student_problem, "student", say) or trouble(plan_problem)
    step("plan", standing, say, *((chart_of(_chart), html(facts.plan_words(plan, say=say))) if plan else (_none,)))
    return


@app.cell(hide_code=True)
def step_train(
    config,
    found,
    get_notes,
    problem,
    remedy_button,
    restart_button,
    resume_button,
    say,
    standing,
    stop_button,
    student_problem,
    train,
    train_button,
    visitor,
):
    _not_yours = trouble(walk.not_yours(walk.runs_of(found, "train"), visitor, say=say))
    _go_on = _not_yours or (resume_button if found.has_checkpoint else restart_button)
    step(
        "train",
        standing,
        say,
        side_by_side(train["max_steps"], train["batch_size"], train["learning_rate"]),
        train["twin"],
        more("train", train, say),
        press("train", standing, say, train_button, problem=problem, stop=_not_yours or stop_button, is_again=found.run is not None)
        if config or problem or found.is_training
        else waits(student_problem, "student", say),
        side_by_side(*([remedy_button] if walk.remedied(found) else []), _go_on) if found.can_resume else None,
        trouble(get_notes().get("train")),
    )
    return


@app.cell(hide_code=True)
def train_panel(arrived, get_training, say):
    _names = say("student"), say("hard-label twin")
    live(dict(zip(_names, get_training(), strict=False)), lookups.training_pictures, arrived, say)
    return


@app.cell(hide_code=True)
def step_judge(found, get_notes, judge_button, say, states):
    _press = press("judge", states, say, judge_button) if found.evaluation is None else None
    step("judge", states, say, _press, trouble(get_notes().get("judge")), *(judged(found.evaluation, say) if found.evaluation else []))
    return


@app.cell(hide_code=True)
def judge_panel(arrived, found, get_judging, say):
    live({say("judging"): get_judging() if found.judge and found.judge.state != "done" else None}, [], arrived, say)
    return


@app.cell(hide_code=True)
def step_home(export_button, found, get_notes, push_button, push_to, say, states, visitor):
    _there, _notes = found.exported, get_notes()
    _refused = push.refusal() if _there and visitor.is_presenter else ""
    step(
        "home",
        states,
        say,
        html(facts.exported(_there, say=say)) if _there else press("home", states, say, export_button),
        mo.download(data=lambda: take_home.zipped(_there), filename=f"{_there.name}.zip", label=say("Download as .zip"))
        if _there
        else None,
        side_by_side(push_to, push_button) if _there and visitor.is_presenter and not _refused else None,
        html(pieces.quiet(pieces.text(say.known(_refused)))),
        html(pieces.aside(_notes["pushed"])) if "pushed" in _notes else trouble(_notes.get("home")),
    )
    return


@app.cell(hide_code=True)
def launch_export(attempt, export_button, go, say):
    mo.stop(not export_button.value)
    _id = walk.place_from(query()).run
    if attempt("home", lambda: watched(say("Writing the folder …"), take_home.exporting(_id), take_home.export_s(_id), say)):
        go()
    return


@app.cell(hide_code=True)
def launch_push(attempt, push_button, push_to, say, set_notes, visitor):
    mo.stop(not push_button.value or not visitor.is_presenter)
    _folder, _repo = walk.export_folder(walk.place_from(query()).run), push_to.value.strip()
    if attempt(
        "home", lambda: watched(say("Sending …"), take_home.pushing(_folder, push.checked_repo_id(_repo)), take_home.push_s(_folder), say)
    ):
        set_notes({"pushed": say("Sent to the Hub, private: {repo}", repo=_repo)})
    return


@app.cell(hide_code=True)
def one_config(config, found, say):
    shown_config = controls.for_cache(config, found.cache) if config and found.cache else config
    _capture = "python -m distill_core capture --config config.json"
    _train = f"python -m distill_core train --config config.json --twin --cache {found.cache.name if found.cache else 'NAME'}"
    _terminal = mo.md(say("The same in a terminal:") + f"\n```bash\n{_capture}\n{_train}\n```")
    _json = shown_config.to_json() if shown_config else ""
    _file = mo.download(data=_json.encode(), filename="config.json", label=say("Download config.json")) if _json else None
    column(
        mo.accordion({say("The one config behind all these controls"): column(_terminal, _file, mo.md(f"```json\n{_json}```"))}),
        mo.accordion({say("All words explained"): html(glossary.glossary(say=say))}),
        mo.Html('<div class="walk-room"></div>'),
    )
    return (shown_config,)


@app.cell
def opening():
    # read once: a reload finds its settings again, and a later change of the address does not reset the controls
    say = language.in_language(language.language_of(query()))
    opening = walk.opening_config(walk.place_from(query()), query())
    if walk.SETTINGS in mo.query_params():  # they are in the controls now, and would be old with the next change of one
        mo.query_params().remove(walk.SETTINGS)
    visitor = room.visitor_of(mo.app_meta().request)
    return opening, say, visitor


@app.cell
def forms(opening, say):
    _at = controls.control_values(opening)
    capture, loss, student = form("capture", _at["capture"], say), form("loss", _at["loss"], say), form("student", _at["student"], say)
    teacher, text, train = (
        form("teacher", _at["teacher"], say),
        form("text", _at["text"], say),
        form("train", _at["train"] | {"twin": True}, say),
    )
    peek = form("peek", {"is_open": False, "split": "train", "window": 0}, say)
    return capture, loss, peek, student, teacher, text, train


@app.cell
def buttons(say):
    cache_choice = mo.ui.dropdown(walk.cache_names(), label=say("or use a cache that is here"))
    capture_button, train_button, judge_button, export_button = (
        mo.ui.run_button(kind="success", label=say(_name)) for _name in pieces.BUTTONS
    )
    stop_capture_button = mo.ui.run_button(kind="warn", label=say("Stop, keep what is finished"))
    stop_button = mo.ui.run_button(kind="warn", label=say("Stop, keep the student as it is"))
    resume_button = mo.ui.run_button(label=say("Go on from the last checkpoint"))
    restart_button = mo.ui.run_button(label=say("Start it again: there is no checkpoint yet"))
    remedy_button = mo.ui.run_button(kind="success", label=say("Train again with the first way out"))
    push_to = mo.ui.text(placeholder="owner/name", label=say("To the Hugging Face Hub, private, as"))
    push_button = mo.ui.run_button(label=say("Send"))
    return (
        cache_choice,
        capture_button,
        export_button,
        judge_button,
        push_button,
        push_to,
        remedy_button,
        restart_button,
        resume_button,
        stop_button,
        stop_capture_button,
        train_button,
    )


@app.cell
def settings(capture, loss, opening, say, student, teacher, text, train):
    _forms = {"teacher": teacher, "text": text, "capture": capture, "student": student, "loss": loss, "train": train}
    _values = {_name: _form.value for _name, _form in _forms.items()}
    config, reading_config, problem, config_student_problem = controls.configs_from(opening, _values, say=say)
    return config, config_student_problem, problem, reading_config


@app.cell
def costs(config, config_student_problem, problem, reading_config, say, teacher_facts):
    cost, _ = controls.tried(lookups.estimate_cache, reading_config, teacher_facts) if reading_config and teacher_facts else (None, "")
    _first = problem or say("The teacher's facts come first (step 1).")
    plan, plan_problem = controls.tried(memory.report, config) if config and teacher_facts else (None, _first)
    # once the teacher is known, what keeps the plan from being made is the student
    student_problem = config_student_problem or (plan_problem if config and teacher_facts else "")
    return cost, plan, plan_problem, student_problem


@app.cell
def places():
    # a panel calls `arrived` when a run's state changes; what is downstream of these shows, and makes no control anew
    _at = walk.place_from(query())
    get_capture, set_capture = mo.state(walk.capture_to_watch(_at))
    get_training, set_training = mo.state((_at.run, _at.baseline, 0))
    get_judging, set_judging = mo.state(_at.judge)
    get_tick, set_tick = mo.state(0)
    get_notes, set_notes = mo.state({})
    return get_capture, get_judging, get_notes, get_tick, get_training, set_capture, set_judging, set_notes, set_tick, set_training


@app.cell
def look(get_tick):
    get_tick()
    found = walk.find(walk.place_from(query()))
    states = walk.step_states(found)
    if found.cache:
        mo.query_params().set("cache", found.cache.name)
    return found, states


@app.cell
def standings(found, student_problem, teacher_problem, token_problem):
    # besides what the folders say: what cannot be used as it is set; not for the steps that draw much and do not depend on it
    _troubles = {"teacher": teacher_problem, "text": not teacher_problem and token_problem, "student": student_problem}
    wrong = [_key for _key, _words in _troubles.items() if _words]
    standing = walk.step_states(found, wrong)
    return standing, wrong


@app.cell
def moving(set_capture, set_judging, set_notes, set_tick, set_training):
    def go(**names):
        """Change where this page is: its address first, then what depends on it."""
        before = walk.place_from(query())
        place = walk.moved(before, **names)
        for name in walk.PLACES:
            if getattr(place, name):
                mo.query_params().set(name, getattr(place, name))
            elif name in mo.query_params():
                mo.query_params().remove(name)
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

    def captured(_states):
        if walk.capture_to_watch(walk.place_from(query())) is None:
            set_capture(None)  # nothing was read: its charts would stay empty
        set_tick(lambda tick: tick + 1)

    def attempt(key, call, *args, **named):
        """The call's result; if it fails, nothing, and its words beside the step's button."""
        result, words = controls.tried(call, *args, **named)
        if words:
            set_notes({key: words})
        return result

    return arrived, attempt, captured, go


@app.cell
def launch_capture(attempt, capture_button, go, reading_config, visitor):
    mo.stop(not capture_button.value or reading_config is None)
    if _run := attempt("cache", jobs.submit_capture, reading_config, owner=visitor.name):
        go(capture=_run.id)
    return


@app.cell
def choose_cache(cache_choice, go):
    mo.stop(not cache_choice.value)
    go(cache=cache_choice.value)
    return


@app.cell
def launch_training(attempt, config, go, remedy_button, train, train_button, visitor):
    mo.stop(not (train_button.value or remedy_button.value) or config is None)
    # everything that a click needs is read now: a cell that launches must not run again because a state changed
    _found = walk.find(walk.place_from(query()))
    _cache = _found.cache
    _config = walk.remedied(_found) if remedy_button.value else controls.for_cache(config, _cache)
    _run = attempt("train", jobs.submit_training, _config, _cache.name, owner=visitor.name)
    _with_twin = _run and train.value["twin"]
    _twin = attempt("train", jobs.submit_training, hard_label_twin(_config), _cache.name, owner=visitor.name) if _with_twin else None
    if _run:
        go(run=_run.id, baseline=_twin.id if _twin else None)
    return


@app.cell
def launch_judging(attempt, go, judge_button, visitor):
    mo.stop(not judge_button.value)
    _ids = attempt("judge", walk.to_judge, walk.place_from(query()))
    if _run := _ids and attempt("judge", jobs.submit_evaluation, *_ids, owner=visitor.name):
        go(judge=_run.id)
    return


@app.cell
def stop_work(attempt, stop_button, stop_capture_button, visitor):
    mo.stop(not (stop_button.value or stop_capture_button.value))
    attempt("train" if stop_button.value else "cache", walk.stop_all, walk.place_from(query()), visitor)
    return


@app.cell
def resume_work(attempt, go, restart_button, resume_button, set_training, visitor):
    mo.stop(not (resume_button.value or restart_button.value))
    if attempt("train", walk.resume_all, walk.place_from(query()), visitor):
        set_training(lambda training: (*training[:2], training[2] + 1))
        go()
    return


@app.function(hide_code=True)
def query():
    """The page's address as a plain dict; a cell that asks this way does not run again when the address changes."""
    return mo.query_params().to_dict()


@app.function(hide_code=True)
def column(*items):
    return mo.vstack([item for item in items if item is not None], gap=0.9)


@app.function(hide_code=True)
def side_by_side(*items):
    return mo.hstack(items, justify="start", align="end", wrap=True, gap=1.5) if items else None


@app.function(hide_code=True)
def html(words):
    return mo.Html(words) if words else None


@app.function(hide_code=True)
def step(key, states, say, *items):
    """One step of the walk: heading, one sentence, its controls, its words explained; locked: what it needs and what will come."""
    said, heading = steps.WORDS[key], html(pieces.step_heading(key, states, say=say))
    if states[key] == "locked":
        inside = [html(pieces.locked(say(said.needs), say(said.then), say=say))]
    else:
        inside = [mo.md(say(said.head)), *items, html(glossary.why(*said.terms, say=say))]
    return mo.Html(f'<section lang="{say.code}" aria-labelledby="step-{key}">{column(heading, *inside).text}</section>')


@app.function(hide_code=True)
def press(key, states, say, button, *, problem="", stop=None, is_again=False):
    """A step's button with what it does; while it works, the one that stops it; while the settings are wrong, why."""
    if states[key] in ("working", "waiting"):
        return stop
    said = steps.WORDS[key]
    return trouble(problem) or mo.Html(pieces.press(button.text, say(said.again if is_again else said.press), state=states[key]))


@app.function(hide_code=True)
def live(names, pictures, on_change, say):
    """The live panel of those runs, by name -> id, that are there; `pictures` may be a function of them."""
    tracks = {name: run for name, run_id in names.items() if run_id and (run := controls.tried(runs.open_run, run_id)[0])}
    made = pictures(tracks, say=say) if callable(pictures) and tracks else pictures
    return mo.ui.anywidget(panel.LivePanel(tracks, made, on_change=on_change, say=say)) if tracks else None


@app.function(hide_code=True)
def form(section, values, say):
    """The section's controls of walk/options.py as widgets of the kinds that they name."""
    controls_of = options.FORMS[section].items()
    return mo.ui.dictionary({name: getattr(mo.ui, it.kind)(**options.arguments(it, values[name], say)) for name, it in controls_of})


@app.function(hide_code=True)
def fields(section, form, say):
    """The text and number fields that the section's choice asks for."""
    return chosen(section, form, options.fields_for(section, form.value), say)


@app.function(hide_code=True)
def chosen(section, form, names, say):
    """Those controls, and under them what is said of the techniques that they switch on."""
    said = html(pieces.techniques(options.techniques_of(section, names), say=say))
    return column(side_by_side(*(form[name] for name in names)), said) if said else side_by_side(*(form[name] for name in names))


@app.function(hide_code=True)
def more(section, form, say):
    names = options.more_for(section, form.value)
    return mo.accordion({say("More settings"): chosen(section, form, names, say)}) if names else None


@app.function(hide_code=True)
def trouble(words):
    return mo.callout(mo.Html(pieces.plain(words)), kind="warn") if words else None


@app.function(hide_code=True)
def waits(problem, key, say):
    """Where another step's problem leaves nothing to show: which step it is, its words stand there."""
    where = say("Waits for step {number}: {title}.", number=list(walk.STEPS).index(key) + 1, title=say(walk.STEPS[key]))
    return html(pieces.quiet(pieces.text(where))) if problem else None


@app.function(hide_code=True)
def waiting(words, *, is_slow):
    return mo.status.spinner(words, remove_on_exit=True) if is_slow else contextlib.nullcontext()


@app.function(hide_code=True)
def watched(title, seconds, expected_s, say):
    """Show how far a process is while it works; True when it has ended well."""
    with mo.status.progress_bar(total=100, title=title, show_eta=False, show_rate=False, remove_on_exit=True) as bar:
        shown = 0
        for gone in seconds:
            share = min(99, round(100 * gone / expected_s))
            bar.update(share - shown, subtitle=take_home.left(gone, expected_s, say=say))
            shown = share
    return True


@app.function(hide_code=True)
def chart_of(chart):
    return mo.ui.altair_chart(chart, chart_selection=False, legend_selection=False)


@app.function(hide_code=True)
def judged(evaluation, say):
    rows = evaluation["rows"]
    words = mo.Html(pieces.plain(scoreboard.verdict(evaluation, say=say)))
    return [
        mo.callout(words, kind="success" if "BEATS" in evaluation["verdict"] else "neutral"),
        mo.Html(pieces.grid([chart_of(charts.judge_chart(rows, measure=measure, say=say)).text for measure in charts.JUDGE_QUESTIONS])),
        mo.Html(scoreboard.judge_table(rows, say=say) + pieces.notes([say.known(note) for note in evaluation["notes"]])),
        mo.Html(scoreboard.samples(evaluation["prompts"], rows, say=say)),
    ]


if __name__ == "__main__":
    app.run()
