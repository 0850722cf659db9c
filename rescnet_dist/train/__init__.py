"""Training: the plan, the passes, the loop that runs them, and what it tells its watchers."""

from rescnet_dist.train.cluster import available_cores, current_client
from rescnet_dist.train.decide import Accuracy, Done, History
from rescnet_dist.train.describe import describe_run
from rescnet_dist.train.events import (
    ChunkDone,
    Event,
    Listener,
    PassDone,
    PassStarted,
    RunDone,
    RunStarted,
)
from rescnet_dist.train.loop import train
from rescnet_dist.train.plan import Plan, make_plan
from rescnet_dist.train.start import check_run, remove_if_unusable, reopen_run, start_run
from rescnet_dist.train.verify import verify_run

__all__ = [
    "Accuracy",
    "ChunkDone",
    "Done",
    "Event",
    "History",
    "Listener",
    "PassDone",
    "PassStarted",
    "Plan",
    "RunDone",
    "RunStarted",
    "available_cores",
    "check_run",
    "current_client",
    "describe_run",
    "make_plan",
    "remove_if_unusable",
    "reopen_run",
    "start_run",
    "train",
    "verify_run",
]
