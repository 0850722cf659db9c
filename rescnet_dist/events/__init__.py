"""Events of a run, what they report, and the bus that delivers them to listeners."""

from rescnet_dist.events.bus import EventBus, check_listeners
from rescnet_dist.events.classes import (
    EVENTS_VERSION,
    AccuracyCollapsed,
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
    SolverIteration,
    event_to_dict,
)
from rescnet_dist.events.metrics import PHASES, Accuracy, PassMetrics
from rescnet_dist.planning.placement import Placement, PlacementCause

__all__ = [
    "EVENTS_VERSION",
    "PHASES",
    "Accuracy",
    "AccuracyCollapsed",
    "Callback",
    "ChunkDone",
    "ChunkRebuilt",
    "Event",
    "EventBus",
    "Listener",
    "MapsPlaced",
    "PassDone",
    "PassMetrics",
    "PassRetried",
    "PassStarted",
    "Placement",
    "PlacementCause",
    "RunDone",
    "RunStarted",
    "RunStopped",
    "SolverIteration",
    "check_listeners",
    "event_to_dict",
]
