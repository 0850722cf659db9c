"""Stores of runs and networks: Zarr groups and JSON records at any fsspec URL."""

from rescnet_dist.store.arrays import (
    StoredArray,
    read_block,
    read_chunks,
    read_region,
    write_block,
    write_region,
)
from rescnet_dist.store.checksums import Checksums, checksum
from rescnet_dist.store.claim import Claim, check_unclaimed, is_claimed
from rescnet_dist.store.files import open_output
from rescnet_dist.store.filesystem import describe_missing_bucket, file_system, read_bytes
from rescnet_dist.store.formats import (
    DATASET_FORMAT,
    DATASET_FORMAT_VERSION,
    FORMAT_VERSION,
    FUSED_FORMAT,
    FUSED_FORMAT_VERSION,
    NETWORK_FORMAT,
    RUN_FORMAT,
    add_checksum,
    check_format,
    check_version,
    has_checksum,
    read_format_name,
)
from rescnet_dist.store.layers import (
    StoredLayers,
    layer_path,
    read_bank,
    read_head,
    read_image_scale,
    read_layer,
    read_views,
    write_bank,
    write_head,
    write_image_scale,
    write_layer,
    write_views,
)
from rescnet_dist.store.location import Location
from rescnet_dist.store.retry import (
    Reporter,
    get_reporter,
    limit_retries,
    report_retries,
    set_reporter,
)
from rescnet_dist.store.run import (
    IMAGE_DIMS,
    RunStore,
    calibration_records,
    has_saved_maps,
    last_saved,
    translate_attribute_errors,
)
from rescnet_dist.store.schema import find_type_error
from rescnet_dist.store.verify import chunk_problem
from rescnet_dist.store.zipped import is_zip_url, pack_folder

__all__ = [
    "DATASET_FORMAT",
    "DATASET_FORMAT_VERSION",
    "FORMAT_VERSION",
    "FUSED_FORMAT",
    "FUSED_FORMAT_VERSION",
    "IMAGE_DIMS",
    "NETWORK_FORMAT",
    "RUN_FORMAT",
    "Checksums",
    "Claim",
    "Location",
    "Reporter",
    "RunStore",
    "StoredArray",
    "StoredLayers",
    "add_checksum",
    "calibration_records",
    "check_format",
    "check_unclaimed",
    "check_version",
    "checksum",
    "chunk_problem",
    "describe_missing_bucket",
    "file_system",
    "find_type_error",
    "get_reporter",
    "has_checksum",
    "has_saved_maps",
    "is_claimed",
    "is_zip_url",
    "last_saved",
    "layer_path",
    "limit_retries",
    "open_output",
    "pack_folder",
    "read_bank",
    "read_block",
    "read_bytes",
    "read_chunks",
    "read_format_name",
    "read_head",
    "read_image_scale",
    "read_layer",
    "read_region",
    "read_views",
    "report_retries",
    "set_reporter",
    "translate_attribute_errors",
    "write_bank",
    "write_block",
    "write_head",
    "write_image_scale",
    "write_layer",
    "write_region",
    "write_views",
]
