"""Small training runs that several test modules compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from models import read_model

from rescnet_dist import (
    NetworkSpec,
    ResCNetClassifier,
    RunSpec,
    load_digits,
)

Array = np.ndarray[Any, Any]
CASES = ("classify", "regress", "digits")

N = 240
X, Y = (array[:N] for array in load_digits())
X = X[:, ::2, ::2]
X_OTHER, Y_OTHER = (array[N : N + 60] for array in load_digits())
X_OTHER = X_OTHER[:, ::2, ::2]

SPEC = NetworkSpec(
    filters=4, first_filter_size=3, block=5, stride=2, sigma=2.0, learning_rate=0.5, max_layers=3
)
REGRESS = SPEC.replace(head="regress", ridge=0.3)
RUN = RunSpec(validation=0, chunk_images=150, accumulators=2, solve_threads=1)
PLAN = RUN.replace(chunk_images=50, accumulators=3, split_every=2, validation=0.2)  # 5 chunks


def fit(
    store: Any, spec: NetworkSpec = SPEC, run: RunSpec = RUN, validation: Any = None, **options: Any
) -> ResCNetClassifier:
    """Train on small digits, or on the arrays `X` and `y`."""
    images, labels = options.pop("X", X), options.pop("y", Y)
    clf = ResCNetClassifier(spec, store=store, run=run, **options)
    return clf.fit(images, labels, validation=validation)


def fit_case(store: Path, case: str) -> dict[str, Array]:
    """Return the model of either mode, with a validation split, or of the digits preset.

    The latter is large enough for BLAS to use several threads if it may.
    """
    if case == "digits":
        images, labels = (array[:80] for array in load_digits())
        run = PLAN.replace(validation=0.0)
        fit(store, NetworkSpec.preset(case).replace(max_layers=2), run, X=images, y=labels)
    else:
        fit(store, SPEC.replace(head=case), PLAN)
    return read_model(store)
