"""Train a run in a process that gets no more memory once the first loss is to be computed: python short_of_memory.py RUN"""

import resource
import sys

import psutil

from distill_core.errors import RunError
from distill_core.runs import open_run
from distill_core.training.distill_trainer import DistillTrainer
from distill_core.worker import execute

COMPUTE = DistillTrainer.compute_loss
ROOM_BYTES = 4 * 2**20


def compute_loss(self, *arguments, **others):
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + ROOM_BYTES, resource.RLIM_INFINITY))
    try:
        return COMPUTE(self, *arguments, **others)
    finally:  # the answer may be worked out in peace
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


DistillTrainer.compute_loss = compute_loss
try:
    execute(open_run(sys.argv[1]))
except RunError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
