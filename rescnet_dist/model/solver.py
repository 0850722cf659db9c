"""How the covariance of the features is solved with: factorized, or by conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class ConjugateGradients:
    """Settings of conjugate gradients over the features.

    Attributes
    ----------
    iterations : int
        The largest number of iterations, each of which is a pass over the features.
    tolerance : float
        Bound of the relative error of the weights below which no other iteration follows.
    """

    iterations: int
    tolerance: float


def solver_option() -> Any:
    """Declare the option `solver` of a head."""
    return option(
        "exact",
        help="how to solve: with the scatter matrix of all features, or by conjugate gradients",
        doc='How to solve. "exact" factorizes the scatter matrix of all features. "cg" is for '
        "features that are too many for such a matrix: it reads them from the store in each "
        "iteration of conjugate gradients, and converges to the same weights.",
        old_values={"blocks": "cg"},
    )


def iterations_option() -> Any:
    """Declare the option `cg_iterations` of a head."""
    return option(
        100,
        help='largest number of iterations, for solver="cg"',
        doc="Largest number of iterations, each of which is a pass over the features, for "
        '`solver="cg"`. Fewer iterations have the effect of a larger ridge.',
        low=1,
        old_name="sweeps",
    )


def tolerance_option() -> Any:
    """Declare the option `cg_tolerance` of a head."""
    return option(
        1e-4,
        help='relative error of the weights that ends the iterations, for solver="cg"',
        doc="Bound of the error of the weights, for standardized features and relative to their "
        'norm, below which no other iteration follows, for `solver="cg"`.',
        low=0,
        old_name="sweep_tolerance",
    )
