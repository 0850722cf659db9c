"""The search of settings, and the comparisons with a network trained by backpropagation."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client

import rescnet_dist as rd
from rescnet_dist.data import training_set
from rescnet_dist.errors import RescnetError, SpecError
from rescnet_dist.events import PassDone
from rescnet_dist.store import Location

RESULTS = Path(__file__).parents[2] / "notebooks/results"
SETTINGS = """
preset = "digits"
[network]
filters = 4
block = 14
stride = 14
max_layers = 2
patience = 1
[run]
validation = 0.2
"""
CANDIDATES = """
base = "base.toml"
[[candidates]]
name = "base"
[[candidates]]
name = "large-ridge"
ridge = 100.0
[[candidates]]
name = "six"
filters = 6
"""
NETWORK = {"filters": 4, "block": 14, "stride": 14, "max_layers": 2}


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    """Import the scripts, as they import each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RESULTS)
        names = ("search", "few_images", "cost", "baseline", "environment")
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write candidates, their base, and 300 digits without a test split."""
    X, y = rd.load_digits()
    np.savez(tmp_path / "data.npz", x_train=X[:300], y_train=y[:300])
    (tmp_path / "base.toml").write_text(SETTINGS)
    (tmp_path / "candidates.toml").write_text(CANDIDATES)
    return tmp_path


def set_up(scripts: Any, folder: Path, budget_seconds: float = 600) -> tuple[Any, Any]:
    """Return what a search from one layer on has in common, and its candidates."""
    data = str(folder / "data.npz")
    base, candidates = scripts.search.read_candidates(folder / "candidates.toml", data, {})
    training = training_set(data, None)
    described = {"name": "data.npz", "images": 300, "sha256": "0"}
    runs, table = Location.of(folder / "runs"), folder / "table.jsonl"
    setup = scripts.search.Search(base, data, training, described, table, runs, 1, budget_seconds)
    return setup, candidates


def stop_in(layer: int) -> Any:
    """Return a listener that interrupts the run when the layer is committed."""

    def listen(event: Any) -> None:
        if isinstance(event, PassDone) and event.phase == "grow" and event.layer == layer:
            raise KeyboardInterrupt

    return listen


# the search ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_halving_continues_after_a_kill(scripts: Any, client: Client, folder: Path) -> None:
    """The better half gets twice the layers; no layer is trained twice; accuracies are those of
    ordinary runs on the same held-out images; no test split is needed."""
    search, (setup, candidates) = scripts.search, set_up(scripts, folder)
    with pytest.raises(KeyboardInterrupt, match="the same command resumes"):
        search.search(setup, candidates, client, [stop_in(2)])  # in the first trial of rung 2
    assert [t["layers"] for t in search.read_trials(setup.table)] == [1, 1, 1]
    commits = sorted((folder / "runs").glob("*/commits/*"))
    assert len(commits) == 3 * 2 + 1  # a survey and a layer each, and the second layer of one
    before = {path: path.read_bytes() for path in commits}

    found = search.search(setup, candidates, client)
    assert {path: path.read_bytes() for path in commits} == before
    trials = search.read_trials(setup.table)
    assert trials == found
    first, second = trials[:3], trials[3:]
    assert [t["name"] for t in first] == ["base", "large-ridge", "six"]
    ranked = sorted(first, key=lambda trial: -trial["accuracy"])
    assert [t["name"] for t in second] == [t["name"] for t in ranked[:2]]
    assert ranked[2]["name"] == "large-ridge"  # so that another order would fail here
    for trial in second:
        assert trial["curve"][:1] == next(t["curve"] for t in first if t["key"] == trial["key"])
        assert (trial["layers_before"], trial["layers"], len(trial["curve"])) == (1, 2, 2)
        assert trial["accuracy"] == max(trial["curve"]) == trial["curve"][trial["depth"] - 1]
        assert trial["seconds"]["trial"] >= trial["seconds"]["layers"][1] > 0
        assert trial["data"]["held_out"] == 60
        assert trial["environment"]["machines"][0]["cores"] >= 1
        assert re.fullmatch(r"[0-9a-f]{40}\+?", trial["commit"])
    assert str(folder) not in setup.table.read_text()

    six = next(trial for trial in second if trial["name"] == "six")
    spec = rd.NetworkSpec.preset("digits").replace(**NETWORK | {"filters": 6}, patience=None)
    clf = rd.ResCNetClassifier(spec, run=rd.RunSpec(validation=0.2))
    with np.load(folder / "data.npz") as file:
        clf.fit(file["x_train"], file["y_train"])
    assert six["curve"] == [entry["validation"] for entry in clf.accuracies_]

    kept = setup.table.read_bytes()
    assert search.search(setup, candidates, client) == trials  # nothing is left to do
    assert setup.table.read_bytes() == kept
    table = CliRunner().invoke(search.main, ["--table", "--into", str(setup.table)])
    rows = table.output.splitlines()[2:]
    assert [row.split(" | ")[4] for row in rows] == ["2", "2", "1", "1", "1"]
    assert f"| {100 * second[0]['accuracy']:.2f} |" in rows[0]


def test_no_trial_without_a_budget(scripts: Any, client: Client, folder: Path) -> None:
    """A budget that is spent starts nothing."""
    setup, candidates = set_up(scripts, folder, budget_seconds=0)
    assert scripts.search.search(setup, candidates, client) == []
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("budget_seconds", "expected"), [(1000, ["six", "base"]), (49, ["six"]), (39, [])]
)
def test_budget_limits_the_survivors(
    scripts: Any, folder: Path, budget_seconds: float, expected: list[str]
) -> None:
    """The best whose next rung fits what is left survive, at most half of them."""
    setup, candidates = set_up(scripts, folder, budget_seconds)
    tried = [replace(candidate, key=candidate.name) for candidate in candidates]
    accuracies = {"base": 0.7, "large-ridge": 0.6, "six": 0.8}
    trials = {
        (name, 1): {
            "accuracy": accuracy,
            "layers": 1,
            "layers_before": 0,
            "seconds": {"trial": 10.0},
        }
        for name, accuracy in accuracies.items()
    }  # 30 s are spent, and a layer takes 10 s
    survivors = scripts.search.choose_survivors(tried, 1, trials, setup)
    assert [candidate.name for candidate in survivors] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "base.toml"', "is not a list of candidates"),
        ('base = "base.toml"\ncandidates = []', "has no candidates"),
        (CANDIDATES + '[[candidates]]\nname = "six"\n', "two of one name"),
        (CANDIDATES + "seed = 1", "'six' changes seed, on which the held-out images depend"),
        (CANDIDATES + "filter = 5", "'filter', which is no option. Did you mean 'filters'"),
        (CANDIDATES + "stride = 0", "stride=0"),
    ],
)
def test_bad_candidates_are_rejected(scripts: Any, folder: Path, text: str, message: str) -> None:
    """The error names the candidate and what is wrong."""
    (folder / "candidates.toml").write_text(text)
    with pytest.raises(SpecError, match=re.escape(message)):
        set_up(scripts, folder)


@pytest.mark.parametrize("path", sorted((RESULTS / "candidates").glob("*.toml")))
def test_candidates_of_the_book(scripts: Any, path: Path) -> None:
    """They can be read, and differ."""
    _, candidates = scripts.search.read_candidates(path, path.stem, {})
    networks = {json.dumps([c.network.to_dict(), c.augment.to_dict()]) for c in candidates}
    assert len(networks) == len(candidates) > 2


def test_table_with_an_unfinished_line(scripts: Any, tmp_path: Path) -> None:
    """A line that was cut off by a kill is dropped, and overwritten by the next trial."""
    search, table = scripts.search, tmp_path / "table.jsonl"
    search.append_trial(table, {"key": "a"})
    with table.open("a") as file:
        file.write('{"key": "b')
    assert search.read_trials(table) == [{"key": "a"}]
    search.append_trial(table, {"key": "c"})
    assert search.read_trials(table) == [{"key": "a"}, {"key": "c"}]
    with pytest.raises(RescnetError, match="There is no table"):
        search.read_trials(tmp_path / "gone.jsonl")


# few images, and cost -----------------------------------------------------------------------------


def test_subsets_are_nested_and_stratified(scripts: Any, rng: np.random.Generator) -> None:
    """The first n images have each class in proportion, for every n, and depend on the seed."""
    codes = rng.permutation(np.repeat([0, 1, 2], [60, 30, 10]))
    order = scripts.few_images.nested_order(codes, 3)
    assert sorted(order) == list(range(100))
    for n in (10, 20, 50, 90):
        counts = np.bincount(codes[order[:n]], minlength=3)
        assert np.abs(counts - n * np.array([0.6, 0.3, 0.1])).max() <= 1
    assert (order != scripts.few_images.nested_order(codes, 4)).any()


def test_cost_of_recorded_results(scripts: Any) -> None:
    """Seconds add up to those of the record, by layer where it has them."""
    result = scripts.cost.read_result(RESULTS / "cifar10.json")
    curve = scripts.cost.describe_result(result)
    assert curve["seconds"][-1] == pytest.approx(result["seconds"]["layers"])
    assert curve["validation"][result["depth"] - 1] == result["validation"]
    assert curve["machine"] == "NVIDIA H200"
    layers = [{"validation": 0.5, "seconds": 1.0}, {"validation": 0.6, "seconds": 2.0}]
    curve = scripts.cost.describe_result(result | {"curve": layers})
    assert curve["seconds"] == [1.0, 3.0]
    with pytest.raises(RescnetError, match="cannot be read"):
        scripts.cost.read_result(RESULTS / "gone.json")


def test_baselines_have_the_copies_of_results(scripts: Any) -> None:
    """One for each kind of copies."""
    found = [
        scripts.cost.read_result(RESULTS / f"{name}.json")
        for name in ("cifar10", "cifar10-flips", "cifar10-rich", "cifar10-classify")
    ]
    chosen = scripts.cost.choose_baselines(found, {})
    assert [(settings.flip, settings.shift) for settings, _ in chosen] == [
        (False, 0),
        (True, 0),
        (True, 2),
    ]


@pytest.fixture
def torch(scripts: Any) -> Any:
    """Skip the test if PyTorch is not installed."""
    return pytest.importorskip("torch")


def test_baseline_learns(scripts: Any, torch: Any) -> None:
    """A few steps on digits reduce the loss; the network kept is that of the best epoch."""
    X, y = rd.load_digits()
    settings = scripts.baseline.Baseline(width=2, blocks=1, epochs=3, steps=1, batch_images=16)
    training, held_out = (X[:200], y[:200]), (X[200:260], y[200:260])
    trained = scripts.baseline.train(settings, training, held_out, classes=10, seed=0)
    assert trained.curve[-1]["loss"] < trained.curve[0]["loss"]
    accuracies = [entry["validation"] for entry in trained.curve]
    assert trained.accuracy(*held_out) == max(accuracies) == accuracies[trained.epoch - 1]
    again = scripts.baseline.train(settings, training, held_out, classes=10, seed=0)
    assert [entry["loss"] for entry in again.curve] == [entry["loss"] for entry in trained.curve]


def test_few_images_have_more_epochs(scripts: Any) -> None:
    """Steps are enough on few images, epochs on many."""
    settings = scripts.baseline.Baseline(epochs=10, steps=100, batch_images=50)
    assert [settings.count_epochs(n) for n in (40, 100, 1000)] == [100, 50, 10]


def test_random_shifts(scripts: Any, torch: Any, rng: np.random.Generator) -> None:
    """Each image is a crop of the reflected image, and not all are shifted alike."""
    images = rng.integers(0, 255, (12, 2, 6, 5)).astype(np.uint8)
    torch.manual_seed(0)
    shifted = scripts.baseline.shift_images(torch.from_numpy(images), 2).numpy()
    padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect")
    offsets = []
    for n in range(12):
        crops = {(r, c): padded[n, :, r : r + 6, c : c + 5] for r in range(5) for c in range(5)}
        matching = [place for place, crop in crops.items() if (crop == shifted[n]).all()]
        assert matching
        offsets += matching
    assert len(set(offsets)) > 1


def test_comparisons_are_made(scripts: Any, torch: Any, client: Client, tmp_path: Path) -> None:
    """Both commands write a record and a figure; rows that are recorded are kept."""
    X, y = rd.load_digits()
    data = tmp_path / "data.npz"
    np.savez(data, x_train=X[:300], y_train=y[:300], x_test=X[300:400], y_test=y[300:400])
    (tmp_path / "base.toml").write_text(SETTINGS)
    small = ["--cnn-width", "2", "--cnn-blocks", "1", "--cnn-epochs", "1"]
    common = ["--data", str(data), "--into", str(tmp_path), *small]
    settings = str(tmp_path / "base.toml")
    runs = ["--store", str(tmp_path / "runs"), "--cnn-steps", "1", "--images"]
    for counts in ("100", "60,100"):
        done = CliRunner().invoke(scripts.few_images.main, [settings, *common, *runs, counts])
        assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "few-images.json").read_text())
    assert [row["images"] for row in record["rows"]] == [60, 100]
    for row in record["rows"]:
        clf = rd.load(next((tmp_path / "runs").glob(f"{row['images']}-*")))
        assert row["network"]["test"] == float((clf.predict(X[300:400]) == y[300:400]).mean())
        assert 0 <= row["cnn"]["test"] <= 1
    assert (tmp_path / "few-images.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in (tmp_path / "few-images.json").read_text()
    other = [settings, *common, *runs, "100", "--filters", "5"]
    assert "other settings" in CliRunner().invoke(scripts.few_images.main, other).output

    make = importlib.import_module("make").main
    options = ["--filters", "4", "--block", "14", "--stride", "14", "--max-layers", "2"]
    places = ["--data", str(data), "--into", str(tmp_path), "--store", str(tmp_path / "run")]
    done = CliRunner().invoke(make, ["digits", *places, *options])
    assert done.exit_code == 0, done.output
    compare = ["digits", "--results", str(tmp_path), *common]
    done = CliRunner().invoke(scripts.cost.main, compare)
    assert done.exit_code == 0, done.output
    curves = json.loads((tmp_path / "cost.json").read_text())["curves"]
    assert [(c["kind"], len(c["validation"])) for c in curves] == [
        ("closed form", 2),
        ("backpropagation", 1),
    ]
    assert curves[0]["seconds_of_a_layer"] == "measured"
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    np.savez(data, x_train=X[1:301], y_train=y[1:301])
    assert "checksums differ" in CliRunner().invoke(scripts.cost.main, compare).output
