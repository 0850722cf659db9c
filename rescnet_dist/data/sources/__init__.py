"""Sources of images: folders, IDX, CIFAR, NumPy, Parquet and WebDataset files, at any URL."""

from rescnet_dist.data.sources.decode import (
    DecodedBlock,
    DecodeOptions,
    decode,
    decode_image,
    infer_image_format,
)
from rescnet_dist.data.sources.find import find_source
from rescnet_dist.data.sources.source import Reader, Samples, Source

__all__ = [
    "DecodeOptions",
    "DecodedBlock",
    "Reader",
    "Samples",
    "Source",
    "decode",
    "decode_image",
    "find_source",
    "infer_image_format",
]
