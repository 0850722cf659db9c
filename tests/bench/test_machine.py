"""Test how benchmarks treat a busy machine, and records of several machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from rich.console import Console

from rescnet_dist.bench import (
    Result,
    machines_markdown,
    machines_table,
    measure,
    name_file,
    table,
)
from rescnet_dist.bench.machine import MAX_TRIES, CpuTimes
from rescnet_dist.bench.timing import SECONDS_SUFFIX
from rescnet_dist.cli import main
from rescnet_dist.cli.actions.bench import _write_record

MACHINE = {
    **{"processor": "Fast 1", "machine": "x86_64", "system": "Linux", "python": "3.12.1"},
    **{"numpy": "2.3.0", "cores": 4, "sgemm_gflops": 241.2},
}
RESULT = Result("case", 1.0, {"peer": 6.0}, bar=5)


def show(found: object) -> str:
    """Return a table as text."""
    console = Console(width=200)
    with console.capture() as capture:
        console.print(found)
    return capture.get()


def cpu_times(shares: list[float]) -> Iterator[CpuTimes]:
    """Yield the counters before and after tries of 10 s, of which others use shares of all CPUs."""
    cpus, clock, busy = 3, 0.0, 0.0
    for share in shares:
        yield CpuTimes(clock, busy, 0.0, 0.0, cpus)
        clock, busy = clock + 10, busy + 10 * cpus * share
        yield CpuTimes(clock, busy, 0.0, 0.0, cpus)


def test_share_of_others_leaves_out_own_time_and_adds_stolen_time() -> None:
    start = CpuTimes(clock=5, busy=100, stolen=7, own=20, cpus=4)
    end = CpuTimes(clock=15, busy=124, stolen=11, own=36, cpus=4)
    assert end.other_share(start) == pytest.approx(0.3)
    assert start.other_share(start) == 0.0


def test_counters_separate_own_processes_from_others() -> None:
    """One that burns CPU time as a child is ours; one that was left to the system is not."""
    burn = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
    start = CpuTimes.now()
    subprocess.run([sys.executable, "-c", burn], check=True)
    child = CpuTimes.now()
    assert child.own - start.own >= 0.5
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
    subprocess.run([sys.executable, "-c", leave], check=True)
    deadline = time.monotonic() + 30
    while (left := CpuTimes.now()).busy - left.own < child.busy - child.own + 0.5:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert left.own - child.own < 0.5


def test_counters_are_those_of_the_given_cpus() -> None:
    """Together they make those of all."""
    everything = range(psutil.cpu_count() or 1)
    parts = [CpuTimes.now([cpu]) for cpu in everything]
    whole = CpuTimes.now(everything)
    assert [part.cpus for part in parts] == [1] * whole.cpus
    assert sum(part.busy for part in parts) == pytest.approx(whole.busy, abs=2 * whole.cpus)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
@pytest.mark.skipif((psutil.cpu_count() or 1) < 2, reason="one CPU")
def test_processes_on_other_cpus_do_not_count() -> None:
    """A process that may use one CPU counts that one, as those that it starts would."""
    code = """
import os
from rescnet_dist.cluster.load import CpuTimes
cpu = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cpu})
own, other = CpuTimes.now(), CpuTimes.now([cpu])
assert own.cpus == 1, own
assert abs(own.busy - other.busy) < 1, (own, other)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("shares", "tries", "kept"),
    [([0.02], 1, 0.02), ([0.4, 0.01], 2, 0.01), ([0.4, 0.2, 0.3], MAX_TRIES, 0.2)],
)
def test_busy_machine_is_measured_again(shares: list[float], tries: int, kept: float) -> None:
    """The try with the least load counts, and has no verdict if that is too much."""
    times, messages, runs = cpu_times(shares), [], []

    def run() -> list[Result]:
        runs.append(len(runs))
        return [RESULT]

    (found,) = measure(run, messages.append, lambda: next(times))
    assert len(runs) == tries
    assert found.other_share == pytest.approx(kept)
    assert found.passes is (None if kept > 0.05 else True)
    assert ("machine was busy" in show(table([found]))) is (kept > 0.05)
    assert len(messages) == tries - (kept <= 0.05)
    assert all("others used" in message for message in messages)


def test_folder_has_a_file_for_each_machine(tmp_path: Path) -> None:
    """Results of other cases of the same machine are kept; machines are shown side by side."""
    _write_record(str(tmp_path), MACHINE, [RESULT, Result("old", 2.0)], quick=False)
    _write_record(str(tmp_path), MACHINE, [Result("old", 3.0)], quick=False)
    slow = MACHINE | {"processor": "Slow", "cores": 1}
    _write_record(str(tmp_path), slow, [Result("case", 1.0, {"peer": 2.0}, bar=5)], quick=False)
    names = {name_file(MACHINE), name_file(slow)}
    assert (
        {path.name for path in tmp_path.iterdir()}
        == names
        == {
            "fast-1-4-cores.json",
            "slow-1-cores.json",
        }
    )
    records = [json.loads((tmp_path / name).read_text()) for name in sorted(names)]
    assert [found["ours"] for found in records[0]["results"]] == [1.0, 3.0]
    lines = show(machines_table(records)).splitlines()
    (row,) = (line for line in lines if line.startswith("│ case"))
    assert [cell.strip() for cell in row.split("│")[2:5]] == [
        *("≥ 5 ×", "6.00 ×, reached", "2.00 ×, missed")
    ]
    printed = CliRunner().invoke(main, ["bench", "--machines", str(tmp_path)])
    assert "Fast 1, 4 cores, 241 GFLOP/s" in " ".join(printed.output.replace("┃", " ").split())


def test_results_of_a_busy_machine_do_not_replace_those_of_an_idle_one(tmp_path: Path) -> None:
    """The other way round they do; each has its date."""
    idle, busy = RESULT, replace(RESULT, ours=3.0, other_share=0.5)
    path = tmp_path / name_file(MACHINE)

    def write(result: Result) -> float:
        _write_record(str(tmp_path), MACHINE, [result], quick=False)
        (entry,) = json.loads(path.read_text())["results"]
        assert entry["date"]
        return float(entry["ours"])

    written = [write(result) for result in (busy, replace(busy, ours=4.0), idle, busy)]
    assert written == [3.0, 4.0, 1.0, 1.0]
    assert write(replace(idle, ours=2.0)) == 2.0
    for result, rate in ((busy, 241.2), (idle, 20.0)):
        _write_record(str(tmp_path), MACHINE | {"sgemm_gflops": 20.0}, [result], quick=False)
        assert json.loads(path.read_text())["machine"]["sgemm_gflops"] == rate


def test_markdown_has_a_column_for_each_machine() -> None:
    """With the times that ratios are made of; a bar may be a time, and differ by machine."""
    start = Result(f"start{SECONDS_SUFFIX}", 1.35, floor=1.0, bar=0.7, at_most=True)
    slow = MACHINE | {"processor": "Slow(R)", "cores": 1}
    other = replace(RESULT, other_share=0.5, bar=4.0)
    records = [
        {"machine": MACHINE, "results": [RESULT.to_dict(), start.to_dict()]},
        {"machine": slow, "results": [other.to_dict()]},
    ]
    machine, _, _, header, _, case, starting = machines_markdown(records).splitlines()
    assert machine.startswith("- Fast 1, 4 cores, 241 GFLOP/s")
    assert header == "| what | Fast 1, 4 cores | Slow, 1 core | bar |"
    times = "1 s, peer 6 s"
    cells = "case", f"6.00 ×, reached: {times}", f"6.00 ×, machine was busy: {times}"
    assert case == f"| {' | '.join(cells)} | ≥ 5 × / ≥ 4 × |"
    assert starting == "| start | 1.35 s, missed | – | ≤ 0.7 s |"


def test_folder_without_results_is_an_error(tmp_path: Path) -> None:
    failed = CliRunner().invoke(main, ["bench", "--machines", str(tmp_path)])
    assert failed.exit_code == 2
    assert "has no results" in failed.output
