"""The command `rescnet ablate`, on a few digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from PIL import Image

import rescnet_dist as rd
from rescnet_dist.cli.actions import ablate
from tests.commands import run, stored_digits

SMALL = ("--max-layers", "2", "--block", "14", "--stride", "14", "--sigma", "2", "--validation")


def test_ablation_writes_runs_a_record_and_a_figure(client: Client, tmp_path: Path) -> None:
    """The same command again trains nothing, and writes the same record."""
    data, folder = stored_digits(tmp_path, 60, 60), tmp_path / "ablations"
    words = ("ablate", "filters", data, "-o", folder, "--values", "3,4", *SMALL, "0.2", "-q")
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert "3 filters" in result.stdout
    record = json.loads((folder / "filters.json").read_text())
    assert [(v["value"], v["run"]) for v in record["variants"]] == [
        (3, "filters-3"),
        (4, "filters-4"),
    ]
    assert record["curve"] == "validation"
    for variant in record["variants"]:
        clf = rd.load(folder / variant["run"])
        assert clf.network_.spec.filters == variant["value"]
        expected = [(a["layer"], a["train"], a["validation"]) for a in clf.accuracies_]
        found = [(e["layer"], e["train"], e["validation"]) for e in variant["curve"]]
        assert found == expected
        assert variant["depth"] == clf.depth_
    with Image.open(folder / "filters.png") as figure:
        assert figure.format == "PNG"
    commits = {path: path.stat().st_mtime_ns for path in folder.rglob("commits/*.json")}
    assert len(commits) == 6
    again = run(*words, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == record
    assert {path: path.stat().st_mtime_ns for path in commits} == commits


def test_test_accuracy_is_that_of_each_layer(client: Client, tmp_path: Path) -> None:
    """If the data have a test split; without compensation all layers are fitted to the labels."""
    images, labels = rd.load_digits()
    test = {"x_test": images[60:100], "y_test": labels[60:100]}
    np.savez(tmp_path / "data.npz", x_train=images[:60], y_train=labels[:60], **test)
    words = ("ablate", "compensation", tmp_path / "data.npz", "-o", tmp_path / "out")
    result = run(*words, "--filters", "3", *SMALL, "0", "-q", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["curve"] == "test"
    for variant in record["variants"]:
        clf = rd.load(tmp_path / "out" / variant["run"])
        assert clf.network_.spec.head.compensate is variant["value"]
        expected = clf.staged_score(images[60:100], labels[60:100])
        assert [e["test"] for e in variant["curve"]][: clf.depth_] == pytest.approx(expected)


def test_ablations_in_a_folder_share_networks(client: Client, tmp_path: Path) -> None:
    """A finished run with the same settings is used; others, and unfinished ones, are not."""
    data, folder = stored_digits(tmp_path, 60, 60), tmp_path / "ablations"
    options = (data, "-o", folder, "--filters", "3", *SMALL, "0", "-q")
    assert run("ablate", "rate", *options).exit_code == 0
    result = run("ablate", "compensation", *options)
    assert result.exit_code == 0, result.output
    rate, compensation = (
        {variant["label"]: variant for variant in json.loads(path.read_text())["variants"]}
        for path in (folder / "rate.json", folder / "compensation.json")
    )
    shared = compensation["fitted to the errors"]
    assert shared["run"] == "rate-0.4"
    assert shared["curve"] == rate["α = 0.4"]["curve"]
    assert compensation["fitted to the labels"]["run"] == "compensation-without"
    assert not (folder / "compensation-with").exists()
    (folder / "rate-0.4/result.json").unlink()
    assert run("ablate", "compensation", *options).exit_code == 0
    assert (folder / "compensation-with").exists()


def read_files(store: Path) -> dict[Path, bytes]:
    """Return the files of a run, apart from records of who has opened it."""
    files = (path for path in store.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if path.parent.name != "claims"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keep_maps", ["all", "none"])
def test_shared_networks_stay_as_they_are(client: Client, tmp_path: Path, keep_maps: str) -> None:
    """Another ablation changes nothing in the store of a finished run, whatever it keeps itself."""
    data, folder = stored_digits(tmp_path, 60, 60), tmp_path / "ablations"
    options = (data, "-o", folder, "--filters", "3", *SMALL, "0", "-q")
    assert run("ablate", "rate", *options, "--values", "0.4").exit_code == 0
    before = read_files(folder / "rate-0.4")
    result = run("ablate", "compensation", *options, "--keep-maps", keep_maps)
    assert result.exit_code == 0, result.output
    runs = [v["run"] for v in json.loads((folder / "compensation.json").read_text())["variants"]]
    assert runs == ["rate-0.4", "compensation-without"]
    assert read_files(folder / "rate-0.4") == before
    own = json.loads((folder / "compensation-without/zarr.json").read_text())["attributes"]
    assert own["run"]["keep_maps"] == keep_maps


def test_only_the_last_layer_has_a_head(client: Client, tmp_path: Path) -> None:
    """The curve has the last layer alone, which is drawn as a point."""
    images, labels = rd.load_digits()
    test = {"x_test": images[60:100], "y_test": labels[60:100]}
    np.savez(tmp_path / "data.npz", x_train=images[:60], y_train=labels[:60], **test)
    words = ("ablate", "filters", tmp_path / "data.npz", "-o", tmp_path, "--values", "3")
    result = run(*words, *SMALL, "0", "--heads", "last")
    assert result.exit_code == 0, result.output
    assert "3 filters  2 of 2 layers: train" in result.stdout
    assert f"3 filters: {tmp_path / 'filters-3'}" in result.stderr
    (variant,) = json.loads((tmp_path / "filters.json").read_text())["variants"]
    score = rd.load(tmp_path / "filters-3").score(images[60:100], labels[60:100])
    assert [(e["layer"], e["test"]) for e in variant["curve"]] == [(2, pytest.approx(score))]


def test_settings_and_estimates_are_printed_before_the_training(
    client: Client, tmp_path: Path
) -> None:
    """Of networks that are not trained yet; nothing is with --quiet."""
    data = stored_digits(tmp_path, 60, 60)
    words = ("ablate", "filters", data, "-o", tmp_path / "out", "--values", "3,4", *SMALL, "0.2")
    result = run(*words)
    assert result.exit_code == 0, result.output
    settings, *estimates, total = result.stderr.splitlines()[:4]
    assert settings.startswith("settings of all networks: ")
    assert "block=14" in settings
    assert "filters=" not in settings.replace("first_filter_size", "")
    assert settings.endswith("; compared: 3 filters, 4 filters")
    for label, line in zip(("3 filters", "4 filters"), estimates, strict=True):
        assert line.startswith(f"{label}: at most 2 layers, about ")
        assert line.endswith(" in the store at most")
    assert total.startswith("all networks: about ")
    again = run(*words)
    assert "settings of all networks: " in again.stderr
    assert "at most 2 layers" not in again.stderr
    assert "settings of all networks: " not in run(*words, "-q").stderr


def test_layers_that_are_grown_are_not_estimated(client: Client, tmp_path: Path) -> None:
    """Those of a network whose training was interrupted."""
    data, out = stored_digits(tmp_path, 60, 60), tmp_path / "out"
    words = ("ablate", "filters", data, "-o", out, "--values", "3,4", *SMALL, "0.2")
    assert run(*words).exit_code == 0
    for name in ("result.json", "commits/0002.json"):
        (out / "filters-3" / name).unlink()
    again = run(*words)
    assert again.exit_code == 0, again.output
    assert "3 filters: at most 2 layers, of which 1 is grown, about" in again.stderr
    assert " for the others, " in again.stderr
    assert "4 filters: at most" not in again.stderr
    assert f"4 filters: {out / 'filters-4'}, already trained" in again.stderr


def test_interrupted_ablation_is_continued_by_the_same_command(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rescnet resume` would train one network only."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ablate, "begin_or_resume", interrupt)
    data = stored_digits(tmp_path, 60, 60)
    result = run("ablate", "filters", data, "-o", tmp_path, "--values", "3", *SMALL, "0", "-q")
    assert result.exit_code == 130
    assert "interrupted; run the same command again, which continues" in result.output


def test_help_names_the_extra() -> None:
    """Matplotlib is not installed with the package."""
    assert 'pip install "rescnet-dist[plot]"' in " ".join(run("ablate", "--help").stdout.split())


def test_accuracies_of_images_left_out_are_named_so(client: Client, tmp_path: Path) -> None:
    """In the output and in the record, which the figure is drawn from."""
    data = stored_digits(tmp_path, 60, 60)
    words = ("ablate", "filters", data, "-o", tmp_path / "out", "--values", "3", "-q")
    options = ("--max-layers", "1", "--block", "14", "--stride", "14", "--validation", "0")
    result = run(*words, *options, "--head", "leave-one-out")
    assert result.exit_code == 0, result.output
    assert "% (leave-one-out)" in result.stdout
    (variant,) = json.loads((tmp_path / "out/filters.json").read_text())["variants"]
    assert variant["leave_one_out"]
    assert variant["copies"] == 0


def test_what_is_varied_is_not_an_option(tmp_path: Path) -> None:
    """Before anything is read or written."""
    result = run("ablate", "rate", "digits", "-o", tmp_path / "out", "--learning-rate", "0.2")
    assert result.exit_code == 2
    assert "--learning-rate is what the ablation rate varies. Name the values" in result.output
    result = run("ablate", "stacked-lda", "digits", "-o", tmp_path / "out", "--lda-fraction", "0.2")
    assert "--lda-fraction is what the ablation stacked-lda varies. Leave it out" in result.output
    assert list(tmp_path.iterdir()) == []
