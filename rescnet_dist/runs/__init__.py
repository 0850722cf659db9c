"""Reading of run stores: attributes, history, description and list of runs. Nothing here trains."""

from rescnet_dist.runs.describe import describe_commits, describe_run
from rescnet_dist.runs.history import History, chosen_depth
from rescnet_dist.runs.listing import find_runs, scan_runs
from rescnet_dist.runs.state import RunState

__all__ = [
    "History",
    "RunState",
    "chosen_depth",
    "describe_commits",
    "describe_run",
    "find_runs",
    "scan_runs",
]
