"""What stands behind apps/techniques.py: a card for each technique, what it gained, and forms that start jobs. No widget, no torch.

cards     each technique in words, where its switch is, what it gained; the table of measured gains
gains     the rows that `bench techniques --json` made, as they ship in data/techniques.jsonl
forms     controls of what is a job of its own, and the one call that starts it
job       the run or chain that the page shows: found, stopped, resumed, and what it made
"""

from .gains import measured
from .job import Job, job_from, moved, not_yours, resume, stop, watched

__all__ = ["Job", "job_from", "measured", "moved", "not_yours", "resume", "stop", "watched"]
