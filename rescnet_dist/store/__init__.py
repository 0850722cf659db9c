"""Stores of runs and networks: Zarr groups and JSON records at any fsspec URL."""

from rescnet_dist.store.checksums import Checksums, checksum, read_block, read_region
from rescnet_dist.store.claim import Claim, check_unclaimed
from rescnet_dist.store.filesystem import describe_missing_bucket, file_system
from rescnet_dist.store.layers import (
    StoredLayers,
    layer_path,
    read_bank,
    read_classifier,
    read_image_scale,
    read_layer,
    write_bank,
    write_classifier,
    write_image_scale,
    write_layer,
)
from rescnet_dist.store.location import Location, chunk_problem
from rescnet_dist.store.retry import with_retries
from rescnet_dist.store.run import (
    FORMAT_VERSION,
    IMAGE_DIMS,
    NETWORK_FORMAT,
    RUN_FORMAT,
    RunStore,
    check_format,
    has_saved_maps,
    last_saved,
    translate_attribute_errors,
    write_block,
    write_region,
)

__all__ = [
    "FORMAT_VERSION",
    "IMAGE_DIMS",
    "NETWORK_FORMAT",
    "RUN_FORMAT",
    "Checksums",
    "Claim",
    "Location",
    "RunStore",
    "StoredLayers",
    "check_format",
    "check_unclaimed",
    "checksum",
    "chunk_problem",
    "describe_missing_bucket",
    "file_system",
    "has_saved_maps",
    "last_saved",
    "layer_path",
    "read_bank",
    "read_block",
    "read_classifier",
    "read_image_scale",
    "read_layer",
    "read_region",
    "translate_attribute_errors",
    "with_retries",
    "write_bank",
    "write_block",
    "write_classifier",
    "write_image_scale",
    "write_layer",
    "write_region",
]
