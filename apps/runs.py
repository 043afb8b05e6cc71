# /// script
# [tool.marimo.opengraph]
# title = "Compare runs"
# description = "All caches and runs: curves, quality and settings side by side, and what may be deleted."
# ///
# All runs and caches, side by side. Open it with: marimo run apps/runs.py
# Story and controls first, plumbing last. Nothing here computes: a cell asks, gates, shows, or makes one call into distill_core.
import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Distil: compare runs", css_file="walk.css")

with app.setup(hide_code=True):
    import marimo as mo

    from distill_core import comparison, language, room, runs
    from distill_core.charts.comparison import PICTURES, overlay_chart
    from distill_core.charts.saving import saved
    from distill_core.comparison import views
    from distill_core.errors import DistillError


@app.cell(hide_code=True)
def heading(query, say):
    mo.Html(
        room.page_top(mo.app_meta().request, query, say=say)
        + f'<div class="walk-hero"><div><h1>{say("Compare runs")}</h1><p>'
        + say(
            "Everything on this disk: captures, trainings, judgings, and the caches between them. Tick lines to lay them over each other."
        )
        + "</p></div></div>"
    )
    return


@app.cell(hide_code=True)
def controls(kinds, named, refresh, say, states, tick):
    column(
        side_by_side(kinds, states, named, refresh, tick),
        quiet(say("Press Look again after something has ended. What runs now is read again by itself.")),
    )
    return


@app.cell(hide_code=True)
def running(say, tick):
    tick.value
    mo.Html(views.at_work(comparison.run_rows(comparison.active_runs()), say=say))
    return


@app.cell(hide_code=True)
def show_table(all_rows, rows, say, table):
    if not all_rows:
        _shown = mo.callout(say("There is nothing yet. Capture and train in the walk, or: python -m distill_core demo"))
    elif not rows:
        _shown = mo.callout(say("No line has such a name, kind and state. Choose others above."))
    else:
        _csv = mo.download(data=lambda: views.csv_of(rows), filename="runs.csv", label=say("All figures as CSV"))
        _note = quiet(say("The words on the table's own buttons are English.")) if say.code != "en" else None
        _shown = column(table, _note, side_by_side(_csv))
    _shown
    return


@app.cell(hide_code=True)
def curves(chosen, say):
    mo.stop(not chosen, mo.callout(say("Tick one or more trainings in the table: their curves, settings and quality will stand here.")))
    _rows = comparison.look_rows(chosen)
    _charts = {_name: overlay_chart(_rows, picture=_name, say=say) for _name in PICTURES}
    _pictures = [
        column(chart_of(_chart), side_by_side(*(download(_chart, _name, _form) for _form in ("svg", "png"))))
        for _name, _chart in _charts.items()
    ]
    column(heading_of(say("Curves")), mo.Html(views.legend([_run.id for _run in chosen])), grid(_pictures))
    return


@app.cell(hide_code=True)
def verdict(chosen, say):
    _found = comparison.verdicts(chosen)
    mo.stop(not _found)
    _kinds = {"BEATS": "success", "WORSE": "danger"}
    _words = say(
        "A distilled run is paired with its hard-label twin of the same seed, which is found by itself. Both measures must agree beyond their intervals."
    )
    column(
        heading_of(say("Does the teacher help?")),
        quiet(_words),
        *(mo.callout(mo.Html(_one.to_text(say)), kind=_kinds.get(_one.word, "neutral")) for _one in _found),
    )
    return


@app.cell(hide_code=True)
def quality(chosen, say):
    mo.stop(not chosen)
    column(heading_of(say("How good, how large, how fast?")), mo.Html(views.quality_table(comparison.quality_rows(chosen), say=say)))
    return


@app.cell(hide_code=True)
def settings(chosen, say):
    mo.stop(not chosen)
    _ids = [_run.id for _run in chosen]
    _rows = comparison.run_differences(chosen)
    column(heading_of(say("What was set differently?")), mo.Html(views.difference_table(_rows, _ids, say=say)))
    return


@app.cell(hide_code=True)
def samples(chosen, say):
    mo.stop(not chosen)
    column(heading_of(say("What do they write?")), mo.Html(views.samples(*comparison.sample_rows(chosen), say=say)))
    return


@app.cell(hide_code=True)
def into_the_walk(chosen, query, say):
    mo.stop(not chosen)
    _request = mo.app_meta().request
    mo.Html(views.links({_run.id: room.address_of_page("distill", _request, query, run=_run.id) for _run in chosen}, say=say))
    return


@app.cell(hide_code=True)
def show_deletion(delete_button, deletions, is_sure, say):
    mo.stop(not deletions)
    _words = mo.Html("".join(f"<p>{mo.as_html(_line).text}</p>" for _line in views.deletion_words(deletions, say=say)))
    _can = any(not _what.refused for _what in deletions)
    column(heading_of(say("Delete")), _words, side_by_side(is_sure, delete_button) if _can else None)
    return


@app.cell(hide_code=True)
def deleted(get_note):
    mo.callout(get_note(), kind="warn") if get_note() else None
    return


@app.cell
def opening():
    # read once: a later change of the address does not reset the controls
    query = mo.query_params().to_dict()
    say = language.in_language(language.language_of(query))
    visitor = room.visitor_of(mo.app_meta().request)
    kept = {"picked": [name for name in str(query.get("compare", "")).split(",") if name]}
    return kept, query, say, visitor


@app.cell
def filters(say):
    kinds = mo.ui.multiselect({say(_word): _kind for _kind, _word in views.KINDS.items()}, label=say("Kinds"))
    states = mo.ui.multiselect({say(_word): _state for _state, _word in views.STATES.items()}, label=say("States"))
    named = mo.ui.text(label=say("Name contains"))
    return kinds, named, states


@app.cell
def looking(say):
    refresh = mo.ui.button(value=0, on_click=lambda count: count + 1, label=say("Look again"))
    tick = mo.ui.refresh(options=["10s", "1m"], default_interval="10s", label=say("What runs now"))
    return refresh, tick


@app.cell
def notes():
    get_note, set_note = mo.state("")
    get_gone, set_gone = mo.state(0)
    return get_gone, get_note, set_gone, set_note


@app.cell
def read(get_gone, refresh):
    refresh.value, get_gone()
    all_rows = comparison.run_rows() + comparison.cache_rows()
    return (all_rows,)


@app.cell
def picker(all_rows, kept, kinds, named, say, states):
    # made anew only when the visitor looks again or filters; `kept` holds what was ticked, outside the graph
    rows = [
        _row
        for _row in all_rows
        if named.value.strip().lower() in _row["id"].lower()
        and (not kinds.value or _row["kind"] in kinds.value)
        and (not states.value or _row["state"] in states.value)
    ]
    _ticked = [_place for _place, _row in enumerate(rows) if _row["id"] in kept["picked"]]
    table = mo.ui.table(
        views.table_rows(rows, say=say),
        selection="multi",
        initial_selection=_ticked,
        page_size=15,
        show_data_types=False,
        show_column_summaries=False,
        show_download=False,
        show_search=False,  # its words are English in every language; the filters above are ours
        freeze_columns_left=[say(views.COLUMNS["id"])] if rows else None,
    )
    return rows, table


@app.cell
def choice(kept, rows, say, table):
    _names = {_line[say(views.COLUMNS["id"])] for _line in table.value}
    _ticked = [_row for _row in rows if _row["id"] in _names]
    picked = [("cache" if _row["kind"] == "cache" else "run", _row["id"]) for _row in _ticked]
    kept["picked"] = [_name for _, _name in picked]
    mo.query_params().set("compare", ",".join(kept["picked"])) if picked else None
    chosen = opened([_row["id"] for _row in _ticked if _row["kind"] == "train"])
    return chosen, picked


@app.cell
def delete_controls(picked, say, visitor):
    deletions = planned(picked, visitor)
    is_sure = mo.ui.checkbox(label=say("Yes, delete them for good"))
    return deletions, is_sure


@app.cell
def delete_press(is_sure, say):
    delete_button = mo.ui.run_button(label=say("Delete"), kind="danger", disabled=not is_sure.value)
    return (delete_button,)


@app.cell
def deleting(delete_button, deletions, is_sure, set_gone, set_note, visitor):
    mo.stop(not (delete_button.value and is_sure.value))
    set_note(delete_all(deletions, visitor))
    set_gone(lambda count: count + 1)
    return


@app.function(hide_code=True)
def opened(names):
    """Those of the runs that are still there."""
    found = []
    for name in names:
        try:
            found.append(runs.open_run(name))
        except DistillError:
            continue
    return found


@app.function(hide_code=True)
def planned(picked, visitor):
    found = []
    for kind, name in picked:
        try:
            found.append(comparison.deletion_of(kind, name, by=visitor))
        except DistillError:
            continue
    return found


@app.function(hide_code=True)
def delete_all(deletions, visitor):
    """Words for what could not be deleted; '' where all went."""
    troubles = []
    for what in deletions:
        if what.refused:
            continue
        try:
            comparison.delete(what, by=visitor)
        except DistillError as error:
            troubles.append(str(error))
    return " ".join(troubles)


@app.function(hide_code=True)
def column(*items):
    return mo.vstack([item for item in items if item is not None], gap=0.9)


@app.function(hide_code=True)
def side_by_side(*items):
    return mo.hstack(items, justify="start", align="end", wrap=True, gap=1.5)


@app.function(hide_code=True)
def grid(items):
    return mo.Html('<div class="runs-grid">' + "".join(f"<div>{item.text}</div>" for item in items) + "</div>")


@app.function(hide_code=True)
def heading_of(words):
    return mo.md(f"## {words}")


@app.function(hide_code=True)
def quiet(words):
    return mo.Html(f'<p class="walk-quiet">{words}</p>')


@app.function(hide_code=True)
def chart_of(chart):
    return mo.ui.altair_chart(chart, chart_selection=False, legend_selection=False)


@app.function(hide_code=True)
def download(chart, name, form):
    return mo.download(data=lambda: saved(chart, form), filename=f"{name}.{form}", label=form.upper())


if __name__ == "__main__":
    app.run()
