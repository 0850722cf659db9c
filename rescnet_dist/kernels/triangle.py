"""The lower triangle of a symmetric matrix in half of its memory, as workers send it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.backend import get_operations
from rescnet_dist.kernels.solving import PANEL_COLUMNS


@dataclass(frozen=True, slots=True)
class LowerTriangle:
    """The lower triangle of a matrix (D, D), in half of its memory.

    Attributes
    ----------
    panels : tuple of ndarray
        Consecutive columns of the matrix, `PANEL_COLUMNS` each but the last: the columns from j on
        are of shape (D − j, b), from the diagonal down.
    """

    panels: tuple[Array, ...]

    @classmethod
    def of(cls, square: Array) -> LowerTriangle:
        """Copy the lower triangle of a matrix.

        Parameters
        ----------
        square : ndarray of shape (D, D)
            The matrix.

        Returns
        -------
        LowerTriangle
            Its lower triangle.
        """
        starts = range(0, len(square), PANEL_COLUMNS)
        return cls(tuple(get_panel(square, start).copy(order="F") for start in starts))

    def __len__(self) -> int:
        return len(self.panels[0])

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The dtype of the matrix."""
        return self.panels[0].dtype

    def to_square(self) -> Array:
        """Return the matrix (D, D), of which only the lower triangle is valid."""
        square = get_operations(self.panels[0]).new_square(len(self), self.dtype)
        for number, panel in enumerate(self.panels):
            get_panel(square, number * PANEL_COLUMNS)[:] = panel
        return square


def get_panel(matrix: Array | LowerTriangle, start: int) -> Array:
    """Return the columns of a matrix from `start` on, `PANEL_COLUMNS` at most.

    Parameters
    ----------
    matrix : ndarray of shape (D, D) or LowerTriangle
        The matrix, or its lower triangle.
    start : int
        The first column, a multiple of `PANEL_COLUMNS`.

    Returns
    -------
    ndarray of shape (D − start, b)
        The columns from the diagonal down, a view.
    """
    if isinstance(matrix, LowerTriangle):
        return matrix.panels[start // PANEL_COLUMNS]
    return matrix[start:, start : start + PANEL_COLUMNS]


def unpack(matrix: Array | LowerTriangle) -> Array:
    """Return a matrix (D, D), or that of which only the lower triangle was sent."""
    return matrix.to_square() if isinstance(matrix, LowerTriangle) else matrix
