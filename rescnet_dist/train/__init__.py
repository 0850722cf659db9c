"""Training: the passes, the loop that runs them, and what it tells its watchers."""

from rescnet_dist.train.again import other_plan, run_there
from rescnet_dist.train.decide import Accuracy, Done, History
from rescnet_dist.train.describe import describe_run
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
    check_listeners,
    event_to_dict,
)
from rescnet_dist.train.listing import find_runs, look_for_runs
from rescnet_dist.train.loop import train
from rescnet_dist.train.observed import PHASES, Observed
from rescnet_dist.train.report import progress_topic
from rescnet_dist.train.session import begin_run, resume_run
from rescnet_dist.train.start import CHANGEABLE, Changes, check_resume, check_run
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
    "Observed",
    "PassDone",
    "PassRetried",
    "PassStarted",
    "RunDone",
    "RunStarted",
    "RunStopped",
    "begin_run",
    "check_listeners",
    "check_resume",
    "check_run",
    "describe_run",
    "event_to_dict",
    "find_runs",
    "look_for_runs",
    "other_plan",
    "progress_topic",
    "resume_run",
    "run_there",
    "train",
    "verify_run",
]
