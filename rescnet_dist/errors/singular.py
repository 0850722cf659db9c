"""The exception of linear algebra, whose base class is one of NumPy."""

from __future__ import annotations

import numpy as np

from rescnet_dist.errors.classes import RescnetError


class SingularError(RescnetError, np.linalg.LinAlgError):
    """A covariance matrix cannot be inverted with the given ridge.

    Increase the ridge that the message names.
    """
