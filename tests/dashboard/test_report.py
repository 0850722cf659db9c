"""Reports: their content matches the store, they are self-contained, the command reproduces."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner, Result
from distributed import Client
from sklearn.metrics import log_loss

from rescnet_dist import AugmentSpec, NetworkSpec, ResCNetClassifier, RunSpec, load, load_digits
from rescnet_dist.cli import main
from rescnet_dist.cli.report import report_command
from rescnet_dist.cli.resolve import resolve_specs
from rescnet_dist.dashboard.evaluation import sample_from_run
from rescnet_dist.dashboard.render import NOT_RECORDED, REPORT_FORMATS, render_report
from rescnet_dist.dashboard.report import Report, make_report
from rescnet_dist.dashboard.reproduce import PLAN_FIELDS, reproduce_command
from rescnet_dist.events import Callback, PassDone
from rescnet_dist.planning.plan import Plan
from rescnet_dist.runs import describe_run
from rescnet_dist.store import RunStore

REFERENCES = ("src", "href", "srcset", "action", "data", "poster", "background", "xlink:href")


class References(HTMLParser):
    """The references of a page, and the text that it shows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.texts: list[str] = []
        self.opened: Counter[str] = Counter()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened[tag] += 1
        if tag in ("script", "link", "iframe", "object", "embed", "base"):
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            inner = name in REFERENCES and (value or "").startswith("data:image/png;base64,")
            if (name in REFERENCES and not inner) or "url(" in (value or ""):
                self.found.append(f"{name}={value}")

    def handle_data(self, data: str) -> None:
        if "@import" in data or "url(" in data:
            self.found.append(data)
        self.texts.append(data)


def run(*arguments: Any) -> Result:
    """Run `rescnet` in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def report(digits_run: str) -> Report:
    """The report on the small run."""
    return make_report(digits_run)


@pytest.fixture
def run_copy(digits_run: str, tmp_path: Path) -> Path:
    """A copy of the small run, for changes."""
    return Path(shutil.copytree(digits_run, tmp_path / "copy"))


def test_report_matches_the_store(report: Report, digits_run: str) -> None:
    """Layers, data and observed values."""
    found = describe_run(digits_run)
    expected = RunStore.open(digits_run).attributes()["expected"]
    assert report.layers == found["layers"]
    assert report.depth == found["depth"]
    train = RunStore.open(digits_run).data_array("train")[:]
    assert report.data["train"] == train.sum()
    assert report.data["held_out"] == (~train).sum() > 0
    rows = {row["what"]: row for row in report.planned}
    observed = [layer["observed"] for layer in found["layers"]]
    memory = rows["memory of a worker, at most"]
    assert memory["planned"] == expected["peak_memory"]
    assert memory["observed"] == max(m for o in observed for m in o["memory"].values())
    read = rows["read per layer, at most"]
    assert read["observed"] == max(o["read"] for o in observed)
    assert {name for name, _, changed in report.spec["network"] if changed} >= {"filters", "block"}


def test_confusion_errors_and_calibration_match_plain_counting(
    report: Report, digits_run: str
) -> None:
    """On the images that the run held out."""
    store, clf, evaluation = RunStore.open(digits_run), load(digits_run), report.evaluation
    assert evaluation is not None
    held_out = np.flatnonzero(~store.data_array("train")[:])
    X, y = (store.data_array(name)[:][held_out] for name in ("images", "labels"))
    scores, predicted = clf.decision_function(X), clf.predict(X)
    confusion = np.zeros((10, 10), int)
    for pair in zip(y, predicted, strict=True):
        confusion[pair] += 1
    assert evaluation["which"] == "held-out images"
    assert evaluation["kind"] == "held_out"
    assert evaluation["images"] == evaluation["of"] == len(y)
    assert evaluation["confusion"] == confusion.tolist()
    assert evaluation["accuracy"] == (y == predicted).mean()
    wrong = [
        (int(n), str(a), str(b), float(s[b] - s[a]))
        for n, a, b, s in zip(held_out, y, predicted, scores, strict=True)
        if a != b
    ]
    errors = [tuple(error.values()) for error in evaluation["errors"]]
    assert errors == sorted(wrong, key=lambda error: -error[3])
    confidence = clf.predict_proba(X).max(axis=1)
    error = 0.0
    for number in range(15):
        low, high = number / 15, (number + 1) / 15
        inside = (confidence >= low) & ((confidence < high) | (number == 14))
        if inside.any():
            error += abs((y == predicted)[inside].sum() - confidence[inside].sum()) / len(y)
    assert evaluation["calibration_error"] == pytest.approx(error)
    assert evaluation["log_loss"] == pytest.approx(log_loss(y, clf.predict_proba(X)))
    assert sum(entry["images"] for entry in evaluation["calibration"]) == len(y)


def test_html_page_is_self_contained(report: Report) -> None:
    """No scripts, no addresses, no references but embedded pictures."""
    page = render_report(report, "html")
    found = References(page)
    assert not found.found
    assert not re.search(r"https?:|//", re.sub(r"base64,[\w+/=]+", "", page))
    assert found.opened["img"] > 20
    assert found.opened["svg"] == 5
    assert References('<img src="http://host/a.png"><link href="b">').found  # a check of the check


def test_all_formats_have_the_same_content(report: Report) -> None:
    """Accuracies are in each format; JSON has all values."""
    found = json.loads(render_report(report, "json"))
    assert found == json.loads(json.dumps(report.to_dict()))
    assert "pictures" not in found
    for form in ("html", "markdown"):
        text = render_report(report, form)
        for layer in report.layers:
            assert f"{100 * layer['validation']:.2f}" in text
        assert f"{found['judged']['calibration_error']:.3f}" in text
    lines = render_report(report, "markdown").splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
    assert "data:image" not in "\n".join(lines)


def test_class_names_are_escaped(run_copy: Path) -> None:
    """In the HTML page and in Markdown tables."""
    attributes = json.loads((run_copy / "zarr.json").read_text())
    name = '<script>alert("1")</script>|`_'
    attributes["attributes"]["classes"] = {
        "dtype": "|O",
        "values": [f"{name}{n}" for n in range(10)],
    }
    attributes["attributes"]["source"] = "s3://me:secret@host/<b>"
    (run_copy / "zarr.json").write_text(json.dumps(attributes))
    found = make_report(run_copy)
    page = References(render_report(found, "html"))
    assert not page.found
    assert not page.opened["script"]
    assert any(name in text for text in page.texts)
    text = render_report(found, "markdown")
    assert "<script>" not in text.replace("\\<", "")
    assert all("secret" not in render_report(found, form) for form in REPORT_FORMATS)
    assert found.command
    assert "Replace *** with them" in " ".join(found.notes)


# runs of all kinds ------------------------------------------------------------------------------


def test_report_of_unfinished_run(run_copy: Path) -> None:
    """It has the committed layers; the best one with a known accuracy is evaluated."""
    (run_copy / "result.json").unlink()
    shutil.rmtree(run_copy / "claims")
    found = make_report(run_copy)
    assert found.state == "unfinished"
    assert len(found.layers) == 3
    assert found.layers[-1]["train"] is None
    assert "3 layers of at most 3 finished" in found.outcome
    (run_copy / "commits" / "0002.json").unlink()
    found = make_report(run_copy)
    assert (len(found.layers), found.depth) == (1, 1)
    assert found.evaluation
    assert "1 layer of at most 3" in found.outcome


def test_report_of_running_run(client: Client, tmp_path: Path) -> None:
    """After each layer, while the driver is running."""
    X, y = (array[:60] for array in load_digits())
    spec = NetworkSpec(filters=4, block=7, stride=7, max_layers=2, stop_at_zero_error=False)
    found: list[Report] = []

    class Reporter(Callback):
        def on_layer_end(self, event: PassDone) -> None:
            found.append(make_report(tmp_path / "run"))

    ResCNetClassifier(spec, store=tmp_path / "run", listeners=[Reporter()]).fit(X[:, ::2, ::2], y)
    assert [(report.state, len(report.layers)) for report in found] == [
        ("running", 1),
        ("running", 2),
    ]
    assert "in progress, with 1 layer of at most 2" in found[0].outcome
    assert all(report.evaluation for report in found)


def test_report_without_a_layer(run_copy: Path) -> None:
    """In all formats."""
    (run_copy / "result.json").unlink()
    for name in os.listdir(run_copy / "commits"):
        (run_copy / "commits" / name).unlink()
    found = make_report(run_copy)
    assert found.evaluation is None
    assert "no finished layer yet" in found.outcome
    for form in REPORT_FORMATS:
        assert "no finished layer yet" in render_report(found, form)
    assert not References(render_report(found, "html")).found


def test_report_without_images(run_copy: Path) -> None:
    """A run may refer to images elsewhere, which may be gone; filters are still shown."""
    shutil.rmtree(run_copy / "data" / "images")
    found = make_report(run_copy)
    assert found.evaluation is None
    assert found.pictures.banks
    for form in REPORT_FORMATS:
        assert "the images of the run cannot be read" in render_report(found, form)
    page = References(render_report(found, "html"))
    assert page.opened["svg"] == 4
    assert not page.found


def test_report_of_run_of_earlier_release(run_copy: Path) -> None:
    """Without a plan, residuals and pass metrics; the report says that they are not recorded."""
    attributes = json.loads((run_copy / "zarr.json").read_text())
    del attributes["attributes"]["expected"]
    (run_copy / "zarr.json").write_text(json.dumps(attributes))
    for file in (run_copy / "commits").iterdir():
        record = json.loads(file.read_text())
        kept = {k: v for k, v in record.items() if k not in ("observed", "residual")}
        file.write_text(json.dumps(kept))
    found = make_report(run_copy)
    page = References(render_report(found, "html"))
    assert page.opened["svg"] == 3  # accuracy, time, calibration
    assert NOT_RECORDED in page.texts
    assert found.memory["workers"] == {}


def test_report_with_many_classes_and_no_held_out_images(client: Client, tmp_path: Path) -> None:
    """Pairs instead of a matrix of 40 classes; color images; evaluated on training images."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 40
    X = rng.integers(0, 255, (120, 8, 8, 3), dtype=np.uint8)
    spec = NetworkSpec(
        filters=4, block=4, stride=4, max_layers=7, learning_rate=0.1, stop_at_zero_error=False
    )
    augment = AugmentSpec(copies=1, flip=True)
    ResCNetClassifier(
        spec, store=tmp_path / "run", augment=augment, run=RunSpec(validation=0, solve_threads=1)
    ).fit(X, y)
    found = make_report(tmp_path / "run", images=50)
    assert found.evaluation is not None
    assert found.evaluation["which"] == "training images"
    assert found.evaluation["kind"] == "training"
    assert (found.evaluation["images"], found.evaluation["of"]) == (50, 120)
    assert found.evaluation["confusion"] is None
    page = render_report(found, "html")
    assert "No images were held out" in page
    assert "50 training images, evenly sampled from 120" in page
    assert "1 of each training image, 240 rows in all" in page
    assert [layer for layer, _ in found.pictures.banks] == [1, 4, 7]
    assert not References(page).found
    assert "flip" in render_report(found, "markdown")


def test_samples_are_evenly_spaced(digits_run: str) -> None:
    """Images and labels are those of the rows."""
    store = RunStore.open(digits_run)
    sample = sample_from_run(store, 7)
    rows = np.flatnonzero(~store.data_array("train")[:])
    np.testing.assert_array_equal(sample.rows, rows[np.arange(7) * len(rows) // 7])
    np.testing.assert_array_equal(sample.images, store.data_array("images")[:][sample.rows])
    np.testing.assert_array_equal(sample.codes, store.data_array("labels")[:][sample.rows])


# the command that reproduces a run --------------------------------------------------------------


def test_reproduce_command_gives_the_same_bits(client: Client, tmp_path: Path) -> None:
    """Run as reported, but for the store, on images that the run refers to."""
    images, labels = load_digits()
    group = zarr.open_group(tmp_path / "data.zarr", mode="w")
    group.create_array("images", data=images[:200, ::2, ::2], chunks=(100, 14, 14, 1))
    group.create_array("labels", data=labels[:200], chunks=(100,))
    flags = shlex.split(
        "--preset digits --filters 4 --max-layers 2 --levels 2,1 --seed 5 --validation 0.2 "
        "--copies 1 --shift 1 --chunk-images 60 --patience 3 --power"
    )
    first = run("train", tmp_path / "data.zarr", "--store", tmp_path / "one", *flags)
    assert first.exit_code == 0, first.output
    command = make_report(tmp_path / "one", pictures=False).command
    assert command
    words = shlex.split(command)
    assert words[0] == "rescnet"
    second = run(*words[1:], "--store", tmp_path / "two")
    assert second.exit_code == 0, second.output
    one, two = (RunStore.open(tmp_path / name) for name in ("one", "two"))
    assert [c["checksums"] for c in one.commits()] == [c["checksums"] for c in two.commits()]
    for layer in ("0001", "0002"):
        for name in ("filters", "bias", "weights", "intercept"):
            path = f"layers/{layer}/{name}"
            a, b = (np.asarray(s.location.open_array(path)[...]) for s in (one, two))
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("source", ["digits", "folder/some data.zarr"])
@pytest.mark.parametrize(
    "network",
    [
        NetworkSpec.preset("digits"),
        NetworkSpec.preset("mnist").replace(power=True, patience=2, levels=(3,)),
        NetworkSpec(sigma=0.1 + 0.2, stop_at_zero_error=False),
    ],
)
def test_reproduce_command_resolves_to_the_same_specs(source: str, network: NetworkSpec) -> None:
    """Parsed by the options of `rescnet train` itself."""
    plan = Plan(6000, 600, 2, 3, 2, 512)
    run_spec = RunSpec(seed=7, validation=0.0, keep_maps="all", codec="zstd")
    augment = AugmentSpec(copies=2, flip=True, rotate=12.5, padding="edge")
    command, _ = reproduce_command(source, network, run_spec, augment, plan, held_out=False)
    words = shlex.split(command or "")[2:]
    train = main.get_command(None, "train")  # type: ignore[arg-type]
    assert train is not None
    flags = dict(train.make_context("train", list(words)).params)
    specs = resolve_specs(flags.pop("preset"), flags.pop("config"), flags.pop("data"), flags)
    planned = {name: getattr(plan, name) for name in PLAN_FIELDS}
    assert specs == (network, run_spec.replace(**planned), augment)


def test_reproduce_command_without_validation_for_own_split() -> None:
    """--validation would hold out other images; runs on arrays have no command."""
    plan, specs = Plan(60, 30, 2, 2, 1), (NetworkSpec(), RunSpec(), AugmentSpec())
    command, _ = reproduce_command("/data/a.zarr", *specs, plan, held_out=True)
    assert "--validation" not in str(command)
    _, notes = reproduce_command("/data/a.zarr", *specs, plan, held_out=True, has_weights=True)
    assert any("sample_weight" in note for note in notes)
    command, notes = reproduce_command(None, *specs, plan, held_out=True)
    assert command is None
    assert "arrays" in notes[0]


# the command line -------------------------------------------------------------------------------


def test_format_follows_file_ending(digits_run: str, tmp_path: Path) -> None:
    """Or is given; formats other than HTML go to standard output by default."""
    for name, start in (("a.html", "<!DOCTYPE html>"), ("a.md", "# Run"), ("a.json", "{")):
        result = run("report", digits_run, "-o", tmp_path / name, "--images", 9)
        assert result.exit_code == 0, result.output
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
    found = json.loads(run("report", digits_run, "--format", "json", "--images", 9).stdout)
    assert found["judged"]["images"] == 9
    assert not list(tmp_path.glob("*.partial"))


def test_test_images_are_used_only_if_named(digits_run: str, tmp_path: Path) -> None:
    """And the report says so."""
    images, labels = load_digits("test")
    np.savez(tmp_path / "test.npz", images=images[:50, ::2, ::2], labels=labels[:50])
    arguments = ("report", digits_run, "--format", "json", "--test", tmp_path / "test.npz")
    found = json.loads(run(*arguments).stdout)
    expected = load(digits_run).score(images[:50, ::2, ::2], labels[:50])
    assert found["judged"]["accuracy"] == expected
    assert found["judged"]["test"]
    assert "test.npz" in found["outcome"]


def test_bad_input_gives_one_line_error(digits_run: str, run_copy: Path, tmp_path: Path) -> None:
    """Exit code 2 and no traceback, before anything is written."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no run")
    load(digits_run).save(tmp_path / "network")
    half = json.loads((run_copy / "zarr.json").read_text())
    half["attributes"].pop("data_complete")
    half["attributes"].pop("rows")
    newer = json.loads((run_copy / "zarr.json").read_text())
    newer["attributes"]["format_version"] = 99
    for name, content in (("half", half), ("newer", newer)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "zarr.json").write_text(json.dumps(content))
    cases = {
        ("empty",): "",
        ("file",): "",
        ("missing",): "",
        ("network",): "not a rescnet-run store",
        ("half",): "not completely written",
        ("newer",): "version 99",
        ("copy", "-o", "nowhere/a.html"): "nowhere",
        ("copy", "-o", "a.pdf"): "has the unknown extension '.pdf'",
        ("copy", "-o", "empty", "--format", "html"): "cannot be written",
        ("copy", "--images", "0"): "--images",
        ("copy", "--test", "digits"): "(14, 14, 1)",
    }
    for (name, *more), words in cases.items():
        options = [str(tmp_path / o) if "/" in o or "." in o or o == "empty" else o for o in more]
        result = run("report", tmp_path / name, *(options or ["-o", tmp_path / "out.html"]))
        assert result.exit_code == 2, (name, more, result.output)
        assert words in result.stderr
        assert "Traceback" not in result.output
        assert not (tmp_path / "out.html").exists()
        if "Usage" not in result.stderr:
            assert result.stderr.count("\n") == 1, result.stderr


def test_help_lists_every_option() -> None:
    """And says which images the network is evaluated on."""
    text = CliRunner().invoke(report_command, ["--help"]).output
    for words in ("--output", "--format", "--images", "--test", "held out"):
        assert words in text
