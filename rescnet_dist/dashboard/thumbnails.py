"""Filters, maps and images as small pictures: colors of numbers, and PNG files as text."""

from __future__ import annotations

import base64
import io
from itertools import zip_longest
from typing import Any

import numpy as np
from PIL import Image

from rescnet_dist.kernels import forward
from rescnet_dist.network import Network
from rescnet_dist.spec import Tower

# colors at equal steps, as those of matplotlib's RdBu_r and viridis
DIVERGING = ((33, 102, 172), (146, 197, 222), (247, 247, 247), (244, 165, 130), (178, 24, 43))
SEQUENTIAL = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
Array = np.ndarray[Any, np.dtype[Any]]


def colorize(values: Array, colors: tuple[tuple[int, int, int], ...]) -> Array:
    """Values (H, W) from 0 to 1 as pixels (H, W, 3) uint8 between colors at equal steps."""
    steps = np.linspace(0, 1, len(colors))
    channels = [np.interp(values, steps, channel) for channel in zip(*colors, strict=True)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def shown_filters(network: Network, layer: int) -> list[tuple[str, Array]]:
    """The filters of a layer, from 1, as pictures (k, k, 3) uint8 with their names.

    Of images in color, those of layer 1 are in color, too; of filters of many channels the one
    with the largest weights is shown, red where positive and blue where negative.
    """
    filters = np.asarray(network.layers[layer - 1].bank.filters)
    found = []
    for view, tower in enumerate(_towers(network, layer)):
        for index, number in enumerate(tower.filters):
            kind, index = ("PCA", index) if index < tower.pca else ("LDA", index - tower.pca)
            name = f"{'contrast ' if view else ''}{kind} {index + 1}"
            weights = filters[:, :, list(tower.channels), number]
            if layer == 1 and weights.shape[2] == 3:
                found.append((name, _unit(weights)))
                continue
            strongest = int(np.square(weights).sum(axis=(0, 1)).argmax())
            if weights.shape[2] > 1:
                name += f" · in {tower.channels[strongest] + 1}"
            found.append((name, _signed(weights[..., strongest])))
    return found


def _towers(network: Network, layer: int) -> list[Tower]:
    """The parts of the bank of a layer, from 1."""
    return network.spec.layer_towers(layer, len(network.image_scale.low))


def _unit(weights: Array) -> Array:
    """Weights (k, k, 3) as colors, gray where 0."""
    limit = float(np.abs(weights).max()) or 1.0
    return np.asarray((127.5 + 127.5 * weights / limit).round().astype(np.uint8))


def _signed(weights: Array) -> Array:
    """Weights (k, k) as colors, white where 0."""
    limit = float(np.abs(weights).max()) or 1.0
    return colorize(0.5 + weights / (2 * limit), DIVERGING)


def shown_image(image: Array) -> Array:
    """An image (H, W, d) as pixels (H, W, 3) uint8; others than uint8 over their own range."""
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = (255 * (image - low) / max(high - low, 1e-12)).clip(0, 255).astype(np.uint8)
    if image.shape[2] in (3, 4):
        return np.ascontiguousarray(image[:, :, :3])
    return np.repeat(image[:, :, :1], 3, axis=2)


def select_filters(network: Network, layer: int, count: int) -> list[int]:
    """Numbers of a few filters of a layer: of PCA and stacked-LDA, of its towers in turns, each
    from its first."""
    towers = _towers(network, layer)
    kinds = [
        _in_turns([list(tower.filters[: tower.pca]) for tower in towers]),
        _in_turns([list(tower.filters[tower.pca :]) for tower in towers]),
    ]
    half = min(len(kinds[0]), max(count - len(kinds[1]), (count + 1) // 2))
    return kinds[0][:half] + kinds[1][: count - half]


def _in_turns(parts: list[list[int]]) -> list[int]:
    """All numbers of some lists, the first of each, then the second of each."""
    rows = zip_longest(*parts)
    return [number for row in rows for number in row if number is not None]


def shown_maps(
    network: Network, images: Array, layers: list[int], count: int
) -> dict[int, list[list[Array]]]:
    """Some maps of a few images (n, H, W, d) by layer: of each image `count` pictures (H, W, 3)
    uint8, over the range of the map."""
    found: dict[int, list[list[Array]]] = {}
    stages = forward(
        images, network.layers[: max(layers)], network.image_scale, network.spec,
        len(network.classes),
    )  # fmt: skip
    for layer, (maps, _) in enumerate(stages, start=1):
        if layer in layers:
            chosen = select_filters(network, layer, count)
            found[layer] = [[_ranged(of_one[..., n]) for n in chosen] for of_one in maps]
    return found


def _ranged(values: Array) -> Array:
    """Values (H, W) over their range."""
    low, high = float(values.min()), float(values.max())
    return colorize((values - low) / max(high - low, 1e-12), SEQUENTIAL)


def data_uri(pixels: Array) -> str:
    """Pixels (H, W, 3) uint8 as the data: URI of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def spread(first: int, last: int, count: int) -> list[int]:
    """At most `count` whole numbers from first to last, both among them, evenly spread.

    >>> spread(1, 9, 3), spread(1, 2, 3)
    ([1, 5, 9], [1, 2])
    """
    return sorted({round(value) for value in np.linspace(first, last, count).tolist()})
