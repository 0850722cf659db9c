"""Standard names of variables, dimensions and splits of xarray Datasets, and class names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rescnet_dist.data.classes import classes_array
from rescnet_dist.data.images import IMAGE_NAMES, LABEL_NAMES, Array
from rescnet_dist.data.kinds import is_dask_array
from rescnet_dist.data.sources.source import parse_split_name
from rescnet_dist.data.stored import GROUP_NAMES, WEIGHT_NAMES
from rescnet_dist.errors import DataError
from rescnet_dist.store import IMAGE_DIMS

if TYPE_CHECKING:
    import xarray as xr


def find_images_name(dataset: xr.Dataset) -> str:
    """Return the name of the variable with images; raise DataError if there is none."""
    for name in IMAGE_NAMES:
        if name in dataset.data_vars:
            return name
    raise DataError(
        f"The Dataset has the variables {list(dataset.data_vars)}. Name the one with the images "
        "images, and the one with their labels labels."
    )


def normalize_dataset(dataset: xr.Dataset) -> xr.Dataset:
    """Return a Dataset with the standard names of variables and order of dimensions."""
    standard_names = {find_images_name(dataset): "images"}
    for name, aliases in (
        ("labels", LABEL_NAMES),
        ("groups", GROUP_NAMES),
        ("sample_weight", WEIGHT_NAMES),
    ):
        found = next((alias for alias in aliases if alias in dataset.data_vars), None)
        if found:
            standard_names[found] = name
    variables = {name: dataset[found] for found, name in standard_names.items()}
    images = variables.pop("images")
    if images.ndim not in (3, 4):
        raise DataError(
            f"images has the dimensions {images.dims}. Images must be (image, y, x, channel)."
        )
    if set(images.dims) <= set(IMAGE_DIMS):
        images = images.transpose(*(dim for dim in IMAGE_DIMS if dim in images.dims))
    pixels = images.data if images.ndim == 4 else images.data[..., np.newaxis]
    coords = {"split": ("image", _normalize_splits(dataset["split"]))} if "split" in dataset else {}
    import xarray as xr  # slow to import; who has a Dataset has imported it

    return xr.Dataset(
        {
            "images": (IMAGE_DIMS, pixels),
            **{name: ("image", v.data) for name, v in variables.items()},
        },
        coords=coords,
        attrs=dataset.attrs,
    )


def _normalize_splits(names: xr.DataArray) -> Array:
    """Return the standard names of splits (N,)."""
    found, inverse = np.unique(names.to_numpy().astype(str), return_inverse=True)
    splits = [parse_split_name(name) or "" for name in found.tolist()]
    if not all(splits):
        raise DataError(
            f"The Dataset has the splits {found.tolist()}. Name them train, val or test."
        )
    return np.asarray(np.array(splits)[inverse])


def decode_labels(labels: Any, names: Any) -> Any:
    """Return the class names (N,) that labels (N,) index; the labels if there are no names."""
    if labels is None or names is None or not len(names):
        return labels
    classes = classes_array(list(names))

    def decode_block(codes: Array) -> Array:
        if len(codes) and not (codes.min() >= 0 and codes.max() < len(classes)):
            raise DataError(
                f"Labels are from {codes.min()} to {codes.max()}, and there are {len(classes)} "
                "class names. Labels must be from 0 to the number of names minus 1."
            )
        return np.asarray(classes[codes])

    if is_dask_array(labels):
        return labels.map_blocks(decode_block, dtype=classes.dtype, meta=np.empty(0, classes.dtype))
    return decode_block(labels)
