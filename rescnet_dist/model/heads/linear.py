"""Linear heads: one matrix of weights for each sign of the errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from rescnet_dist.errors import SpecError
from rescnet_dist.kernels.arrays import Array, asarray_like
from rescnet_dist.model.graph import OnnxGraph
from rescnet_dist.model.head import Head
from rescnet_dist.model.solver import ConjugateGradients

# Arrays of a regression of random signs, by which leverages are estimated
PROBE_ARRAYS: Mapping[str, tuple[str, ...]] = {
    "probe_weights": ("probe", "feature"),
    "probe_intercept": ("probe",),
}


class LinearHead(Head):
    """Base class of heads whose outputs are linear in the features.

    The arrays are weights (S, C, D) in float32, intercept (S, C), present (S, C), whether a class
    has a classifier, and share (S,), the weight of each sign.
    """

    __slots__ = ()

    arrays: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "weights": ("sign", "class", "feature"),
        "intercept": ("sign", "class"),
        "present": ("sign", "class"),
        "share": ("sign",),
    }
    solver: str
    cg_iterations: int
    cg_tolerance: float

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> Self:
        """Return the head in a store; block_features of earlier solvers has no effect."""
        return super().from_stored({k: v for k, v in values.items() if k != "block_features"})

    def check(self) -> None:
        """Raise SpecError for options of a solver that is not chosen."""
        for name in ("cg_iterations", "cg_tolerance"):
            value = getattr(self, name)
            if self.solver == "exact" and value != self.__options__[name].default:
                raise SpecError(
                    f'{name}={value} has no effect with solver="exact". Leave it out, or use '
                    'solver="cg".'
                )

    @property
    def iterative_solver(self) -> ConjugateGradients | None:
        """The settings of conjugate gradients, if chosen; see `Head.iterative_solver`."""
        if self.solver == "exact":
            return None
        return ConjugateGradients(self.cg_iterations, self.cg_tolerance)


def linear_outputs(arrays: Mapping[str, Array], features: Array) -> Array:
    """Return features (n, D) times weights (S, C, D), plus intercept (S, C): (n, S, C)."""
    weights, intercept = arrays["weights"], arrays["intercept"]
    weights = weights.reshape(-1, weights.shape[2]).astype(features.dtype, copy=False)
    outputs = features @ asarray_like(weights, features).T
    outputs = outputs.reshape(len(features), *intercept.shape)
    return outputs + asarray_like(intercept, features)


def linear_outputs_onnx(
    graph: OnnxGraph, arrays: Mapping[str, Array], features: str, scale: float = 1.0
) -> str:
    """Add `linear_outputs` of features (n, D), times a scale: (n, S·C)."""
    weights, intercept = arrays["weights"], arrays["intercept"]
    weights = (scale * weights.reshape(-1, weights.shape[2])).astype(np.float32)
    return graph.add(
        "Gemm", features, weights, (scale * intercept).reshape(-1).astype(np.float32), transB=1
    )


def stack_signs(
    weights: Array, intercept: Array, present: Array, share: Array, classes: int
) -> dict[str, Array]:
    """Return the arrays of a head, given weights (S·C, D), intercept and present (S·C,)."""
    return {
        "weights": weights.reshape(-1, classes, weights.shape[1]).astype(np.float32),
        "intercept": intercept.reshape(-1, classes),
        "present": present.reshape(-1, classes),
        "share": share,
    }


def stack_probes(weights: Array, intercept: Array) -> dict[str, Array]:
    """Return `PROBE_ARRAYS`, given the regression of random signs: (s, D) and (s,)."""
    return {"probe_weights": weights.astype(np.float32), "probe_intercept": intercept}


def predict_signs(arrays: Mapping[str, Array], features: Array) -> Array:
    """Return the random signs (n, s) that `PROBE_ARRAYS` predict for features (n, D)."""
    weights, intercept = (
        asarray_like(arrays[name], features).astype(np.float32) for name in PROBE_ARRAYS
    )
    return features @ weights.T + intercept
