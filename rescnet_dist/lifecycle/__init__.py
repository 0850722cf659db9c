"""The life of a run: check it, prepare its data, start it, and resume it."""

from rescnet_dist.lifecycle.begin import begin_run, resume_run
from rescnet_dist.lifecycle.match import describe_plan_difference, find_matching_run
from rescnet_dist.lifecycle.prepare import CHANGEABLE, Changes, check_resume, check_run

__all__ = [
    "CHANGEABLE",
    "Changes",
    "begin_run",
    "check_resume",
    "check_run",
    "describe_plan_difference",
    "find_matching_run",
    "resume_run",
]
