"""Estimates for clusters that are not there: the plan's own arithmetic, on a machine like this."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rescnet_dist import NetworkSpec, RunSpec
from rescnet_dist.cli import main
from rescnet_dist.cluster import Workers
from rescnet_dist.planning import Problem, Speed, estimate

SPEED = Speed(image=5e-3, product=36e9, factorization=30e9, written=1e9, read=1e9)
CIFAR = Problem(50_000, (32, 32, 3), 10)
SPEC = NetworkSpec.preset("cifar10").replace(stride=4)
GIB = 2**30


def on(workers: int, threads: int, problem: Problem = CIFAR) -> float:
    """Seconds of a layer on workers that are as fast as `SPEED` says, the solve on all threads."""
    there = Workers(workers, workers * threads, threads, threads, 256 * GIB)
    return estimate(problem, SPEC, RunSpec(), there, SPEED).layer_seconds or 0


def test_time_grows_with_images_and_falls_with_cores() -> None:
    """But for the solve, which only threads of one worker share."""
    assert 3.5 <= (on(1, 1, Problem(200_000, (32, 32, 3), 10))) / on(1, 1) <= 4
    assert 3.5 <= on(1, 1) / on(1, 4) <= 4.05
    assert on(4, 1) > on(1, 4)
    solve = 17_150**3 / 3 / 30e9
    assert on(64, 1) > solve > on(1, 64)


def test_reductions_move_one_accumulator_per_merge() -> None:
    """As a scatter matrix of 17,150 features in single precision is 1.18 GB."""
    found = estimate(CIFAR, SPEC, RunSpec(accumulators=8), Workers(8, 8, 1, 1, 64 * GIB), None)
    assert 7 * 1.17e9 <= found.traffic.network <= 7 * 1.3e9
    assert found.layer_seconds is None


def test_half_precision_halves_what_maps_take() -> None:
    """Read and written, in the store."""
    there = Workers(8, 8, 1, 1, 64 * GIB)
    single, half = (
        estimate(CIFAR, SPEC.replace(store_dtype=kind), RunSpec(), there, None).traffic
        for kind in ("float32", "float16")
    )
    assert 0.5 <= half.written / single.written <= 0.51


@pytest.mark.slow
def test_the_command_measures_here_and_counts_there() -> None:
    """In words and as JSON."""
    arguments = ["estimate", "60000x28x28x1", "--preset", "digits", "--workers", "8"]
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert found["layer_seconds"] > 0
    assert found["workers"]["slots"] == 8
    problem, there = Problem(60_000, (28, 28, 1), 10), Workers(8, 8, 1, 1, 64 * GIB)
    shown = str(estimate(problem, NetworkSpec.preset("digits"), RunSpec(), there, SPEED))
    assert "60,000 of 28×28×1, 10 classes" in shown
    assert "8 workers, 8 threads" in shown
    assert "between workers" in shown


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
        (["100x28x28x1", "--workers", "2", "--gpu-memory", "8GiB"], "add --array-backend cupy"),
    ],
)
def test_bad_input_is_named(arguments: list[str], expected: str) -> None:
    """Before anything is measured."""
    failed = CliRunner().invoke(main, ["estimate", "--preset", "digits", *arguments])
    assert failed.exit_code == 2
    assert expected in failed.output
