"""A small finished run of the digits, shared by the tests of what is shown of it."""

from __future__ import annotations

from typing import Any

import pytest
from distributed import Client

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits

IMAGES = 120
SPEC = NetworkSpec(
    filters=4, first_filter_size=3, block=5, stride=2, sigma=2.0, learning_rate=0.5,
    stop_at_zero_error=False, max_layers=3,
)  # fmt: skip
RUN = RunSpec(chunk_images=30, accumulators=2, solve_threads=1, validation=0.25)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> str:
    """The URL of a run of three layers on 120 digits of 14×14 pixels, given as arrays."""
    X, y = (array[:IMAGES] for array in load_digits())
    url = str(tmp_path_factory.mktemp("runs") / "small")
    with Client(threads_cluster):
        ResCNetClassifier(SPEC, store=url, run=RUN).fit(X[:, ::2, ::2], y)
    return url
