"""Tolerances and small training runs that the tests on a GPU share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits

TOLERANCE = {"float32": 2e-5, "split": 2e-5, "half": 3e-3}  # relative error by matmul_precision
GPU_RUN = RunSpec(array_backend="cupy", validation=0.2, checkpoint_every=2)
SPEC = NetworkSpec.preset("digits").replace(
    filters=8, first_filter_size=5, max_layers=5, learning_rate=0.4
)


def relative_error(one: Any, other: Any) -> float:
    """Return the distance of two arrays, relative_error to the norm of the second."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def fit(store: Path, run: RunSpec, spec: NetworkSpec = SPEC, **options: Any) -> ResCNetClassifier:
    """Train a classifier on digits."""
    images, labels = (array[:900] for array in load_digits())
    return ResCNetClassifier(spec, store=store, run=run, **options).fit(images, labels)
