"""Sources of images: files of many kinds at any URL, tables of paths, and numbered items."""

from rescnet_dist.data.sources.decode import (
    DecodedBlock,
    DecodeOptions,
    decode,
    decode_image,
    infer_image_format,
)
from rescnet_dist.data.sources.find import find_source
from rescnet_dist.data.sources.items import ItemSource, is_item_dataset
from rescnet_dist.data.sources.source import Reader, Samples, Source
from rescnet_dist.data.sources.table import TableSource, is_table_of_paths

__all__ = [
    "DecodeOptions",
    "DecodedBlock",
    "ItemSource",
    "Reader",
    "Samples",
    "Source",
    "TableSource",
    "decode",
    "decode_image",
    "find_source",
    "infer_image_format",
    "is_item_dataset",
    "is_table_of_paths",
]
