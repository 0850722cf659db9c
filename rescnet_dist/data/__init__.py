"""Data sets: from what users have, to the images, labels and splits of a run."""

from rescnet_dist.data.dataset import (
    evaluation_split,
    get_split,
    has_test_split,
    images_of,
    open_dataset,
    open_source,
    select_split,
    split_of,
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
from rescnet_dist.data.split import choose_held_out_groups, select_validation
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
    "choose_held_out_groups",
    "classes_from_json",
    "classes_to_json",
    "encode",
    "evaluation_split",
    "get_split",
    "has_test_split",
    "images_of",
    "import_dataset",
    "is_imported",
    "load_digits",
    "open_dataset",
    "open_source",
    "select_split",
    "select_validation",
    "split_of",
    "training_set",
    "verify_dataset",
]
