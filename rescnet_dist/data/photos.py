"""Photos as input of a network: how its training images were made, and the same for others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from PIL import Image

from rescnet_dist.data.sources.decode import (
    CHANNELS,
    IMAGE_SUFFIXES,
    DecodeOptions,
    decode_image,
    decode_picture,
)
from rescnet_dist.data.sources.files import read_files, read_named_file
from rescnet_dist.data.sources.source import Array, Channels, Encoded, Reader, Samples, Source
from rescnet_dist.errors import DataError, mask_secrets
from rescnet_dist.store import Location

MAX_PIXEL = 255  # of photos with 8 bits
MIN_UNSCALED_VALUE = (
    128  # largest value of training images in floats that have pixels from 0 to 255
)


@dataclass(frozen=True, slots=True)
class ImageInput:
    """How the images that a network was trained on were made.

    Attributes
    ----------
    dtype : str
        Type of the pixels, such as "uint8".
    resize : tuple of int or None, default None
        Height and width that the images were resized to; None if they were not.
    channels : {"gray", "color"} or None, default None
        What the images were converted to; None if they were not.
    """

    dtype: str
    resize: tuple[int, int] | None = None
    channels: Channels | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the form that is stored with runs and networks, as JSON-serializable values."""
        resize = None if self.resize is None else list(self.resize)
        return {"dtype": self.dtype, "resize": resize, "channels": self.channels}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        """Return the input that `to_dict` has stored."""
        options = DecodeOptions.from_attributes(stored)
        return cls(str(stored["dtype"]), options.resize, options.channels)


@dataclass(frozen=True, slots=True)
class PhotoDecoder:
    """Turns photos into images of a network.

    Attributes
    ----------
    image_shape : tuple of int
        Shape (H, W, d) of the images.
    value_range : tuple of float
        Smallest and largest value of the training images.
    dtype : str or None
        Type of the training images; None if it is not known.
    options : DecodeOptions
        What photos are converted to, as in an import.
    """

    image_shape: tuple[int, int, int]
    value_range: tuple[float, float]
    dtype: str | None
    options: DecodeOptions

    @classmethod
    def create(
        cls,
        image_shape: tuple[int, int, int],
        value_range: tuple[float, float],
        known: ImageInput | None,
        *,
        resize: int | tuple[int, int] | None = None,
        channels: str | None = None,
    ) -> Self:
        """Return the decoder for the input of a network, if that is known, or for given options."""
        given = DecodeOptions(resize, channels)  # type: ignore[arg-type]
        if known is None:
            return cls(image_shape, value_range, None, given)
        names = {number: name for name, number in CHANNELS.items()}
        # A conversion to gray or color gives 8 bits.
        has_8_bits = known.dtype == "uint8" or np.dtype(known.dtype).kind == "f"
        default: Any = names.get(image_shape[2]) if has_8_bits else None
        options = DecodeOptions(given.resize or image_shape[:2], given.channels or default)
        return cls(image_shape, value_range, known.dtype, options)

    @property
    def has_options(self) -> bool:
        """Whether it is known what photos are converted to."""
        return self.options != DecodeOptions()

    @property
    def pixel_type(self) -> np.dtype[Any]:
        """The dtype of decoded images."""
        if self.dtype is None:
            return np.dtype("float32" if self._must_scale else "uint8")
        return np.dtype(self.dtype)

    @property
    def _must_scale(self) -> bool:
        """Whether pixels from 0 to 255 are divided by 255, as those of the training images were."""
        is_integer = self.dtype is not None and np.dtype(self.dtype).kind != "f"
        return not is_integer and self.value_range[0] >= 0 and self.value_range[1] <= 1

    def decode(self, item: Encoded | Array | Image.Image) -> Array:
        """Return one image (H, W, d), from the bytes of a file, an array or a Pillow image.

        Raise DataError if it cannot be decoded, or is not what the network was trained on.
        """
        if isinstance(item, Image.Image):
            pixels = decode_picture(item, self.options)
        else:
            pixels = decode_image(item, self.options)
        if pixels.shape != self.image_shape:
            height, width, channels = self.image_shape
            raise DataError(
                f"The image is {pixels.shape[0]}×{pixels.shape[1]} with {pixels.shape[2]} "
                f"channels, but the network was trained on {height}×{width} with {channels}. "
                "Convert it by --resize and --channels (resize=, channels=)."
            )
        return self.convert_values(pixels)

    def convert_values(self, pixels: Array) -> Array:
        """Return pixels (..., H, W, d) in the type and range of the training images."""
        low, high = self.value_range
        if pixels.dtype == np.uint8:
            if self._must_scale:
                return (pixels / MAX_PIXEL).astype(self.pixel_type)
            has_pixels = low >= 0 and MIN_UNSCALED_VALUE <= high <= MAX_PIXEL
            if self.dtype in (None, "uint8") or (self.pixel_type.kind == "f" and has_pixels):
                return pixels.astype(self.pixel_type, copy=False)
        elif pixels.dtype == self.pixel_type:
            return pixels
        raise DataError(
            f"The image has pixels of {pixels.dtype}, but the network was trained on {self.dtype} "
            f"from {low:g} to {high:g}. Make an array as for the training, and predict that."
        )

    def decode_samples(self, reader: Reader) -> tuple[Array, Array]:
        """Decode the images of a reader: (n, H, W, d), and why each cannot be used, (n,) of object.

        An image that can be used has the problem None; others are zeros.
        """
        samples = reader()
        images = np.zeros((len(samples.names), *self.image_shape), self.pixel_type)
        problems = np.full(len(samples.names), None, object)
        for number, item in enumerate(samples.images):
            try:
                images[number] = self.decode(item)
            except DataError as error:
                problems[number] = f"{mask_secrets(samples.names[number])}: {error}"
        return images, problems

    def read_photo(self, photo: str | os.PathLike[str] | Image.Image) -> Array:
        """Return the image (H, W, d) of a file at any fsspec URL, or of a Pillow image."""
        if isinstance(photo, Image.Image):
            return self.decode(photo)
        if not isinstance(photo, str | os.PathLike):
            raise DataError(
                f"{type(photo).__name__} is neither the path of an image file nor a Pillow image. "
                "Use predict for arrays."
            )
        url = Location.of(photo).url
        try:
            return self.decode(read_named_file(url))
        except DataError as error:
            raise DataError(f"{mask_secrets(url)}: {error}") from None


def read_photos(
    source: Source, split: str, decoder: PhotoDecoder, chunk_images: int
) -> tuple[Array, Array]:
    """Read images (n, H, W, d) of a split and their problems (n,), as `decode_samples`.

    Chunks of `chunk_images` are decoded at the same time.
    """
    from rescnet_dist.cluster.tasks import call_each  # imports Dask, which one photo does not need

    starts = range(0, source.splits[split], chunk_images)
    stops = (min(start + chunk_images, starts.stop) for start in starts)
    readers = [(source.reader(split, *rows),) for rows in zip(starts, stops, strict=True)]
    images, problems = zip(*call_each(decoder.decode_samples, readers), strict=True)
    return np.concatenate(images), np.concatenate(problems)


class PhotoSource(Source):
    """Image files without labels, each given by its URL, as the split test."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.url, self.classes, self.labels = urls[0], (), {}
        self.names = list(urls)
        self.urls = [Location.of(url).url for url in urls]
        self.splits = {"test": len(self.urls)}

    def files(self, split: str) -> Sequence[str]:
        """Return the URLs as they were given."""
        return self.names

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Return a reader of the bytes of the files."""
        return partial(_read, self.urls[start:stop])


def _read(urls: list[str]) -> Samples:
    """Return the bytes of image files, read lazily."""
    return Samples(read_files(urls), urls)


def is_photo(url: str) -> bool:
    """Return whether a URL is that of an image file by its name.

    >>> is_photo("cats/1.JPG"), is_photo("photos.zarr")
    (True, False)
    """
    return url.lower().endswith(IMAGE_SUFFIXES)


def has_photos(source: Source) -> bool:
    """Return whether the images of a source are files or bytes to be decoded, not arrays."""
    split = next(iter(source.splits))
    return not isinstance(source.read(split, 0, 1).images, np.ndarray)
