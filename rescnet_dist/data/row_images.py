"""The images of rows of a run: augmented copies are made of those that are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rescnet_dist.data.rows import Rows
from rescnet_dist.errors import CorruptDataError
from rescnet_dist.kernels import Augmentation, Backend, augment_images
from rescnet_dist.spec import AugmentSpec

Array = np.ndarray[Any, np.dtype[Any]]


def copy_maker(
    rows: Rows, augment: AugmentSpec, seed: int, backend: Backend
) -> Callable[[Array], Array] | None:
    """Return the function that makes the images of consecutive rows from their originals.

    Parameters
    ----------
    rows : Rows of n rows
        The rows, which are of m images.
    augment : AugmentSpec
        The copies that the run has of each training image.
    seed : int
        The seed of the run.
    backend : Backend
        Where copies are made; their bits are the same everywhere.

    Returns
    -------
    callable or None
        Takes the originals (m, H, W, d), those of `Rows.image_range`, and returns the images
        (n, H, W, d) of the rows, as an array of the backend. None if there are no copies: both are
        the same.
    """
    if not augment.copies:
        return None
    first, _ = rows.image_range
    changes = Augmentation(**augment.copy_options)

    def make_copies(originals: Array) -> Array:
        images = backend.put(originals)
        images = images[backend.put(rows.image - first)]
        return augment_images(images, rows.image, rows.copy, changes, seed)

    return make_copies


def describe_altered_images(
    error: CorruptDataError, augment: AugmentSpec, remedy: str
) -> CorruptDataError:
    """Return the error for images that are not those that were committed, with a remedy."""
    problem = str(error)
    if augment.copies:
        problem = problem.rstrip(".") + (
            ", or their augmented copies differ, as with another release, NumPy or processor."
        )
    return CorruptDataError(f"{problem} {remedy}")
