"""Planning and cost estimates: memory needs, a plan that fits, expected traffic and time.

Who reads a run needs its plan only, not the modules that measure a cluster and import Dask.
"""

from typing import TYPE_CHECKING

from rescnet_dist._lazy import attach

if TYPE_CHECKING:
    from rescnet_dist.planning.choose import check_fits, find_least_memory, make_plan
    from rescnet_dist.planning.estimates import Forecast, estimate, forecast
    from rescnet_dist.planning.placement import Placement, PlacementCause, describe_placement
    from rescnet_dist.planning.plan import Group, Plan
    from rescnet_dist.planning.requirements import Problem, Traffic, peak_memory, traffic
    from rescnet_dist.planning.speed import Speed, calibrate
    from rescnet_dist.planning.tier import NO_WORKERS, Tier, choose_tier, group_cache_bytes

__all__ = [
    "NO_WORKERS",
    "Forecast",
    "Group",
    "Placement",
    "PlacementCause",
    "Plan",
    "Problem",
    "Speed",
    "Tier",
    "Traffic",
    "calibrate",
    "check_fits",
    "choose_tier",
    "describe_placement",
    "estimate",
    "find_least_memory",
    "forecast",
    "group_cache_bytes",
    "make_plan",
    "peak_memory",
    "traffic",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "choose": ("check_fits", "find_least_memory", "make_plan"),
        "estimates": ("Forecast", "estimate", "forecast"),
        "placement": ("Placement", "PlacementCause", "describe_placement"),
        "plan": ("Group", "Plan"),
        "requirements": ("Problem", "Traffic", "peak_memory", "traffic"),
        "speed": ("Speed", "calibrate"),
        "tier": ("NO_WORKERS", "Tier", "choose_tier", "group_cache_bytes"),
    },
)
