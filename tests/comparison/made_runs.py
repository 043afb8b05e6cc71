"""Run folders as training and judging leave them, made by hand: no model, no cache."""

import json

from distill_core import metrics
from distill_core.config import DistillConfig, hard_label_twin, with_overrides
from distill_core.runs import Run, create_run


def made(name, *, seed=0, hard=False, bits=None, kl=None, state="done", cache="mine", **settings) -> Run:
    """A training run of this state; with bits per byte and KL, its looks at the held-out text hold them as the best of two."""
    config = with_overrides(DistillConfig(), {"train.seed": seed, **{key.replace("__", "."): value for key, value in settings.items()}})
    run = create_run("train", hard_label_twin(config) if hard else config, inputs={"cache": cache}, name=name)
    run.update(state=state)
    if bits is not None:
        for step, more in ((0, 5.0), (10, 0.0)):
            look = {"heldout_bits_per_byte": bits + more, "heldout_kl": kl + more, "heldout_top1_agreement": 0.5}
            metrics.append(run.metrics_path, {"step": step, "time_s": 1.0, "heldout_nll": bits + more, **look})
    return run


def judged(run, twin=None, *, student=(0.4, 0.5), baseline=(0.5, 0.7), gains=None):
    """evaluation.json of a run beside its twin: (bits per byte, KL) of each."""

    def row(who, bits, kl, samples):
        size = {"num_parameters": 1000, "disk_bytes": 4000, "tokens_per_s": 50.0, "samples": samples}
        return {"who": who, "bits_per_byte": bits, "kl_to_teacher": kl, "top1_agreement": 0.9, "perplexity": 2.0, **size}

    rows = [row("teacher", 0.2, 0.0, ["said the teacher"]), row("student", *student, ["said the student"])]
    rows += [row("hard labels", *baseline, ["said the twin"])] if twin else []
    told = {"cache": "mine", "run": run.id, "baseline": twin.id if twin else None, "rows": rows, "prompts": ["Once"]}
    run.evaluation_path.write_text(json.dumps({**told, "verdict": "", "notes": [], "gains": gains}))
