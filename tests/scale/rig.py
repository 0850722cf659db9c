"""A rig of many real workers on one machine: what a pass costs the scheduler and the driver.

Run as `python tests/scale/rig.py 16 64 256 1000 -o results.json`; prints a table. See the page
"Scale" of the book for what it measures and what it cannot show.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import rig_report  # noqa: E402
from counting_proxy import CountingProxy, open_proxy  # noqa: E402

LAYERS = 2
PROCESSES = 10  # of workers; one of them is lost
WORKER_MEMORY_BYTES = 64 * 2**30  # that each worker says it has
START_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class PassCost:
    """What a pass took, of which the time before it since the previous one is a part.

    CPU seconds and resident bytes of driver and scheduler, seconds that the scheduler's loop was
    blocked at most (by the clock, and CPU seconds), bytes between driver and scheduler.
    """

    name: str
    tasks: int
    seconds: float
    driver_cpu_seconds: float
    driver_bytes: int
    driver_rss: int
    scheduler_cpu_seconds: float
    scheduler_rss: int
    loop_delay_seconds: float
    loop_delay_cpu_seconds: float
    first_task_seconds: float | None = None
    moved_bytes: int | None = None
    depth: int | None = None
    messages: dict[str, tuple[int, int]] = field(default_factory=dict)  # bytes and number by kind


class Rig:
    """A scheduler and worker processes on loopback, killed at the end of its context."""

    def __init__(self, workers: int, folder: Path, task_seconds: float = 0.0) -> None:
        self.workers, self.folder = workers, folder
        self.stack = contextlib.ExitStack()
        self.delays = folder / "delays.txt"
        self.environment = os.environ | {
            "RIG_DELAYS": str(self.delays),
            "RIG_FOLDER": str(folder),
            "RIG_TASK_SECONDS": str(task_seconds),
            "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parents[1]))),
            "OMP_NUM_THREADS": "1",
            "DASK_LOGGING__DISTRIBUTED": "error",
        }
        self.started = 0  # processes of workers
        # The scheduler has a core of its own, as its pod has: it does not wait for the workers.
        self.scheduler_cores, self.other_cores = split_cores()

    def __enter__(self) -> Rig:
        file = self.folder / "scheduler.json"
        options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        self.scheduler = self.start(
            *("-m", "dask", "scheduler", *options, "--scheduler-file", str(file)),
            *("--dashboard-address", "127.0.0.1:0", "--preload", str(HERE / "rig_scheduler.py")),
            cores=self.scheduler_cores,
        )
        wait_until(file.exists)
        time.sleep(0.2)
        self.address = json.loads(file.read_text())["address"]
        self.nursery = self.start(
            str(HERE / "rig_workers.py"), self.address, str(WORKER_MEMORY_BYTES)
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.nursery.stdin
        self.nursery.stdin.close()
        self.nursery.wait()
        self.stack.close()

    def start(self, *arguments: str, cores: set[int] | None = None) -> subprocess.Popen[str]:
        """Start a Python process of the rig on some cores, those of workers by default."""
        with (self.folder / "log.txt").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.folder,
            )
        self.stack.enter_context(process)  # closes its pipes and waits for it
        self.stack.callback(process.kill)
        psutil.Process(process.pid).cpu_affinity(sorted(cores or self.other_cores))
        return process

    def add_workers(self, processes: int) -> None:
        """Start some of the worker processes and wait until their workers have joined."""
        sizes = split_evenly(self.workers, min(PROCESSES, self.workers))
        new = sizes[self.started : self.started + processes]
        self.started += len(new)
        for size in new:
            self.command(str(size))
        for _ in new:
            assert self.nursery.stdout
            assert self.nursery.stdout.readline() == "joined\n", self.read_log()

    def command(self, line: str) -> None:
        """Send a line to the process that starts workers."""
        assert self.nursery.stdin
        self.nursery.stdin.write(line + "\n")
        self.nursery.stdin.flush()

    def lose_workers(self) -> None:
        """Kill the workers of one process, a tenth of all."""
        self.command("lose")

    def read_log(self) -> str:
        """Return the end of what the processes have logged."""
        return (self.folder / "log.txt").read_text()[-5000:]

    def run_driver(self, kind: str, disturb: bool = True) -> Iterator[PassCost]:
        """Run a driver; yield the costs of its passes as they end.

        If `disturb`, half of the workers join while layer 1 is grown, one process after the other,
        and one process of workers is lost in the middle of layer 2.
        """
        with open_proxy(self.address) as proxy:
            driver = self.start(
                *(str(HERE / "rig_driver.py"), kind, f"tcp://127.0.0.1:{proxy.port}"),
                *(str(self.folder / "run"), str(LAYERS), str(self.workers)),
            )
            yield from self._follow(driver, proxy, disturb)

    def _follow(
        self, driver: subprocess.Popen[str], proxy: CountingProxy, disturb: bool
    ) -> Iterator[PassCost]:
        """Yield the costs of the passes of a driver."""
        assert driver.stdout
        assert driver.stdin
        scheduler = psutil.Process(self.scheduler.pid)
        seconds, background = 0.0, list[threading.Thread]()
        cpu, forwarded, since = sum(scheduler.cpu_times()[:2]), proxy.bytes, time.time()
        for line in driver.stdout:
            record = json.loads(line)
            name = record.get("name", "")
            if disturb and record["event"] == "start":
                action = {
                    "grow 1": lambda: [self.add_workers(1) for _ in range(PROCESSES)],
                    "grow 2": lambda pause=seconds / 2: (time.sleep(pause), self.lose_workers()),
                }.get(name)
                if action:
                    background.append(threading.Thread(target=action))
                    background[-1].start()
            if record["event"] == "pass":
                now, total = sum(scheduler.cpu_times()[:2]), proxy.bytes
                seconds = record["ended"] - record["started"]
                yield PassCost(
                    name=name,
                    tasks=record["tasks"],
                    seconds=seconds,
                    driver_cpu_seconds=record["cpu"],
                    driver_bytes=total - forwarded,
                    driver_rss=record["rss"],
                    scheduler_cpu_seconds=now - cpu,
                    scheduler_rss=scheduler.memory_info().rss,
                    messages=record["messages"],
                    **self._read_delays(since),
                    **self._read_tree(name, record["started"]),
                )
                cpu, forwarded, since = now, total, time.time()
                for thread in background:
                    thread.join()
                background.clear()
            with contextlib.suppress(BrokenPipeError):
                driver.stdin.write("\n")
                driver.stdin.flush()
        assert driver.wait() == 0, self.read_log()

    def _read_delays(self, since: float) -> dict[str, float]:
        """Return the worst delay of the scheduler's event loop since a time."""
        lines = (tuple(map(float, line.split())) for line in self.delays.read_text().splitlines())
        found = [(late, cpu) for ended, late, cpu in lines if ended >= since] or [(0.0, 0.0)]
        late, cpu = (max(values) for values in zip(*found, strict=True))
        return {"loop_delay_seconds": late, "loop_delay_cpu_seconds": cpu}

    def _read_tree(self, name: str, started: float) -> dict[str, Any]:
        """Return what the last task of the pass of a layer has written."""
        file = self.folder / f"tree-{name.rpartition(' ')[2]}.json"
        if not name.startswith(("grow", "survey")) or not file.exists():
            return {}
        record = json.loads(file.read_text())
        return {
            "first_task_seconds": record["first_task"] - started,
            "moved_bytes": record["moved_bytes"],
            "depth": record["depth"],
        }


def split_cores() -> tuple[set[int], set[int]]:
    """Return the core of the scheduler and the cores of driver and workers, apart if possible."""
    cores = os.sched_getaffinity(0)
    first = {min(cores)}
    return first, cores - first or first


def split_evenly(total: int, parts: int) -> list[int]:
    """Return sizes of parts that differ by 1 at most."""
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


def wait_until(condition: Any) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def measure(workers: int, task_seconds: float = 0.0) -> dict[str, Any]:
    """Measure passes of the driver on so many workers, and of a bare client; print each as it ends.

    Folds of layers take `task_seconds` on average. If they take no time, all of them end at once,
    and the scheduler is as busy as it can be.
    """

    def show(costs: Iterator[PassCost]) -> list[dict[str, Any]]:
        shown = []
        for cost in costs:
            shown.append(asdict(cost))
            print(format_row(workers, cost), flush=True)
        return shown

    with tempfile.TemporaryDirectory() as folder, Rig(workers, Path(folder), task_seconds) as rig:
        rig.add_workers(min(PROCESSES, workers) // 2)
        driver = show(rig.run_driver("train"))
        bare = [] if task_seconds else show(rig.run_driver("bare", disturb=False))
    return {
        "workers": workers,
        "task_seconds": task_seconds,
        "load": os.getloadavg()[0],
        "driver": driver,
        "bare": bare,
    }


def format_row(workers: int, cost: PassCost) -> str:
    """Return the line of a pass in the table."""
    tasks, first = cost.tasks or 1, cost.first_task_seconds
    return " | ".join(
        (
            f"{workers:>5,}",
            f"{cost.name:<9}",
            f"{cost.tasks:>6,}",
            f"{cost.seconds:6.1f} s",
            f"{1e3 * cost.driver_cpu_seconds / tasks:6.2f} ms",
            f"{1e3 * cost.scheduler_cpu_seconds / tasks:6.2f} ms",
            f"{cost.loop_delay_seconds:5.2f} s",
            f"{cost.loop_delay_cpu_seconds:5.2f} s",
            f"{first:5.2f} s" if first is not None else "      –",
            f"{cost.driver_bytes / 1e6:7.3f} MB",
            f"{cost.driver_rss / 2**20:5.0f} MiB",
            f"{cost.scheduler_rss / 2**20:5.0f} MiB",
            f"{cost.depth} deep, {(cost.moved_bytes or 0) / 1e9:,.0f} GB" if cost.depth else "–",
        )
    )


def format_messages(result: dict[str, Any]) -> Iterator[str]:
    """Yield the driver's bytes by kind of message, a line each, if they were counted."""
    for cost in (*result["driver"], *result["bare"]):
        place = f"{result['workers']:>5,} | {cost['name']:<9}"
        for kind, (size, number) in cost["messages"].items():
            yield f"{place} | {size:>9,} B in {number:>5,} {kind}"


HEADER = (
    "workers | pass | tasks | time | driver CPU/task | scheduler CPU/task | loop delay | of it CPU "
    "| first task | driver bytes | driver memory | scheduler memory | tree"
)


def main(arguments: Sequence[str]) -> None:
    """Measure clusters of the given numbers of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workers", type=int, nargs="+", help="numbers of workers")
    parser.add_argument(
        "--task-seconds", type=float, default=0.0, help="that a fold of a layer takes on average"
    )
    parser.add_argument(
        "--messages", action="store_true", help="print the driver's bytes by kind of message"
    )
    parser.add_argument("-o", "--output", type=Path, help="file for the results, as JSON")
    options = parser.parse_args(arguments)
    if options.messages:
        os.environ["RIG_MESSAGES"] = "1"
    print(HEADER, flush=True)
    results = []
    for workers in options.workers:
        results.append(measure(workers, options.task_seconds))
        print(*format_messages(results[-1]), sep="\n", flush=True)
    is_paced = options.task_seconds > 0
    table = rig_report.format_paced_table if is_paced else rig_report.format_table
    print("", *table(results), sep="\n")
    print(*rig_report.find_missed_bars(results), sep="\n")
    if options.output:
        machine = (
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        )
        record = {"machine": machine, "sizes": results}
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
