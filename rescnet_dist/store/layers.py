"""The stored form of a layer: one Zarr group of small named arrays, readable with xarray."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from rescnet_dist.errors import CorruptDataError
from rescnet_dist.model.layer import (
    BANK_ARRAYS,
    RATE_ARRAY,
    Bank,
    FittedHead,
    ImageScale,
    Layer,
)
from rescnet_dist.model.view import View, ViewArrays
from rescnet_dist.store.checksums import Array
from rescnet_dist.store.location import Location

LAYERS_PATH = "layers"
VIEWS_PATH = "views"
SCALE_DIMS = {"low": ("channel",), "scale": ("channel",)}

ArrayDims = Mapping[str, tuple[str, ...]]  # names of arrays and of their dimensions


def layer_path(layer: int) -> str:
    """Return the path of layer `layer`, counted from 1, in its run or network."""
    return f"{LAYERS_PATH}/{layer:04d}"


def write_image_scale(location: Location, scale: ImageScale) -> None:
    """Store the normalization of the images."""
    values = {"low": scale.low, "scale": scale.scale}
    location.write_small("image_scale", {k: (SCALE_DIMS[k], v) for k, v in values.items()})


def read_image_scale(location: Location, views: Iterable[View] = ()) -> ImageScale:
    """Read the normalization that `write_image_scale` stored, and the arrays of these views."""
    values = location.read_small("image_scale", tuple(SCALE_DIMS))
    return ImageScale(**values, views=read_views(location, views))


def write_views(
    location: Location, arrays: Mapping[str, ViewArrays], views: Iterable[View]
) -> None:
    """Store what views have learned from the training images, by the name of the view."""
    for view in views:
        if view.name in arrays:
            own = {name: (dims, arrays[view.name][name]) for name, dims in view.arrays.items()}
            location.write_small(f"{VIEWS_PATH}/{view.name}", own)


def read_views(location: Location, views: Iterable[View]) -> dict[str, ViewArrays]:
    """Read what these views have learned; those without arrays are left out."""
    return {
        view.name: location.read_small(f"{VIEWS_PATH}/{view.name}", tuple(view.arrays))
        for view in views
        if view.arrays
    }


def write_bank(location: Location, layer: int, bank: Bank, *, in_half: bool = False) -> None:
    """Store the filter bank with which a layer computes its maps: what is stored of it first.

    Layers are stored in order, and the first one creates the group of all layers.
    """
    values = {
        "input_low": bank.low,
        "input_scale": bank.scale,
        "filters": bank.filters,
        "bias": bank.bias,
    }
    arrays = {k: (BANK_ARRAYS[k], v) for k, v in values.items()}
    path = layer_path(layer)
    new_groups = (path, LAYERS_PATH) if layer == 1 else (path,)
    location.write_small(path, arrays, in_half=in_half, new_groups=new_groups)


def read_bank(location: Location, layer: int) -> Bank:
    """Read the filter bank that `write_bank` stored."""
    return _make_bank(location.read_small(layer_path(layer), tuple(BANK_ARRAYS)))


def _make_bank(values: Mapping[str, Array]) -> Bank:
    """Return the filter bank of its stored arrays."""
    return Bank(values["input_low"], values["input_scale"], values["filters"], values["bias"])


def write_head(
    location: Location, layer: int, head: FittedHead, dims: ArrayDims, *, in_half: bool = False
) -> None:
    """Store the head with which a layer updates the scores, after its filter bank.

    `dims` are those of the arrays of the head.
    """
    values = {name: (dims[name], np.asarray(head.arrays[name])) for name in dims}
    values[RATE_ARRAY] = (), np.asarray(head.rate)
    location.write_small(layer_path(layer), values, in_half=in_half, new_groups=())


def read_head(location: Location, layer: int, dims: ArrayDims) -> FittedHead:
    """Read the head that `write_head` stored."""
    return _make_head(location.read_small(layer_path(layer), (*dims, RATE_ARRAY)), dims)


def _make_head(values: Mapping[str, Array], dims: ArrayDims) -> FittedHead:
    """Return the head of its stored arrays."""
    return FittedHead({name: values[name] for name in dims}, float(values[RATE_ARRAY]))


def read_layer(
    location: Location,
    layer: int,
    dims: ArrayDims | None,
    sizes: Mapping[str, int] | None = None,
    without: Collection[str] = (),
) -> Layer:
    """Read a whole fitted layer; `dims` are those of the arrays of its head, None without one.

    Arrays in `without` are not read, and have no rows. Raise CorruptDataError if an array has other
    dimensions, or other lengths of them than `sizes`.
    """
    head_dims = {name: names for name, names in (dims or {}).items() if name not in without}
    all_dims = {**BANK_ARRAYS} if dims is None else {**BANK_ARRAYS, **head_dims, RATE_ARRAY: ()}
    values = location.read_small(layer_path(layer), tuple(all_dims))
    for name, names in (dims or {}).items():
        if name in without:
            others = (sizes.get(dim, 0) if sizes else 0 for dim in names[1:])
            values[name] = np.zeros((0, *others), np.float32)
    if sizes is not None:
        for name, names in all_dims.items():
            shape = values[name].shape
            expected = tuple(sizes.get(dim, size) for dim, size in zip(names, shape, strict=False))
            if len(names) != len(shape) or shape != expected:
                raise CorruptDataError(
                    f"{location.url}/{layer_path(layer)}/{name} has the shape {shape}. The "
                    f"attributes of the store make it ({', '.join(names)}) = {expected}. One of "
                    "them is damaged; restore a copy of the store, or train again."
                )
    return Layer(_make_bank(values), None if dims is None else _make_head(values, dims))


def write_layer(
    location: Location, number: int, layer: Layer, dims: ArrayDims, *, in_half: bool = False
) -> None:
    """Store a whole fitted layer; `dims` are those of the arrays of its head.

    With `in_half`, its larger arrays are stored in half precision.
    """
    write_bank(location, number, layer.bank, in_half=in_half)
    if layer.head:
        write_head(location, number, layer.head, dims, in_half=in_half)


@dataclass(frozen=True, slots=True)
class StoredLayers(Sequence[Layer]):
    """The first `depth` layers stored at a location, each read on access; pickled as a URL.

    `dims` are those of the arrays of their heads, which the layers from `first_head` on have. With
    `sizes`, a function of the number of a layer, the shapes of its arrays are checked. Arrays in
    `without` are not read.
    """

    location: Location
    depth: int
    dims: ArrayDims
    first_head: int = 1
    sizes: Callable[[int], Mapping[str, int]] | None = None
    without: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return self.depth

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Layer]: ...
    def __getitem__(self, index: int | slice) -> Layer | Sequence[Layer]:
        if isinstance(index, slice):
            selected = range(*index.indices(self.depth))
            if selected == range(len(selected)):
                return replace(self, depth=len(selected))
            return tuple(self[i] for i in selected)
        if not -self.depth <= index < self.depth:
            raise IndexError(f"Layer index {index} is out of range. There are {self.depth} layers.")
        number = index % self.depth + 1
        dims = self.dims if number >= self.first_head else None
        sizes = self.sizes(number) if self.sizes else None
        return read_layer(self.location, number, dims, sizes, self.without)
