"""How the covariance of the features is solved with: whole, or block by block of the features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class BlockSolver:
    """Settings of block coordinate descent over the features.

    Attributes
    ----------
    block_features : int
        The largest number of features in a block.
    sweeps : int
        The largest number of sweeps over all blocks.
    tolerance : float
        Relative change of the weights in a sweep below which no other sweep follows.
    """

    block_features: int
    sweeps: int
    tolerance: float


def solver_option() -> Any:
    """Declare the option `solver` of a head."""
    return option(
        "exact",
        help="how to solve: with the scatter matrix of all features, or by blocks of features",
        doc='How to solve. "exact" factorizes the scatter matrix of all features. "blocks" sweeps '
        "over blocks of features that are read from the store, for features that are too many "
        "for such a matrix; it converges to the same weights.",
    )


def block_features_option() -> Any:
    """Declare the option `block_features` of a head."""
    return option(
        4096,
        help='largest number of features in a block, for solver="blocks"',
        doc='Largest number of features in a block, for `solver="blocks"`. Larger blocks need '
        "fewer sweeps, and memory and time that grow with their square.",
        low=1,
    )


def sweeps_option() -> Any:
    """Declare the option `sweeps` of a head."""
    return option(
        20,
        help='largest number of sweeps over all blocks, for solver="blocks"',
        doc='Largest number of sweeps over all blocks, for `solver="blocks"`. Fewer sweeps have '
        "the effect of a larger ridge.",
        low=1,
    )


def sweep_tolerance_option() -> Any:
    """Declare the option `sweep_tolerance` of a head."""
    return option(
        1e-4,
        help='relative change of the weights that ends the sweeps, for solver="blocks"',
        doc="Relative change of the weights in a sweep, for standardized features, below which no "
        'other sweep follows, for `solver="blocks"`.',
        low=0,
    )
