"""What the page costs a run: the time spent on it, beside the time of the run."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster

from rescnet_dist import NetworkSpec, ResCNetClassifier, load_digits
from rescnet_dist.dashboard import page as dashboard_page
from rescnet_dist.dashboard.scheduler import RunsPlugin, SchedulerPage

MOST_SHARE = 0.01


@contextmanager
def timed(monkeypatch: pytest.MonkeyPatch, *methods: tuple[Any, str]) -> Iterator[list[float]]:
    """The seconds that calls of these methods take, and how often that was."""
    spent = [0.0, 0]

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **more)
            finally:
                spent[0] += time.perf_counter() - began
                spent[1] += 1

        return timed

    with monkeypatch.context() as patch:
        for owner, name in methods:
            patch.setattr(owner, name, wrap(getattr(owner, name)))
        yield spent


@pytest.mark.slow
@pytest.mark.parametrize("looked_at", [False, True], ids=["nobody looks", "somebody looks"])
def test_the_page_costs_less_than_a_hundredth_of_a_run(
    looked_at: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On driver and scheduler, which are this process, and in drawing for a browser that is open.
    All calls are counted in the wall time of this machine, so that other load counts against it."""
    images, labels = load_digits()
    spec = NetworkSpec.preset("digits").replace(max_layers=3)
    looking = [(kind, "update") for kind in dashboard_page.PLOTS]
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
        timed(monkeypatch, (SchedulerPage, "__call__")) as driver,
        timed(monkeypatch, (RunsPlugin, "log_event"), *looking) as scheduler,
    ):
        shown = None
        if looked_at:
            ResCNetClassifier(spec.replace(max_layers=1, filters=4)).fit(images[:200], labels[:200])
            base = cluster.dashboard_link.rsplit("/", 1)[0]
            shown = request.getfixturevalue("opened")(f"{base}/rescnet")
            driver[:], scheduler[:] = [0.0, 0], [0.0, 0]
        began = time.perf_counter()
        ResCNetClassifier(spec, store=tmp_path / "run").fit(images, labels, validation=0.1)
        seconds = time.perf_counter() - began
        if shown:
            shown.close()  # before the scheduler is gone, of which it would complain
    share = (driver[0] + scheduler[0]) / seconds
    print(
        f"\n{'looked at' if looked_at else 'not looked at'}: {seconds:.1f} s, of which "
        f"{driver[0]:.3f} s in {driver[1]} events on the driver and {scheduler[0]:.3f} s in "
        f"{scheduler[1]} calls on the scheduler: {100 * share:.2f} %"
    )
    assert min(driver[1], scheduler[1]) > 0
    assert share < MOST_SHARE


@pytest.mark.slow
def test_a_run_takes_as_long_with_the_page_as_without(
    opened: Callable[..., Any], started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same run in turns without the page, with it, and with it open in a browser, on a
    scheduler of its own process; medians of three. The browser draws on the cores that the workers
    compute on, so of the third only the scheduler's own time counts."""
    images, labels = load_digits()
    spec = NetworkSpec.preset("digits").replace(max_layers=3)
    file = tmp_path / "scheduler.json"
    command = ("dask", "scheduler", "--host", "127.0.0.1", "--port", "0")
    scheduler = psutil.Process(
        started.start(
            sys.executable, "-m", *command, "--scheduler-file", file,
            "--dashboard-address", "127.0.0.1:0",
        ).pid
    )  # fmt: skip
    started.wait_until(file.exists)
    for _ in range(2):
        started.worker(file)
    ways = ("without", "with", "open")
    seconds, busy = ({way: list[float]() for way in ways} for _ in range(2))
    with Client(scheduler_file=str(file)) as client:
        client.wait_for_workers(2)
        page = SchedulerPage(client)
        ResCNetClassifier(
            spec.replace(max_layers=1, filters=4), store=tmp_path / "first", listeners=[page]
        ).fit(images[:200], labels[:200])
        assert page.link
        for number in range(9):
            way = ways[number % 3]
            with monkeypatch.context() as patch:
                if way == "without":
                    patch.setattr(SchedulerPage, "__call__", lambda page, event: None)
                shown = opened(page.link) if way == "open" else None
                began, before = time.perf_counter(), sum(scheduler.cpu_times()[:2])
                ResCNetClassifier(spec, store=tmp_path / f"run{number}").fit(images, labels)
                seconds[way].append(time.perf_counter() - began)
                busy[way].append(sum(scheduler.cpu_times()[:2]) - before)
                if shown:
                    shown.close()
    took, used = ({way: statistics.median(of[way]) for way in ways} for of in (seconds, busy))
    print(f"\nseconds of runs without, with and with the page open: {took}, {seconds}")
    print(f"seconds of the scheduler: {used}, {busy}")
    # a hundredth cannot be told from the machine's own noise, which is of a few
    assert took["with"] < 1.05 * took["without"]
    assert used["open"] - used["without"] < 0.02 * took["without"]
