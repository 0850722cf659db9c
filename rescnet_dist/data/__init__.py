"""Images and labels from what users have, and the embedded data set."""

from rescnet_dist.data.digits import load_digits
from rescnet_dist.data.images import Images, as_images, check_finite
from rescnet_dist.data.labels import (
    as_labels,
    classes_from_json,
    classes_to_json,
    encode,
)
from rescnet_dist.data.split import validation_members
from rescnet_dist.data.training_set import TrainingSet, training_set

__all__ = [
    "Images",
    "TrainingSet",
    "as_images",
    "as_labels",
    "check_finite",
    "classes_from_json",
    "classes_to_json",
    "encode",
    "load_digits",
    "training_set",
    "validation_members",
]
