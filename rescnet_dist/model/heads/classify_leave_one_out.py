"""The head of the paper, fitted to leave-one-out errors of the training images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rescnet_dist.kernels import (
    FeatureMoments,
    Whitening,
    leave_one_out,
    regression_to_lda,
    ridge_regression,
)
from rescnet_dist.kernels.arrays import Array, asarray_like
from rescnet_dist.model.head_options import (
    LeavesImagesOut,
    leverage_share_option,
    probes_option,
)
from rescnet_dist.model.heads.classify import Classify
from rescnet_dist.model.heads.linear import (
    PROBE_ARRAYS,
    LinearHead,
    linear_outputs,
    predict_signs,
    stack_probes,
    stack_signs,
)
from rescnet_dist.options import option


@dataclass(frozen=True, slots=True)
class ClassifyLeaveOneOut(LeavesImagesOut, Classify):
    """Classify, but training images have the scores they would have without training on them.

    The score of a discriminant is a linear function of a ridge regression of the class, so that an
    image is left out of both in the same way, and its copies with it. Slope and offset of that
    function, and the shares of the classes, stay those of all images.

    Leaving an image out with its copies is exact only if they have the same residual class and are
    predicted alike. From layer 2 on, a copy can have another class and sign than its original.
    """

    name: ClassVar[str] = "classify-leave-one-out"
    collapse_advice: ClassVar[str] = (
        'The head "classify-leave-one-out" is unstable with few images per class, a large '
        "learning_rate or a sigma that does not fit the ridge. Train with "
        'head="leave-one-out" (--head leave-one-out).'
    )
    arrays: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **LinearHead.arrays,
        **PROBE_ARRAYS,
        "slope": ("sign", "class"),
        "offset": ("sign", "class"),
    }
    training_arrays: ClassVar[frozenset[str]] = frozenset({*PROBE_ARRAYS, "slope", "offset"})

    # Above 0, so that the residual classes of scores of 0 are the labels, as in the first layer
    target: float = option(0.8, help="target score λ of the true class", above=0, high=1)
    probes: int = probes_option()
    leverage_share: float = leverage_share_option()

    def fit(
        self, moments: FeatureMoments, classes: int, whitening: Whitening | None = None
    ) -> dict[str, Array]:
        """Fit the classifiers of both signs, and the regression of signs; see `Head.fit`."""
        count = self.target_count(classes)
        weights, intercept = ridge_regression(moments, self.ridge, whitening)
        lda = regression_to_lda(moments, weights[:count], intercept[:count])
        share = moments.target_sums[:count].reshape(2, classes).sum(axis=1) / moments.count
        return {
            **stack_signs(lda.weights, lda.intercept, lda.present, share, classes),
            **stack_probes(weights[count:], intercept[count:]),
            "slope": lda.slope.reshape(2, classes),
            "offset": lda.offset.reshape(2, classes),
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
        """Return the correction (n, C) without the image; see `Head.training_correction`."""
        slope, offset = (asarray_like(arrays[name], features) for name in ("slope", "offset"))
        # Again, as `correction` has probabilities, which do not determine the outputs
        outputs = linear_outputs(arrays, features)
        members = self.targets(scores, labels, first=False)
        left_out = leave_one_out(
            (slope * outputs + offset).reshape(members.shape),
            members,
            predict_signs(arrays, features),
            signs,
            self.leverage_share,
        )
        return self._combine(arrays, (left_out.reshape(outputs.shape) - offset) / slope)
