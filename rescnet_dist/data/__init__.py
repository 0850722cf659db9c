"""Images and labels from what users have, and the embedded data set."""

from rescnet_dist.data.digits import load_digits
from rescnet_dist.data.images import Images, Stored, as_images, check_finite
from rescnet_dist.data.labels import (
    as_labels,
    classes_from_json,
    classes_to_json,
    encode,
)
from rescnet_dist.data.rows import BLOCK_IMAGES, RowBlock, Rows, RowTable
from rescnet_dist.data.split import held_out_groups, validation_members
from rescnet_dist.data.training_set import TrainingSet, training_set

__all__ = [
    "BLOCK_IMAGES",
    "Images",
    "RowBlock",
    "RowTable",
    "Rows",
    "Stored",
    "TrainingSet",
    "as_images",
    "as_labels",
    "check_finite",
    "classes_from_json",
    "classes_to_json",
    "encode",
    "held_out_groups",
    "load_digits",
    "training_set",
    "validation_members",
]
