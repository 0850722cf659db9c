"""Reading of run stores: attributes, history, held-out images, lists. Nothing here trains."""

from rescnet_dist.runs.describe import describe_commits, describe_run
from rescnet_dist.runs.held_out import RunData, open_held_out
from rescnet_dist.runs.history import History, chosen_depth
from rescnet_dist.runs.listing import check_no_folder_of_runs, find_runs, scan_runs
from rescnet_dist.runs.state import RunState

__all__ = [
    "History",
    "RunData",
    "RunState",
    "check_no_folder_of_runs",
    "chosen_depth",
    "describe_commits",
    "describe_run",
    "find_runs",
    "open_held_out",
    "scan_runs",
]
