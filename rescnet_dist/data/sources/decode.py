"""Image files to arrays of one shape; what cannot be decoded is told by name."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import imagecodecs
import numpy as np
from PIL import Image, UnidentifiedImageError

from rescnet_dist.data.images import are_finite
from rescnet_dist.data.sources.files import brief
from rescnet_dist.data.sources.source import Array, Encoded, Samples, Source
from rescnet_dist.errors import DataError, SpecError, suggest_name

FORMATS = ("PNG", "JPEG", "WEBP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
TRIED = 100  # images of a split, to find one that can be decoded
LARGEST_PIXELS = 32 * 2**20  # of one image
CHANNELS = {"gray": 1, "color": 3}
MODES = {1: "L", 3: "RGB"}
PNG_HEAD = struct.Struct(">16sIIBBBBB")  # up to the end of IHDR, its checksum left out
PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
PNG_CHANNELS = {0: 1, 2: 3}  # of color types: gray and color, without alpha and palette
AS_STORED = {"L", "RGB", "RGBA", "LA", "I;16"}  # others are ways to store gray or color

Channels = Literal["gray", "color"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What images are made into: a size (H, W), or their own; gray or color, or as they are."""

    resize: tuple[int, int] | None = None
    channels: Channels | None = None

    def __post_init__(self) -> None:
        if self.resize and not all(1 <= side <= 10_000 for side in self.resize):
            raise SpecError(f"resize={self.resize}: sides must be from 1 to 10000 pixels")
        if self.channels not in (None, *CHANNELS):
            raise SpecError(
                f"channels={self.channels!r} is unknown. {suggest_name(str(self.channels), CHANNELS)}"
            )


@dataclass(frozen=True, slots=True)
class Block:
    """Images (m, H, W, d) that can be used out of n, good (n,) bool, which those are, and
    (number, name, reason) of each of the others."""

    images: Array
    good: Array
    bad: tuple[tuple[int, str, str], ...] = ()


def decode(
    samples: Samples, wanted: Wanted, shape: tuple[int, int, int], dtype: np.dtype[Any]
) -> Block:
    """The images of some samples, all of one shape (H, W, d) and type."""
    n = len(samples.names)
    given = samples.images
    if isinstance(given, np.ndarray) and (given.shape[1:], given.dtype, wanted) == (
        *(shape, dtype, Wanted()),
    ):
        return _finite(given, samples.names)
    images, good, bad = np.empty((n, *shape), dtype), np.ones(n, bool), []
    as_stored = wanted == Wanted() and dtype == np.uint8
    for number, item in enumerate(given):
        if as_stored and isinstance(item, bytes) and _decode_png(item, images[number]):
            continue
        try:
            images[number] = _of_shape(image_of(item, wanted), shape, dtype)
        except DataError as error:
            good[number] = False
            bad.append((number, samples.names[number], str(error)))
    return Block(images[good] if bad else images, good, tuple(bad))


def _finite(images: Array, names: Sequence[str]) -> Block:
    """Images (n, H, W, d) as they are, but those with NaN or infinite values."""
    good = are_finite(images)
    wrong = np.flatnonzero(~good).tolist()
    bad = [(number, names[number], "it has values that are not finite") for number in wrong]
    return Block(images[good] if bad else images, good, tuple(bad))


def first_image(source: Source, wanted: Wanted) -> tuple[tuple[int, int, int], np.dtype[Any]]:
    """Shape (H, W, d) and type of the first image of a source that can be decoded."""
    problem = ""
    for split, count in source.splits.items():
        for number in range(min(count, TRIED)):
            samples = source.read(split, number, number + 1)
            try:
                image = image_of(next(iter(samples.images)), wanted)
            except DataError as error:
                problem = problem or f"{samples.names[0]}: {error}"
                continue
            height, width, channels = image.shape
            return (height, width, channels), image.dtype
    raise DataError(f"{source.url} has no image among the first that can be read: {problem}")


def image_of(item: Encoded | Array, wanted: Wanted) -> Array:
    """One image (H, W, d), from the bytes of a file or from an array (H, W, d)."""
    if isinstance(item, DataError):
        raise item
    if isinstance(item, np.ndarray):
        return item if wanted == Wanted() else _made(item, wanted)
    if not item:
        raise DataError("it is empty")
    try:
        with Image.open(io.BytesIO(item), formats=FORMATS) as image:
            if image.width * image.height > LARGEST_PIXELS:
                raise DataError(
                    f"it has {image.width}×{image.height} pixels, more than {LARGEST_PIXELS:,}"
                )
            if image.mode in AS_STORED:
                return _pixels(_fitted(image, wanted))
            return _pixels(_fitted(image.convert("L" if image.mode == "1" else "RGB"), wanted))
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError("it is no PNG, JPEG or WebP image") from None
    except Exception as error:  # Pillow's plugins raise all kinds
        raise DataError(f"it is no image that can be read ({brief(error)})") from None


def _decode_png(data: bytes, image: Array) -> bool:
    """Decode the common kind of PNG file, 8 bits of gray or color, into an image (H, W, d), in
    half the time that Pillow takes; False, the image in any state, where it is anything else."""
    if len(data) < PNG_HEAD.size:
        return False
    start, width, height, bits, color, *rest = PNG_HEAD.unpack_from(data)
    told = (start, bits, (height, width, PNG_CHANNELS.get(color)), rest)
    if told != (PNG_START, 8, image.shape, [0, 0, 0]) or b"tRNS" in data:
        return False
    try:
        pixels = imagecodecs.png_decode(data)
    except Exception:  # of several kinds; Pillow will say why
        return False
    if pixels.size != image.size:
        return False
    image[...] = pixels.reshape(image.shape)
    return True


def _of_shape(image: Array, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Array:
    if image.shape == shape and image.dtype == dtype:
        return image
    if image.shape[2] != shape[2]:
        remedy = "ask for gray or for color (--channels, channels=)"
    elif image.shape != shape:
        remedy = "ask for a size to resize to (--resize, resize=)"
    else:
        remedy = "convert it"
    raise DataError(
        f"it is {_described(image.shape, image.dtype)}, and the first image is "
        f"{_described(shape, dtype)}: {remedy}"
    )


def _described(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    return f"{shape[0]}×{shape[1]} with {shape[2]} channels of {dtype}"


def _made(image: Array, wanted: Wanted) -> Array:
    """An array (H, W, d) of pixels made into what is wanted."""
    if image.dtype != np.uint8 or image.shape[2] not in MODES:
        raise DataError(
            f"it is {_described(image.shape, image.dtype)}: only 1 or 3 channels of uint8 can be "
            "resized, or made gray or color"
        )
    pixels = image[:, :, 0] if image.shape[2] == 1 else np.ascontiguousarray(image)
    return _pixels(_fitted(Image.fromarray(pixels), wanted))


def _fitted(image: Any, wanted: Wanted) -> Any:
    if wanted.channels and image.mode == "I;16":
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # Pillow would clip
    if wanted.channels and image.mode != MODES[CHANNELS[wanted.channels]]:
        image = image.convert(MODES[CHANNELS[wanted.channels]])
    if wanted.resize and (image.height, image.width) != wanted.resize:
        height, width = wanted.resize
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return image


def _pixels(image: Any) -> Array:
    array = np.asarray(image)
    return array if array.ndim == 3 else array[:, :, np.newaxis]
