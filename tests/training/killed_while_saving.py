"""Work on a run and die of SIGKILL in the middle of writing one checkpoint: python killed_while_saving.py RUN STEP METHOD

METHOD: the part of transformers' saving that is not reached any more.
"""

import os
import signal
import sys

from distill_core.runs import open_run
from distill_core.training.distill_trainer import DistillTrainer
from distill_core.worker import execute

run_id, step, method = sys.argv[1], int(sys.argv[2]), sys.argv[3]
original = getattr(DistillTrainer, method)


def die_at_that_step(self, *arguments):
    if self.state.global_step == step:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *arguments)


setattr(DistillTrainer, method, die_at_that_step)
execute(open_run(run_id))
