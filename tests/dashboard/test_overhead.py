"""Overhead of the page in Dask's dashboard, relative to the time of a run."""

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

MAX_OVERHEAD_FRACTION = 0.01


@contextmanager
def measure_calls(
    monkeypatch: pytest.MonkeyPatch, *methods: tuple[Any, str]
) -> Iterator[list[float]]:
    """Measure the seconds spent in calls of methods, and their number."""
    spent = [0.0, 0]

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[0] += time.perf_counter() - started
                spent[1] += 1

        return timed

    with monkeypatch.context() as patch:
        for owner, name in methods:
            patch.setattr(owner, name, wrap(getattr(owner, name)))
        yield spent


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [False, True], ids=["page closed", "page open"])
def test_page_costs_less_than_one_percent(
    is_open: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Time on driver and scheduler, both in this process, and of drawing for an open browser.

    It is wall time, so that other load of the machine counts against the page.
    """
    images, labels = load_digits()
    spec = NetworkSpec.preset("digits").replace(max_layers=3)
    updates = [(kind, "update") for kind in dashboard_page.PLOTS]
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
        measure_calls(monkeypatch, (SchedulerPage, "__call__")) as driver,
        measure_calls(monkeypatch, (RunsPlugin, "log_event"), *updates) as scheduler,
    ):
        page = None
        if is_open:
            ResCNetClassifier(spec.replace(max_layers=1, filters=4)).fit(images[:200], labels[:200])
            base = cluster.dashboard_link.rsplit("/", 1)[0]
            page = request.getfixturevalue("open_page")(f"{base}/rescnet")
            driver[:], scheduler[:] = [0.0, 0], [0.0, 0]
        started_at = time.perf_counter()
        ResCNetClassifier(spec, store=tmp_path / "run").fit(images, labels, validation=0.1)
        seconds = time.perf_counter() - started_at
        if page:
            page.close()  # before the scheduler ends, which the console would report
    share = (driver[0] + scheduler[0]) / seconds
    print(
        f"\n{'page open' if is_open else 'page closed'}: {seconds:.1f} s, of which "
        f"{driver[0]:.3f} s in {driver[1]} events on the driver and {scheduler[0]:.3f} s in "
        f"{scheduler[1]} calls on the scheduler: {100 * share:.2f} %"
    )
    assert min(driver[1], scheduler[1]) > 0
    assert share < MAX_OVERHEAD_FRACTION


@pytest.mark.slow
def test_run_time_with_and_without_the_page(
    open_page: Callable[..., Any], started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same run without the page, with it, and with it open in a browser; medians of three.

    The scheduler is a separate process. The browser uses the cores of the workers, so for the third
    variant only the scheduler's own time counts.
    """
    images, labels = load_digits()
    spec = NetworkSpec.preset("digits").replace(max_layers=3)
    file = tmp_path / "scheduler.json"
    command = ("dask", "scheduler", "--host", "127.0.0.1", "--port", "0")
    options = ("--scheduler-file", file, "--dashboard-address", "127.0.0.1:0")
    scheduler = psutil.Process(started.start(sys.executable, "-m", *command, *options).pid)
    started.wait_until(file.exists)
    for _ in range(2):
        started.worker(file)
    variants = ("without", "with", "open")
    seconds, busy = ({variant: list[float]() for variant in variants} for _ in range(2))
    with Client(scheduler_file=str(file)) as client:
        client.wait_for_workers(2)
        page = SchedulerPage(client)
        ResCNetClassifier(
            spec.replace(max_layers=1, filters=4), store=tmp_path / "first", listeners=[page]
        ).fit(images[:200], labels[:200])
        assert page.link
        for number in range(9):
            variant = variants[number % 3]
            with monkeypatch.context() as patch:
                if variant == "without":
                    patch.setattr(SchedulerPage, "__call__", lambda page, event: None)
                tab = open_page(page.link) if variant == "open" else None
                started_at, cpu_before = time.perf_counter(), sum(scheduler.cpu_times()[:2])
                ResCNetClassifier(spec, store=tmp_path / f"run{number}").fit(images, labels)
                seconds[variant].append(time.perf_counter() - started_at)
                busy[variant].append(sum(scheduler.cpu_times()[:2]) - cpu_before)
                if tab:
                    tab.close()
    took, used = (
        {variant: statistics.median(times[variant]) for variant in variants}
        for times in (seconds, busy)
    )
    print(f"\nseconds of runs without, with and with the page open: {took}, {seconds}")
    print(f"seconds of the scheduler: {used}, {busy}")
    # one percent is below the noise of the machine, which is a few percent
    assert took["with"] < 1.05 * took["without"]
    assert used["open"] - used["without"] < 0.02 * took["without"]
