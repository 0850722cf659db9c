"""Options of the augmented copies of training images."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rescnet_dist.errors import SpecError
from rescnet_dist.options import option
from rescnet_dist.spec.base import Spec


@dataclass(frozen=True, slots=True)
class AugmentSpec(Spec):
    """Augmented copies of the training images, made whenever images are read and never stored.

    Raises
    ------
    SpecError
        If an option is unknown, or a value is out of range or does not fit the others.

    Examples
    --------
    >>> AugmentSpec(copies=4, flip=True, shift=2).changes
    ['flip', 'shift']
    """

    table: ClassVar[str] = "augment"
    title: ClassVar[str] = "Augmented copies"

    copies: int = option(
        0,
        help="augmented copies of each training image, in addition to the image",
        doc="Copies of each training image, in addition to the image, up to 10,000.",
        low=0,
        high=10_000,
    )
    flip: bool = option(
        False,
        help="mirror every second copy left to right",
        doc="Mirror every second copy left to right, starting with the first: a single copy "
        "is always mirrored. With `flip_vertical`, copies cycle through left to right, "
        "top to bottom, both and neither.",
    )
    flip_vertical: bool = option(
        False,
        help="mirror every second copy top to bottom",
        doc="Mirror every second copy top to bottom, as for `flip`.",
    )
    shift: int = option(
        0, help="largest shift of copies, in pixels", doc="Largest shift in whole pixels.", low=0
    )
    crop: float = option(
        1.0,
        help="smallest crop of copies, as a fraction of the sides; crops are enlarged to full size",
        doc="Smallest side of a random square crop, as a fraction of the image's sides; the "
        "crop is enlarged to the full size.",
        above=0,
        high=1,
    )
    rotate: float = option(
        0.0,
        help="largest rotation of copies, in degrees",
        doc="Largest rotation in degrees, up to 180.",
        low=0,
        high=180,
    )
    scale: float = option(
        0.0,
        help="largest change of size of copies, as a fraction",
        doc="Largest change of size, up or down, as a fraction.",
        low=0,
        high=1,
    )
    padding: Literal["zero", "edge", "reflect"] = option(
        "zero",
        help="pixels beyond the borders of copies",
        doc="Pixels beyond the border: zeros, the pixels of the border, or the mirrored image.",
    )
    brightness: float = option(
        0.0,
        help="largest change of brightness, as a fraction",
        doc="Largest change of brightness: pixels are multiplied by a factor this far from 1.",
        low=0,
        high=1,
    )
    contrast: float = option(
        0.0,
        help="largest change of contrast, as a fraction",
        doc="Largest change of contrast, as for `brightness`.",
        low=0,
        high=1,
    )
    saturation: float = option(
        0.0,
        help="largest change of saturation, as a fraction",
        doc="Largest change of saturation, as for `brightness`; only for color images.",
        low=0,
        high=1,
    )
    cutout: int = option(
        0,
        help="width and height of a square that is set to 0 in copies, in pixels",
        doc="Width and height in pixels of a square that is set to 0.",
        low=0,
    )
    noise: float = option(
        0.0,
        help="standard deviation of Gaussian noise, as a fraction of the pixel range",
        doc="Standard deviation of Gaussian noise, as a fraction of the pixel range (255 for "
        "uint8, 1 for floating point).",
        low=0,
    )

    def check(self) -> None:
        """Raise SpecError if options do not fit each other.

        Raises
        ------
        SpecError
            If copies would not differ from their image, or there are none to change.
        """
        options = [f.name for f in dataclasses.fields(self) if f.name not in ("copies", "padding")]
        if self.copies and not self.changes:
            raise SpecError(
                f"copies={self.copies} would all be the same as their image. Set at least one of "
                + ", ".join(options)
                + "."
            )
        if self.changes and not self.copies:
            raise SpecError(
                f"{self.changes[0]}={getattr(self, self.changes[0])} changes copies of the images, "
                "but copies=0. Use copies of at least 1."
            )

    @property
    def changes(self) -> list[str]:
        """Names of the options by which copies differ from their image."""
        return [
            f.name
            for f in dataclasses.fields(self)
            if f.name not in ("copies", "padding") and getattr(self, f.name) != f.default
        ]

    @property
    def copy_options(self) -> dict[str, Any]:
        """Values of the options of a single copy, by name: all options but `copies`."""
        names = (f.name for f in dataclasses.fields(self) if f.name != "copies")
        return {name: getattr(self, name) for name in names}

    def check_images(self, height: int, width: int, channels: int) -> None:
        """Raise SpecError if images of this shape cannot be augmented.

        Parameters
        ----------
        height, width : int
            Size of the images in pixels.
        channels : int
            Channels of the images.

        Raises
        ------
        SpecError
            If a shift or a cutout is as large as the images, or saturation is to change in images
            that are not in color.
        """
        for name in ("shift", "cutout"):
            if getattr(self, name) >= min(height, width):
                raise SpecError(
                    f"{name}={getattr(self, name)} leaves nothing of images of {height}×{width} "
                    f"pixels. Use {name} of at most {min(height, width) - 1}."
                )
        if self.saturation and channels != 3:
            raise SpecError(
                f"saturation={self.saturation} is for color images with 3 channels, but these "
                f"have {channels}. Leave saturation out."
            )


MIRROR = AugmentSpec(copies=1, flip=True)  # one copy of each image, its mirror image
