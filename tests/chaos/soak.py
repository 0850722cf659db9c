"""A long run of a small network: the memory and the open files of all its processes stay flat.

    python tests/chaos/soak.py --layers 2000 --journal soak.jsonl

A scheduler, two workers and a driver run as processes. After each layer, resident memory, open
files and threads of each are sampled into the journal, with the run store next to it. If it is
stopped, the same command resumes the run; samples before that count for the result only if the
processes are the same. The slope is that of a linear regression, without the first layers.

Dask keeps logs of messages, events and transitions of limited length, which take some hundreds of
layers or an hour to fill up. They are made so short here that they are full after the first layers,
and what Python allocates once is allocated before them (`interned.py`): what grows then, grows for
ever.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # tests/ is on the path of pytest only
    sys.path.append(str(Path(__file__).parents[1]))

import interned
import numpy as np
import psutil
from contents import write_data
from journal import Journal
from ports import HOST
from processes import ProcessGroup

IMAGES = 40
WORKERS = 2
NETWORK = (
    *("--preset", "digits", "--filters", "2", "--first-filter-size", "3", "--block", "7"),
    *("--stride", "7", "--no-stop-at-zero-error", "--chunk-images", "10", "--accumulators", "2"),
    *("--solve-threads", "1", "--validation", "0", "--maps", "store"),
)
SHORT_LOGS = {  # of Dask
    "DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "20",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__LOG_LENGTH": "60",
    "DASK_DISTRIBUTED__DIAGNOSTICS__COMPUTATIONS__MAX_HISTORY": "10",
}
WARM_UP_LAYERS = 250  # that are left out of the regression
MAX_SLOPE_BYTES = 4096.0  # per layer: 8 MiB in 2,000 layers
MAX_MORE_FILES = 10  # between the first and the last quarter of the layers
SAMPLE_SECONDS = 0.2
ROLES = ("driver", "scheduler", "worker 0", "worker 1")


def sample(process: psutil.Process) -> dict[str, int]:
    """Return the memory, open files and threads of a process."""
    with process.oneshot():
        return {
            "pid": process.pid,
            "rss": process.memory_info().rss,
            "files": process.num_fds(),
            "threads": process.num_threads(),
        }


def count_layers(store: Path) -> int:
    """Return the number of committed layers of a run."""
    return max(0, len(list((store / "commits").glob("*.json"))) - 1)


def soak(journal: Journal, layers: int, deadline: float) -> int:
    """Train until the layers are done or time is over; return the exit code of the driver."""
    folder = journal.path.parent / f"{journal.path.stem}-store"
    folder.mkdir(exist_ok=True)
    data, store = folder / "data.zarr", folder / "run"
    if not data.exists():
        write_data(str(data), IMAGES)
    with ProcessGroup() as group:
        processes = start(group, folder, data, store, layers)
        driver, known = processes["driver"], count_layers(store)
        watched = {role: psutil.Process(process.pid) for role, process in processes.items()}
        while driver.poll() is None:
            time.sleep(SAMPLE_SECONDS)
            if time.monotonic() > deadline:
                driver.send_signal(signal.SIGTERM)
                return driver.wait(60)
            if (done := count_layers(store)) == known:
                continue
            known = done
            try:
                found = {role: sample(process) for role, process in watched.items()}
            except psutil.NoSuchProcess:
                continue
            journal.append({"layer": done, "time": time.time(), **found})
        return driver.returncode


def start(
    group: ProcessGroup, folder: Path, data: Path, store: Path, layers: int
) -> dict[str, subprocess.Popen[bytes]]:
    """Start a scheduler, workers and a driver."""
    file, dask = folder / "scheduler.json", [sys.executable, "-m", "dask"]
    file.unlink(missing_ok=True)
    address = ["--host", HOST, "--no-dashboard", "--dashboard-address", f"{HOST}:0"]
    address += ["--preload", interned.__file__]
    environment = os.environ | SHORT_LOGS

    def run(name: str, *command: str) -> subprocess.Popen[bytes]:
        return group.start(command, folder / f"{name}.log", environment)

    scheduler_options = ["--port", "0", "--scheduler-file", str(file)]
    found = {"scheduler": run("scheduler", *dask, "scheduler", *address, *scheduler_options)}
    while not file.exists():
        assert found["scheduler"].poll() is None, (folder / "scheduler.log").read_text()
        time.sleep(0.05)
    options = ["--scheduler-file", str(file), "--no-nanny", "--nthreads", "1"]
    options += ["--memory-limit", "1GiB", "--local-directory", str(folder)]
    for number in range(WORKERS):
        name = f"worker {number}"
        found[name] = run(name, *dask, "worker", *address, *options)
    command = ["train", str(data), "--store", str(store), "--or-resume", "--max-layers"]
    command += [str(layers), "--scheduler-file", str(file), "--wait", "120s", "-q", *NETWORK]
    found["driver"] = run("driver", sys.executable, interned.__file__, *command)
    return found


def measure(records: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the slopes of the processes of the last session, after its first layers."""
    pids = {role: records[-1][role]["pid"] for role in ROLES} if records else {}
    same = [r for r in records if all(r[role]["pid"] == pids[role] for role in ROLES)]
    kept = [r for r in same if r["layer"] >= same[0]["layer"] + WARM_UP_LAYERS]
    found: dict[str, dict[str, float]] = {}
    for role in ROLES if len(kept) > 1 else ():
        layer = np.array([record["layer"] for record in kept], float)
        memory = np.array([record[role]["rss"] for record in kept], float)
        files = np.array([record[role]["files"] for record in kept], float)
        quarter = max(1, len(kept) // 4)
        found[role] = {
            "layers": layer[-1] - layer[0],
            "first_rss": memory[0],
            "last_rss": memory[-1],
            "slope": float(np.polyfit(layer, memory, 1)[0]),
            "more_files": float(np.median(files[-quarter:]) - np.median(files[:quarter])),
            "threads": float(kept[-1][role]["threads"]),
        }
    return found


def summarize(found: dict[str, dict[str, float]]) -> str:
    """Return a table of the slopes."""
    lines = [
        "| process | layers | first MiB | last MiB | kB per layer | more open files |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {role} | {v['layers']:.0f} | {v['first_rss'] / 2**20:.1f} | "
        f"{v['last_rss'] / 2**20:.1f} | {v['slope'] / 1000:.2f} | {v['more_files']:.0f} |"
        for role, v in found.items()
    ]
    return "\n".join(lines)


def is_flat(found: dict[str, dict[str, float]]) -> bool:
    """Return whether no process grows."""
    return bool(found) and all(
        v["slope"] <= MAX_SLOPE_BYTES and v["more_files"] <= MAX_MORE_FILES for v in found.values()
    )


def main() -> None:
    """Train in a journal's folder, then print the slopes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=2000)
    parser.add_argument("--journal", type=Path, required=True, help="file of JSON lines")
    parser.add_argument("--minutes", type=float, default=720, help="to stop after")
    options = parser.parse_args()
    journal = Journal(options.journal)
    code = soak(journal, options.layers, time.monotonic() + 60 * options.minutes)
    found = measure(journal.records)
    print(f"exit code of the driver: {code}")
    print(summarize(found))
    sys.exit(0 if code in (0, 75) and is_flat(found) else 1)


if __name__ == "__main__":
    main()
