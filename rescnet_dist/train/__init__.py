"""Training: the plan, the passes, the loop that runs them, and what it tells its watchers."""

from rescnet_dist.train.cluster import available_cores, connected, current_client
from rescnet_dist.train.decide import Accuracy, Done, History
from rescnet_dist.train.describe import describe_run
from rescnet_dist.train.events import (
    ChunkDone,
    ChunkRebuilt,
    Event,
    Listener,
    PassDone,
    PassRetried,
    PassStarted,
    RunDone,
    RunStarted,
)
from rescnet_dist.train.forecast import Forecast, forecast
from rescnet_dist.train.loop import train
from rescnet_dist.train.needs import Problem, peak_memory
from rescnet_dist.train.plan import Plan
from rescnet_dist.train.planning import make_plan
from rescnet_dist.train.session import begin_run, resume_run
from rescnet_dist.train.start import check_resume, check_run
from rescnet_dist.train.verify import verify_run
from rescnet_dist.train.workers import Workers

__all__ = [
    "Accuracy",
    "ChunkDone",
    "ChunkRebuilt",
    "Done",
    "Event",
    "Forecast",
    "History",
    "Listener",
    "PassDone",
    "PassRetried",
    "PassStarted",
    "Plan",
    "Problem",
    "RunDone",
    "RunStarted",
    "Workers",
    "available_cores",
    "begin_run",
    "check_resume",
    "check_run",
    "connected",
    "current_client",
    "describe_run",
    "forecast",
    "make_plan",
    "peak_memory",
    "resume_run",
    "train",
    "verify_run",
]
