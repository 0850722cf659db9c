"""`rescnet estimate`: cost of runs on clusters that do not exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rescnet_dist import NetworkSpec, RunSpec
from rescnet_dist.cli import main
from rescnet_dist.cli.actions import estimate as action
from rescnet_dist.cluster import Workers
from rescnet_dist.planning import Problem, Speed, estimate

SPEED = Speed(
    image_seconds=5e-3, product_rate=36e9, factor_rate=30e9, write_rate=1e9, read_rate=1e9
)
CIFAR = Problem(50_000, (32, 32, 3), 10)
SPEC = NetworkSpec.preset("cifar10").replace(stride=4)
GIB = 2**30


def layer_seconds(workers: int, threads: int, problem: Problem = CIFAR) -> float:
    """Return the seconds of a layer on workers of speed `SPEED`, the solve on all threads."""
    cluster = Workers(workers, workers * threads, threads, threads, 256 * GIB)
    return estimate(problem, SPEC, RunSpec(), cluster, SPEED).layer_seconds or 0


def test_time_increases_with_images_and_decreases_with_cores() -> None:
    """Except the solve, which only the threads of one worker share."""
    larger = Problem(200_000, (32, 32, 3), 10)
    assert 3.5 <= layer_seconds(1, 1, larger) / layer_seconds(1, 1) <= 4
    assert 3.5 <= layer_seconds(1, 1) / layer_seconds(1, 4) <= 4.05
    assert layer_seconds(4, 1) > layer_seconds(1, 4)
    solve = 17_150**3 / 3 / 30e9
    assert layer_seconds(64, 1) > solve > layer_seconds(1, 64)


def test_reductions_send_one_accumulator_per_merge() -> None:
    """The lower triangle of 17,150 features in single precision has 0.59 GB."""
    workers = Workers(8, 8, 1, 1, 64 * GIB)
    forecast = estimate(CIFAR, SPEC, RunSpec(accumulators=8), workers, None)
    assert 7 * 0.588e9 <= forecast.traffic.network <= 7 * 0.65e9
    assert forecast.layer_seconds is None


def test_half_precision_halves_the_bytes_of_maps() -> None:
    """Read from and written to the store."""
    workers = Workers(8, 8, 1, 1, 64 * GIB)
    single, half = (
        estimate(CIFAR, SPEC.replace(store_dtype=dtype), RunSpec(), workers, None).traffic
        for dtype in ("float32", "float16")
    )
    assert 0.5 <= half.written / single.written <= 0.51


@pytest.mark.slow
def test_command_measures_this_machine_and_estimates_the_cluster() -> None:
    """As text and as JSON."""
    arguments = ["estimate", "60000x28x28x1", "--preset", "digits", "--workers", "8"]
    record = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert record["layer_seconds"] > 0
    assert record["workers"]["slots"] == 8
    problem, workers = Problem(60_000, (28, 28, 1), 10), Workers(8, 8, 1, 1, 64 * GIB)
    text = str(estimate(problem, NetworkSpec.preset("digits"), RunSpec(), workers, SPEED))
    assert "60,000 of 28×28×1, 10 classes" in text
    assert "8 workers, 8 threads" in text
    assert "between workers" in text


@pytest.mark.parametrize(("limit", "is_busy"), [(-1.0, True), (1.0, False)])
def test_busy_machine_is_a_warning(
    limit: float, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others used some share of the machine; the limit decides, and JSON stays JSON."""
    monkeypatch.setattr(action, "MAX_OTHER_SHARE", limit)
    monkeypatch.setattr(action, "calibrate", lambda *_: SPEED)  # which takes half a minute
    arguments = ["estimate", "60000x28x28x1", "--preset", "digits", "--workers", "8", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert json.loads(result.stdout)["layer_seconds"] > 0
    assert ("warning: The machine was busy: others used" in result.stderr) == is_busy


@pytest.mark.parametrize(
    ("options", "classes"),
    [
        (["--preset", "cifar100"], 100),
        (["--preset", "cifar100", "--classes", "7"], 7),
        (["--preset", "pcanet"], 10),
        ([], 10),
    ],
)
def test_classes_are_those_of_the_preset(options: list[str], classes: int) -> None:
    """Unless they are given; GPUs, as nothing is measured for them."""
    gpus = ["--array-backend", "cupy", "--gpu-memory", "80GiB", "--memory", "64GiB"]
    arguments = ["estimate", "50000x32x32x3", "--workers", "2", *gpus, *options]
    assert f"32×32×3, {classes} classes" in CliRunner().invoke(main, arguments).stdout


@pytest.mark.parametrize(("options", "classes"), [([], 100), (["--preset", "tiny-imagenet"], 200)])
def test_classes_are_those_of_the_preset_in_the_file(
    options: list[str], classes: int, tmp_path: Path
) -> None:
    """Unless another preset is given."""
    file = tmp_path / "run.toml"
    file.write_text('preset = "cifar100"\n')
    gpus = ["--array-backend", "cupy", "--gpu-memory", "80GiB", "--memory", "64GiB"]
    arguments = ["estimate", "50000x64x64x3", "--workers", "2", *gpus, "--config", str(file)]
    assert f"64×64×3, {classes} classes" in CliRunner().invoke(main, [*arguments, *options]).stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["digits", "--workers", "2"], "'digits' is not a number of images and their shape"),
        (["0x28x28x1", "--workers", "2"], "such as 50000x32x32x3"),
        (["100x28x28", "--workers", "2"], "such as 50000x32x32x3"),
        (["100x28x28x1", "--workers", "2", "--memory", "much"], "--memory much is not"),
        (
            ["100x28x28x1", "--workers", "2", "--memory", "3"],
            "3 is not a size of memory of 64 MiB",
        ),
        (["100x28x28x1", "--workers", "0"], "0 is not in the range x>=1"),
        (["100x28x28x1"], "Missing option '--workers'"),
        (["00x28x28x1", "--workers", "2"], "such as 50000x32x32x3"),
        (["100x4x4x1", "--workers", "2"], "4×4"),
        (["100x28x28x1", "--workers", "2", "--first-filter-size", "29"], "first_filter_size=29"),
        (["100x28x28x1", "--workers", "3", "--machines", "2"], "--machines 2"),
        (["100x28x28x1", "--workers", "2", "--copies", "1", "--shift", "28"], "shift=28"),
        (["50000x32x32x3", "--workers", "2", "--memory", "300MiB"], "MiB of memory per worker"),
        (["100x28x28x1", "--workers", "2", "--gpu-memory", "8GiB"], "Add --array-backend cupy"),
        (["100x28x28x1", "--workers", "2", "--stable-price", "-1"], "-1.0 is not in the range"),
        (["100x28x28x1", "--workers", "2", "--stable-price", "nan"], "nan is not a price"),
        (
            ["100x28x28x1", "--workers", "2", "--stable-price", "1", "--spot-price", "inf"],
            "--spot-price inf is not a price",
        ),
        (["100x28x28x1", "--workers", "2", "--spot-price", "1"], "Add its price, --stable-price"),
        (
            [
                *("100x28x28x1", "--workers", "2", "--stable-price", "1"),
                *("--array-backend", "cupy", "--gpu-memory", "8GiB"),
            ],
            "no time is estimated for GPUs",
        ),
    ],
)
def test_bad_input_is_an_error_before_measuring(arguments: list[str], expected: str) -> None:
    """Exit code 2 and a message."""
    failed = CliRunner().invoke(main, ["estimate", "--preset", "digits", *arguments])
    assert failed.exit_code == 2
    assert expected in failed.output
