"""The life of a run: check it, prepare its data, start it, and resume it."""

from rescnet_dist.lifecycle.begin import CheckedRun, begin_or_resume, check_run
from rescnet_dist.lifecycle.resume import Changes, check_resume, resume_run

__all__ = [
    "Changes",
    "CheckedRun",
    "begin_or_resume",
    "check_resume",
    "check_run",
    "resume_run",
]
