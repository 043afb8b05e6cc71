# /// script
# [tool.marimo.opengraph]
# title = "Temperature and top-K"
# description = "One position of your cache: what the teacher believes, what K keeps of it, and what each tail mode would teach."
# ///
# Temperature and top-K, on a cache of yours. Open it with: marimo run apps/playground.py
# Story and controls first, plumbing last. Nothing here computes: a cell asks, gates, shows, or makes one call into distill_core.
import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Distil: temperature and top-K", css_file="walk.css")

with app.setup(hide_code=True):
    import marimo as mo

    from distill_core import charts, jobs, language, panel, pictures, playground, room, runs, walk
    from distill_core.config import from_dict
    from distill_core.errors import DistillError
    from distill_core.playground.exercise import lesson_block
    from distill_core.walk import pieces


@app.cell(hide_code=True)
def heading(query, say):
    mo.Html(
        room.page_top(mo.app_meta().request, query, say=say)
        + f'<div class="walk-hero"><div><h1>{say("Temperature and top-K")}</h1><p>'
        + say(
            "At every position the teacher has a belief: a probability for each token that could come next. A cache keeps the K most likely ones, and of the rest what is needed to know its sum at any temperature T. Move T and K, and see what that keeps, what it loses, and what a student would be taught."
        )
        + "</p></div></div>"
    )
    return


@app.cell(hide_code=True)
def lesson(say):
    mo.Html(lesson_block(say))
    return


@app.cell(hide_code=True)
def nothing_yet(capture_button, names, note, say):
    column(
        mo.Html(
            f'<div class="walk-locked"><b>{say("No cache is here yet.")}</b> '
            + say(
                "Press the button: the built-in teacher reads 60 windows of its stories, in about a minute and without network. Or capture a teacher of your own in the walk; this page shows any cache."
            )
            + "</div>"
        ),
        capture_button,
        mo.callout(mo.Html(pieces.plain(note())), kind="warn") if note() else None,
    ) if not names else None
    return


@app.cell(hide_code=True)
def capturing(get_capture, look_again, names, say):
    _run = runs.open_run(get_capture()) if get_capture() and not names else None
    mo.ui.anywidget(
        panel.LivePanel({"capture": _run}, panel.capture_pictures("capture", say=say), on_change=look_again, say=say)
    ) if _run else None
    return


@app.cell(hide_code=True)
def choose(cache_name, names, say, where):
    column(
        mo.md("## " + say("The text")),
        mo.md(say("Choose a window of the cache and click a token: everything below speaks of what the teacher expected there.")),
        side_by_side(cache_name, where["split"], where["window"]),
    ) if names else None
    return


@app.cell(hide_code=True)
def text(opened, problem, say, where):
    _window, _words = tried(opened.window, where.value["split"], where.value["window"] or 0) if opened else (None, problem)
    _made, _words = tried(lambda: playground.TokenStrip(_window, say=say)) if _window else (None, _words)
    window = _window if _made else None
    strip = mo.ui.anywidget(_made) if _made else None
    strip if strip is not None else (mo.callout(mo.Html(pieces.plain(_words)), kind="warn") if _words else None)
    return strip, window


@app.cell(hide_code=True)
def knobs_shown(knobs, opened, say):
    column(
        mo.md("## " + say("Temperature and K")),
        mo.md(
            say(
                "T divides the teacher's log-probabilities: above 1 it flattens the belief, below 1 it sharpens it. K is how many tokens are kept. With a slider in focus the arrow keys move it."
            )
        ),
        side_by_side(knobs["temperature"], knobs["top_k"], knobs["divergence"]),
    ) if opened else None
    return


@app.cell(hide_code=True)
def numbers(belief, place, say):
    mo.Html(pieces.facts(playground.belief_facts(belief, place, say=say), say=say)) if belief else None
    return


@app.cell(hide_code=True)
def charts_shown(frames):
    mo.ui.anywidget(frames) if frames else None
    return


@app.cell(hide_code=True)
def in_words(belief, knobs, opened, say):
    column(
        mo.md("## " + say("What it means")),
        mo.Html(listed(playground.mode_words(belief, divergence=knobs.value["divergence"], say=say))),
        mo.md("**" + say("Advice from this cache, over all its sampled positions") + "**"),
        mo.Html(
            listed(
                playground.advice(
                    opened.mass, temperature=knobs.value["temperature"], top_k=min(knobs.value["top_k"], opened.mass.top_k), say=say
                )
            )
        ),
        mo.Html(
            pieces.aside(
                say(
                    "The error bars come from the tails that the cache stores at six temperatures: at those they are rounding, between them they hold at every position. Chance from which text was read is not in them."
                )
            )
        ),
    ) if belief else None
    return


@app.cell
def opening():
    query = mo.query_params().to_dict()
    say = language.in_language(language.language_of(query))
    visitor = room.visitor_of(mo.app_meta().request)
    get_capture, set_capture = mo.state(None)
    note, set_note = mo.state("")
    get_looked, set_looked = mo.state(0)
    return get_capture, get_looked, note, query, say, set_capture, set_looked, set_note, visitor


@app.cell
def looking(set_looked):
    def look_again(_states):
        set_looked(lambda count: count + 1)

    return (look_again,)


@app.cell
def found(get_looked):
    get_looked()
    names = walk.cache_names()
    return (names,)


@app.cell
def pick(names, query, say):
    _asked = query.get("cache")
    _asked = _asked[-1] if isinstance(_asked, list) else _asked
    cache_name = mo.ui.dropdown(
        names, value=_asked if _asked in names else (names[0] if names else None), allow_select_none=not names, label=say("Cache")
    )
    return (cache_name,)


@app.cell
def place_in_it(say):
    _splits = {say("to train on"): "train", say("held out"): "heldout"}
    where = mo.ui.dictionary(
        {
            "split": mo.ui.dropdown(_splits, value=say("to train on"), allow_select_none=False, label=say("Windows")),
            "window": mo.ui.number(0, 1_000_000_000, step=1, value=0, label=say("Number, from 0")),
        }
    )
    return (where,)


@app.cell
def open_it(cache_name):
    opened, problem = tried(playground.open_shared, cache_name.value) if cache_name.value else (None, "")
    if opened:
        mo.query_params().set("cache", cache_name.value)
    return opened, problem


@app.cell
def knobs_made(opened, say):
    _most = opened.cache.plan.num_ranked if opened else 100
    _ks = sorted({k for k in (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 64, 80, 100, 128, 150, 200, 256, 512) if k < _most} | {_most})
    _ways = {
        say("all it finds likely (forward KL)"): "forward_kl",
        say("its favourites (reverse KL)"): "reverse_kl",
        say("a mixture of both (JSD)"): "jsd",
    }
    knobs = mo.ui.dictionary(
        {
            "temperature": mo.ui.slider(steps=list(playground.TEMPERATURES), value=1.0, show_value=True, label=say("Temperature T")),
            "top_k": mo.ui.slider(steps=_ks, value=min(20, _most), show_value=True, label="K"),
            "divergence": mo.ui.dropdown(
                _ways, value=say("all it finds likely (forward KL)"), allow_select_none=False, label=say("The student should match")
            ),
        }
    )
    return (knobs,)


@app.cell
def frames_made(opened, say):
    # made once for a cache: sliders then send rows, and no chart is made anew
    _drawn = (
        ("belief", charts.belief_chart(say=say), False),
        ("taught", charts.taught_chart(say=say), False),
        ("kept-mass", charts.mass_chart(say=say), True),
    )
    frames = (
        pictures.Pictures(
            [pictures.picture(_chart, _name, is_wide=_wide) for _name, _chart, _wide in _drawn], owner=opened.cache.name, say=say
        )
        if opened
        else None
    )
    return (frames,)


@app.cell
def look_here(knobs, strip, window):
    place = window.place(strip.value["position"]) if window else None
    _k = min(knobs.value["top_k"], len(place.ids_K)) if place else 0
    belief = playground.believe(place, temperature=knobs.value["temperature"], top_k=_k) if place else None
    return belief, place


@app.cell
def redraw(belief, frames, knobs, opened, place, say):
    mo.stop(not belief)
    _t, _k = knobs.value["temperature"], len(belief.probabilities_K)
    frames.show(
        **{
            "belief": playground.belief_rows(place, opened, temperature=_t, top_k=_k, say=say),
            "taught": playground.taught_rows(place, opened, belief, divergence=knobs.value["divergence"], say=say),
            "kept-mass": playground.mass_rows(opened.mass, temperature=_t, top_k=min(knobs.value["top_k"], opened.mass.top_k), say=say),
        }
    )
    return


@app.cell
def buttons(say):
    capture_button = mo.ui.run_button(kind="success", label=say("Capture the built-in teacher's cache"))
    return (capture_button,)


@app.cell
def launch_capture(capture_button, set_capture, set_note, visitor):
    mo.stop(not capture_button.value)
    _config = from_dict({"text": {"num_windows": 60, "num_heldout_windows": 8}, "capture": {"name": "playground"}})
    _run, _words = tried(lambda: jobs.submit_capture(_config, owner=visitor.name))
    set_note(_words)
    if _run:
        set_capture(_run.id)
    return


@app.function(hide_code=True)
def tried(call, *args):
    """(result, '') or, where the call says what its user did wrong, (None, its words)."""
    try:
        return call(*args), ""
    except DistillError as error:
        return None, str(error)


@app.function(hide_code=True)
def listed(sentences):
    return '<ul class="walk-notes">' + "".join(f"<li>{sentence}</li>" for sentence in sentences) + "</ul>"


@app.function(hide_code=True)
def column(*items):
    return mo.vstack([item for item in items if item is not None], gap=0.9)


@app.function(hide_code=True)
def side_by_side(*items):
    return mo.hstack(items, justify="start", align="end", wrap=True, gap=1.5)


if __name__ == "__main__":
    app.run()
