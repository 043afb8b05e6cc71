"""The steps of the path, carried out in this process, for tests."""

import io

from distill_core.runs import create_run


def capture_here(config):
    return carry_out(create_run("capture", config))


def train_here(config, *, cache="small", name=None):
    return carry_out(create_run("train", config, inputs={"cache": cache}, name=name))


def carry_out(run):
    """Work on the run in this process; returns the run. Raises what the step raises."""
    from distill_core.worker import execute

    execute(run, screen=io.StringIO())
    return run
