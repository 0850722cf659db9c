"""Ridge regression of the errors of all classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rescnet_dist.kernels import FeatureMoments, Whitening, one_hot, ridge_regression
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.model.graph import OnnxGraph
from rescnet_dist.model.head_options import regression_target_option
from rescnet_dist.model.heads.linear import (
    LinearHead,
    linear_outputs,
    linear_outputs_onnx,
    stack_signs,
)
from rescnet_dist.model.solver import iterations_option, solver_option, tolerance_option
from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class Regress(LinearHead):
    """Ridge regression of Y − Ŷ, the errors of the scores; adds its predictions."""

    name: ClassVar[str] = "regress"

    ridge: float = option(
        1.0,
        help="ridge γ of the head, relative to the mean feature variance",
        doc="Ridge γ of the regression, relative to the mean variance of the features.",
        low=0,
    )
    target: float = regression_target_option()

    solver: Literal["exact", "cg"] = solver_option()
    cg_iterations: int = iterations_option()
    cg_tolerance: float = tolerance_option()

    def target_count(self, classes: int) -> int:
        """Return the number of classes C."""
        return classes

    def targets(self, scores: Array, labels: Array, *, first: bool) -> Array:
        """Return the errors Y − Ŷ (n, C)."""
        return one_hot(labels, scores.shape[1]) - scores

    def fit(
        self, moments: FeatureMoments, classes: int, whitening: Whitening | None = None
    ) -> dict[str, Array]:
        """Fit the regression; see `Head.fit`."""
        weights, intercept = ridge_regression(moments, self.ridge, whitening)
        return stack_signs(weights, intercept, np.ones(classes, bool), np.ones(1), classes)

    def correction(self, arrays: Mapping[str, Array], features: Array) -> Array:
        """Return the predicted errors (n, C)."""
        return linear_outputs(arrays, features)[:, 0]

    def to_onnx(self, graph: OnnxGraph, arrays: Mapping[str, Array], features: str) -> str:
        """Add the correction (n, C) of features (n, D); see `Head.to_onnx`."""
        return linear_outputs_onnx(graph, arrays, features)
