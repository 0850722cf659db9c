"""Test components of another package, which are found by their entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from distributed import Client

import rescnet_dist as rd
from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, SpecError
from rescnet_dist.model import FEATURES, FILTERS, HEADS
from rescnet_dist.model.registry import scan_entry_points
from tests.commands import run
from tests.models import assert_same_bits, read_model

PLUGIN = Path(__file__).parent.parent / "plugin"  # a package, with the metadata of its installation
X, Y = rd.load_digits()
X, Y = X[:300, ::2, ::2], Y[:300]
TOML = """
[network]
filters = 6
first_filter_size = 3
learning_rate = 0.5
max_layers = 2
stop_at_zero_error = false

[[network.bank]]
name = "pca"
share = 0.5

[[network.bank]]
name = "class-means"
share = 0.5
jitter = 0.01

[[network.features]]
name = "second-order"
block = 5
stride = 2

[[network.features]]
name = "mean-maps"
grid = 3

[network.head]
name = "scaled"
ridge = 0.3
"""
HELP_AND_RUN = """
import sys
from rescnet_dist.cli import main
main(["train", "--help"], standalone_mode=False)
main(["train", *sys.argv[1:]])
"""


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package for this process, for the time of a test."""
    for registry in (FILTERS, FEATURES, HEADS):
        registry.names()  # Modules are scanned once, and must not be forgotten after the test.
    monkeypatch.syspath_prepend(PLUGIN)
    scan_entry_points.cache_clear()
    for registry in (FILTERS, FEATURES, HEADS):
        monkeypatch.setattr(registry, "_found_entry_points", None)
        monkeypatch.setattr(registry, "_members", dict(registry._members))
    yield
    sys.modules.pop("rescnet_example", None)
    scan_entry_points.cache_clear()


def test_plugin_is_installed_by_its_fixture_only() -> None:
    """Not by pytest, which adds the folders that it searches for doctests to the path."""
    assert str(PLUGIN) not in sys.path
    assert "class-means" not in FILTERS.names()


@pytest.mark.usefixtures("plugin")
def test_components_are_known_by_name() -> None:
    """They stand next to the built-in ones, with their options as flat options."""
    assert "class-means" in FILTERS.names()
    assert "mean-maps" in FEATURES.names()
    assert "scaled" in HEADS.names()
    spec = NetworkSpec(
        bank="class-means:0.25,pca:0.75", features="mean-maps", head="scaled", grid=4, filters=8
    )
    assert spec.grid == 4
    assert spec.replace(means_jitter=0.5).bank[0].learner.jitter == 0.5
    with pytest.raises(SpecError, match=r"grid=9 is out of range.*at most 8"):
        spec.replace(grid=9)
    groups = spec.architecture((14, 14, 1), 10).groups(1)
    assert [group.count for _, group in groups] == [2, 6]


@pytest.mark.usefixtures("plugin")
def test_spec_round_trips_through_toml_and_dict() -> None:
    """Tables of components have their names and options."""
    spec = NetworkSpec.from_toml(TOML)
    assert [part.learner.name for part in spec.bank] == ["pca", "class-means"]
    assert [extractor.name for extractor in spec.features] == ["second-order", "mean-maps"]
    assert (spec.head.name, spec.head.ridge, spec.head.target) == ("scaled", 0.3, 1.0)
    assert NetworkSpec.from_toml(spec.to_toml()) == spec
    assert NetworkSpec.from_stored(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.usefixtures("plugin")
def test_network_trains_saves_loads_resumes_and_is_exported(client: Client, tmp_path: Path) -> None:
    """A resumed run equals one without interruption, and its arrays have their own names."""
    spec, run = NetworkSpec.from_toml(TOML), RunSpec(chunk_images=60, accumulators=2)
    clf = ResCNetClassifier(spec, store=tmp_path / "whole", run=run).fit(X, Y, validation=0.2)
    assert clf.accuracies_[-1]["train"] > 0.9
    first = spec.replace(max_layers=1)
    ResCNetClassifier(first, store=tmp_path / "short", run=run).fit(X, Y, validation=0.2)
    resumed = ResCNetClassifier.resume(tmp_path / "short", max_layers=2)
    assert_same_bits(read_model(tmp_path / "short"), read_model(tmp_path / "whole"))
    clf.save(tmp_path / "network")
    loaded = rd.load(tmp_path / "network")
    for other in (resumed, loaded):
        assert np.array_equal(other.decision_function(X), clf.decision_function(X))
    assert set(loaded.network_.layers[0].head.arrays) == {"slopes", "offsets"}
    features = loaded.network_.layers[0].head.arrays["slopes"].shape[1]
    assert features == spec.architecture((14, 14, 1), 10).features
    clf.to_onnx(tmp_path / "net.onnx")
    (scores,) = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(
        ["scores"], {"images": X.astype(np.float32)}
    )
    np.testing.assert_allclose(scores, clf.decision_function(X), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("plugin")
def test_plan_asks_the_components(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """More workspace of a component is more planned memory."""
    spec = NetworkSpec.from_toml(TOML)
    plan = ResCNetClassifier(spec).plan(X, Y, measure=False)
    for kind, name in ((FILTERS, "class-means"), (FEATURES, "mean-maps"), (HEADS, "scaled")):
        with monkeypatch.context() as patch:
            patch.setattr(kind.get(name), "workspace_bytes", lambda *_: 2**28)
            more = ResCNetClassifier(spec).plan(X, Y, measure=False)
        assert more.peak_memory > plan.peak_memory + 2**27, name


@pytest.mark.slow
def test_command_line_trains_on_processes_that_have_the_package(tmp_path: Path) -> None:
    """Flags and tables name the components; workers of other processes find them too."""
    (tmp_path / "net.toml").write_text(TOML)
    paths = os.pathsep.join(filter(None, [str(PLUGIN), os.environ.get("PYTHONPATH")]))
    np.savez(tmp_path / "small.npz", images=X, labels=Y)
    flags = ["--config", str(tmp_path / "net.toml"), "--grid", "2", "--max-layers", "1"]
    store = str(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-c", HELP_AND_RUN, str(tmp_path / "small.npz"), "--store", store, *flags],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--means-jitter" in done.stdout
    stored = json.loads((tmp_path / "run" / "zarr.json").read_text())["attributes"]["network"]
    assert stored["features"][1] == {"name": "mean-maps", "grid": 2}
    missing = run("resume", store, "--max-layers", "2")  # in this process, without the package
    assert missing.exit_code == 2
    assert "Unknown filter learner 'class-means'" in missing.output
