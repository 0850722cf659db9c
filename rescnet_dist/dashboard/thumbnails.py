"""Thumbnails of filters, maps and images: numbers to colors, and PNG files as data URIs."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from PIL import Image

from rescnet_dist.model import forward, initial_state
from rescnet_dist.network import Network

# RGB colors at equal steps, as in matplotlib's RdBu_r and viridis.
DIVERGING_COLORS = (
    (33, 102, 172),
    (146, 197, 222),
    (247, 247, 247),
    (244, 165, 130),
    (178, 24, 43),
)
SEQUENTIAL_COLORS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
Array = np.ndarray[Any, np.dtype[Any]]


def colorize(values: Array, colors: tuple[tuple[int, int, int], ...]) -> Array:
    """Return values (H, W) from 0 to 1 as uint8 pixels (H, W, 3), interpolated between colors."""
    steps = np.linspace(0, 1, len(colors))
    channels = [np.interp(values, steps, channel) for channel in zip(*colors, strict=True)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


@dataclass(frozen=True, slots=True)
class FilterPicture:
    """A picture of a filter: the label of its learner, its name, and uint8 pixels (k, k, 3)."""

    kind: str
    name: str
    pixels: Array


def draw_filters(network: Network, layer: int) -> list[FilterPicture]:
    """Return pictures of the filters of a layer, counted from 1.

    Filters of layer 1 on color images are drawn in color. Of other filters with many channels,
    the channel with the largest weights is drawn, red where positive and blue where negative.
    """
    filters = np.asarray(network.layers[layer - 1].bank.filters)
    pictures = []
    for tower in network.architecture.towers(layer):
        prefix = "" if tower.view == "image" else f"{tower.view} "
        for learner, group in tower.groups:
            for index, number in enumerate(group.filters, start=1):
                kind = learner.label
                name = f"{prefix}{kind} {index}"
                weights = filters[:, :, list(tower.channels), number]
                if layer == 1 and weights.shape[2] == 3:
                    pictures.append(FilterPicture(kind, name, _draw_color_weights(weights)))
                    continue
                strongest = int(np.square(weights).sum(axis=(0, 1)).argmax())
                if weights.shape[2] > 1:
                    name += f" · in {tower.channels[strongest] + 1}"
                pixels = _draw_signed_weights(weights[..., strongest])
                pictures.append(FilterPicture(kind, name, pixels))
    return pictures


def _draw_color_weights(weights: Array) -> Array:
    """Return weights (k, k, 3) as uint8 pixels, gray where 0."""
    limit = float(np.abs(weights).max()) or 1.0
    return np.asarray((127.5 + 127.5 * weights / limit).round().astype(np.uint8))


def _draw_signed_weights(weights: Array) -> Array:
    """Return weights (k, k) as uint8 pixels (k, k, 3), white where 0."""
    limit = float(np.abs(weights).max()) or 1.0
    return colorize(0.5 + weights / (2 * limit), DIVERGING_COLORS)


def draw_image(image: Array) -> Array:
    """Return an image (H, W, d) as uint8 pixels (H, W, 3).

    Images of other dtypes than uint8 are scaled to their own range.
    """
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = (255 * (image - low) / max(high - low, 1e-12)).clip(0, 255).astype(np.uint8)
    if image.shape[2] in (3, 4):
        return np.ascontiguousarray(image[:, :, :3])
    return np.repeat(image[:, :, :1], 3, axis=2)


def select_filters(network: Network, layer: int, count: int) -> list[int]:
    """Return the indices of `count` filters of a layer, about as many of each learner.

    Of each learner, the towers alternate, each starting at its first filter.
    """
    kinds: dict[str, list[list[int]]] = {}
    for learner, group in network.architecture.groups(layer):
        kinds.setdefault(learner.name, []).append(list(group.filters))
    chosen: list[int] = []
    left = [_interleave(groups) for groups in kinds.values()]
    while left:
        own = left.pop(0)
        others = sum(map(len, left))
        missing = count - len(chosen)
        chosen += own[: max(missing - others, math.ceil(missing / (len(left) + 1)))]
    return chosen


def _interleave(lists: list[list[int]]) -> list[int]:
    """Return all numbers of some lists: the first of each list, then the second of each."""
    rows = zip_longest(*lists)
    return [number for row in rows for number in row if number is not None]


def draw_maps(
    network: Network, images: Array, layers: list[int], count: int
) -> dict[int, list[list[Array]]]:
    """Return `count` maps of each of a few images (n, H, W, d), by layer.

    Each map is a list entry of uint8 pixels (H, W, 3), scaled to the range of the map.
    """
    pictures: dict[int, list[list[Array]]] = {}
    architecture = network.architecture
    before = initial_state(images, network.image_scale, architecture)
    stages = forward(architecture, before, network.layers[: max(layers)], heads=False)
    for layer, state in enumerate(stages, start=1):
        if layer in layers and state.maps is not None:
            chosen = select_filters(network, layer, count)
            pictures[layer] = [
                [_draw_map(image_maps[..., n]) for n in chosen] for image_maps in state.maps
            ]
    return pictures


def _draw_map(values: Array) -> Array:
    """Return values (H, W) as uint8 pixels (H, W, 3), scaled to their own range."""
    low, high = float(values.min()), float(values.max())
    return colorize((values - low) / max(high - low, 1e-12), SEQUENTIAL_COLORS)


def data_uri(pixels: Array) -> str:
    """Return uint8 pixels (H, W, 3) as the data: URI of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def spaced_integers(first: int, last: int, count: int) -> list[int]:
    """Return at most `count` evenly spaced integers from first to last, both included.

    >>> spaced_integers(1, 9, 3), spaced_integers(1, 2, 3)
    ([1, 5, 9], [1, 2])
    """
    return sorted({round(value) for value in np.linspace(first, last, count).tolist()})
