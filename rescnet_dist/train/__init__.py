"""Training: the passes over the data, the loop that runs them, and the events it publishes."""

from rescnet_dist.train.decide import Accuracy, Done, History
from rescnet_dist.train.describe import describe_run
from rescnet_dist.train.event_bus import check_listeners
from rescnet_dist.train.events import (
    EVENTS_VERSION,
    Callback,
    ChunkDone,
    ChunkRebuilt,
    Event,
    Listener,
    MapsPlaced,
    PassDone,
    PassRetried,
    PassStarted,
    RunDone,
    RunStarted,
    RunStopped,
    event_to_dict,
)
from rescnet_dist.train.lifecycle import begin_run, resume_run
from rescnet_dist.train.listing import find_runs, scan_runs
from rescnet_dist.train.loop import train
from rescnet_dist.train.metrics import PHASES, PassMetrics
from rescnet_dist.train.prepare import CHANGEABLE, Changes, check_resume, check_run
from rescnet_dist.train.resume import describe_plan_difference, find_matching_run
from rescnet_dist.train.task_events import progress_topic
from rescnet_dist.train.verify import verify_run

__all__ = [
    "CHANGEABLE",
    "EVENTS_VERSION",
    "PHASES",
    "Accuracy",
    "Callback",
    "Changes",
    "ChunkDone",
    "ChunkRebuilt",
    "Done",
    "Event",
    "History",
    "Listener",
    "MapsPlaced",
    "PassDone",
    "PassMetrics",
    "PassRetried",
    "PassStarted",
    "RunDone",
    "RunStarted",
    "RunStopped",
    "begin_run",
    "check_listeners",
    "check_resume",
    "check_run",
    "describe_plan_difference",
    "describe_run",
    "event_to_dict",
    "find_matching_run",
    "find_runs",
    "progress_topic",
    "resume_run",
    "scan_runs",
    "train",
    "verify_run",
]
