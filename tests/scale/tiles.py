"""Tiles of the scatter matrix on two workers of one thread, compared with one factorization.

Run as `python tests/scale/tiles.py 24 32 40 48`, with numbers of filters; prints a table with the
seconds of a layer, the fastest of two runs, and what the plan of a calibrated run chooses.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from distributed import Client, LocalCluster

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.cluster import Workers
from rescnet_dist.events import PassDone
from rescnet_dist.planning import Problem, calibrate, estimate

IMAGES = 600
SIDES = (1024, 2048)  # of tiles, in features
REPEATS = 2


def main(filters: Sequence[int]) -> None:
    """Measure networks with these numbers of filters."""
    images, labels = (array[:IMAGES] for array in load_digits())
    images = images[:, ::2, ::2]
    problem = Problem(IMAGES, images.shape[1:], 10)
    print("| features | one worker |", *(f"tiles of {side:,} |" for side in SIDES), "plan |")
    print("|", " | ".join(["---"] * (3 + len(SIDES))), "|")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with tempfile.TemporaryDirectory() as folder, LocalCluster(**options) as cluster:
        client = Client(cluster)

        def time_layer(spec: NetworkSpec, side: int | None) -> float:
            seconds: list[float] = []

            def listen(event: object) -> None:
                if isinstance(event, PassDone) and event.phase == "grow":
                    seconds.append(event.seconds)

            run = RunSpec(solve_threads=1, tile_features=side, validation=0.0, maps="store")
            store = Path(folder, "run")
            classifier = ResCNetClassifier(spec, run=run, store=store, listeners=[listen])
            classifier.fit(images, labels, overwrite=True)
            return min(seconds)

        time_layer(NetworkSpec.preset("digits").replace(max_layers=1), 1024)  # loads all kernels
        for number in filters:
            spec = NetworkSpec.preset("digits").replace(filters=number, max_layers=1)
            times = {side: [time_layer(spec, side)] for side in (None, *SIDES)}
            for _ in range(REPEATS - 1):  # in turn, as other work on the machine comes and goes
                for side, found in times.items():
                    found.append(time_layer(spec, side))
            workers = Workers.from_client(client)
            run_spec = RunSpec(solve_threads=1, calibrate=True, validation=0.0, maps="store")
            speed = calibrate(client, problem, spec, workers, folder)
            plan = estimate(problem, spec, run_spec, workers, speed).plan
            chosen = f"tiles of {plan.tile_features:,}" if plan.tile_features else "one worker"
            cells = [f"{problem.features(spec):,}"]
            cells += [f"{min(found):.1f} s" for found in times.values()]
            print("|", " | ".join([*cells, chosen]), "|", flush=True)
        client.close()


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
