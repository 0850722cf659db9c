"""The forward step of a network as ONNX operators: the counterpart of `model.forward`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rescnet_dist.model import Architecture, Bank, ImageScale, Layer, Tower
from rescnet_dist.model.graph import FLOAT, HALF, OnnxGraph, ints


@dataclass(frozen=True, slots=True)
class ExportedNetwork:
    """A network to be exported, and the weight of its scores in those of the file."""

    architecture: Architecture
    scale: ImageScale
    layers: Sequence[Layer]
    weight: float = 1.0


def add_mean_scores(
    graph: OnnxGraph, images: str, networks: Sequence[ExportedNetwork], *, mirror: bool
) -> str:
    """Add the weighted sum (n, C) of the scores of networks, and return its name.

    With `mirror`, scores are the mean over each image and its mirror image.
    """
    inputs = [images]
    if mirror:
        last, before_first = ints(-1), ints(np.iinfo(np.int64).min + 1)
        inputs.append(graph.add("Slice", images, last, before_first, ints(2), ints(-1)))
    total = ""
    for network in networks:
        for name in inputs:
            scores = add_scores(graph, name, network.architecture, network.scale, network.layers)
            if (weight := network.weight / len(inputs)) != 1:
                scores = graph.add("Mul", scores, np.float32(weight))
            total = graph.add("Add", total, scores) if total else scores
    return total


def add_scores(
    graph: OnnxGraph,
    images: str,
    architecture: Architecture,
    scale: ImageScale,
    layers: Iterable[Layer],
) -> str:
    """Add the scores (n, C) after the last layer of images (n, H, W, d), and return their name."""
    views, ones = _add_views(graph, images, architecture, scale)
    size, scores = architecture.image_shape[:2], ""
    maps = [""] * len(views)  # of each tower
    for number, layer in enumerate(layers, start=1):
        towers = architecture.towers(number)
        for index, tower in enumerate(towers):
            inputs = views[index]
            if number > 1:
                others = inputs if architecture.concatenate else ones
                inputs = graph.add("Concat", maps[index], others, axis=1)
            maps[index] = _add_maps(graph, inputs, architecture, layer.bank, tower)
        if layer.head is None:
            continue
        together = maps[0] if len(maps) == 1 else graph.add("Concat", *maps, axis=1)
        parts = [
            extractor.to_onnx(graph, together, size, architecture.tower_maps(number))
            for extractor in architecture.extractors
        ]
        features = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
        if architecture.feature_dtype == np.float16:
            features = _round_to_half(graph, features)
        correction = architecture.head.to_onnx(graph, layer.head.arrays, features)
        correction = graph.add("Mul", correction, np.float32(layer.head.rate))
        scores = graph.add("Add", scores, correction) if scores else correction
    return scores


# views --------------------------------------------------------------------------------------------


def _add_views(
    graph: OnnxGraph, images: str, architecture: Architecture, scale: ImageScale
) -> tuple[list[str], str]:
    """Add the views (n, d' + 1, H, W) of images (n, H, W, d); the last channel is 1 everywhere.

    Return their names, and that of a last channel (n, 1, H, W) alone.
    """
    height, width, _ = architecture.image_shape
    pixels = graph.add("Cast", images, to=FLOAT)
    pixels = graph.add("Transpose", pixels, perm=[0, 3, 1, 2])
    shape = graph.add("Shape", pixels, start=0, end=1)
    shape = graph.add("Concat", shape, ints(1, height, width), axis=0)
    ones = graph.add("Expand", np.float32(1), shape)
    views = []
    for view in architecture.views:
        channels = view.to_onnx(
            graph, pixels, scale.views.get(view.name, {}), architecture.image_shape
        )
        if view.uses_image_scale:
            low, factor = (
                np.asarray(part)[:, None, None].astype(np.float32)
                for part in (scale.low, scale.scale)
            )
            channels = graph.add("Mul", graph.add("Sub", channels, low), factor)
        views.append(graph.add("Concat", channels, ones, axis=1))
    return views, ones


# maps ---------------------------------------------------------------------------------------------


def _add_maps(
    graph: OnnxGraph, inputs: str, architecture: Architecture, bank: Bank, tower: Tower
) -> str:
    """Add the maps (n, f', H, W) of a tower from its inputs (n, c' + 1, H, W).

    The normalization of the input is part of the weights: the scale multiplies them, and the
    offset is the weight of the last channel, which is 1 everywhere. Outside the image all channels
    are 0, so the offset is left out there, as it must be: padding comes after the normalization.
    """
    if tower.is_each:
        maps = _convolve_each(graph, inputs, bank, tower)
    else:
        maps = _convolve(graph, inputs, bank, tower)
    if architecture.rectify:
        maps = graph.add("Relu", maps)
    if architecture.store_dtype == "float16":
        maps = _round_to_half(graph, maps)
    return maps


def _round_to_half(graph: OnnxGraph, values: str) -> str:
    """Add values in single precision, rounded to half precision."""
    return graph.add("Cast", graph.add("Cast", values, to=HALF), to=FLOAT)


def _convolve(graph: OnnxGraph, inputs: str, bank: Bank, tower: Tower) -> str:
    """Add the convolution of all channels with the filters of a tower."""
    channels, filters = list(tower.channels), slice(tower.filters.start, tower.filters.stop)
    low, scale = (np.asarray(array, np.float64)[channels] for array in (bank.low, bank.scale))
    weights = np.asarray(bank.filters, np.float64)[:, :, channels, filters] * scale[:, None]
    offset = -np.einsum("yxcf,c->yxf", weights, low)[:, :, None]
    weights = np.concatenate([weights, offset], axis=2).transpose(3, 2, 0, 1).astype(np.float32)
    bias = np.asarray(bank.bias)[filters].astype(np.float32)
    return graph.add("Conv", inputs, weights, bias, pads=_pads(weights.shape[2]))


def _convolve_each(graph: OnnxGraph, inputs: str, bank: Bank, tower: Tower) -> str:
    """Add the convolution of each channel with the filters of a tower, without the last channel."""
    channels = list(tower.channels)
    low, scale = (
        np.asarray(array)[channels, None, None].astype(np.float32)
        for array in (bank.low, bank.scale)
    )
    values = graph.add("Slice", inputs, ints(0), ints(len(channels)), ints(1))
    values = graph.add("Mul", graph.add("Sub", values, low), scale)
    parts = []
    for _, group in tower.groups:
        own = bank.select(group.filters)
        count = len(group.filters) // len(channels)
        weights = np.asarray(own.filters)[:, :, channels[0], :count].transpose(2, 0, 1)[:, None]
        weights = np.tile(weights, (len(channels), 1, 1, 1)).astype(np.float32)
        bias = np.asarray(own.bias).astype(np.float32)
        pads = _pads(weights.shape[2])
        parts.append(graph.add("Conv", values, weights, bias, group=len(channels), pads=pads))
    return parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)


def _pads(size: int) -> list[int]:
    """Return the padding of a convolution with filters of size×size pixels."""
    before = (size - 1) // 2
    return [before, before, size - 1 - before, size - 1 - before]
