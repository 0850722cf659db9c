"""Contact sheets: rows of images with a name beside each row, as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from PIL import Image, ImageDraw, ImageFont

from rescnet_dist.data.dataset import open_dataset
from rescnet_dist.errors import DataError
from rescnet_dist.kernels import augment_images
from rescnet_dist.spec import AugmentSpec

SIDE = 64  # pixels of an image on a sheet, about
GAP, TEXT = 4, 120
BACKGROUND, INK = (255, 255, 255), (40, 40, 40)
MOST_CLASSES = 40
Array = np.ndarray[Any, np.dtype[Any]]


def contact_sheet(rows: Sequence[Array], names: Sequence[str]) -> Any:
    """A picture with one row per array of images (n, H, W, d), named at its left."""
    height, width = rows[0].shape[1:3]
    scale = max(1, SIDE // max(height, width))
    size = (scale * width, scale * height) if scale > 1 else _shrunk(width, height)
    columns = max(len(row) for row in rows)
    sheet = Image.new(
        "RGB",
        (TEXT + columns * (size[0] + GAP) + GAP, len(rows) * (size[1] + GAP) + GAP),
        BACKGROUND,
    )
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for number, (images, name) in enumerate(zip(rows, names, strict=True)):
        top = GAP + number * (size[1] + GAP)
        draw.text((GAP, top + size[1] // 2 - 8), name[:15], INK, font)
        for column, image in enumerate(images):
            picture = Image.fromarray(_colors(image)).resize(size, Image.Resampling.NEAREST)
            sheet.paste(picture, (TEXT + column * (size[0] + GAP), top))
    return sheet


def sheet(
    source: str | os.PathLike[str] | xr.Dataset,
    augment: AugmentSpec | None = None,
    *,
    images: int = 10,
    seed: int = 0,
) -> Any:
    """A picture of a data set, as `open_dataset` takes one, which notebooks show: so many images of
    each class; or with `augment` so many images in all, each beside its copies, exactly as a run
    with that seed makes them."""
    if images < 1:
        raise DataError(f"images={images} shows nothing: give at least 1")
    if augment is None:
        return class_sheet(source, images)
    return augmentation_sheet(source, augment, seed, images)


def class_sheet(source: str | os.PathLike[str] | xr.Dataset, per_class: int = 10) -> Any:
    """A contact sheet of the first images of each class of a data set, of its train split."""
    dataset = open_dataset(source)
    labels, names = dataset["labels"].to_numpy(), dataset.attrs.get("class_names")
    shown = range(len(names)) if names else np.unique(labels).tolist()
    rows, titles = [], []
    for code in list(shown)[:MOST_CLASSES]:
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
    """A contact sheet of a data set's first images of its classes in turn, each beside copies."""
    if not augment.copies:
        raise DataError("there is nothing to show: give copies and how to make them")
    dataset = open_dataset(source)
    augment.check_images(*dataset["images"].shape[1:])
    labels, names = dataset["labels"].to_numpy(), dataset.attrs.get("class_names")
    chosen = _in_turn(labels, images)
    copy, rows = np.arange(1 + augment.copies), []
    for number in chosen:
        image = dataset["images"].isel(image=slice(number, number + 1)).to_numpy()
        same = np.repeat(image, len(copy), axis=0)
        rows.append(augment_images(same, np.full(len(copy), number), copy, augment, seed))
    return contact_sheet(rows, [str(names[labels[n]] if names else labels[n]) for n in chosen])


def _in_turn(labels: Array, count: int) -> list[int]:
    """The first image of each class, then the second, and so on."""
    found = {code: np.flatnonzero(labels == code).tolist() for code in np.unique(labels).tolist()}
    order = [
        members[turn]
        for turn in range(max(len(members) for members in found.values()))
        for members in found.values()
        if turn < len(members)
    ]
    return order[:count]


def _shrunk(width: int, height: int) -> tuple[int, int]:
    factor = 2 * SIDE / max(width, height, 2 * SIDE)
    return max(1, int(width * factor)), max(1, int(height * factor))


def _colors(image: Array) -> Array:
    """An image (H, W, d) in three channels of uint8: pixels of other types over their range."""
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        if image.dtype.kind in "iu":
            low, high = 0.0, float(np.iinfo(image.dtype).max)
        image = (255 * (image - low) / max(high - low, 1e-12)).clip(0, 255).astype(np.uint8)
    if image.shape[2] in (3, 4):
        return np.ascontiguousarray(image[:, :, :3])
    return np.repeat(image[:, :, :1], 3, axis=2)
