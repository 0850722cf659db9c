"""Ridge regression of leave-one-out errors: what is wrong of images that were not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rescnet_dist.kernels import FeatureMoments, Whitening, ridge_regression
from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.leverage import leave_one_out
from rescnet_dist.model.head_options import (
    LeavesImagesOut,
    leverage_share_option,
    probes_option,
)
from rescnet_dist.model.heads.linear import (
    PROBE_ARRAYS,
    LinearHead,
    predict_signs,
    stack_probes,
    stack_signs,
)
from rescnet_dist.model.heads.regress import Regress


@dataclass(frozen=True, slots=True)
class LeaveOneOut(LeavesImagesOut, Regress):
    """Regress, but training images have the scores they would have without training on them.

    Errors then do not vanish when all training images are classified correctly, and the training
    accuracy is an estimate of that on other images. Copies of an image are left out with it.
    """

    name: ClassVar[str] = "leave-one-out"
    arrays: ClassVar[Mapping[str, tuple[str, ...]]] = {**LinearHead.arrays, **PROBE_ARRAYS}
    training_arrays: ClassVar[frozenset[str]] = frozenset(PROBE_ARRAYS)

    probes: int = probes_option()
    leverage_share: float = leverage_share_option()

    def fit(
        self, moments: FeatureMoments, classes: int, whitening: Whitening | None = None
    ) -> dict[str, Array]:
        """Fit the regression of errors and signs; see `Head.fit`."""
        weights, intercept = ridge_regression(moments, self.ridge, whitening)
        errors = weights[:classes], intercept[:classes]
        return {
            **stack_signs(*errors, np.ones(classes, bool), np.ones(1), classes),
            **stack_probes(weights[classes:], intercept[classes:]),
        }

    def training_correction(
        self,
        arrays: Mapping[str, Array],
        features: Array,
        correction: Array,
        scores: Array,
        labels: Array,
        signs: Array,
    ) -> Array:
        """Return the errors (n, C) predicted without the image; see `Head.training_correction`."""
        errors = self.targets(scores, labels, first=False)
        predicted = predict_signs(arrays, features)
        return leave_one_out(correction, errors, predicted, signs, self.leverage_share)
