"""CPU seconds of the longest steps in which a scheduler adds and forgets the graph of a pass.

Run as `python tests/scale/steps.py 4000 --folds-per-part 4096 512`; the tasks do nothing. A step is
not interrupted: the event loop of the scheduler waits for its end.
"""

from __future__ import annotations

import argparse
import time
from operator import add
from typing import Any

from distributed import Client, LocalCluster, Scheduler

from rescnet_dist.reduce import fold, fold_graph
from rescnet_dist.train.executor import _submit

STEPS = ("_create_taskstate_from_graph", "client_releases_keys")  # methods of a scheduler
SETTLE_SECONDS = 1.0  # for the scheduler to forget the tasks


def measure_steps() -> dict[str, list[float]]:
    """Have schedulers of this process note the CPU seconds of each step; return the notes."""
    notes: dict[str, list[float]] = {name: [] for name in STEPS}

    def wrap(name: str, step: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return step(*args, **kwargs)
            finally:
                notes[name].append(time.thread_time() - started)

        return timed

    for name in STEPS:
        setattr(Scheduler, name, wrap(name, getattr(Scheduler, name)))
    return notes


def fold_number(number: int) -> int:
    """Return a number."""
    return number


def main() -> None:
    """Compute a pass with each number of folds per part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folds", type=int)
    parser.add_argument("--folds-per-part", type=int, nargs="+", default=[fold.MAX_FOLDS_PER_LAYER])
    options = parser.parse_args()
    notes = measure_steps()
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        for limit in options.folds_per_part:
            fold.MAX_FOLDS_PER_LAYER = limit
            parts = [(number,) for number in range(options.folds)]
            graph = fold_graph(
                fold_number, parts, add, lambda _, total: total, None, split_every=2, name="sum"
            )
            future = _submit(graph, client)
            assert future.result() == sum(range(options.folds))
            future.release()
            time.sleep(SETTLE_SECONDS)
            added, released = (sorted(notes[name]) for name in STEPS)
            print(
                f"at most {limit:,} folds per part: graphs are added in "
                f"{added[-1]:.3f} s at most; forgotten in {released[-1]:.3f} s",
                flush=True,
            )
            for found in notes.values():
                found.clear()


if __name__ == "__main__":
    main()
