"""Test `rescnet bench` in its reduced form, and its comparison of results."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from rescnet_dist.bench import CASES, Result, compare_results, draw_chart, engine, timing
from rescnet_dist.cli import main
from rescnet_dist.kernels import Backend

KERNELS = [
    "scatter",
    "products",
    "scatter of large patches",
    "features",
    "discriminants",
    "filters",
    "layer",
]
OTHERS = [case.name for case in CASES if case.name not in KERNELS and not case.on_gpu]
ON_GPU = [case.name for case in CASES if case.on_gpu]


def run(*arguments: object) -> str:
    """Run `rescnet bench` and return what it prints."""
    result = CliRunner().invoke(main, ["bench", *map(str, arguments)], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def test_times_in_turns_are_those_of_one_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is fast for some seconds only, fastest times have another ratio."""
    now, calls = 0.0, list[str]()
    slowness = [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0]  # of each call

    def action(name: str, seconds: float) -> None:
        nonlocal now
        calls.append(name)
        now += seconds * slowness[len(calls) - 1]

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    monkeypatch.setattr(timing, "PAUSE_SECONDS", 0)
    actions = partial(action, "ours", 3.0), partial(action, "theirs", 1.0)
    assert timing.seconds_in_turns(actions, 3) == [6.0, 2.0]  # the fastest are 6 and 1
    assert calls == ["ours", "theirs"] * 4


@pytest.mark.slow
def test_command_prints_writes_and_draws(tmp_path: Path) -> None:
    """There is one row for each result; peers that are not installed are shown as such."""
    output, chart = tmp_path / "bench.json", tmp_path / "bench.png"
    text = run("--quick", *KERNELS, "-o", output, "--chart", chart)
    found = json.loads(output.read_text())
    assert found["quick"] is True
    assert found["machine"]["sgemm_gflops"] > 0
    assert [result["name"].split(",")[0] for result in found["results"]] == [
        *("patch scatter", "convolution to 50", "patch scatter", "patch scatter"),
        *("second-order features", "one-vs-rest LDA"),
        *("PCA filters from 20 images", "pass of a layer", "pass of a layer"),
    ]
    for result in found["results"]:
        assert result["ours"] > 0
        assert result["name"].split(" ")[0] in text
        assert all(seconds is None or seconds > 0 for seconds in result["peers"].values())
    with Image.open(chart) as image:
        assert image.width > 500
    comparison = run("--quick", "scatter", "--compare", output)
    assert "before" in comparison or "no ratio has changed" in comparison


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        ("{", [], "is not a file that `rescnet bench -o` has written"),
        ("[]", [], "is not a file that `rescnet bench -o` has written"),
        ('{"quick": true, "results": []}', [], "is of a quick run"),
        ('{"quick": false, "results": []}', ["--quick"], "is of a full run"),
    ],
)
def test_invalid_comparison_fails_before_anything_is_timed(
    tmp_path: Path, content: str, options: list[str], expected: str
) -> None:
    """A benchmark takes minutes."""
    (tmp_path / "old.json").write_text(content)
    arguments = ["bench", "layer", *options, "--compare", str(tmp_path / "old.json")]
    failed = CliRunner().invoke(main, arguments)
    assert failed.exit_code == 2
    assert expected in failed.output


def test_chart_in_missing_folder_fails(tmp_path: Path) -> None:
    """It fails before anything is timed."""
    failed = CliRunner().invoke(main, ["bench", "layer", "--chart", str(tmp_path / "no/x.png")])
    assert failed.exit_code == 2
    assert "Create it first" in failed.output


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_cases_run(name: str, tmp_path: Path) -> None:
    """They start clusters and processes, and their results can be written."""
    output = tmp_path / "bench.json"
    assert "ours" in run("--quick", name, "-o", output)
    assert json.loads(output.read_text())["results"]


def test_depth_is_the_slope_of_a_robust_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow layer hardly changes it, and the result can be written."""
    seconds = [0.5 + 0.01 * layer for layer in range(1, 9)]
    monkeypatch.setattr(engine, "layer_seconds", lambda *_: [*seconds[:5], 3.0, *seconds[6:]])
    (result,) = engine.depth(quick=True)
    assert result.ratio == pytest.approx(seconds[7] / seconds[3], rel=0.01)
    assert json.loads(json.dumps(result.to_dict()))["passes"] is True


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_gpu_cases_run(name: str) -> None:
    """The result is in seconds."""
    assert "a layer on a GPU" in run("--quick", name)


@pytest.mark.skipif(Backend("cupy").available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ON_GPU)
def test_gpu_cases_fail_without_gpu(name: str) -> None:
    """They fail before any data are generated or timed."""
    result = CliRunner().invoke(main, ["bench", name])
    assert result.exit_code == 2
    assert "rescnet-dist[gpu]" in result.output


def test_ratios_and_bars() -> None:
    """Peers should take longer than ours, and ours little longer than the floor."""
    fast = Result("a", 1.0, {"one": 8.0, "two": 5.0, "three": None}, bar=5)
    assert (fast.ratio, fast.passes) == (5.0, True)
    near = Result("b", 1.2, floor=1.0, bar=1.1, at_most=True)
    assert (near.ratio, near.passes) == (1.2, False)
    assert Result("c", 1.0, {"one": None}, bar=5).passes is None


def test_changed_ratios_are_reported() -> None:
    """Slower and faster ratios of both kinds are reported; small changes and new cases are not."""
    before = {"results": [{"name": name, "ratio": 4.0} for name in "abcd"]}
    results = [
        Result("a", 1.0, {"one": 2.0}),
        Result("b", 1.0, {"one": 8.0}),
        Result("c", 8.0, floor=1.0, at_most=True),
        Result("d", 1.0, {"one": 4.1}),
        Result("e", 1.0, {"one": 1.0}),
    ]
    assert compare_results(results, before) == [
        "a: 2.00 × slower than before (ratio 2.00, was 4.00)",
        "b: 2.00 × faster than before (ratio 8.00, was 4.00)",
        "c: 2.00 × slower than before (ratio 8.00, was 4.00)",
        "e: not in the earlier results, so not compared",
    ]


def test_chart_without_known_peers_is_drawn(tmp_path: Path) -> None:
    """No peer is installed."""
    draw_chart([Result("a", 1.0, {"one": None})], str(tmp_path / "x.png"))
    assert (tmp_path / "x.png").exists()


def test_unknown_case_fails_with_a_suggestion() -> None:
    """The error suggests a similar case."""
    result = CliRunner().invoke(main, ["bench", "feature"])
    assert result.exit_code == 2
    assert "There is no case 'feature'. Did you mean 'features'?" in result.output
