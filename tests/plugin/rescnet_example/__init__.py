"""A package of somebody else's: one filter learner, one feature extractor and one head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rescnet_dist.kernels import FeatureMoments, Whitening, one_hot, ridge_regression
from rescnet_dist.kernels.arrays import asarray_like
from rescnet_dist.model import (
    FeatureExtractor,
    FilterGroup,
    FilterLearner,
    Head,
    Observation,
    OnnxGraph,
)
from rescnet_dist.options import option

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class PatchSums:
    """Number of images of each class (C,), and the sum of their central patches (C, k²c)."""

    counts: Array
    sums: Array

    def merge(self, other: PatchSums) -> PatchSums:
        """Return the sums of both sets of images."""
        if not (self.counts.size and other.counts.size):
            return self if self.counts.size else other
        return PatchSums(self.counts + other.counts, self.sums + other.sums)

    def rescale(self, low: Array, scale: Array) -> PatchSums:
        """Return the sums of (input − low)·scale."""
        repeats = self.sums.shape[1] // len(low)
        low, scale = np.tile(low, repeats), np.tile(scale, repeats)
        return PatchSums(self.counts, (self.sums - self.counts[:, None] * low) * scale)


@dataclass(frozen=True, slots=True)
class ClassMeans(FilterLearner):
    """Differences between the mean central patch of a class and that of all images."""

    name: ClassVar[str] = "class-means"
    prefix: ClassVar[str] = "means_"

    jitter: float = option(1e-3, help="random deviation of the filters", low=0)

    def streams(self, count: int) -> int:
        return count

    def empty(self, group: FilterGroup) -> PatchSums:
        return PatchSums(np.zeros(0), np.zeros((0, group.directions)))

    def observe(self, chunk: Observation, group: FilterGroup) -> PatchSums:
        rows = np.flatnonzero(chunk.train)
        (height, width), classes = group.positions, len(chunk.class_counts)
        middle = np.full(len(rows), height // 2), np.full(len(rows), width // 2)
        patches = chunk.inputs.extract_patches(group.size, rows, *middle)
        patches = patches.reshape(len(rows), -1, group.input_channels)[..., list(group.channels)]
        members = one_hot(chunk.labels[rows], classes).astype(np.float64)
        return PatchSums(members.sum(axis=0), members.T @ patches.reshape(len(rows), -1))

    def fit(self, statistics: PatchSums, group: FilterGroup) -> tuple[Array, Array]:
        means = statistics.sums / statistics.counts[:, None]
        shape = group.size, group.size, len(group.channels)
        filters = []
        for index in range(group.count):
            center = means[index % len(means)] - means.mean(axis=0)
            noisy = center + self.jitter * group.rng(index).standard_normal(len(center))
            filters.append((noisy / np.linalg.norm(noisy)).reshape(shape))
        return np.stack(filters, axis=3), np.zeros(group.count)

    def workspace_bytes(self, group: FilterGroup) -> int:
        return 4 * 8 * 1000 * group.directions


@dataclass(frozen=True, slots=True)
class MeanMaps(FeatureExtractor):
    """Means of the absolute values of maps in the cells of a grid."""

    name: ClassVar[str] = "mean-maps"

    grid: int = option(2, help="cells of mean-maps along each side", low=1, high=8)

    def count(self, height: int, width: int, towers: tuple[int, ...]) -> int:
        return self.grid**2 * sum(towers)

    def __call__(self, maps: Array, towers: tuple[int, ...]) -> Array:
        rows, columns = (np.array_split(np.arange(n), self.grid) for n in maps.shape[1:3])
        cells = [
            np.abs(maps[:, r[0] : r[-1] + 1, c[0] : c[-1] + 1]).mean(axis=(1, 2))
            for r in rows
            for c in columns
        ]
        return np.concatenate(cells, axis=1)

    def to_onnx(
        self, graph: OnnxGraph, maps: str, image_size: tuple[int, int], towers: tuple[int, ...]
    ) -> str:
        rows, columns = (np.array_split(np.arange(n), self.grid) for n in image_size)
        maps, cells, axes = graph.add("Abs", maps), [], np.array([2, 3])
        for r in rows:
            for c in columns:
                start, stop = np.array([r[0], c[0]]), np.array([r[-1] + 1, c[-1] + 1])
                cell = graph.add("Slice", maps, start, stop, axes)
                cells.append(graph.add("ReduceMean", cell, axes, keepdims=0))
        return graph.add("Concat", *cells, axis=1)

    def workspace_bytes(self, images: int, height: int, width: int, towers: tuple[int, ...]) -> int:
        return 4 * images * height * width * sum(towers)


@dataclass(frozen=True, slots=True)
class Scaled(Head):
    """Ridge regression of λY − Ŷ, with arrays of its own."""

    name: ClassVar[str] = "scaled"
    arrays: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "slopes": ("class", "feature"),
        "offsets": ("class",),
    }

    ridge: float = option(0.5, help="ridge γ of the head", low=0)
    target: float = option(1.0, help="target score λ of the true class", low=0, high=1)

    def target_count(self, classes: int) -> int:
        return classes

    def targets(self, scores: Array, labels: Array, *, first: bool) -> Array:
        return self.target * one_hot(labels, scores.shape[1]) - scores

    def fit(
        self, moments: FeatureMoments, classes: int, whitening: Whitening | None = None
    ) -> dict[str, Array]:
        slopes, offsets = ridge_regression(moments, self.ridge, whitening)
        return {"slopes": slopes.astype(np.float32), "offsets": offsets}

    def correction(self, arrays: Mapping[str, Array], features: Array) -> Array:
        slopes, offsets = (asarray_like(arrays[name], features) for name in self.arrays)
        return features @ slopes.T + offsets

    def to_onnx(self, graph: OnnxGraph, arrays: Mapping[str, Array], features: str) -> str:
        offsets = arrays["offsets"].astype(np.float32)
        return graph.add("Gemm", features, arrays["slopes"], offsets, transB=1)
