"""Commands of `rescnet`: outcomes, exit codes, JSON, configuration, errors without tracebacks."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client
from rich.console import Console

import rescnet_dist as rd
from rescnet_dist.bench import CASES
from rescnet_dist.cli import main
from rescnet_dist.cli.group import COMMANDS, exit_codes
from rescnet_dist.cli.resolve import resolve_specs
from rescnet_dist.dashboard.progress import TerminalProgress
from rescnet_dist.data import training_set
from rescnet_dist.lifecycle import begin_or_resume, check_run
from rescnet_dist.model.features.first_order import FirstOrder
from rescnet_dist.train.loop import _Driver
from tests.commands import SMALL, run, stored_digits
from tests.saved import edit_saved, read_saved


@pytest.fixture(scope="module")
def data_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a Zarr store of 300 digits with images and labels."""
    return stored_digits(tmp_path_factory.mktemp("data"), 300, 100)


@pytest.fixture(scope="module")
def stored_run(
    tmp_path_factory: pytest.TempPathFactory, data_url: str, threads_cluster: Any
) -> str:
    """Return the URL of a finished run of two layers."""
    url = str(tmp_path_factory.mktemp("runs") / "one")
    with Client(threads_cluster):
        result = run("train", data_url, "--preset", "digits", "--store", url, *SMALL)
    assert result.exit_code == 0, result.output
    return url


def test_train_prints_accuracies_store_and_next_command(
    client: Client, data_url: str, tmp_path: Path
):
    """One line per pass is printed without a terminal."""
    url = tmp_path / "run"
    result = run(
        "train", data_url, "--preset", "digits", "--store", url, "--test", data_url, *SMALL
    )
    assert result.exit_code == 0, result.output
    for words in ("train", "validation", "test", str(url), " info ", " resume "):
        assert words in result.output
    assert "layer 2/2" in result.output  # one line per pass where there is no terminal


def test_test_accuracy_is_kept_until_there_are_other_layers(
    client: Client, data_url: str, tmp_path: Path
):
    """`info` and `report` show what `train` has printed, with the data that it is of."""
    url = tmp_path / "run"
    train = ("train", data_url, "--store", url, "--test", data_url, *SMALL, "--json")
    accuracy = json.loads(run(*train).stdout)["test"]
    expected = {"data": data_url, "images": 300, "accuracy": accuracy}
    assert json.loads(run("info", url, "--json").stdout)["test"] == expected
    text = f"{100 * accuracy:.2f} % of 300 test images of {data_url}"
    assert text in run("info", url).stdout
    shown = run("report", url, "--format", "markdown").stdout
    assert f"On 300 test images of {data_url}, it is {100 * accuracy:.2f} %." in shown
    assert run("resume", url, "--max-layers", 3, "-q").exit_code == 0
    assert json.loads(run("info", url, "--json").stdout)["test"] is None
    assert "test images" not in run("info", url).stdout


def test_info_has_the_same_words_for_runs_and_networks(stored_run: str, tmp_path: Path):
    """A saved network has the lines of its run, apart from what is known of one of them only."""
    rd.load(stored_run).save(tmp_path / "net")
    found = {}
    for name, url in {"run": stored_run, "network": tmp_path / "net"}.items():
        lines = [line for line in run("info", url).stdout.splitlines() if re.match("[a-z]", line)]
        found[name] = {line[:10].strip(): line[10:] for line in lines}
    own, saved = found["run"], found["network"]
    assert saved.keys() - own.keys() == {"saved"}
    assert own["network"] == saved["network"]
    assert own["images"] == f"300 of {saved['images'].split(',')[0]}"
    assert own["classes"] == saved["classes"].split(":")[0] == "10"
    depth = saved["depth"].split()[0]
    assert own["depth"].startswith(f"{depth} of ")
    assert own["store"].startswith("data ")
    assert saved["store"].endswith("iB")


def test_check_lists_damaged_layers_of_networks(stored_run: str, tmp_path: Path):
    """Of a saved one, of one in a zip file, and of those that a fused network is made of."""
    clf = rd.load(stored_run)
    clf.save(tmp_path / "net.zip")
    clf.save(tmp_path / "net")
    rd.FusedNetwork([clf.network_, clf.network_], (0.5, 0.5)).save(tmp_path / "fused")
    for name in ("net.zip", "net", "fused"):
        result = run("check", tmp_path / name)
        verified = "every layer, the classes and the settings are as they were saved"
        assert (result.exit_code, verified in result.output) == (0, True)
    for folder in ("net", "fused/networks/0002"):
        bias = next((tmp_path / folder / "layers/0002/bias/c").iterdir())
        bias.write_bytes(bias.read_bytes()[:-1] + b"\x00")
    for name in ("net", "fused"):
        result = run("check", tmp_path / name, "--json")
        problems = json.loads(result.stdout)["problems"]
        assert result.exit_code == len(problems) == 1
        assert "layers/0002/bias" in problems[0]
    shutil.rmtree(tmp_path / "net/layers/0001")
    result = run("check", tmp_path / "net")
    assert result.exit_code == 1
    assert "Layer 1 is damaged or missing: There is no Zarr array" in result.stdout


def test_check_verifies_classes_and_settings(stored_run: str, tmp_path: Path):
    """A changed class is found; a network of an earlier release has no checksum to find it by."""
    url = tmp_path / "net"
    rd.load(stored_run).save(url)
    labels = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert read_saved(url)["classes"]["values"] == labels
    text = (url / "zarr.json").read_text()
    record = json.loads(text)
    record["attributes"]["classes"]["values"] = labels[::-1]
    (url / "zarr.json").write_text(json.dumps(record))
    result = run("check", url)
    assert result.exit_code == 1
    assert "they are not those that were saved" in result.stdout
    assert run("predict", url, "digits").exit_code == 2
    (url / "zarr.json").write_text(text)
    edit_saved(url)
    result = run("check", url)
    assert result.exit_code == 0
    assert "every layer is as it was saved; the classes and settings have no checksum" in (
        result.stdout
    )


def test_more_layers_are_not_suggested_if_only_the_last_has_a_head(
    client: Client, data_url: str, tmp_path: Path
):
    """Such a run cannot get more."""
    result = run("train", data_url, "--store", tmp_path / "run", *SMALL, "--heads", "last", "-q")
    assert result.exit_code == 0, result.output
    assert f"info {tmp_path / 'run'}" in result.output
    assert "--max-layers" not in result.output
    staged = run("evaluate", tmp_path / "run", data_url, "--staged")
    assert "after layer 1: no head\nafter layer 2: " in staged.output


def test_info_shows_why_of_a_run_without_the_placement(stored_run: str, tmp_path: Path):
    """Earlier releases stored the text alone."""
    shutil.copytree(stored_run, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "zarr.json").read_text())
    tier = record["attributes"]["expected"]["tier"]
    assert tier.pop("placement")["cause"] == "fits"
    (tmp_path / "run" / "zarr.json").write_text(json.dumps(record))
    found = json.loads(run("info", tmp_path / "run", "--json").stdout)
    assert found["expected"]["tier"] == tier
    assert tier["why"].startswith("in workers' memory, with their features: ")


def test_train_in_json_matches_info(client: Client, data_url: str, tmp_path: Path):
    """--json prints one record, and `info --json` prints the same from the store."""
    url = tmp_path / "run"
    arguments = ("train", data_url, "--preset", "digits", "--store", url, "--json", *SMALL)
    outcome = json.loads(run(*arguments).stdout)
    found = json.loads(run("info", url, "--json").stdout)
    assert outcome["layers"] == found["layers"]
    assert outcome["depth"] == found["depth"]
    assert found["state"] == "done"
    assert found["bytes"]["maps"] >= 300 * 28 * 28 * 4 * 4


@pytest.mark.slow
def test_train_without_arguments_uses_embedded_cluster(tmp_path: Path):
    """`rescnet train` starts its own cluster of processes and writes under runs/."""
    done = subprocess.run(
        [Path(sys.executable).parent / "rescnet", "train", *SMALL, "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert Path(outcome["url"]).parent == tmp_path / "runs"
    assert outcome["test"] > 0.7


def test_resume_adds_layers(client: Client, stored_run: str):
    """Raising --max-layers adds layers after the existing ones."""
    before = json.loads(run("info", stored_run, "--json").stdout)["layers"]
    outcome = json.loads(run("resume", stored_run, "--max-layers", 3, "--json").stdout)
    assert len(outcome["layers"]) == 3
    assert outcome["layers"][0] == before[0]


def test_evaluate_agrees_with_python(stored_run: str, data_url: str):
    """The command and `staged_score` give the same accuracies."""
    outcome = json.loads(run("evaluate", stored_run, data_url, "--staged", "--json").stdout)
    expected = rd.load(stored_run).staged_score(data_url)
    np.testing.assert_allclose(outcome["staged"], expected)
    assert outcome["accuracy"] == outcome["staged"][-1]
    text = run("evaluate", stored_run, data_url, "--flips")
    assert text.exit_code == 0
    assert all(name in text.output for name in ("accuracy", "top-5", "log loss", "precision"))


def test_evaluate_writes_all_metrics(stored_run: str, data_url: str, tmp_path: Path):
    """As JSON, and the confusion matrix as CSV."""
    file = tmp_path / "confusion.csv"
    done = run("evaluate", stored_run, data_url, "--json", "--confusion", file)
    expected = rd.load(stored_run).evaluate(data_url)
    outcome = json.loads(done.stdout)
    assert outcome.items() >= expected.to_dict().items()
    rows = [line.split(",") for line in file.read_text().splitlines()]
    assert rows[0] == ["true", *map(str, range(10))]
    assert [list(map(int, row[1:])) for row in rows[1:]] == expected.confusion.tolist()


def test_evaluate_of_a_saved_network_names_the_missing_data(stored_run: str, tmp_path: Path):
    """A network does not know its data."""
    rd.load(stored_run).save(tmp_path / "network")
    result = run("evaluate", tmp_path / "network")
    assert result.exit_code == 2
    assert "is a saved network" in result.output
    assert "Name the DATA" in result.output


def test_evaluate_refuses_other_classes(stored_run: str, data_url: str, tmp_path: Path):
    """An accuracy of 0 % would hide that the data are not those of the network."""
    names = rd.open_dataset(data_url).assign(
        labels=lambda data: ("image", [f"digit {n}" for n in data["labels"].to_numpy()])
    )
    names.compute().drop_encoding().to_zarr(tmp_path / "names.zarr", zarr_format=2)
    result = run("evaluate", stored_run, tmp_path / "names.zarr")
    assert result.exit_code == 2
    assert "'digit " in result.output
    assert "The classes are [0, 1" in result.output


def test_evaluating_the_train_split_is_warned_about(stored_run: str, data_url: str, tmp_path: Path):
    """Unless it is asked for."""
    data = rd.open_dataset(data_url)
    data = data.assign_coords(split=("image", ["train"] * data.sizes["image"]))
    data.compute().drop_encoding().to_zarr(tmp_path / "train.zarr", zarr_format=2)
    with pytest.warns(UserWarning, match="no test split: its only split, train"):
        rd.load(stored_run).score(tmp_path / "train.zarr")
    asked = run("evaluate", stored_run, tmp_path / "train.zarr", "--split", "train")
    assert asked.exit_code == 0
    assert "no test split" not in asked.output


def test_evaluate_needs_data_without_a_test_split(stored_run: str):
    """A run on a URL has no test split."""
    result = run("evaluate", stored_run)
    assert result.exit_code == 2
    assert "Name the DATA" in result.output


def test_predict_writes_labels(stored_run: str, data_url: str, tmp_path: Path):
    """The CSV has one row per image, with the labels that Python predicts."""
    path = tmp_path / "labels.csv"
    result = run("predict", stored_run, data_url, "-o", path, "--proba")
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(path.read_text().splitlines()))
    clf = rd.load(stored_run)
    assert [int(row["label"]) for row in rows] == clf.predict(data_url).compute().tolist()
    assert sum(float(rows[0][f"p({c})"]) for c in clf.classes_) == pytest.approx(1, abs=1e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["labels.csv"]


def test_predict_writes_no_partial_file(stored_run: str, tmp_path: Path):
    """Images of another shape raise an error before a file appears."""
    other = tmp_path / "other.zarr"
    zarr.create_array(other, data=np.zeros((3, 9, 9, 1), "uint8"))
    path = tmp_path / "labels.csv"
    result = run("predict", stored_run, other, "-o", path)
    assert result.exit_code == 2
    assert "(28, 28, 1)" in result.output
    assert not path.exists()
    assert run("predict", stored_run, other, "-o", tmp_path / "no" / "x.csv").exit_code == 2


def test_presets_command_round_trips_through_toml():
    """The output of `presets NAME` is read back as that preset."""
    for name in json.loads(run("presets", "--json").stdout):
        text = run("presets", name).stdout
        assert rd.NetworkSpec.from_toml(text) == rd.NetworkSpec.preset(name)
    assert "tiny-imagenet" in run("presets").output


def test_component_of_a_flag_takes_over_the_options_of_the_file(tmp_path: Path) -> None:
    """The same network as from the preset itself, or from flat options."""
    config = tmp_path / "network.toml"
    config.write_text(rd.NetworkSpec.preset("mnist").to_toml())
    network, _, _ = resolve_specs(None, str(config), "x", {"head": "regress", "validation": None})
    assert network == rd.NetworkSpec.preset("mnist").replace(head="regress")
    assert network.ridge == 0.001


def test_features_of_a_flag_stand_next_to_those_of_the_file(tmp_path: Path) -> None:
    """Those of the file keep their options; flags with a prefix are for one extractor."""
    config = tmp_path / "network.toml"
    config.write_text(rd.NetworkSpec.preset("mnist").to_toml())
    flags = {"features": "second-order,first-order", "first_order_levels": (3,), "power": True}
    network, _, _ = resolve_specs(None, str(config), "x", {**flags, "validation": None})
    (second,) = rd.NetworkSpec.preset("mnist").features
    assert network.features[0] == second.replace(power=True)
    assert network.features[1] == FirstOrder(levels=(3,))


def test_bank_replaces_that_of_the_shorthands_in_the_file(tmp_path: Path) -> None:
    """Neither the fraction nor the second tower of the file is left."""
    config = tmp_path / "network.toml"
    config.write_text("[network]\nlda_fraction = 0.2\nlocal_contrast = true\nfilters = 8\n")
    flags = {"bank": "pca:0.5,dct:0.5", "validation": None}
    network, _, _ = resolve_specs(None, str(config), "x", flags)
    assert network == rd.NetworkSpec(bank="pca:0.5,dct:0.5", filters=8)


def test_list_without_numbers() -> None:
    """As in PCANet for MNIST, which has no pyramid; other lists say that they need numbers."""
    flags = ("--features", "binary-hash", "--filters", "8", "--hash-levels")
    given = main.get_command(None, "train").make_context("train", [*flags, "none"]).params
    network, *_ = resolve_specs("pcanet", None, "x", given)
    assert network.hash_levels == ()
    sizes = ("estimate", "100x12x12x1", "--classes", "2", "--workers", "1", "--memory", "4GiB")
    assert "levels=() is not valid" in run(*sizes, "--levels", "none").output
    assert "'nothing' is not a list of whole numbers" in run(*sizes, *flags, "nothing").output
    assert run(*sizes, "--filters", "none").exit_code == 2
    ablate = "ablate", "rate", "digits", "-o", "unused", "--values", "none"
    assert "--values none are not numbers" in run(*ablate).output


def test_flags_override_the_file_and_the_file_the_preset(tmp_path: Path):
    """The order in which options apply."""
    config = tmp_path / "net.toml"
    config.write_text('preset = "cifar10"\n[network]\nfilters = 20\nridge = 5.0\n[run]\nseed = 3\n')
    network, run_spec, _ = resolve_specs(None, str(config), "x", {"ridge": 2.0, "validation": None})
    expected = rd.NetworkSpec.preset("cifar10").replace(filters=20, ridge=2.0)
    assert network == expected
    assert run_spec == rd.RunSpec(seed=3)


def test_command_list_matches_commands() -> None:
    """The texts are stored apart so that `rescnet --help` is fast."""
    for name, text in COMMANDS.items():
        command = main.get_command(None, name)
        assert command.name == name
        assert command.get_short_help_str(limit=66) == text
        assert text.endswith(".")
        assert "..." not in text, "the first sentence is too long"
        for part in getattr(command, "commands", {}).values():
            assert "..." not in part.get_short_help_str(limit=66)
    listed = run("--help").output
    assert all(f"  {name} " in listed for name in COMMANDS)


@pytest.mark.parametrize(
    "name", ["train", "plan", "resume", "evaluate", "predict", "info", "check", "presets", "runs"]
)
def test_help_shows_an_example(name: str):
    """The --help of every command has an example."""
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"rescnet {name}" in result.output.split("Example:")[1]


def test_help_of_bench_lists_all_cases() -> None:
    """The list is written by hand, as importing the cases takes seconds."""
    text = run("bench", "--help").output
    listed = text.split("several words:\n")[1].split("Example:")[0]
    own, on_gpu = (
        [name.strip() for name in part.replace(",\n", ",").replace("\n", " ").split(",")]
        for part in listed.split("With a GPU, also:")
    )
    assert own == [case.name for case in CASES if not case.on_gpu]
    assert on_gpu == [case.name for case in CASES if case.on_gpu]


@pytest.mark.parametrize("data", [[], ["digits"]], ids=["default", "named"])
def test_plan_names_the_data(data: list[str], tmp_path: Path) -> None:
    """With a file of settings for other images, the digits may not be what was meant."""
    config = tmp_path / "run.toml"
    config.write_text("[network]\nmax_layers = 1\n")
    result = run("plan", *data, "--config", str(config), "--no-measure")
    assert result.exit_code == 0, result.output
    default = "" if data else ", the default: no DATA was named"
    assert f"data      digits{default}\nimages    6,000 of 28×28×1" in result.stdout


NETWORK_GROUPS = ("Network", "Filters", "Features", "Head", "Run", "Augmented copies")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train", ["Data", *NETWORK_GROUPS, "Cluster", "Output", "Other"]),
        ("estimate", ["Data", "Cluster", "Cost", *NETWORK_GROUPS, "Output", "Other"]),
    ],
)
def test_help_lists_options_by_group(name: str, expected: list[str]) -> None:
    """Options of components are in the group of the option that chooses the component."""
    _, *parts = re.split(r"^(\w[\w ]*):\n", run(name, "--help").output, flags=re.MULTILINE)
    groups = dict(zip(parts[::2], parts[1::2], strict=True))
    assert [*groups] == expected
    for group, flag in {
        **{"Data": "--validation", "Filters": "--zca-ridge", "Features": "--hash-bits"},
        **{"Head": "--sigma", "Run": "--seed", "Augmented copies": "--flip", "Other": "--help"},
    }.items():
        assert f" {flag} " in groups[group]
    assert groups["Other"].count("--") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--preset", "cifar"], "Did you mean 'cifar10'"),
        (["train", "nowhere.zarr", "--preset", "cifar10"], "nowhere.zarr"),
        (["train", "nowhere.zarr"], "nowhere.zarr. Check the path"),
        (["train", "--test", "nowhere.zarr"], "nowhere.zarr. Check the path"),
        (["train", "--filters", "0"], "filters=0 is out of range. It must be at least 1"),
        (["train", "--filters", "many"], "'many' is not a list of whole numbers such as 4 or"),
        (["train", "--levels", "4;2"], "such as 4 or 4,2,1"),
        (["train", "--levels", "4,0"], "at least 1"),
        (["train", "--filters", "40;8"], "not a list of whole numbers"),
        (["train", "--pool", "median"], "'median' is not one of 'max', 'mean'"),
        (["train", "--maps", "stroe"], "one of 'auto', 'store', 'memory'. Did you mean 'store'?"),
        (["train", "--filtres", "4"], "--filters"),
        (["train", "--config", "absent.toml"], "absent.toml cannot be read"),
        (["train", "--block", "40"], "block=40 is larger than the image (28×28 pixels)"),
        (["train", "--validation", "2"], "validation=2.0 is out of range"),
        (["info", "nowhere"], "There is no run and no saved network at"),
        (["resume", "nowhere"], "There is no Zarr group at"),
        (["resume", "nowhere", "--filters", "8"], "another run with `rescnet train --filters"),
        (["resume", "nowhere", "--copies=2"], "except --max-layers, --maps, --checkpoint-every"),
        (["resume", "nowhere", "--no-rectify"], "another run with `rescnet train --no-rectify"),
        (["resume", "nowhere", "--preset", "digits"], "another run with `rescnet train --preset"),
        (["resume", "nowhere", "--store", "x"], "No such option '--store'"),
        (["resume", "nowhere", "--tests", "x"], "No such option '--tests'"),
        (["predict", "nowhere", "digits"], "There is no Zarr group at"),
        (["presets", "imagenet"], "Unknown preset 'imagenet'"),
        (["fit"], "No such command 'fit'"),
        (["trian"], "No such command 'trian'. Did you mean 'train'? Known: ablate, bench,"),
        (["deploy", "rendr"], "No such command 'rendr'. Did you mean 'render'? Known: hub,"),
        (["data", "improt"], "No such command 'improt'. Did you mean 'import'? Known: import,"),
    ],
)
def test_bad_input_prints_a_message_without_traceback(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Exit code 2, a message with the value and the remedy, and no file is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rescnet_dist.cluster.connect.CONNECT_SECONDS", 1)
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["plan", "train"])
def test_run_is_not_taken_for_a_dataset(stored_run: str, tmp_path: Path, command: str):
    """The message says what was found at the URL."""
    store = ("--store", tmp_path / "run") if command == "train" else ()
    result = run(command, stored_run, *store)
    assert result.exit_code == 2
    assert f"{stored_run} is a rescnet-run store, not a dataset" in result.output


def test_train_rejects_a_store_with_a_run(stored_run: str):
    """The message has the remedy."""
    result = run("train", "--store", stored_run, *SMALL)
    assert result.exit_code == 2
    assert "already holds another run" in result.output


@pytest.mark.parametrize("width", [80, 140])
def test_live_bar_has_layer_accuracy_rate_and_memory(
    client: Client, data_url: str, tmp_path: Path, width: int
):
    """On terminals of usual widths; the memory is that of the workers."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    network, run_spec, _ = resolve_specs(
        "digits", None, data_url, {"filters": 4, "max_layers": 2, "block": 14}
    )
    data = training_set(data_url, None)
    with TerminalProgress(console) as progress:
        checked = check_run(tmp_path / "run", network, run_spec, data)
        begin_or_resume(checked, client, [progress])
        progress.bar.refresh()
    output = console.file.getvalue()
    for words in ("layer 2/2", "images/s", "train ", " val ", "━━"):
        assert words in output
    memory = [float(value) for value in re.findall(r"([\d.]+) GiB", output)]
    assert memory
    assert 0.05 < max(memory) < 20


def test_interrupted_run_prints_resume_command(
    client: Client, data_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Exit code 130, and the printed command works."""

    def interrupt(self: Any, layer: int) -> None:
        raise KeyboardInterrupt

    url = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("rescnet_dist.train.loop._Driver.score", interrupt)
        result = run("train", data_url, "--preset", "digits", "--store", url, *SMALL)
    assert result.exit_code == 130
    assert result.output.splitlines()[-1].startswith("interrupted; resume with: ")
    assert result.output.endswith(f"resume {url}\n")
    assert run("resume", url).exit_code == 0


def test_interrupted_run_prints_layers_that_are_repeated(
    client: Client, data_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Layers whose maps were only in memory, as a comment after the command."""
    grow = _Driver.grow

    def interrupt(self: Any, layer: int) -> None:
        if layer == 3:
            raise KeyboardInterrupt
        grow(self, layer)

    monkeypatch.setattr(_Driver, "grow", interrupt)
    options = ("--preset", "digits", *SMALL, "--max-layers", "4")
    comments = {}
    for every in (1, 2, 10):
        url = tmp_path / f"run-{every}"
        result = run("train", data_url, "--store", url, *options, "--checkpoint-every", every)
        comments[every] = result.output.splitlines()[-1].partition(f" resume {url}")[2]
    repeated = "    # layers 1 to 2 are run forward again, because maps are not in the store"
    assert comments == {1: "", 2: "", 10: repeated}


def test_second_interruption_prints_resume_command_too(capsys: pytest.CaptureFixture[str]):
    """A second Ctrl-C while the first is handled."""

    def interrupt_twice() -> None:
        with exit_codes():
            try:
                raise KeyboardInterrupt("resume with: rescnet resume here") from None
            finally:
                raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        interrupt_twice()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted; resume with: rescnet resume here\n"


def test_info_prints_settings_that_are_not_the_default(
    client: Client, data_url: str, tmp_path: Path
):
    """Those of the run; this command holds out a tenth."""
    for more, expected in (
        ((), "settings  validation=0.1\n"),
        (("--seed", "3", "--maps", "store"), "settings  seed=3, validation=0.1, maps=store\n"),
    ):
        url = tmp_path / f"run{len(more)}"
        made = run("train", data_url, "--preset", "digits", "--store", url, *SMALL, *more)
        assert made.exit_code == 0, made.output
        assert expected in run("info", url).output


def test_resume_rejects_fewer_layers_than_finished(stored_run: str):
    """A resume never removes layers."""
    result = run("resume", stored_run, "--max-layers", 1)
    assert result.exit_code == 2
    assert "max_layers=1 is less than the 3 layers of the run at" in result.output


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_control_c_in_a_terminal_prints_one_line(tmp_path: Path):
    """The workers receive it too, and must not print tracebacks."""
    process = subprocess.Popen(
        [Path(sys.executable).parent / "rescnet", "train", "--store", tmp_path / "run"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # nohup ignores it
    )
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("survey"):  # layer 1 is in progress
            time.sleep(1)
            os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    process.stderr.close()
    assert [line.split()[0] for line in lines] == ["dashboard:", "survey", "maps", "interrupted;"]
    assert lines[3].startswith("interrupted; resume with: ")
