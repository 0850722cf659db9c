"""Data sets: from what users have, to the images, labels and splits of a run."""

from rescnet_dist.data.dataset import (
    has_test_split,
    images_of,
    open_dataset,
    open_source,
    part_of,
    part_to_judge,
    split_of,
    taken,
)
from rescnet_dist.data.digits import load_digits
from rescnet_dist.data.images import Images, Stored, as_images, check_finite
from rescnet_dist.data.importing import Imported, import_dataset
from rescnet_dist.data.labels import (
    as_labels,
    classes_from_json,
    classes_to_json,
    encode,
)
from rescnet_dist.data.rows import BLOCK_IMAGES, RowBlock, Rows, RowTable
from rescnet_dist.data.split import held_out_groups, validation_members
from rescnet_dist.data.stored import is_imported, verify_dataset
from rescnet_dist.data.training_set import TrainingSet, check_test_set, training_set

__all__ = [
    "BLOCK_IMAGES",
    "Images",
    "Imported",
    "RowBlock",
    "RowTable",
    "Rows",
    "Stored",
    "TrainingSet",
    "as_images",
    "as_labels",
    "check_finite",
    "check_test_set",
    "classes_from_json",
    "classes_to_json",
    "encode",
    "has_test_split",
    "held_out_groups",
    "images_of",
    "import_dataset",
    "is_imported",
    "load_digits",
    "open_dataset",
    "open_source",
    "part_of",
    "part_to_judge",
    "split_of",
    "taken",
    "training_set",
    "validation_members",
    "verify_dataset",
]
