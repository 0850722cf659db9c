"""Decoding of image files to arrays of one shape; bad images are reported by name.

Pillow decodes all images. If imagecodecs is installed (extra `fast-png`), it decodes PNG files of
8-bit gray or color, about twice as fast for images of 32×32 and 1.5 times for 224×224. PNG is
lossless, and only files that Pillow accepts with the same pixels are left to imagecodecs: workers
with and without it import the same dataset, bit for bit, and skip the same bad images. JPEG
decoders may differ by one level, so all JPEG files are decoded by Pillow.

imagecodecs is not a dependency: it takes 92 MB, and Pillow alone serves. 60,000 PNG files of 32×32
are imported at 10,200 to 10,700 per second on 2 idle cores, 0.75 to 0.81 of the rate of plain loops
over Pillow, and at 17,500 with imagecodecs, 1.3 of it (`pytest -m slow tests/data/test_rates.py
-s`). The bar of 0.75 needs `_decode_png`: with `Image.open`, Pillow reaches 0.71 to 0.75.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile

from rescnet_dist.data.finite import are_finite
from rescnet_dist.data.sources.files import summarize_error
from rescnet_dist.data.sources.source import Array, Channels, Encoded, Samples, Source
from rescnet_dist.errors import DataError, SpecError, suggest_name

try:
    import imagecodecs
except ImportError:
    imagecodecs = None  # type: ignore[assignment]

PILLOW_FORMATS = ("PNG", "JPEG", "WEBP")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
MAX_TRIED_IMAGES = 100  # of a split, to find one that can be decoded
MAX_IMAGE_PIXELS = 32 * 2**20
MAX_SIDE_PIXELS = 10_000  # of resized images
RESIZE_REMEDY = "Resize all images to one size (--resize, resize=)."
CHANNELS_REMEDY = "Convert all images to gray or to color (--channels, channels=)."
CHANNELS = {"gray": 1, "color": 3}
PILLOW_MODES = {1: "L", 3: "RGB"}  # by number of channels
PNG_HEADER = struct.Struct(">16sIIBBBBB")  # up to the end of IHDR, without its checksum
PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"  # the last chunk
PNG_CHUNK = struct.Struct(">I4s")  # length and kind of a chunk; its data and checksum follow
PNG_CHUNKS_OFFSET = 33  # of the first chunk after IHDR
# Bytes of chunks that say nothing of the pixels' values, and that Pillow accepts.
PNG_IGNORED_CHUNKS = {b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"tIME": 7}
MAX_PNG_TEXT_BYTES = 2**16  # of a tEXt chunk, which is ignored too
PNG_ORIENTATION_TEXTS = (b"exif\0", b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")
PNG_CHANNELS = {0: 1, 2: 3}  # by color type: gray and color, without alpha and palette
TRANSPOSE_METHODS = {  # by orientation of EXIF
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
UNCONVERTED_MODES = {"L", "RGB", "RGBA", "LA", "I;16"}  # other modes store gray or color


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What images are converted to: a size (H, W) and gray or color; None leaves them as is.

    A single number for `resize` is the side of a square.
    """

    resize: tuple[int, int] | None = None
    channels: Channels | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "resize", _parse_size(self.resize))
        if self.resize and not all(1 <= side <= MAX_SIDE_PIXELS for side in self.resize):
            raise SpecError(
                f"resize={self.resize} is out of range. Sides must be from 1 to {MAX_SIDE_PIXELS} "
                "pixels."
            )
        if self.channels not in (None, *CHANNELS):
            raise SpecError(
                f"channels={self.channels!r} is unknown. "
                f"{suggest_name(str(self.channels), CHANNELS)}"
            )

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Self:
        """Return the options that `to_attributes` has stored; none if there are none."""
        resize, channels = attributes.get("resize"), attributes.get("channels")
        has_size = isinstance(resize, Sequence | np.ndarray) and len(resize) == 2
        height, width = resize if has_size else (0, 0)  # type: ignore[misc]
        return cls(
            (int(height), int(width)) if has_size else None,
            channels if channels in CHANNELS else None,
        )

    def for_source(self, source: Source) -> Self:
        """Return the options with the channels of a source, if it names any and these do not."""
        return replace(self, channels=self.channels or source.channels)

    def to_attributes(self) -> dict[str, Any]:
        """Return the options that are set, as attributes of a dataset."""
        resize = {"resize": list(self.resize)} if self.resize else {}
        return resize | ({"channels": self.channels} if self.channels else {})


def _parse_size(size: Any) -> tuple[int, int] | None:
    """Return height and width; raise SpecError if `size` is neither a number, a pair nor None."""
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, Iterable) and not isinstance(size, str) else (size,) * 2
    is_whole = all(
        isinstance(side, int | np.integer) and not isinstance(side, bool) for side in sides
    )
    if len(sides) != 2 or not is_whole:
        raise SpecError(
            f"resize={size!r} is not a size. Pass the side of a square, such as 64, or (height, "
            "width), such as (48, 64)."
        )
    return int(sides[0]), int(sides[1])


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """The decoded images of n samples.

    `images` (m, H, W, d) are the usable ones, `good` (n,) bool says which those are, and `bad` has
    (number, name, reason) of each of the others.
    """

    images: Array
    good: Array
    bad: tuple[tuple[int, str, str], ...] = ()


def decode(
    samples: Samples, options: DecodeOptions, shape: tuple[int, int, int], dtype: np.dtype[Any]
) -> DecodedBlock:
    """Decode samples to images of one shape (H, W, d) and dtype."""
    n = len(samples.names)
    given = samples.images
    is_unchanged = options == DecodeOptions()
    if (
        isinstance(given, np.ndarray)
        and is_unchanged
        and (given.shape[1:], given.dtype)
        == (
            shape,
            dtype,
        )
    ):
        return _select_finite(given, samples.names)
    images, good, bad = np.empty((n, *shape), dtype), np.ones(n, bool), []
    can_decode_directly = is_unchanged and dtype == np.uint8
    for number, item in enumerate(given):
        if can_decode_directly and isinstance(item, bytes) and _decode_png(item, images[number]):
            continue
        try:
            images[number] = _check_shape(decode_image(item, options), shape, dtype)
        except DataError as error:
            good[number] = False
            bad.append((number, samples.names[number], str(error)))
    return DecodedBlock(images[good] if bad else images, good, tuple(bad))


def _select_finite(images: Array, names: Sequence[str]) -> DecodedBlock:
    """Return images (n, H, W, d) as they are, except those with NaN or infinite values."""
    good = are_finite(images)
    bad_numbers = np.flatnonzero(~good).tolist()
    bad = [(n, names[n], "The image has values that are not finite.") for n in bad_numbers]
    return DecodedBlock(images[good] if bad else images, good, tuple(bad))


def infer_image_format(
    source: Source, options: DecodeOptions
) -> tuple[tuple[int, int, int], np.dtype[Any]]:
    """Return shape (H, W, d) and dtype of the first image of a source that can be decoded."""
    problem = ""
    for split, count in source.splits.items():
        for number in range(min(count, MAX_TRIED_IMAGES)):
            samples = source.read(split, number, number + 1)
            try:
                image = decode_image(next(iter(samples.images)), options)
            except DataError as error:
                problem = problem or f"{samples.names[0]}: {error}"
                continue
            height, width, channels = image.shape
            return (height, width, channels), image.dtype
    raise DataError(
        f"{source.url} has no readable image among the first {MAX_TRIED_IMAGES} of each split. "
        f"{problem}"
    )


def decode_image(item: Encoded | Array, options: DecodeOptions) -> Array:
    """Return one image (H, W, d), from the bytes of a file or from an array (H, W, d)."""
    if isinstance(item, DataError):
        raise item
    if isinstance(item, np.ndarray):
        return item if options == DecodeOptions() else _convert_array(item, options)
    if not item:
        raise DataError("The file is empty.")
    try:
        with Image.open(io.BytesIO(item), formats=PILLOW_FORMATS) as image:
            return decode_picture(image, options)
    except DataError:
        raise
    except UnidentifiedImageError:
        raise DataError("The file is not a PNG, JPEG or WebP image.") from None
    except Exception as error:  # Pillow's plugins raise all kinds.
        raise DataError(f"The image cannot be decoded ({summarize_error(error)}).") from None


def decode_picture(image: Any, options: DecodeOptions) -> Array:
    """Return the upright pixels (H, W, d) of a Pillow image; raise DataError if it is too large."""
    if image.width * image.height > MAX_IMAGE_PIXELS:
        raise DataError(
            f"The image has {image.width}×{image.height} pixels, more than the limit of "
            f"{MAX_IMAGE_PIXELS:,}."
        )
    image.load()
    method = TRANSPOSE_METHODS.get(_read_orientation(image))
    if image.mode not in UNCONVERTED_MODES:
        image = image.convert("L" if image.mode == "1" else "RGB")
    if method is not None:
        image = image.transpose(method)
    return _get_pixels(_convert(image, options))


def _read_orientation(image: Any) -> int:
    """Return the orientation in the EXIF or XMP data of a Pillow image; 1, upright, without it.

    `ImageOps.exif_transpose` is not used: it fails if these data are damaged, which is common.
    """
    try:
        found = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # Pillow's readers raise all kinds.
        return 1
    return found if isinstance(found, int) else 1


def _decode_png(data: bytes, image: Array) -> bool:
    """Decode a PNG file of 8-bit gray or color into an image (H, W, d), faster than `decode_image`.

    Return False, with the image in an undefined state, if the file is anything else, or if
    `decode_image` may reject it.
    """
    if len(data) < PNG_HEADER.size:
        return False
    start, width, height, bits, color, *rest = PNG_HEADER.unpack_from(data)
    header = (start, bits, (height, width, PNG_CHANNELS.get(color)), rest)
    if header != (PNG_START, 8, image.shape, [0, 0, 0]) or not _has_plain_chunks(data):
        return False
    try:
        if imagecodecs is not None:
            pixels = imagecodecs.png_decode(data)
        else:
            with PngImageFile(io.BytesIO(data)) as file:
                pixels = np.frombuffer(file.tobytes(), np.uint8)
    except Exception:  # Both raise several kinds; `decode_image` will give the reason.
        return False
    if pixels.size != image.size:
        return False
    image[...] = pixels.reshape(image.shape)
    return True


def _has_plain_chunks(data: bytes) -> bool:
    """Return whether the chunks of a PNG file are intact, and none but IDAT affects its pixels.

    imagecodecs ignores damage after the pixels, and in chunks that it does not need. Pillow does
    not.
    """
    at, previous, has_pixels = PNG_CHUNKS_OFFSET, b"IHDR", False
    while at + PNG_CHUNK.size <= len(data):
        size, kind = PNG_CHUNK.unpack_from(data, at)
        end = at + PNG_CHUNK.size + size + 4
        if kind == b"IEND":
            return has_pixels and data[at:] == PNG_END
        if kind == b"IDAT":
            if has_pixels and previous != b"IDAT":
                return False
            has_pixels = True
        elif (
            PNG_IGNORED_CHUNKS.get(kind) != size
            and not (kind == b"tEXt" and _is_ignored_text(data, at + PNG_CHUNK.size, size))
        ) or zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            return False
        at, previous = end, kind
    return False


def _is_ignored_text(data: bytes, at: int, size: int) -> bool:
    """Return whether the text of a tEXt chunk, `size` bytes from `at`, has no orientation."""
    return size <= MAX_PNG_TEXT_BYTES and not data.startswith(PNG_ORIENTATION_TEXTS, at)


def _check_shape(image: Array, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> Array:
    """Return an image (H, W, d); raise DataError if it is of another shape or dtype."""
    if image.shape == shape and image.dtype == dtype:
        return image
    if image.shape[2] != shape[2]:
        remedy = CHANNELS_REMEDY
    elif image.shape != shape:
        remedy = RESIZE_REMEDY
    else:
        remedy = "Convert it."
    raise DataError(
        f"The image is {_describe(image.shape, image.dtype)}, and the first image is "
        f"{_describe(shape, dtype)}. {remedy}"
    )


def _describe(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Return the shape (H, W, d) and dtype of an image in words."""
    return f"{shape[0]}×{shape[1]} with {shape[2]} channels of {dtype}"


def _convert_array(image: Array, options: DecodeOptions) -> Array:
    """Resize and convert an image (H, W, d) given as an array."""
    if image.dtype != np.uint8 or image.shape[2] not in PILLOW_MODES:
        raise DataError(
            f"The image is {_describe(image.shape, image.dtype)}. Only images with 1 or 3 channels "
            "of uint8 can be resized, or converted to gray or color."
        )
    pixels = image[:, :, 0] if image.shape[2] == 1 else np.ascontiguousarray(image)
    return _get_pixels(_convert(Image.fromarray(pixels), options))


def _convert(image: Any, options: DecodeOptions) -> Any:
    """Resize and convert a Pillow image."""
    if options.channels and image.mode == "I;16":
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # Pillow would clip.
    if options.channels and image.mode != PILLOW_MODES[CHANNELS[options.channels]]:
        image = image.convert(PILLOW_MODES[CHANNELS[options.channels]])
    if options.resize and (image.height, image.width) != options.resize:
        height, width = options.resize
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return image


def _get_pixels(image: Any) -> Array:
    """Return the pixels (H, W, d) of a Pillow image."""
    array = np.asarray(image)
    return array if array.ndim == 3 else array[:, :, np.newaxis]
