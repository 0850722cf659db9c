"""Results: one command makes each, its numbers are correct, and the book shows them."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner, Result
from distributed import Client

import rescnet_dist as rd
from rescnet_dist.data import Images
from rescnet_dist.model import forward, initial_state
from rescnet_dist.network import Network
from rescnet_dist.spec import read_toml
from rescnet_dist.store import Location, RunStore, StoredLayers
from tests.presets import IMAGES

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "notebooks/results/make.py"
PAGE = ROOT / "notebooks/results.md"
TRIALS_PAGE = ROOT / "notebooks/trials.md"
COMPARED = sorted((SCRIPT.parent / "compared").glob("*.json"))
STORED = sorted(SCRIPT.parent.glob("*.json"))
FUSED = sorted((SCRIPT.parent / "fused").glob("*.json"))
CURVES = sorted((SCRIPT.parent / "curves").glob("*.json"))
ABLATED = sorted((SCRIPT.parent / "ablations").glob("*.json"))
TRIALS = sorted((SCRIPT.parent / "trials").glob("*.json*"))
SMALL = ("--filters", "4", "--block", "14", "--stride", "14")
UNTUNED = ("cifar100", "tiny-imagenet")  # whose settings are those of CIFAR-10
FAMILY = {"pcanet", "pcanet+", "ldanet", "dctnet", "randnet", "ccanet", "multilayer-pcanet"}
TABLE = re.compile(r"<!-- results -->\n(.*?)\n<!-- end of results -->", re.DOTALL)


@pytest.fixture(scope="module")
def script() -> Any:
    """Import `make.py` under a name that workers in this process can import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield importlib.import_module("make")


def make(script: Any, *arguments: Any) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(script.main, [str(a) for a in arguments])


def accuracies(store: Path, layers: int, images: Any, labels: Any) -> list[float]:
    """Return the accuracy on images (n, H, W, d) with labels (n,) after each layer of a run."""
    network = Network.load(store)
    stored = StoredLayers(Location.of(store), layers, network.spec.head.arrays)
    architecture = network.architecture
    before = initial_state(images, network.image_scale, architecture)
    return [
        float((network.classes[state.scores.argmax(axis=1)] == labels).mean())
        for state in forward(architecture, before, stored)
    ]


def sha256(images: Any, labels: Any) -> str:
    """Return the SHA-256 of pixels and of labels as int64."""
    return hashlib.sha256(images.tobytes() + labels.astype("<i8").tobytes()).hexdigest()


# making results -----------------------------------------------------------------------------------


def test_record_matches_the_run(script: Any, client: Client, tmp_path: Path) -> None:
    """Every number follows from the run and the data; the depth is best on held-out images."""
    store, into = tmp_path / "run", tmp_path / "results"
    options = (*SMALL, "--learning-rate", "4", "--max-layers", "2")  # a step too large to improve
    done = make(script, "digits", "--into", into, "--store", store, *options)
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"results", "run"}
    text = (into / "digits.json").read_text()
    assert str(tmp_path) not in text
    found = json.loads(text)

    X, y = rd.load_digits()
    X_test, y_test = rd.load_digits("test")
    trained = zarr.open_array(store / "data/train", mode="r")[...].astype(bool)
    parts = (
        ("train", X[trained], y[trained]),
        ("validation", X[~trained], y[~trained]),
        ("test", X_test, y_test),
    )
    for name, images, labels in parts:
        curve = [layer[name] for layer in found["curve"]]
        assert curve == pytest.approx(accuracies(store, 2, images, labels), abs=1e-9), name

    validation = [layer["validation"] for layer in found["curve"]]
    depth = 1 + int(np.argmax(validation))
    assert found["depth"] == depth < 2  # so that choosing the last layer would fail here
    assert found["validation"] == validation[depth - 1]
    clf = rd.load(store)
    assert found["test"] == float((clf.predict(X_test) == y_test).mean())
    assert found["test_averaged_over_flips"] is None

    data = found["data"]
    assert data["train"] == {"images": 6000, "sha256": sha256(X, y)}
    assert data["test"] == {"images": 1000, "sha256": sha256(X_test, y_test)}
    assert data["held_out"] == np.count_nonzero(~trained)
    spec = rd.NetworkSpec.preset("digits").replace(
        filters=4, block=14, stride=14, learning_rate=4.0, max_layers=2
    )
    assert found["spec"]["network"] == spec.to_dict()
    assert found["spec"]["run"]["validation"] == 0.1
    assert found["command"] == (
        "python notebooks/results/make.py digits --filters 4 --block 14 --stride 14 "
        "--learning-rate 4.0 --max-layers 2"
    )
    commits = [json.loads(path.read_text()) for path in sorted((store / "commits").iterdir())]
    seconds = [record["seconds"] for record in commits[1:]]
    assert found["seconds"]["layers"] == pytest.approx(sum(seconds))
    assert found["seconds"]["median_layer"] == pytest.approx(np.median(seconds))
    assert found["environment"]["versions"]["numpy"] == np.__version__
    assert found["environment"]["threads"] >= 1

    elsewhere = found["environment"] | {"platform": "Plan9 mips"}  # where it was trained
    RunStore.open(store).update_attributes(environment=elsewhere)
    assert make(script, "digits", "--into", into, "--store", store, *options).exit_code == 0
    again = json.loads((into / "digits.json").read_text())
    assert again["environment"] == elsewhere
    assert again["curve"] == found["curve"]


@pytest.mark.slow
def test_digits_are_reproduced(tmp_path: Path) -> None:
    """The command in its own process gives the stored accuracies, on the stored data."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "digits", "--into", tmp_path], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "runs/digits/result.json").exists()
    new, stored = (
        json.loads((folder / "digits.json").read_text()) for folder in (tmp_path, SCRIPT.parent)
    )
    for key in ("command", "data"):
        assert new[key] == stored[key]
    kinds: tuple[Any, ...] = (rd.NetworkSpec, rd.RunSpec, rd.AugmentSpec)
    for kind in kinds:  # with options that are newer than the record
        one, other = (kind.from_stored(found["spec"][kind.table]) for found in (new, stored))
        assert one == other
    for key in ("train", "validation", "test"):  # rounding differs between machines
        curves = [[layer[key] for layer in found["curve"]] for found in (new, stored)]
        assert curves[0] == pytest.approx(curves[1], abs=0.004), key
    assert new["environment"]["machines"][0]["cores"] >= 1


@pytest.fixture
def arrays(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Write training and test images (n, 32, 32, 3) of 3 noisy classes to one file."""
    patterns = rng.integers(0, 90, (3, 32, 32, 3))
    parts = {}
    for split, count in (("train", 150), ("test", 90)):
        labels = np.arange(count) % 3
        images = patterns[labels] + rng.integers(0, 160, (count, 32, 32, 3))
        parts |= {f"x_{split}": images.astype(np.uint8), f"y_{split}": labels}
    path = tmp_path / "arrays.npz"
    np.savez(path, **parts)
    return path


def test_averaging_over_copies_has_its_own_row(
    script: Any, client: Client, arrays: Path, tmp_path: Path
) -> None:
    """Copies are those that the network was trained with."""
    store = tmp_path / "run"
    command = ("cifar10-rich", "--data", arrays, "--into", tmp_path, "--store", store)
    more = ("--filters", "3", "--stride", "16", "--max-layers", "1", "--copies", "1")
    result = make(script, *command, *more)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "cifar10-rich.json").read_text())
    with np.load(arrays) as file:
        X, y = file["x_test"], file["y_test"]
    augment = rd.AugmentSpec(copies=7, flip=True, shift=2, padding="reflect")
    scores = Network.load(store).scores(Images(X), augment)
    assert found["test_averaged_over_copies"] == float((scores.argmax(axis=1) == y).mean())
    rows = make(script, "--table", "--into", tmp_path).output.splitlines()
    assert "averaged over flips" in rows[-2]
    assert "averaged over 7 copies" in rows[-1]
    assert f"| {100 * found['test_averaged_over_copies']:.2f} ± " in rows[-1]


def test_averaging_over_flips_has_its_own_row(
    script: Any, client: Client, arrays: Path, tmp_path: Path
) -> None:
    """Scores of images and mirror images are averaged at the chosen depth; a second run of the
    command finds the run finished and writes the same record."""
    store = tmp_path / "run"
    command = ("cifar10", "--data", arrays, "--into", tmp_path, "--store", store, "--filters", "3")
    more = ("--stride", "16", "--max-layers", "2", "--patience", "1")
    first = make(script, *command, *more)
    assert first.exit_code == 0, first.output
    found = json.loads((tmp_path / "cifar10.json").read_text())

    with np.load(arrays) as file:
        X, y, X_train, y_train = (file[n] for n in ("x_test", "y_test", "x_train", "y_train"))
    clf = rd.load(store)
    scores = clf.decision_function(X)
    averaged = (scores + clf.decision_function(X[:, :, ::-1])) / 2
    assert found["test"] == float((scores.argmax(axis=1) == y).mean())
    assert found["test_averaged_over_flips"] == float((averaged.argmax(axis=1) == y).mean())
    assert found["test_averaged_over_flips"] != found["test"]  # else this test could not fail
    assert found["data"]["train"] == {"images": 150, "sha256": sha256(X_train, y_train)}
    assert "cifar10 --data arrays.npz" in found["command"]
    assert str(tmp_path) not in json.dumps(found)

    _, _, plain, flips = make(script, "--table", "--into", tmp_path).output.splitlines()
    assert f"| {100 * found['test']:.2f} ± " in plain
    assert "| CIFAR-10, 150 images |" in plain
    assert "87.54" not in plain  # the figure for all images
    assert f"averaged over flips | {found['depth']} of {len(found['curve'])} |" in flips
    assert f"| {100 * found['test_averaged_over_flips']:.2f} ± " in flips

    assert found["test_averaged_over_copies"] is None  # training has none

    kept = (store / "result.json").read_bytes()
    assert make(script, *command, *more).exit_code == 0
    again = json.loads((tmp_path / "cifar10.json").read_text())
    for record in (found, again):
        del record["date"], record["seconds"]["test"]
    assert again == found
    assert (store / "result.json").read_bytes() == kept


@pytest.mark.parametrize("name", ["cifar10-pcanet", "cifar10-multilayer-pcanet"])
def test_presets_of_the_family_are_results(
    script: Any, client: Client, arrays: Path, tmp_path: Path, name: str
) -> None:
    """Networks with one head have one accuracy; the published figure is that of their method."""
    store, into = tmp_path / "run", tmp_path / "results"
    small = ["--filter-size", "3", "--first-filter-size", "3"]
    if name == "cifar10-pcanet":
        small += ["--filters", "4,2", "--hash-bits", "2", "--hash-stride", "8"]
    else:
        small += ["--filters", "4", "--block", "16", "--stride", "16", "--max-layers", "3"]
    done = make(script, name, "--data", arrays, "--into", into, "--store", store, *small)
    assert done.exit_code == 0, done.output
    found = json.loads((into / f"{name}.json").read_text())
    layers = [2] if name == "cifar10-pcanet" else [1, 2, 3]
    assert [layer["layer"] for layer in found["curve"]] == layers
    with np.load(arrays) as file:
        X, y = file["x_test"], file["y_test"]
    clf = rd.load(store)
    scores = clf.decision_function(X)
    averaged = (scores + clf.decision_function(X[:, :, ::-1])) / 2
    assert found["test"] == float((scores.argmax(axis=1) == y).mean())
    assert found["test_averaged_over_flips"] == float((averaged.argmax(axis=1) == y).mean())
    published = script.RESULTS[name]
    assert found["published"] == {
        "method": "PCANet-2" if name == "cifar10-pcanet" else "Multi-layer PCANet",
        "test": published.published,
        "how": published.how,
    }
    train = found["data"]["train"] | {"images": 50_000}
    found["data"]["train"] = train  # as if of all images, which the figure is for
    (into / f"{name}.json").write_text(json.dumps(found))
    plain = make(script, "--table", "--into", into).output.splitlines()[2]
    assert f"| {found['depth']} of {layers[-1]} |" in plain
    assert {"cifar10-pcanet": "| 77.14 (PCANet-2, SVM) |"}.get(
        name, "| 81.72 (Multi-layer PCANet) |"
    ) in plain


def test_records_of_earlier_versions_are_read(script: Any, tmp_path: Path) -> None:
    """Their entry `paper` is the published figure of ResCNet."""
    record = json.loads((SCRIPT.parent / "mnist.json").read_text())
    assert "published" not in record  # else this test could not fail
    found = script.read_result(SCRIPT.parent / "mnist.json")
    assert found["published"] == {"method": "ResCNet", "test": 0.9952, "how": "231 layers"}
    path = tmp_path / "digits.json"
    path.write_text((SCRIPT.parent / "digits.json").read_text())
    assert script.read_result(path)["published"] is None


def test_bad_input_is_rejected(
    script: Any, client: Client, arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the problem and the remedy; no file is created or changed."""
    arrays = arrays.rename(tmp_path.parent / "arrays.npz")
    (tmp_path / "no-folder").touch()
    (tmp_path / "digits.json").write_text("{}")
    monkeypatch.setenv("RESCNET_CACHE", str(tmp_path / "no-folder"))
    with np.load(arrays) as file:
        np.savez(arrays.with_name("half.npz"), x_train=file["x_train"], y_train=file["y_train"])
    here = ("--into", tmp_path, "--store", tmp_path / "run", *SMALL, "--max-layers", "1")
    cases: tuple[tuple[tuple[Any, ...], str], ...] = (
        ((), "No result is named. Known: cifar10"),
        (("cifar",), "There is no result 'cifar'. Did you mean 'cifar10'\\?"),
        (("cifar10",), "`rescnet data import cifar10 cifar10.zarr`"),
        (("mnist", "--data", "gone.zarr"), r"gone.zarr.*(\n.*)*x_train, y_train, x_test and y_t"),
        (("mnist", "--data", "gone.zarr"), "with --data instead of gone.zarr"),
        (("digits", "--data", "gone"), "There is nothing at .*'gone' is not the name of a dataset"),
        (("digits", "--data", "gone"), "needs digits, which are embedded. Leave out --data gone."),
        (("cifar10", "--data", arrays, "--test", arrays.with_name("none.npz")), "none.npz"),
        (("cifar10", "--data", arrays.with_name("half.npz")), "half.npz has no test images"),
        (("digits", "--validation", "0"), "validation=0.0 holds no images out"),
        (("digits", "--test", arrays), "Test images are"),
        (("cifar10", "--data", "digits"), r"digits has images of \(28, 28, 1\).*are \(32, 32, 3\)"),
        (("digits", "--table"), "'digits' is given. Omit the name"),
        (("--table",), "digits.json is not a result of this command"),
        (("digits", "--max-layers", "0"), "max_layers=0 is out of range"),
    )
    before = sorted(tmp_path.iterdir())
    for arguments, message in cases:
        done = make(script, *here, *arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert re.search(message, done.output), (arguments, done.output)
        assert sorted(tmp_path.iterdir()) == before, arguments
    assert "There is no folder" in make(script, "--table", "--into", tmp_path / "gone").output
    (tmp_path / "empty").mkdir()
    assert "There is no result in" in make(script, "--table", "--into", tmp_path / "empty").output
    missing = make(script, "digits", "--into", tmp_path / "no-folder" / "deep")
    assert "Create that folder" in missing.output
    assert (tmp_path / "digits.json").read_text() == "{}"


# stored results ---------------------------------------------------------------------------------


def test_settings_fit_their_data(script: Any) -> None:
    """Each result has one TOML file, which holds images out and fits the image size."""
    files = {path.stem: path for path in SCRIPT.parent.glob("*.toml")}
    assert files.keys() == script.RESULTS.keys()
    for name, path in files.items():
        shape = IMAGES[script.RESULTS[name].data]
        rd.NetworkSpec.from_toml(path).check_images(*shape)
        rd.AugmentSpec.from_toml(path).check_images(*shape)
        assert 0 < rd.RunSpec.from_toml(path).validation < 0.5, name
        data = script.RESULTS[name].data
        family = name.removeprefix(f"{data}-")
        usual = "cifar10" if data in UNTUNED else data
        assert read_toml(path)["preset"] == (family if family in FAMILY else usual)


def test_several_seeds_have_a_row_of_their_mean(script: Any, tmp_path: Path) -> None:
    """Each seed has a record of its own, and the table ends with mean and standard deviation."""
    assert script.name_record("digits", None) == script.name_record("digits", 0) == "digits"
    stored = json.loads((SCRIPT.parent / "digits.json").read_text())
    for seed, test in ((2, 0.98), (0, 0.97), (1, 0.99)):
        spec = copy.deepcopy(stored["spec"])
        if seed == 1:
            del spec["network"]["store_dtype"]  # as in a record from before there was the option
        record = json.dumps(stored | {"seed": seed, "test": test, "spec": spec})
        (tmp_path / f"{script.name_record('digits', seed)}.json").write_text(record)
    assert sorted(p.stem for p in tmp_path.iterdir()) == ["digits", "digits-seed1", "digits-seed2"]
    rows = [
        [cell.strip() for cell in line.split("|")[2:6]]
        for line in make(script, "--table", "--into", tmp_path).stdout.splitlines()[2:]
    ]
    assert [row[0] for row in rows] == [
        *(f"embedded digits, seed {seed}" for seed in range(3)),
        "… mean of 3 seeds",
    ]
    assert [row[3] for row in rows[:3]] == ["97.00 ± 0.54", "99.00 ± 0.31", "98.00 ± 0.44"]
    assert rows[3][2:] == [f"{100 * stored['validation']:.2f} ± 0.00", "98.00 ± 1.00"]
    (tmp_path / "digits.json").unlink()
    other = stored["spec"] | {"network": stored["spec"]["network"] | {"filters": 1}}
    (tmp_path / "digits-seed1.json").write_text(json.dumps(stored | {"seed": 1, "spec": other}))
    assert "mean of" not in make(script, "--table", "--into", tmp_path).stdout
    (tmp_path / "digits-seed1.json").unlink()
    assert "embedded digits, seed 2" in make(script, "--table", "--into", tmp_path).stdout


def test_digits_are_stored() -> None:
    """The table and the picture need at least one result."""
    assert "digits" in [path.stem for path in STORED]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_results_match_their_settings(script: Any, path: Path) -> None:
    """A record follows from NAME.toml and the options of its command, and is consistent."""
    found = script.read_result(path)
    name, result = found["name"], script.RESULTS[found["name"]]
    assert path.stem == script.name_record(name, found["seed"])
    words = found["command"].split()
    assert words[:3] == ["python", "notebooks/results/make.py", name]
    settings = path.with_name(f"{name}.toml")
    kinds: tuple[Any, ...] = (rd.NetworkSpec, rd.RunSpec, rd.AugmentSpec)
    for kind in kinds:
        asked = kind.from_toml(settings).to_dict()
        used = kind.from_stored(
            found["spec"][kind.table]
        ).to_dict()  # with options that are newer than the record
        names = used.keys() | asked.keys()
        for option_name in (n for n in names if used.get(n) != asked.get(n)):
            option = script.flag(option_name, used[option_name])
            assert option == words[words.index(option[0]) :][: len(option)], path.stem
    assert found["title"] == result.title
    assert found["published"] == script.describe_published(result)
    validation = [layer["validation"] for layer in found["curve"]]
    chosen = next(layer for layer in found["curve"] if layer["layer"] == found["depth"])
    assert chosen["validation"] == max(validation) == found["validation"]
    assert chosen["test"] == found["test"]
    assert found["data"]["held_out"] > 0
    averages = result.data in script.MIRRORED
    assert (found["test_averaged_over_flips"] is not None) == averages
    assert found["version"] >= 2 or not averages  # version 1 may have averaged over all layers


@pytest.mark.parametrize(
    "path", [*STORED, *COMPARED, *FUSED, *TRIALS, *CURVES, *ABLATED], ids=lambda path: path.stem
)
def test_results_contain_no_local_path(path: Path) -> None:
    """Records are published; paths of a machine are not."""
    assert not re.search(r"/tmp|/work|/root|/home|/Users", path.read_text())


def test_page_shows_the_results(script: Any) -> None:
    """Its table is the output of `make.py --table`, and it names all results."""
    text = PAGE.read_text()
    shown = TABLE.search(text)
    assert shown
    assert all(f"`{name}`" in text for name in script.RESULTS)
    done = make(script, "--table")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == shown[1]


def test_fused_networks(script: Any, client: Client, tmp_path: Path) -> None:
    """Scores of test images are averaged as a fused network with equal weights averages them."""
    fused = importlib.import_module("fused")
    files = [tmp_path / f"{seed}.npz" for seed in range(2)]
    for seed, path in enumerate(files):
        options = (*SMALL, "--max-layers", "1", "--seed", seed, "--into", tmp_path)
        store = tmp_path / str(seed)
        done = make(script, "digits", "--store", store, "--scores", path, *options)
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(
        fused.main, ["seeds", *map(str, files), "--into", str(tmp_path / "fused")]
    )
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "fused/seeds.json").read_text())
    assert record["networks"] == [{"name": "digits", "seed": seed} for seed in range(2)]
    assert "| 2 of `digits` |" in done.output

    X, y = rd.load_digits("test")
    networks = [Network.load(tmp_path / str(seed)) for seed in range(2)]
    network = rd.fuse(networks, X[:50], y[:50])
    network = replace(network, weights=np.full(2, 0.5))
    codes = np.searchsorted(network.classes, y)
    assert record["fused"] == {"plain": (network.scores(X).argmax(axis=1) == codes).mean()}
    alone = [(network.scores(X).argmax(axis=1) == codes).mean() for network in networks]
    assert record["alone"] == {"plain": alone}
    assert record["fused"]["plain"] != alone[0] != alone[1]

    done = CliRunner().invoke(fused.main, ["seeds", str(files[0]), "--into", str(tmp_path)])
    assert done.exit_code == 2
    assert "at least 2 networks" in done.output
    with np.load(files[1]) as arrays:
        scores = dict(arrays)
    np.savez(tmp_path / "flips.npz", flips=scores["plain"], **scores)
    np.savez(tmp_path / "other.npz", **scores | {"codes": scores["codes"][::-1]})
    for other, message in (
        (PAGE, "cannot be read as scores"),
        (files[0], "0.npz has the scores of .*0.npz. Name each network once"),
        (tmp_path / "flips.npz", "flips.npz has scores .* averaged over the same copies"),
        (tmp_path / "other.npz", "other.npz has other test images than .*0.npz"),
    ):
        done = CliRunner().invoke(fused.main, ["seeds", str(files[0]), str(other)])
        assert done.exit_code == 2
        assert re.search(message, done.output)


def test_bad_input_of_fused_networks(script: Any, tmp_path: Path) -> None:
    """What is wrong is said without a traceback, and nothing is written."""
    fused = importlib.import_module("fused")
    codes, random = np.arange(20) % 10, np.random.default_rng(0)
    good = [str(tmp_path / f"{seed}.npz") for seed in range(2)]
    for seed, path in enumerate(good):
        np.savez(path, name="digits", seed=seed, codes=codes, plain=random.random((20, 10)))
    cut, records = tmp_path / "cut.npz", tmp_path / "records"
    cut.write_bytes(Path(good[0]).read_bytes()[:500])
    records.mkdir()
    (records / "digits.json").write_text((SCRIPT.parent / "digits.json").read_text())
    before = sorted(tmp_path.rglob("*"))
    for arguments, message in (
        (["seeds", good[0], str(cut)], "cut.npz cannot be read as scores"),
        (["seeds", good[0]], "1 file of scores, but at least 2 networks are averaged"),
        ([good[0], *good], "Give a name, then the files of scores"),
        (["seeds", *good, "--into", good[0]], "0.npz is not a folder"),
        (["--table", "--into", str(records)], "digits.json is not a record of this command"),
        (["seeds", "--table"], "--table prints all records, but 'seeds' is given"),
    ):
        done = CliRunner().invoke(fused.main, ["--into", str(tmp_path / "new"), *arguments])
        assert done.exit_code == 2, done.output
        assert message in done.output
    assert sorted(tmp_path.rglob("*")) == before
    done = CliRunner().invoke(fused.main, ["seeds", *good, "--into", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert f"wrote {tmp_path / 'new/seeds.json'}" in done.stderr


@pytest.mark.parametrize("path", FUSED, ids=lambda path: path.stem)
def test_fused_networks_are_those_of_the_results(path: Path) -> None:
    """Their accuracies are those of the results of that name and seed."""
    record = json.loads(path.read_text())
    results = [json.loads(p.read_text()) for p in STORED]
    found = {(result["name"], result["seed"]): result for result in results}
    networks = [found[network["name"], network["seed"]] for network in record["networks"]]
    for key, how in (("test", "plain"), ("test_averaged_over_flips", "flips")):
        assert [result[key] for result in networks] == record["alone"][how]


def test_page_shows_the_fused_networks(script: Any) -> None:
    """Its table is the output of `fused.py --table`."""
    fused = importlib.import_module("fused")
    done = CliRunner().invoke(fused.main, ["--table"])
    assert f"<!-- fused -->\n{done.stdout.strip()}\n<!-- end of fused -->" in PAGE.read_text()


def test_page_lists_all_runs() -> None:
    """Each run at full size has a row with its stored numbers."""
    lines = PAGE.read_text().splitlines()
    stored = [path for path in (*STORED, *COMPARED) if path.stem != "digits"]
    rows = {format_row(json.loads(path.read_text()), path) for path in stored}
    assert rows == {line for line in lines if line.startswith("| [`")} - list_ablations()
    assert len(COMPARED) > 10


def test_page_shows_the_ablations() -> None:
    """Each network has a row with its stored numbers, at the depth that held-out images chose."""
    rows = set[str]()
    for path in ABLATED:
        for variant in json.loads(path.read_text())["variants"]:
            chosen = variant["curve"][variant["depth"] - 1]
            best = max(variant["curve"], key=lambda layer: layer["validation"])
            assert chosen["layer"] == variant["depth"]
            assert chosen["validation"] == best["validation"]
            layers = f"{variant['depth']} of {variant['layers']}"
            shares = (f"{100 * chosen[part]:.2f}" for part in ("train", "validation", "test"))
            name = f"[`{path.stem}`](results/ablations/{path.name})"
            rows.add(f"| {' | '.join((name, variant['label'], layers, *shares))} |")
    assert len(rows) == 10
    assert rows == list_ablations()


def list_ablations() -> set[str]:
    """Return the rows of the table of ablations."""
    table = re.search(r"<!-- ablations -->(.*?)<!-- end of ablations -->", PAGE.read_text(), re.S)
    assert table
    return {line for line in table[1].splitlines() if line.startswith("| [`")}


def test_page_shows_the_networks_of_few_images(script: Any) -> None:
    """Its table is that of `few_images.py`, whose test images are read once per row."""
    few_images = importlib.import_module("few_images")
    table = few_images.format_rows(few_images.read_rows(SCRIPT.parent / "curves/few-images.json"))
    assert f"<!-- few images -->\n{table}\n<!-- end of few images -->" in PAGE.read_text()


def format_row(result: dict[str, Any], path: Path) -> str:
    """Format a row of the table of all runs, in bold if the run is a result."""
    network = result["spec"]["network"]
    levels = network.get("levels") or network["features"][0]["levels"]
    values = (
        str(network["filters"]).strip("[]"),
        "–".join(map(str, levels)) or "none",
        result["data"]["held_out"],
        f"{result['depth']} of {result['curve'][-1]['layer']}",
        f"{100 * result['validation']:.2f}",
        f"{100 * result['test']:.2f}",
    )
    mark = "**" if path.parent == SCRIPT.parent else ""
    cells = " | ".join(f"{mark}{value}{mark}" for value in values)
    return f"| [`{result['name']}`]({path.relative_to(PAGE.parent)}) | {cells} |"


def test_counts_of_held_out_images() -> None:
    """The counts on the page by which settings were chosen are those of the records."""
    found = {path.stem: json.loads(path.read_text()) for path in (*STORED, *COMPARED)}
    correct = {name: round(r["validation"] * r["data"]["held_out"]) for name, r in found.items()}
    assert correct["cifar10-f128-10000-held-out"] - correct["cifar10-f80-10000-held-out"] == 22
    for few, many in zip(
        found["cifar10-f80-10000-held-out"]["curve"],
        found["cifar10-f128-10000-held-out"]["curve"],
        strict=True,
    ):
        assert many["validation"] > few["validation"]
    assert correct["cifar10"] - correct["cifar10-f80"] == 1
    assert correct["cifar10-f80"] - correct["cifar10-f128-other-chunks"] == 3
    assert correct["mnist-shifts"] == correct["mnist-shifts-f84"] == 2990
    assert found["cifar10-classify"]["curve"][59]["train"] == pytest.approx(0.997, abs=5e-4)
    chunks = [found[n]["plan"]["chunk_images"] for n in ("cifar10", "cifar10-f128-other-chunks")]
    assert chunks == [1786, 3572]


def test_page_shows_the_trials_of_late_fusion() -> None:
    """The numbers of its table are those of the recorded trials."""
    record = json.loads((SCRIPT.parent / "trials/late-fusion.json").read_text())
    text, test = TRIALS_PAGE.read_text(), record["test"]
    networks = [trial for trial in record["trials"] if trial["name"] in test["members"]]
    assert len(networks) == 2
    for trial in networks:
        layers = f"{trial['depth']} of {trial['layers']}"
        validation = f"{100 * trial['validation_averaged_over_flips']:.2f}"
        accuracy = f"{test['members'][trial['name']]['test_flips']:.2f}"
        assert f"| {trial['seed']} | {layers} | {validation} | {accuracy} |" in text
    mean = record["fusion"]["full_size"]["mean"]
    assert f"| mean of both scores (chosen) | | | | {mean:.2f} | {test['accuracy']:.2f} |" in text
    assert f"{len(record['trials'])} networks" in text


def test_page_shows_the_trials_of_ridge_and_learning_rate() -> None:
    """The rows of its table are those of the recorded trials, of two seeds side by side."""
    record = json.loads((SCRIPT.parent / "trials/ridge.json").read_text())
    text, trials = TRIALS_PAGE.read_text(), record["trials"]
    pairs = list(zip(trials[:15], trials[15:], strict=True))
    rows = [format_trial_row(*pair) for pair in pairs]
    start = text.index(rows[0])
    assert text[start:].startswith("\n".join(rows))
    assert f"two seeds, 90 layers, {record['gpu_seconds']} s" in text
    for trial in trials:
        assert len(trial["curve"]) == trial["layers"]
        assert trial["validation"] == max(trial["curve"]) == trial["curve"][trial["depth"] - 1]
        reference = trials[15 * trial["seed"]]
        difference = round(10_000 * (trial["curve"][-1] - reference["curve"][-1]))
        corrected, broken = trial["corrected_and_broken"]
        assert corrected - broken == difference


def test_page_shows_the_trial_of_banks() -> None:
    """First and last accuracy of both networks."""
    record = json.loads((SCRIPT.parent / "trials/banks.json").read_text())
    recorded, tried = (trial["curve"] for trial in record["trials"])
    text = " ".join(TRIALS_PAGE.read_text().split())
    for layer in (0, -1):
        assert f"({tried[layer]:.2f} compared with {recorded[layer]:.2f} %)" in text


def test_page_shows_the_shares_of_the_leverage() -> None:
    """The table has the best accuracies; those of kernels are in the text."""
    record = json.loads((SCRIPT.parent / "trials/leave-one-out.json").read_text())
    text = TRIALS_PAGE.read_text().partition("## Shares of the leverage")[2].partition("\n## ")[0]
    rows = [line.replace("*", "").split(" | ") for line in text.splitlines() if "ridge" in line]
    shown = sorted([*row[1:-1], row[-1].strip(" |")] for row in rows if len(row) == 6)
    found: dict[tuple[str, float], dict[float, float]] = {}
    for trial in record["shares"]["trials"]:
        for head in trial["heads"]:
            key = trial["name"], head["ridge"]
            found.setdefault(key, {})[head["leverage_share"]] = max(head["validation"])
    assert shown == sorted([f"{best[s]:.2f}" for s in sorted(best)] for best in found.values())
    kernels = record["kernels"]["trials"][1]["heads"]
    best = {
        share: max(h["best"] for h in kernels if h["leverage_share"] == share) for share in (0.5, 0)
    }
    layers = record["shares"]["trials"][0]["heads"][0]["validation"][:16]
    joint = max(trial["validation"] for trial in record["joint_kernels"]["trials"][0]["joint"])
    for accuracy in (*best.values(), max(layers), joint):
        assert f"{accuracy:.2f} %" in text
    assert f"{record['gpu_seconds']} s of one H200" in " ".join(text.split())


def test_page_shows_the_trials_of_the_papers_head() -> None:
    """Each row of the table has the numbers of a recorded trial, in the same order."""
    record = json.loads((SCRIPT.parent / "trials/classify-left-out.json").read_text())
    section = TRIALS_PAGE.read_text().partition("## The paper's head")[2].partition("\n## ")[0]
    rows = [re.split(r" *\| *", line.strip("|* ")) for line in section.splitlines()]
    shown = [[cell.replace("*", "").strip() for cell in row] for row in rows if len(row) == 7]
    base, expected = record["base"], []
    for trial in record["trials"]:
        settings, curve = base | trial["changes"], trial["validation"]
        assert trial["best"] == max(curve) == curve[trial["best_layer"] - 1]
        ridge = f", ridge {settings['ridge']:g}" if settings["ridge"] != base["ridge"] else ""
        file = read_toml(SCRIPT.parent / f"{trial['settings']}.toml")
        head = trial["changes"].get("head", file["network"]["head"])
        expected.append(
            [f"`{trial['settings']}`{ridge}", "yes" if head == "classify-leave-one-out" else "no"]
            + [f"{settings[name]:g}" for name in ("learning_rate", "sigma")]
            + [f"{curve[0]:.2f}", f"{curve[9]:.2f}", f"{trial['best']:.2f}, {trial['best_layer']}"]
        )
    assert shown[2:] == expected
    assert f"{record['gpu_seconds']} s of layers on one H200" in section


def test_page_shows_the_trials_of_multi_layer_pcanet() -> None:
    """Rows and ridges have the numbers of the recorded trials."""
    record = json.loads((SCRIPT.parent / "trials/multilayer-pcanet.json").read_text())
    section = TRIALS_PAGE.read_text().partition("Why Multi-layer PCANet")[2].partition("\n## ")[0]
    rows = [re.split(r" *\| *", line.strip("|* ")) for line in section.splitlines()]
    shown = [[cell.replace("*", "").strip() for cell in row] for row in rows if len(row) == 6]
    expected, ridges = list[list[str]](), {}
    for trial in record["trials"]:
        curve, options = trial["curve"], dict(trial["options"])
        ridge, best = options.pop("ridge"), max(curve)
        if "each_layer" in trial:
            name = ", ".join([f"ridge {ridge:g}", *(f"`{option}`" for option in sorted(options))])
            name += "" if options else " (the preset)"
            numbers = curve[-1], trial["each_layer"][-1], trial["sum_of_logits"][-1]
            deepest = (f"{number:.1f}" for number in numbers)
            best_cell = f"{best:.1f}, {curve.index(best) + 1}"
            expected.append([name, f"{curve[0]:.1f}", best_cell, *deepest])
        elif not options:
            ridges[ridge] = best
    assert sorted(shown[2:]) == sorted(expected)
    words = " ".join(section.split())
    *first, last = (f"{ridge:g}" for ridge in ridges)
    *bests, worst = (f"{best:.1f}" for best in ridges.values())
    assert f"{', '.join(first)} and {last} have {', '.join(bests)} and {worst} %" in words


def test_page_shows_the_screening() -> None:
    """Accuracies and differences are those of the recorded trials."""
    record = json.loads((SCRIPT.parent / "trials/screen.json").read_text())
    text = " ".join(TRIALS_PAGE.read_text().split())
    text = text[text.index("## Screening") : text.index("## Short runs")]
    trials = record["stagewise"]["trials"] + record["filter_learners"]["trials"]
    assert f"{len(trials)} variants" in text
    assert all(len(curve) == 12 for trial in trials for curve in trial["curves"].values())
    curves = {trial["name"]: trial["curves"] for trial in trials}
    last = {name: found["learning_rate 0.3"][-1] for name, found in curves.items()}
    base = last["base"]
    assert f"({base:.2f} and {last['seed1']:.2f} %)" in text
    assert f"({last['whit']:.2f} compared with {base:.2f} %)" in text
    names = ("whit-rm", "maxmean", "f96", "levels321", "fo", "fo421", "zca", "div", "pool4")
    for name in names:
        gain = abs(round(100 * (last[name] - base))) / 100
        assert re.search(rf"{gain + 1e-9:.1f}[^%]*\({last[name]:.2f} %\)", text), name
    left_out = curves["base"]["learning_rate 0.3, leave-one-out errors"]
    best = f"{max(left_out) - base:.2f} points at the best layer"
    assert f"{best} and {left_out[-1] - base:.2f} after all twelve" in text
    kernels = {
        trial["name"]: [a for row in trial["accuracy"].values() for a in row.values()]
        for key in ("kernels", "kernels_of_40000_images")
        for trial in record[key]["trials"]
    }
    joint = max(trials[0]["joint_ridge"].values())
    assert f"gives {max(kernels['base'][:17]):.1f} %, where ridge" in text
    assert f"gives {joint:.1f} % (10,080 features" in text
    assert f"gives {max(kernels['whit-f128-maxmean']):.1f} %" in text
    assert f"20 layers {max(kernels['full-f96']):.1f} % of 8,000" in text
    copies = record["seven_copies"]["curve"]
    assert f"{copies[-1]:.2f} % of 2,000 held-out images after {len(copies)} layers" in text
    rich = json.loads((SCRIPT.parent / "cifar10-rich.json").read_text())["curve"]
    after = [f"{100 * rich[n - 1]['validation']:.2f} % after {n}" for n in (32, 34)]
    assert f"{after[0]} layers and {after[1]}." in text


def test_page_shows_the_trials_of_learning_rates_in_deep_networks() -> None:
    """The rows of its table are those of the recorded trials."""
    record = json.loads((SCRIPT.parent / "trials/learning-rate.json").read_text())
    text, trials = TRIALS_PAGE.read_text(), record["trials"]
    assert "\n".join(format_deep_trial_row(trial) for trial in trials) in text
    assert f"{record['gpu_seconds']} s of one H200: [results/trials/learning-rate.json]" in text
    for trial in trials:
        curve = trial["curve"]
        assert len(curve) == trial["layers"] == 273
        assert trial["validation"] == max(curve) == curve[trial["depth"] - 1]
        for key, reference in (
            ("corrected_and_broken", trials[0]["curve"][-1]),
            ("corrected_and_broken_since_layer_90", curve[89]),
        ):
            corrected, broken = trial[key]
            assert corrected - broken == round(10_000 * (curve[-1] - reference))


def format_deep_trial_row(trial: dict[str, Any]) -> str:
    """Format a row of the table of learning rates in deep networks."""
    corrected, broken = trial["corrected_and_broken"]
    count = f"{corrected - broken:+d}".replace("-", "−") if corrected else "–"
    cells = [
        *(f"{trial['changes'][name]:g}" for name in ("ridge", "learning_rate")),
        *(f"{100 * trial['curve'][n - 1]:.2f}" for n in (60, 90, 120, 150, 210, 273)),
        str(trial["train_is_1_from_layer"]),
        count,
    ]
    return f"| {' | '.join(cells)} |"


def format_trial_row(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Format a row of the table of ridges and learning rates from the trials of two seeds."""
    changes, later = first["changes"], first.get("ridge_after_10_layers")
    assert (changes, later) == (second["changes"], second.get("ridge_after_10_layers"))
    assert (first["seed"], second["seed"]) == (0, 1)
    ridge, rate = f"{changes['ridge']:g}", f"{changes['learning_rate']:g}"
    if later:
        ridge += f", {later:g} after 10 layers"
    if "decay" in changes:
        rate += f", {100 * changes['decay']:g} % less every {changes['decay_every']} layers"
    cells = [[f"{100 * t['curve'][n - 1]:.2f}" for t in (first, second)] for n in (10, 30, 60, 90)]
    counts = [t["corrected_and_broken"][0] - t["corrected_and_broken"][1] for t in (first, second)]
    cells.append([f"{count:+d}".replace("-", "−") if count else "–" for count in counts])
    return f"| {ridge} | {rate} | {' | '.join(' / '.join(cell) for cell in cells)} |"
