# /// script
# [tool.marimo.opengraph]
# title = "Where the memory goes"
# description = "Weights, gradients, optimiser, activations, logits: three ways to train, before anything is spent."
# ///
# Where the memory goes, before anything is spent. Open it with: marimo run apps/memory.py
# Story and controls first, plumbing last. Nothing here computes: a cell asks, gates, shows, or makes one call into distill_core.
import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Distil: where the memory goes", css_file="walk.css")

with app.setup(hide_code=True):
    from pathlib import Path

    import marimo as mo

    from distill_core import catalog, language, memory, room
    from distill_core.charts.memory import memory_chart, top_of
    from distill_core.charts.saving import saved
    from distill_core.config import DistillConfig
    from distill_core.errors import DistillError
    from distill_core.memory import views


@app.cell(hide_code=True)
def heading(query, say):
    mo.Html(
        room.page_top(mo.app_meta().request, query, say=say)
        + f'<div class="walk-hero"><div><h1>{say("Where the memory goes")}</h1><p>'
        + say(
            "Training needs much more memory than the model itself: its gradients, two moments of the optimiser, everything the backward pass will ask for, and the logits: a number for every token and every word of the vocabulary."
        )
        + "</p><p>"
        + say(
            "Three ways to distil differ in the last part, and in whether the teacher stays. Nothing is loaded here: the figures come from the models' sizes."
        )
        + "</p></div></div>"
    )
    return


@app.cell(hide_code=True)
def predict(guess, say):
    column(
        heading_of(say("Predict first")),
        mo.md(
            say(
                "The bars below are for windows of different lengths. **Twice as many tokens in a window: what happens to the weights, and what to the logits?** Choose before you look."
            )
        ),
        guess,
        mo.accordion(
            {
                say("After you have looked"): mo.md(
                    say(
                        "Weights, gradients and moments stay: they belong to the model. Activations and full logits double: they belong to the tokens. The fused loss holds the logits of one chunk only, so that its last part hardly grows."
                    )
                )
            }
        ),
    )
    return


@app.cell(hide_code=True)
def choose(custom, custom_note, look_up, say, shape, student_choice, teacher_choice):
    column(
        heading_of(say("Teacher, student, setting")),
        side_by_side(teacher_choice, student_choice),
        mo.accordion(
            {
                say("Other models: a Hugging Face id, a folder, or a config.json"): column(
                    side_by_side(custom["teacher"], custom["student"], look_up),
                    quiet(say("Sizes are asked of the Hub only when you press, and no weights are downloaded.")),
                    trouble(custom_note),
                )
            }
        ),
        side_by_side(shape["batch"], shape["accumulation"], shape["top_k"]),
        side_by_side(shape["bf16"], shape["checkpointing"]),
        side_by_side(shape["lora_rank"], shape["quantize"] if shape.value["lora_rank"] else None),
        mo.md(say("GPUs to draw")),  # above, not beside: a phone is narrow
        shape["gpus"],
    )
    return


@app.cell(hide_code=True)
def models_in_words(config, say, student, teacher):
    mo.Html(views.model_line(teacher, say=say) + views.model_line(student, say=say) + views.learned_words(student, config, say=say))
    return


@app.cell(hide_code=True)
def bars(charts, say):
    _cards = [
        column(chart_of(_chart), side_by_side(*(download(_chart, _mode, _form) for _form in ("svg", "png"))))
        for _mode, _chart in charts.items()
    ]
    column(
        heading_of(say("The bars")),
        quiet(
            say(
                "One axis for all three. Each bar is the worst moment of a step; what is not alive at that moment is not in it. Dashed: GPUs. Diamonds: what others published."
            )
        ),
        mo.Html('<div class="memory-grid">' + "".join(f"<div>{_card.text}</div>" for _card in _cards) + "</div>"),
    )
    return


@app.cell(hide_code=True)
def fit(at_length, config, say, student, teacher, window):
    column(
        heading_of(say("What fits where, and what would help")),
        window,
        mo.Html(views.fit_words(memory.peaks(teacher, student, at_length, gpu=True), say=say)),
        mo.Html(views.size_words(say=say)),
        mo.Html(views.chunk_words(student, at_length, say=say)),
        mo.Html(views.saving_words(memory.savings(teacher, student, at_length, gpu=True), say=say)),
    )
    return


@app.cell(hide_code=True)
def longest(config, gpus, say, student, teacher):
    column(heading_of(say("How long may the windows be?")), mo.Html(views.window_table(teacher, student, config, gpus, say=say)))
    return


@app.cell(hide_code=True)
def published(say):
    _theirs = catalog.listed_facts(memory.published_config().teacher.model), catalog.listed_facts(memory.published_config().student.model)
    _plans = {
        _point.window_tokens: memory.peaks(*_theirs, memory.published_config(_point.window_tokens), gpu=True) for _point in memory.PUBLISHED
    }
    mo.accordion({say("Beside what Multiverse Computing published"): mo.Html(views.published_table(_plans, say=say))})
    return


@app.cell(hide_code=True)
def exercise(say):
    column(
        heading_of(say("An exercise")),
        mo.md(
            say(
                "You have one GPU with 24 GB and want to train **every** weight of Llama 3.2 3B. Which settings make it fit? Try before you open the answer."
            )
        ),
        mo.accordion(
            {
                say("Answer"): mo.md(
                    say(
                        "None. Weights, gradients and two moments are 16 bytes for each of 3.2 billion parameters: 51 GB before the first token. Choose a smaller student (Llama 3.2 1B needs 20 GB of the 24), or train only a few added weights (LoRA)."
                    )
                )
            }
        ),
    )
    return


@app.cell
def opening():
    # read once: a later change of the address does not reset the controls
    query = mo.query_params().to_dict()
    say = language.in_language(language.language_of(query))
    return query, say


@app.cell
def guesses(say):
    _choices = [say("both double"), say("the weights stay, the logits double"), say("both stay")]
    guess = mo.ui.radio(_choices, label=say("My guess"))
    return (guess,)


@app.cell
def teacher_controls(say):
    _ids = catalog.models_table()["id"].to_list()
    _theirs = memory.published_config()
    teacher_choice = mo.ui.dropdown(_ids, value=_theirs.teacher.model, searchable=True, allow_select_none=False, label=say("Teacher"))
    student_choice = mo.ui.dropdown(_ids, value=_theirs.student.model, searchable=True, allow_select_none=False, label=say("Student"))
    custom = mo.ui.dictionary(
        {
            "teacher": mo.ui.text(placeholder="owner/name", label=say("Another teacher")),
            "student": mo.ui.text(placeholder="owner/name", label=say("Another student")),
        }
    )
    look_up = mo.ui.run_button(label=say("Look up"))
    return custom, look_up, student_choice, teacher_choice


@app.cell
def setting_controls(say):
    _names = [gpu.label for gpu in memory.gpus()]
    _shown = [gpu.label for gpu in memory.gpus() if gpu.label in ("RTX 4090, 24 GB", "A100, 80 GB", "H200, 141 GB")]
    _precisions = {say("their own precision"): "", say("8 bits"): "8bit", say("4 bits (QLoRA)"): "4bit"}
    shape = mo.ui.dictionary(
        {
            "batch": mo.ui.slider(steps=[1, 2, 4, 8, 16, 32], value=1, show_value=True, label=say("Windows in a micro-batch")),
            "accumulation": mo.ui.slider(steps=[1, 2, 4, 8, 16, 32], value=1, show_value=True, label=say("Micro-batches in a step")),
            "top_k": mo.ui.slider(steps=[10, 20, 50, 100, 200], value=100, show_value=True, label=say("Tokens kept per position (K)")),
            "bf16": mo.ui.checkbox(True, label=say("bfloat16 autocast")),
            "checkpointing": mo.ui.checkbox(False, label=say("compute activations twice: less memory, slower")),
            "lora_rank": mo.ui.slider(
                steps=[0, 4, 8, 16, 32, 64, 128, 256], value=0, show_value=True, label=say("LoRA rank (0: all weights learn)")
            ),
            "quantize": mo.ui.dropdown(_precisions, value=say("their own precision"), label=say("With LoRA, its frozen weights in")),
            "gpus": mo.ui.multiselect(_names, value=_shown, full_width=True),
        }
    )
    window = mo.ui.slider(
        steps=[256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072], value=8192, show_value=True, label=say("Tokens in a window")
    )
    return shape, window


@app.cell
def notes():
    get_found, set_found = mo.state({})
    return get_found, set_found


@app.cell
def looking_up(custom, look_up, set_found):
    mo.stop(not look_up.value)
    set_found(looked_up(custom.value))
    return


@app.cell
def facts(get_found, student_choice, teacher_choice):
    _found = get_found()
    custom_note = _found.get("note", "")
    teacher = _found.get("teacher") or catalog.listed_facts(teacher_choice.value)
    student = _found.get("student") or catalog.listed_facts(student_choice.value)
    return custom_note, student, teacher


@app.cell
def setting(shape, student, teacher):
    _at = shape.value
    config = DistillConfig().changed(
        teacher={"model": teacher.source},
        student={
            "init": "pretrained",
            "model": student.source,
            "lora_rank": _at["lora_rank"] or None,
            "quantize": (_at["lora_rank"] and _at["quantize"]) or None,  # read only where there are adapters
        },
        capture={"top_k": _at["top_k"]},
        text={"packing": False},
        train={
            "per_device_train_batch_size": _at["batch"],
            "gradient_accumulation_steps": _at["accumulation"],
            "bf16": _at["bf16"],
            "activation_checkpointing": _at["checkpointing"],
        },
        device="cuda",
    )
    gpus = [gpu for gpu in memory.gpus() if gpu.label in _at["gpus"]]
    return config, gpus


@app.cell
def length(config, window):
    at_length = config.changed(text=config.text.changed(window_tokens=window.value))
    return (at_length,)


@app.cell
def pictures(config, gpus, say, student, teacher):
    _rows = memory.plan_over(teacher, student, config, windows=(2048, 4096, 8192, 16384, 32768), gpu=True)
    _points = views.published_points(config, say=say)
    _limits = [{"name": _gpu.label, "gib": _gpu.memory_bytes / 2**30} for _gpu in gpus]
    _top = top_of(_rows, _points)
    charts = {_mode: memory_chart(_rows, mode=_mode, top_gib=_top, limits=_limits, points=_points, say=say) for _mode in memory.MODES}
    return (charts,)


@app.function(hide_code=True)
def looked_up(sources):
    """{'teacher': facts, 'student': facts}, for those that were named, and a 'note' on what could not be found."""
    found = {}
    for role, source in sources.items():
        if not source.strip():
            continue
        try:
            room.check_source(source.strip())
            found[role] = facts_of(source.strip())
        except DistillError as error:
            found["note"] = str(error)
    return found


@app.function(hide_code=True)
def facts_of(source):
    return catalog.config_facts(Path(source).expanduser()) if source.endswith(".json") else catalog.facts(source)


@app.function(hide_code=True)
def column(*items):
    return mo.vstack([item for item in items if item is not None], gap=0.9)


@app.function(hide_code=True)
def side_by_side(*items):
    return mo.hstack([item for item in items if item is not None], justify="start", align="end", wrap=True, gap=1.5)


@app.function(hide_code=True)
def heading_of(words):
    return mo.md(f"## {words}")


@app.function(hide_code=True)
def quiet(words):
    return mo.Html(f'<p class="walk-quiet">{words}</p>')


@app.function(hide_code=True)
def trouble(words):
    return mo.callout(words, kind="warn") if words else None


@app.function(hide_code=True)
def chart_of(chart):
    return mo.ui.altair_chart(chart, chart_selection=False, legend_selection=False)


@app.function(hide_code=True)
def download(chart, name, form):
    return mo.download(data=lambda: saved(chart, form), filename=f"memory-{name.replace(' ', '-')}.{form}", label=form.upper())


if __name__ == "__main__":
    app.run()
