"""Options and values that were renamed: users get the new spelling, stored runs still work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import rescnet_dist as rd
from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, SpecError
from rescnet_dist.runs import describe_run
from rescnet_dist.store import RunStore
from tests.commands import run

X, Y = (array[:60] for array in rd.load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(filters=3, first_filter_size=3, block=7, stride=7, max_layers=1)
OLD_NETWORK = {  # as the release before tables of components has stored SPEC
    **{"filters": 3, "filter_size": 3, "first_filter_size": 3, "minmax": "global"},
    **{"rectify": False, "local_contrast": False, "lda_fraction": 0.5, "lda_positives": 2},
    **{"lda_negatives": 32, "lda_tolerance": 0.0, "lda_ridge": 0.01, "lda_draws": 8, "block": 7},
    **{"stride": 7, "zscore": "channel", "power": False, "pairs": "all", "levels": [4, 2, 1]},
    **{"cells": "centre", "pool": "max", "residual": "classify", "ridge": 1.0},
    **{"probability": "sigmoid", "sigma": 16.0, "beta": 0.001, "target": 0.8},
    **{"learning_rate": 1.0, "decay": 0.0, "decay_every": 10, "rate_floor": 0.0},
    **{"max_layers": 1, "stop_at_zero_error": True, "store_dtype": "float32"},
}
RUN = RunSpec(validation=0, chunk_images=20, accumulators=2, solve_threads=1)


def test_products_names_matmul_precision() -> None:
    """In the constructor, in `replace` and in TOML."""
    message = r"'products' of RunSpec has been renamed\. Use matmul_precision='half'\."
    with pytest.raises(SpecError, match=message):
        RunSpec(products="half")  # type: ignore[call-arg]
    with pytest.raises(SpecError, match=message):
        RunSpec().replace(products="half")
    with pytest.raises(SpecError, match=message):
        RunSpec.from_toml('[run]\nproducts = "half"\n')


def test_products_flag_names_matmul_precision(tmp_path: Path) -> None:
    """Exit code 2, and nothing is written; also for a --config file."""
    result = run("train", "--products", "half", "--store", tmp_path / "run")
    assert result.exit_code == 2
    assert "--products has been renamed. Use --matmul-precision half." in result.output
    config = tmp_path / "run.toml"
    config.write_text('[run]\nproducts = "half"\n')
    result = run("train", "--config", config, "--store", tmp_path / "run")
    assert result.exit_code == 2
    assert "Use matmul_precision='half'." in result.output
    assert not (tmp_path / "run").exists()


def test_old_value_of_cells_names_the_new_one() -> None:
    """In the constructor and in TOML; the command line lists its choices."""
    message = r"cells='centre' has been renamed\. Use cells='center'\."
    with pytest.raises(SpecError, match=message):
        NetworkSpec(cells="centre")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=message):
        NetworkSpec.from_toml('[network]\ncells = "centre"\n')
    result = run("train", "--cells", "centre")
    assert result.exit_code == 2
    assert "'centre' is not one of 'center', 'even'" in result.output


@pytest.mark.parametrize(("old", "new"), [("grey", "gray"), ("colour", "color")])
def test_channels_name_the_american_spelling(old: str, new: str, tmp_path: Path) -> None:
    """By Python and on the command line; nothing is imported."""
    np.savez(tmp_path / "data.npz", images=X, labels=Y)
    with pytest.raises(SpecError, match=rf"channels='{old}'.*'{new}'"):
        rd.import_dataset(tmp_path / "data.npz", tmp_path / "data.zarr", channels=old)
    paths = (tmp_path / "data.npz", tmp_path / "data.zarr")
    result = run("data", "import", *paths, "--channels", old)
    assert result.exit_code == 2
    assert f"'{old}' is not one of 'gray', 'color'" in result.output
    assert not (tmp_path / "data.zarr").exists()


def test_stored_run_with_old_names_loads_and_resumes(client: Client, tmp_path: Path) -> None:
    """A run of an earlier release has flat options, `products` and "centre" in its attributes."""
    url = tmp_path / "run"
    ResCNetClassifier(SPEC, store=url, run=RUN).fit(X, Y)
    expected = ResCNetClassifier(SPEC.replace(max_layers=2), run=RUN).fit(X, Y)
    before = rd.load(url).decision_function(X)
    path = url / "zarr.json"
    record = json.loads(path.read_text())
    attributes = record["attributes"]
    attributes["run"]["products"] = attributes["run"].pop("matmul_precision")
    attributes["network"] = OLD_NETWORK
    path.write_text(json.dumps(record))

    described = describe_run(url)
    assert described["network"] == SPEC.to_dict()
    assert described["run"] == RUN.to_dict()
    loaded = rd.load(url)
    assert loaded.network_.spec == SPEC
    assert loaded.network_.backend.matmul_precision == RUN.matmul_precision
    np.testing.assert_array_equal(loaded.decision_function(X), before)
    resumed = ResCNetClassifier.resume(url, max_layers=2)
    assert resumed.depth_ == 2
    np.testing.assert_array_equal(resumed.decision_function(X), expected.decision_function(X))
    stored = RunStore.open(url).attributes()
    assert stored["run"]["matmul_precision"] == RUN.matmul_precision
    assert stored["network"]["features"][0]["cells"] == "center"


def test_sweeps_over_blocks_name_conjugate_gradients() -> None:
    """The solver and its options, also of a stored head."""
    with pytest.raises(SpecError, match=r"solver='blocks' has been renamed\. Use solver='cg'\."):
        NetworkSpec(solver="blocks")
    for old, new in (("sweeps", "cg_iterations"), ("sweep_tolerance", "cg_tolerance")):
        with pytest.raises(SpecError, match=rf"'{old}' .* has been renamed\. Use {new}=3\."):
            NetworkSpec(**{old: 3})
    head = NetworkSpec(head="regress", solver="cg", cg_iterations=7)
    stored = head.to_dict()
    options = stored["head"]
    options["sweeps"] = options.pop("cg_iterations")
    options |= {"solver": "blocks", "block_features": 4096}
    assert NetworkSpec.from_stored(stored) == head
