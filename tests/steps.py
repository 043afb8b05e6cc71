"""The steps of the path, carried out in this process, for tests."""

import io

from distill_core.runs import create_run


def capture_here(config):
    return carry_out(create_run("capture", config))


def train_here(config, *, cache="small", name=None):
    return carry_out(create_run("train", config, inputs={"cache": cache}, name=name))


def broken_off_and_resumed(config, *, at_step, monkeypatch, cache="small", name="broken-off"):
    """A run that dies after that many steps, whatever its last checkpoint is, and is worked on again; returns it, done."""
    from distill_core import jobs
    from distill_core.training.distill_trainer import DistillTrainer

    class Died(BaseException):
        """Not caught by anything in between, as a kill is not."""

    step = DistillTrainer.training_step

    def dying(self, *arguments, **named):
        if self.state.global_step == at_step:
            raise Died
        return step(self, *arguments, **named)

    run = create_run("train", config, inputs={"cache": cache}, name=name)
    with monkeypatch.context() as patch:
        patch.setattr(DistillTrainer, "training_step", dying)
        try:
            carry_out(run)
        except Died:
            jobs.requeue(run)
        else:
            raise AssertionError(f"the run did not reach step {at_step}")
    return carry_out(run)


def carry_out(run):
    """Work on the run in this process; returns the run. Raises what the step raises."""
    from distill_core.worker import execute

    execute(run, screen=io.StringIO())
    return run
