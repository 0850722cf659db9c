"""Training: the passes over the data, and the loop that runs them.

Verifying a run needs no cluster, and does not import distributed.
"""

from typing import TYPE_CHECKING

from rescnet_dist._lazy import attach

if TYPE_CHECKING:
    from rescnet_dist.train.decide import Done
    from rescnet_dist.train.loop import train
    from rescnet_dist.train.task_events import progress_topic
    from rescnet_dist.train.verify import verify_run

__all__ = ["Done", "progress_topic", "train", "verify_run"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "decide": ("Done",),
        "loop": ("train",),
        "task_events": ("progress_topic",),
        "verify": ("verify_run",),
    },
)
