"""The head of the paper: classify which class has the largest error, and with which sign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from rescnet_dist.kernels import (
    FeatureMoments,
    Whitening,
    one_hot,
    one_vs_rest_lda,
    probabilities,
    residual_labels,
)
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.graph import OnnxGraph, ints
from rescnet_dist.model.heads.linear import (
    LinearHead,
    linear_outputs,
    linear_outputs_onnx,
    stack_signs,
)
from rescnet_dist.model.solver import iterations_option, solver_option, tolerance_option
from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class Classify(LinearHead):
    """One-vs-rest LDA of the class and the sign of the largest error; adds probabilities."""

    name: ClassVar[str] = "classify"
    collapse_advice: ClassVar[str] = (
        'The head "classify" is unstable with few images per class, a large learning_rate or a '
        'sigma that does not fit the ridge. Train with head="regress" (--head regress).'
    )
    # The small scale and steps that keep it from collapsing on small data
    automatic_options: ClassVar[Mapping[str, Any]] = {"sigma": 2.0, "learning_rate": 0.2}

    ridge: float = option(
        1.0,
        help="ridge γ of the head, relative to the mean feature variance",
        doc="Ridge γ of the classifiers, relative to the mean variance of the features.",
        low=0,
    )
    probability: Literal["sigmoid", "softmax"] = option(
        "sigmoid",
        help="probability of a class from its score",
        doc="Probability of a class from its score s: sigmoid(s/σ) or softmax(β·s).",
    )
    sigma: float = option(16.0, help="scale σ of the sigmoid", above=0)
    beta: float = option(0.001, help="scale β of the softmax", above=0)
    target: float = option(0.8, help="target score λ of the true class", low=0, high=1)
    compensate: bool = option(
        True,
        help="fit layers after the first to the errors of the scores, not to the labels",
        doc="Fit layers after the first to the largest errors of the scores. Without it, every "
        "layer is fitted to the labels, and the layers are a plain ensemble.",
    )

    solver: Literal["exact", "cg"] = solver_option()
    cg_iterations: int = iterations_option()
    cg_tolerance: float = tolerance_option()

    def target_count(self, classes: int) -> int:
        """Return the number of residual classes 2C: each class with each sign."""
        return 2 * classes

    def targets(self, scores: Array, labels: Array, *, first: bool) -> Array:
        """Return membership (n, 2C) of the residual classes (+, 0), …, (−, C−1).

        Those of the first layer, and of all layers without `compensate`, are the labels themselves.
        """
        classes = scores.shape[1]
        if first or not self.compensate:
            largest, sign = labels, np.ones_like(labels, dtype=np.int64)
        else:
            largest, sign = residual_labels(scores, labels, self.target)
        return one_hot(largest + classes * (sign < 0), 2 * classes)

    def fit(
        self, moments: FeatureMoments, classes: int, whitening: Whitening | None = None
    ) -> dict[str, Array]:
        """Fit the classifiers of both signs; see `Head.fit`."""
        weights, intercept, present = one_vs_rest_lda(moments, self.ridge, whitening)
        share = moments.target_sums.reshape(2, classes).sum(axis=1) / moments.count
        return stack_signs(weights, intercept, present, share, classes)

    def correction(self, arrays: Mapping[str, Array], features: Array) -> Array:
        """Return the probabilities (n, C) of positive minus those of negative errors."""
        return self._combine(arrays, linear_outputs(arrays, features))

    def _combine(self, arrays: Mapping[str, Array], outputs: Array) -> Array:
        """Return the correction (n, C) by outputs (n, 2, C) of the classifiers."""
        positive, negative = (
            float(share)
            * probabilities(
                outputs[:, sign],
                arrays["present"][sign],
                probability=self.probability,
                sigma=self.sigma,
                beta=self.beta,
            )
            for sign, share in enumerate(arrays["share"])
        )
        return positive - negative

    def to_onnx(self, graph: OnnxGraph, arrays: Mapping[str, Array], features: str) -> str:
        """Add the correction (n, C) of features (n, D); see `Head.to_onnx`."""
        present = arrays["present"].astype(bool)
        share = present * arrays["share"][:, None] * np.array([[1], [-1]])
        scale = 1 / self.sigma if self.probability == "sigmoid" else self.beta
        outputs = linear_outputs_onnx(graph, arrays, features, scale)
        outputs = graph.add("Reshape", outputs, ints(0, *present.shape))
        if self.probability == "sigmoid":
            outputs = graph.add("Sigmoid", outputs)
        else:
            absent = np.where(present | ~present.any(axis=1, keepdims=True), 0, -np.inf)
            outputs = graph.add("Add", outputs, absent.astype(np.float32))
            outputs = graph.add("Softmax", outputs, axis=2)
        outputs = graph.add("Mul", outputs, share.astype(np.float32))
        return graph.add("ReduceSum", outputs, ints(1), keepdims=0)
