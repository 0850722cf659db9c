"""Contact sheets: pictures with rows of images, and a name to the left of each row."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rescnet_dist.data.dataset import open_dataset
from rescnet_dist.errors import DataError
from rescnet_dist.kernels import Augmentation, augment_images
from rescnet_dist.spec import AugmentSpec

if TYPE_CHECKING:
    import xarray as xr

IMAGE_SIDE_PIXELS = 64  # approximate, on a sheet
GAP_PIXELS, NAME_WIDTH_PIXELS, NAME_HEIGHT_PIXELS = 4, 120, 16
FONT_SIZE_PIXELS = 14
MAX_NAME_CHARACTERS = 15
BACKGROUND_COLOR, TEXT_COLOR = (255, 255, 255), (40, 40, 40)
MAX_SHEET_CLASSES = 40
Array = np.ndarray[Any, np.dtype[Any]]


def contact_sheet(rows: Sequence[Array], names: Sequence[str]) -> Any:
    """Return a picture with one row per array of images (n, H, W, d), named at its left."""
    height, width = rows[0].shape[1:3]
    scale = max(1, IMAGE_SIDE_PIXELS // max(height, width))
    size = (scale * width, scale * height) if scale > 1 else _shrink_size(width, height)
    column_width, row_height = size[0] + GAP_PIXELS, size[1] + GAP_PIXELS
    columns = max(len(row) for row in rows)
    sheet = Image.new(
        "RGB",
        (
            NAME_WIDTH_PIXELS + columns * column_width + GAP_PIXELS,
            len(rows) * row_height + GAP_PIXELS,
        ),
        BACKGROUND_COLOR,
    )
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(FONT_SIZE_PIXELS)
    for number, (images, name) in enumerate(zip(rows, names, strict=True)):
        top = GAP_PIXELS + number * row_height
        middle = top + size[1] // 2 - NAME_HEIGHT_PIXELS // 2
        draw.text((GAP_PIXELS, middle), name[:MAX_NAME_CHARACTERS], TEXT_COLOR, font)
        for column, image in enumerate(images):
            picture = Image.fromarray(_to_color(image)).resize(size, Image.Resampling.NEAREST)
            sheet.paste(picture, (NAME_WIDTH_PIXELS + column * column_width, top))
    return sheet


def sheet(
    source: str | os.PathLike[str] | xr.Dataset,
    augment: AugmentSpec | None = None,
    *,
    images: int = 10,
    seed: int = 0,
) -> Any:
    """Return a picture of a dataset, which notebooks display.

    Parameters
    ----------
    source : str, path or xarray.Dataset
        A dataset, as for `open_dataset`.
    augment : AugmentSpec, optional
        If given, each image is followed by its copies, exactly as a run with the same seed makes
        them.
    images : int, default=10
        The number of images of each class or, with `augment`, of all images.
    seed : int, default=0
        The seed of the copies.

    Returns
    -------
    PIL.Image.Image
        One row per class or, with `augment`, per image.

    Raises
    ------
    DataError
        If `images` is less than 1, if `augment` makes no copies, or if the dataset cannot be read.

    Examples
    --------
    >>> sheet("digits", images=3).size
    (304, 604)
    """
    if images < 1:
        raise DataError(f"images={images} shows nothing. Give at least 1.")
    if augment is None:
        return class_sheet(source, images)
    return augmentation_sheet(source, augment, seed, images)


def class_sheet(source: str | os.PathLike[str] | xr.Dataset, per_class: int = 10) -> Any:
    """Return a contact sheet of the first images of each class of a dataset."""
    dataset = open_dataset(source)
    labels, names = dataset["labels"].to_numpy(), dataset.attrs.get("class_names")
    codes = range(len(names)) if names else np.unique(labels).tolist()
    rows, titles = [], []
    for code in list(codes)[:MAX_SHEET_CLASSES]:
        members = np.flatnonzero(labels == code)[:per_class]
        if len(members):
            rows.append(dataset["images"].isel(image=members).to_numpy())
            titles.append(str(names[code]) if names else str(code))
    return contact_sheet(rows, titles)


def augmentation_sheet(
    source: str | os.PathLike[str] | xr.Dataset,
    augment: AugmentSpec,
    seed: int = 0,
    images: int = 10,
) -> Any:
    """Return a contact sheet of images, of all classes in turn, each followed by its copies."""
    if not augment.copies:
        raise DataError(
            f"copies={augment.copies} shows nothing. Give a number of copies and their "
            "augmentations."
        )
    dataset = open_dataset(source)
    augment.check_images(*dataset["images"].shape[1:])
    labels, names = dataset["labels"].to_numpy(), dataset.attrs.get("class_names")
    chosen = _choose_in_turn(labels, images)
    copy, rows = np.arange(1 + augment.copies), []
    changes = Augmentation(**augment.copy_options)
    for number in chosen:
        image = dataset["images"].isel(image=slice(number, number + 1)).to_numpy()
        repeated = np.repeat(image, len(copy), axis=0)
        rows.append(augment_images(repeated, np.full(len(copy), number), copy, changes, seed))
    return contact_sheet(rows, [str(names[labels[n]] if names else labels[n]) for n in chosen])


def _choose_in_turn(labels: Array, count: int) -> list[int]:
    """Return `count` images: the first image of each class, then the second, and so on."""
    by_class = {
        code: np.flatnonzero(labels == code).tolist() for code in np.unique(labels).tolist()
    }
    order = [
        members[turn]
        for turn in range(max(len(members) for members in by_class.values()))
        for members in by_class.values()
        if turn < len(members)
    ]
    return order[:count]


def _shrink_size(width: int, height: int) -> tuple[int, int]:
    """Return the size on a sheet of an image that is larger than `IMAGE_SIDE_PIXELS`."""
    limit = 2 * IMAGE_SIDE_PIXELS
    factor = limit / max(width, height, limit)
    return max(1, int(width * factor)), max(1, int(height * factor))


def _to_color(image: Array) -> Array:
    """Return an image (H, W, d) as (H, W, 3) uint8; other dtypes are scaled by their range."""
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        if image.dtype.kind in "iu":
            low, high = 0.0, float(np.iinfo(image.dtype).max)
        image = (255 * (image - low) / max(high - low, 1e-12)).clip(0, 255).astype(np.uint8)
    if image.shape[2] in (3, 4):
        return np.ascontiguousarray(image[:, :, :3])
    return np.repeat(image[:, :, :1], 3, axis=2)
