"""Where images come from: folders, IDX, CIFAR, NumPy, Parquet and WebDataset files, at any URL."""

from rescnet_dist.data.sources.decode import Block, Wanted, decode, first_image, image_of
from rescnet_dist.data.sources.find import find_source
from rescnet_dist.data.sources.source import Reader, Samples, Source

__all__ = [
    "Block",
    "Reader",
    "Samples",
    "Source",
    "Wanted",
    "decode",
    "find_source",
    "first_image",
    "image_of",
]
