"""Kernel ridge regression of leave-one-out errors: images are compared with all training images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import one_hot
from rescnet_dist.kernels.arrays import Array, asarray_like, get_array_module
from rescnet_dist.kernels.leverage import leave_one_out
from rescnet_dist.kernels.samples import (
    FeatureSamples,
    FeatureScaling,
    GaussianKernel,
    kernel_ridge,
    select_rows,
    train_places,
)
from rescnet_dist.model.graph import OnnxGraph
from rescnet_dist.model.head import SampleHead
from rescnet_dist.model.head_options import (
    LeavesImagesOut,
    leverage_share_option,
    probes_option,
    regression_target_option,
)
from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class KernelRidge(LeavesImagesOut, SampleHead):
    """Kernel ridge regression of Y − Ŷ with a Gaussian kernel of the features.

    A layer has a weight for each training image and class, and prediction computes the features of
    all training images again. Errors of training images are those without the image and its copies,
    as in `leave-one-out`.

    The arrays are weights (N, C) of the training images, corrections (R, C) of all rows of the run,
    and the mean (D,) and scale (D,) of the features.
    """

    name: ClassVar[str] = "kernel-ridge"
    own_scale: ClassVar[frozenset[str]] = frozenset({"ridge"})
    arrays: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "weights": ("training_image", "class"),
        "corrections": ("row", "class"),
        "feature_mean": ("feature",),
        "feature_scale": ("feature",),
    }
    training_arrays: ClassVar[frozenset[str]] = frozenset({"corrections"})

    width: float = option(
        1.0,
        help="width of the kernel, relative to the mean square of the features",
        doc="Width w of the kernel exp(−|x − y|²/(2·w·s)), where s is the mean of |x|² over the "
        "training images.",
        low=1e-6,  # the kernel of two images is 0 or almost 1 far within these limits
        high=1e6,
    )
    ridge: float = option(
        0.15,
        help="ridge γ of the head, added to the kernel of an image with itself, which is 1",
        doc="Ridge γ of the regression. The kernel of an image with itself is 1.",
        above=0,
    )
    target: float = regression_target_option()
    probes: int = probes_option()
    leverage_share: float = leverage_share_option()

    def target_count(self, classes: int) -> int:
        """Return the number of classes C."""
        return classes

    def targets(self, scores: Array, labels: Array, *, first: bool) -> Array:
        """Return the errors Y − Ŷ (n, C)."""
        return one_hot(labels, scores.shape[1]) - scores

    def fit_samples(self, samples: FeatureSamples, classes: int) -> dict[str, Array]:
        """Fit the regression of errors and signs; see `SampleHead.fit_samples`."""
        xp = get_array_module(samples.blocks[0].features)
        scaling = samples.scaling()
        kernel = GaussianKernel(scaling, self.width)
        train = np.concatenate([block.train for block in samples.blocks])
        targets = xp.concatenate([select_rows(b.targets, b.train) for b in samples.blocks])
        weights, fitted = kernel_ridge(kernel.pairs(samples.blocks), targets, self.ridge)
        weights = weights[:, :classes].astype(np.float32)
        fitted = fitted.astype(np.float32)
        corrections = xp.empty((len(train), classes), np.float32)
        corrections[asarray_like(np.flatnonzero(train), targets)] = leave_one_out(
            fitted[:, :classes],
            targets[:, :classes],
            fitted[:, classes:],
            targets[:, classes:],
            self.leverage_share,
        )
        if not train.all():
            others = xp.concatenate([select_rows(b.features, ~b.train) for b in samples.blocks])
            predicted = xp.zeros((len(others), classes), np.float32)
            for place, block in train_places(samples.blocks):
                trained = select_rows(block.features, block.train)
                predicted += kernel.products(others, trained, weights[place])
            corrections[asarray_like(np.flatnonzero(~train), targets)] = predicted
        return {
            "weights": weights,
            "corrections": corrections,
            "feature_mean": scaling.mean,
            "feature_scale": scaling.scale,
        }

    def known_correction(self, arrays: Mapping[str, Array], rows: Array) -> Array:
        """Return the stored corrections (n, C) of rows of the run; see `SampleHead`."""
        return arrays["corrections"][rows]

    def sample_count(self, arrays: Mapping[str, Array]) -> int:
        """Return the number of training images, copies included."""
        return len(arrays["weights"])

    def bound(self, arrays: Mapping[str, Array]) -> float:
        """Return the largest sum of absolute weights of a class: no kernel is larger than 1."""
        return float(abs(arrays["weights"]).sum(axis=0, dtype=np.float64).max())

    def compare(
        self,
        arrays: Mapping[str, Array],
        features: Array,
        blocks: Iterable[tuple[slice, Array]],
    ) -> Iterator[Array]:
        """Yield what blocks of training images add to the predicted errors; see `SampleHead`."""
        scaling = FeatureScaling(arrays["feature_mean"], arrays["feature_scale"])
        kernel, weights = GaussianKernel(scaling, self.width), arrays["weights"]
        return kernel.each_products(features, ((block, weights[rows]) for rows, block in blocks))

    def to_onnx(self, graph: OnnxGraph, arrays: Mapping[str, Array], features: str) -> str:
        """Raise SpecError: the training images cannot be part of an ONNX file."""
        raise SpecError(
            f"A network with the head {self.name!r} compares images with all training images, and "
            'cannot be exported to ONNX. Train one with head="leave-one-out" for this.'
        )
