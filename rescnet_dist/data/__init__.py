"""Datasets: sources, import, splits, and the images and labels of a run.

Workers of a run need few of these modules, and not those that import xarray.
"""

from typing import TYPE_CHECKING

from rescnet_dist._lazy import attach

if TYPE_CHECKING:
    from rescnet_dist.data.classes import classes_from_json, classes_to_json
    from rescnet_dist.data.dataset import (
        as_dataset,
        evaluation_coords,
        evaluation_images,
        evaluation_split,
        find_splits,
        get_split,
        has_test_split,
        open_dataset,
        open_for_network,
        open_source,
        open_split,
        select_held_out,
        select_split,
    )
    from rescnet_dist.data.digits import load_digits
    from rescnet_dist.data.finite import check_finite
    from rescnet_dist.data.images import ArrayReference, Images, as_images
    from rescnet_dist.data.importing import ImportResult, import_dataset
    from rescnet_dist.data.labels import as_labels, encode
    from rescnet_dist.data.lazy import open_photos
    from rescnet_dist.data.photos import (
        ImageInput,
        PhotoDecoder,
        PhotoSource,
        has_photos,
        is_photo,
        read_photos,
    )
    from rescnet_dist.data.row_images import copy_maker, describe_altered_images
    from rescnet_dist.data.rows import BLOCK_IMAGES, RowBlock, Rows, RowTable, read_rows
    from rescnet_dist.data.sources import DecodeOptions, Source
    from rescnet_dist.data.sources.source import Channels
    from rescnet_dist.data.split import choose_held_out_groups, select_validation
    from rescnet_dist.data.stored import verify_dataset
    from rescnet_dist.data.training_data import TrainingSet, check_test_set, training_set
    from rescnet_dist.data.weights import Weights

__all__ = [
    "BLOCK_IMAGES",
    "ArrayReference",
    "Channels",
    "DecodeOptions",
    "ImageInput",
    "Images",
    "ImportResult",
    "PhotoDecoder",
    "PhotoSource",
    "RowBlock",
    "RowTable",
    "Rows",
    "Source",
    "TrainingSet",
    "Weights",
    "as_dataset",
    "as_images",
    "as_labels",
    "check_finite",
    "check_test_set",
    "choose_held_out_groups",
    "classes_from_json",
    "classes_to_json",
    "copy_maker",
    "describe_altered_images",
    "encode",
    "evaluation_coords",
    "evaluation_images",
    "evaluation_split",
    "find_splits",
    "get_split",
    "has_photos",
    "has_test_split",
    "import_dataset",
    "is_photo",
    "load_digits",
    "open_dataset",
    "open_for_network",
    "open_photos",
    "open_source",
    "open_split",
    "read_photos",
    "read_rows",
    "select_held_out",
    "select_split",
    "select_validation",
    "training_set",
    "verify_dataset",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "dataset": (
            "as_dataset",
            "evaluation_coords",
            "evaluation_images",
            "evaluation_split",
            "find_splits",
            "get_split",
            "has_test_split",
            "open_dataset",
            "open_for_network",
            "open_source",
            "open_split",
            "select_held_out",
            "select_split",
        ),
        "digits": ("load_digits",),
        "finite": ("check_finite",),
        "images": ("ArrayReference", "Images", "as_images"),
        "importing": ("ImportResult", "import_dataset"),
        "classes": ("classes_from_json", "classes_to_json"),
        "labels": ("as_labels", "encode"),
        "lazy": ("open_photos",),
        "photos": (
            "ImageInput",
            "PhotoDecoder",
            "PhotoSource",
            "has_photos",
            "is_photo",
            "read_photos",
        ),
        "row_images": ("copy_maker", "describe_altered_images"),
        "rows": ("BLOCK_IMAGES", "RowBlock", "Rows", "RowTable", "read_rows"),
        "sources": ("DecodeOptions", "Source"),
        "sources.source": ("Channels",),
        "split": ("choose_held_out_groups", "select_validation"),
        "stored": ("verify_dataset",),
        "training_data": ("TrainingSet", "check_test_set", "training_set"),
        "weights": ("Weights",),
    },
)
