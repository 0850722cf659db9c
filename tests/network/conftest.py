"""A small classifier of digits in a run store, shared by the tests of networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from small_digits import NAMES, SPEC

from rescnet_dist import ResCNetClassifier, RunSpec, load_digits


@pytest.fixture(scope="session")
def images() -> np.ndarray[Any, Any]:
    """Return 120 digits of shape (14, 14, 1)."""
    return load_digits()[0][:120, ::2, ::2]


@pytest.fixture(scope="session")
def labels() -> np.ndarray[Any, Any]:
    """Return the names of the digits of `images`."""
    return np.array(NAMES)[load_digits()[1][:120]]


@pytest.fixture(scope="session")
def fitted(
    threads_cluster: LocalCluster,
    images: Any,
    labels: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> ResCNetClassifier:
    """Return a classifier of two layers whose network is in its run store."""
    url = str(tmp_path_factory.mktemp("network") / "run")
    with Client(threads_cluster):
        run = RunSpec(chunk_images=120, accumulators=1, solve_threads=1)
        return ResCNetClassifier(SPEC, store=url, run=run).fit(images, labels, validation=0)


@pytest.fixture
def run_folder(fitted: ResCNetClassifier) -> Path:
    """Return the folder of the run store of `fitted`."""
    assert fitted.run_url_ is not None
    return Path(fitted.run_url_)
