"""A run of an older version of this package, in today's format: described, loaded and resumed.

older_run.zip was written when format version 4 was new, for the images below and their labels.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from distributed import Client

import rescnet_dist as rd
from rescnet_dist.dashboard.view import StoredRun
from rescnet_dist.runs import describe_run, find_runs

IMAGES = rd.load_digits()[0][:30, 2:26:3, 2:26:3]
FIRST_SCORES = [[0.4323321, 0.47543418, 0.48270476], [0.43309653, 0.4839306, 0.46664536]]


@pytest.fixture
def older_run(tmp_path: Path) -> Path:
    """Return the folder of the run."""
    with ZipFile(Path(__file__).parent / "older_run.zip") as file:
        file.extractall(tmp_path / "run")
    return tmp_path / "run"


def test_run_of_older_version_is_read(older_run: Path) -> None:
    """All its records are valid, although they lack what was added since."""
    description = describe_run(older_run)
    assert (description["state"], len(description["layers"])) == ("done", 2)
    assert StoredRun(str(older_run)).view().depth == description["depth"] == 1
    (listed,) = find_runs(older_run)
    assert (listed["state"], listed["problem"]) == ("done", None)
    scores = rd.load(older_run).decision_function(IMAGES[:2])
    np.testing.assert_allclose(scores[:, :3], FIRST_SCORES, rtol=1e-4)


def test_run_of_older_version_is_resumed(client: Client, older_run: Path) -> None:
    """With one more layer."""
    clf = rd.ResCNetClassifier.resume(older_run, max_layers=3)
    assert len(describe_run(older_run)["layers"]) == 3
    assert clf.predict(IMAGES).shape == (30,)
