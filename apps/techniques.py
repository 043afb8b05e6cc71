# /// script
# [tool.marimo.opengraph]
# title = "Techniques"
# description = "What practice knows beyond plain soft targets: when to use it, what it costs, what it gained, and forms to start it."
# ///
# Techniques beyond plain soft targets. Open it with: marimo run apps/techniques.py
# Story and controls first, plumbing last. Nothing here computes: a cell asks, gates, shows, or makes one call into distill_core.
import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Distil: techniques", css_file="walk.css")

with app.setup(hide_code=True):
    import marimo as mo

    from distill_core import chain, language, panel, practice, room
    from distill_core.charts.chain import chain_chart
    from distill_core.practice import cards, forms, job
    from distill_core.techniques import TECHNIQUES
    from distill_core.walk import controls, options, pieces


@app.cell(hide_code=True)
def top(get_job, say):
    get_job()  # the address moves with it, and the links keep the address
    _words = say(
        "Soft targets alone are a good start. Here is what practice adds: when to use it, what it costs, and what it gained on the "
        "built-in models at an equal budget. Most are one switch in the walk; what is a job of its own starts here."
    )
    _contents = " ".join(f'<a href="#technique-{_name}">{pieces.text(say(_it.title))}</a>' for _name, _it in TECHNIQUES.items())
    mo.Html(
        room.page_top(mo.app_meta().request, mo.query_params().to_dict(), say=say)
        + f'<div class="walk-hero"><div><h1>{say("Techniques")}</h1><p>{_words}</p></div></div>'
        + f'<nav class="practice-contents" aria-label="{say("Techniques")}">{_contents}</nav>'
    )
    return


@app.cell(hide_code=True)
def job_head(found, get_notes, problem, resume_button, say, stop_button, tick, visitor):
    mo.stop(found is None and not problem, None)
    if found is None:
        _inside = [trouble(problem)]
    else:
        _state = job.state_of(found)
        _is_active, _refused = _state in ("queued", "running"), practice.not_yours(found, visitor, say=say)
        _button = stop_button if _is_active else resume_button if _state in ("failed", "stopped") else None
        _words = say("{name}: {state}", name=found.name, state=say(chain.STATES[_state]))
        _inside = [
            mo.Html(f'<h2 id="at-work">{pieces.text(_words)}</h2>'),
            side_by_side(*((trouble(_refused) if _refused else _button,) if _button else ()), *((tick,) if _is_active else ())),
            trouble(get_notes().get("job")),
        ]
    column(*_inside)
    return


@app.cell(hide_code=True)
def job_panel(arrived, get_watched, say):
    _run = get_watched() and controls.tried(practice.watched, practice.Job(run=get_watched()))[0]
    _track = {_run.id: _run} if _run else {}
    _pictures = panel.training_pictures([_run.id], say=say) if _run and _run.stored_status().kind == "train" else []
    mo.ui.anywidget(panel.LivePanel(_track, _pictures, on_change=arrived, say=say)) if _track else None
    return


@app.cell(hide_code=True)
def job_results(found, query, say, tick):
    tick.value
    mo.stop(found is None, None)
    if found.chain:
        _rows = chain.rows(chain.open_chain(found.chain))
        _table = mo.Html(cards.table(chain.table_rows(_rows, say=say)))
        _has_figures = any(_row["kl_to_teacher"] is not None for _row in _rows if _row["link"] != "teacher")
        _chart = chart_of(chain_chart(_rows, say=say)) if _has_figures else None
        _shown = column(_table, _chart, mo.Html(pieces.quiet(pieces.text(chain.verdict(_rows, say=say)))))
    else:
        _made = job.result_of(found)
        _page = room.address_of_page("distill", mo.app_meta().request, query, **job.for_walk(_made))
        _shown = mo.Html(cards.result(_made, _page, say=say)) if _made else None
    _shown
    return


@app.cell(hide_code=True)
def all_cards(query, rows, say):
    def _address(step):
        _page = room.address_of_page("distill", mo.app_meta().request, query)
        return f"{_page}#step-{step}" if _page else None

    mo.Html(f'<div lang="{say.code}">{cards.cards(rows, forms.FORMS, _address, say=say)}</div>')
    return


@app.cell(hide_code=True)
def form_write(get_notes, say, write_button, write_form):
    form_section("write", write_form, write_button, get_notes(), say)
    return


@app.cell(hide_code=True)
def form_chain(chain_button, chain_form, get_notes, say):
    form_section("chain", chain_form, chain_button, get_notes(), say)
    return


@app.cell(hide_code=True)
def form_merge(get_notes, say, merge_button, merge_form):
    form_section("merge", merge_form, merge_button, get_notes(), say)
    return


@app.cell(hide_code=True)
def form_translate(get_notes, say, translate_button, translate_form):
    form_section("translate", translate_form, translate_button, get_notes(), say)
    return


@app.cell(hide_code=True)
def gains(rows, say):
    _words = say(
        "The built-in models, 300 steps of 8 windows for each arm, the same number for what trains in rounds; time before training, "
        "disk and memory beside it. Above 0 the technique helped; a gain counts where it is larger than its interval."
    )
    _again = mo.md(say("Measure it on your machine:") + "\n```bash\npython -m distill_core bench techniques\n```")
    column(
        mo.Html(f"<h2 id='gains'>{say('What they gained')}</h2>" + pieces.words_of(_words)),
        mo.Html(cards.gains_table(rows, say=say)),
        _again,
    )
    return


@app.cell
def opening():
    # read once: a later change of the address does not reset the controls
    query = mo.query_params().to_dict()
    say = language.in_language(language.language_of(query))
    visitor = room.visitor_of(mo.app_meta().request)
    opened = practice.job_from(query)
    rows = practice.measured()
    return opened, query, rows, say, visitor


@app.cell
def forms_of(say):
    write_form, chain_form, merge_form, translate_form = (form(_name, say) for _name in ("write", "chain", "merge", "translate"))
    return chain_form, merge_form, translate_form, write_form


@app.cell
def buttons(say):
    write_button, chain_button, merge_button, translate_button = (
        mo.ui.run_button(kind="success", label=say(forms.FORMS[_name].press)) for _name in ("write", "chain", "merge", "translate")
    )
    stop_button = mo.ui.run_button(kind="warn", label=say("Stop, keep what is finished"))
    resume_button = mo.ui.run_button(label=say("Let it go on"))
    tick = mo.ui.refresh(options=["5s", "1m"], default_interval="5s", label=say("What runs now"))
    return chain_button, merge_button, resume_button, stop_button, tick, translate_button, write_button


@app.cell
def places(opened):
    get_job, set_job = mo.state(opened)
    get_watched, set_watched = mo.state(None)
    get_tick, set_tick = mo.state(0)
    get_notes, set_notes = mo.state({})
    kept = {"watched": None}
    return get_job, get_notes, get_tick, get_watched, kept, set_job, set_notes, set_tick, set_watched


@app.cell
def look(get_job, get_tick, kept, set_watched, tick):
    get_tick(), tick.value
    _run, problem = controls.tried(practice.watched, get_job()) if get_job() else (None, "")
    found = None if problem else get_job()
    if kept["watched"] != (_run and _run.id):  # the panel is made anew with another run only
        kept["watched"] = _run and _run.id
        set_watched(kept["watched"])
    return found, problem


@app.cell
def moving(set_job, set_notes, set_tick):
    def go(to):
        """Show that job: its address first, then what depends on it."""
        for name in job.PLACES:
            if getattr(to, name):
                mo.query_params().set(name, getattr(to, name))
            elif name in mo.query_params():
                mo.query_params().remove(name)
        set_notes({})
        set_job(to)
        set_tick(lambda tick: tick + 1)

    def arrived(_states):
        set_tick(lambda tick: tick + 1)

    def attempt(key, call, *args, **named):
        """The call's result; if it fails, nothing, and its words beside the form's button."""
        result, words = controls.tried(call, *args, **named)
        if words:
            set_notes({key: words})
        return result

    return arrived, attempt, go


@app.cell
def launch(
    attempt, chain_button, chain_form, go, merge_button, merge_form, translate_button, translate_form, visitor, write_button, write_form
):
    _pressed = {
        "write": (write_button, write_form),
        "chain": (chain_button, chain_form),
        "merge": (merge_button, merge_form),
        "translate": (translate_button, translate_form),
    }
    for _name, (_button, _form) in _pressed.items():
        if _button.value and (_made := attempt(_name, forms.FORMS[_name].start, _form.value, owner=visitor.name)):
            go(practice.moved(_made))
    return


@app.cell
def stop_job(attempt, stop_button, visitor):
    mo.stop(not stop_button.value)
    attempt("job", practice.stop, practice.job_from(mo.query_params().to_dict()), visitor)
    return


@app.cell
def resume_job(attempt, go, resume_button, visitor):
    mo.stop(not resume_button.value)
    if _job := attempt("job", practice.resume, practice.job_from(mo.query_params().to_dict()), visitor):
        go(_job)
    return


@app.function(hide_code=True)
def form(name, say):
    """The form's controls as widgets of the kinds that they name."""
    made = forms.FORMS[name].controls().items()
    return mo.ui.dictionary({key: getattr(mo.ui, it.kind)(**options.arguments(it, value, say)) for key, (it, value) in made})


@app.function(hide_code=True)
def form_section(name, made, button, notes, say):
    it = forms.FORMS[name]
    heading = f'<h2 id="form-{name}">{pieces.text(say(it.title))}</h2>{pieces.words_of(say(it.words))}'
    fields = side_by_side(*(made[key] for key in it.fields(made.value)))
    shown = column(mo.Html(heading), fields, side_by_side(button), trouble(notes.get(name)))
    return mo.Html(f'<section lang="{say.code}" class="practice-form">{shown.text}</section>')


@app.function(hide_code=True)
def column(*items):
    return mo.vstack([item for item in items if item is not None], gap=0.9)


@app.function(hide_code=True)
def side_by_side(*items):
    return mo.hstack(items, justify="start", align="end", wrap=True, gap=1.5) if items else None


@app.function(hide_code=True)
def trouble(words):
    return mo.callout(mo.Html(pieces.plain(words)), kind="warn") if words else None


@app.function(hide_code=True)
def chart_of(chart):
    return mo.ui.altair_chart(chart, chart_selection=False, legend_selection=False)


if __name__ == "__main__":
    app.run()
