"""Training: the passes over the data, and the loop that runs them."""

from rescnet_dist.train.decide import Done
from rescnet_dist.train.loop import train
from rescnet_dist.train.task_events import progress_topic
from rescnet_dist.train.verify import verify_run

__all__ = ["Done", "progress_topic", "train", "verify_run"]
