"""A small classifier of digits, which several modules use."""

from __future__ import annotations

import pytest
from distributed import Client, LocalCluster

import rescnet_dist as rd

SPEC = rd.NetworkSpec(filters=4, block=4, stride=3, head="regress", ridge=0.3, max_layers=2)
RUN = rd.RunSpec(validation=0.0, chunk_images=100, accumulators=1, solve_threads=1)
X, Y = (array[:100] for array in rd.load_digits())
X = X[:, 2:26:2, 2:26:2]


@pytest.fixture(scope="session")
def digits_classifier(threads_cluster: LocalCluster) -> rd.ResCNetClassifier:
    """Return a classifier of two layers, of digits of 12×12 pixels."""
    with Client(threads_cluster):
        return rd.ResCNetClassifier(SPEC, run=RUN).fit(X, [f"digit {y}" for y in Y])
