"""Compares fsspec and obstore at an S3 server on this machine: CPU time, throughput, latency.

Run as `python tests/store/compare_clients.py`; prints tables. The clients take turns, and each
figure is the median of its repetitions. CPU time is that of this process, all threads, without the
server's. The server shares the cores, so throughput is not that of a network.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import zarr

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from s3_proxy import open_s3_proxy

from rescnet_dist.store import Claim, Location, RunStore, read_region, write_region
from tests.conftest import S3_SECRET, run_s3_server

CLIENTS = ("fsspec", "obstore")
CHUNKS = {128: 8, 32: 16, 1: 256}  # MB of a chunk, and the number of chunks
CONCURRENCY = (10, 32, 64)
SMALL_BYTES, SMALL_OBJECTS = 1000, 200
LAYER_ARRAYS = {  # of a layer of 50 filters with a head: shapes
    "input_low": (53,),
    "input_scale": (53,),
    "filters": (3, 3, 53, 50),
    "bias": (50,),
    "mean": (4900,),
    "weights": (4900, 10),
    "learning_rate": (),
}

Measured = tuple[float, float]  # seconds by the clock, and of CPU time


@contextmanager
def use_client(name: str) -> Iterator[None]:
    """Open object stores with a client."""
    with dask.config.set({"rescnet.object-store": name}):
        yield


def measure(action: Callable[[], Any]) -> Measured:
    """Return what an action takes."""
    started, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - started, time.process_time() - cpu


def compare(actions: Callable[[str], dict[str, Callable[[], Any]]], repeats: int) -> dict[str, Any]:
    """Return the medians of named actions with each client, which take turns."""
    found: dict[tuple[str, str], list[Measured]] = {}
    for repeat in range(repeats + 1):
        for client in CLIENTS if repeat % 2 else CLIENTS[::-1]:
            with use_client(client):
                for name, action in actions(client).items():
                    taken = measure(action)
                    if repeat:  # The first round opens connections.
                        found.setdefault((name, client), []).append(taken)
    return {
        key: tuple(statistics.median(part) for part in zip(*values, strict=True))
        for key, values in found.items()
    }


def print_table(title: str, found: dict[Any, Measured], unit: str, factor: float) -> None:
    """Print the medians of `compare`, with the ratio of obstore to fsspec; times `factor`."""
    clients = f"fsspec, {unit} | obstore, {unit} | ratio"
    print(f"\n| {title} | {clients} | CPU: {clients} |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in dict.fromkeys(name for name, _ in found):
        (one, one_cpu), (other, other_cpu) = (found[name, client] for client in CLIENTS)
        print(
            f"| {name} | {one * factor:.3g} | {other * factor:.3g} | {other / one:.2f} "
            f"| {one_cpu * factor:.3g} | {other_cpu * factor:.3g} | {other_cpu / one_cpu:.2f} |",
            flush=True,
        )


def compare_chunks(repeats: int) -> None:
    """Write and read arrays chunk by chunk, as tasks do; seconds and CPU seconds per GB."""
    rng = np.random.default_rng(0)
    for megabytes in (32, 128):
        count = CHUNKS[megabytes]
        values = rng.random((1, megabytes * 250_000), np.float32)

        def make_actions(client: str, n: int = count, rows: Any = values) -> dict[str, Any]:
            root = Location.of(f"s3://runs/chunks-{client}")
            root.create_array("a", (n, rows.shape[1]), "float32", 1, ("row", "x"), compress=False)
            array = root.open_array("a", write=True)
            return {
                f"write {rows.nbytes // 10**6} MB": lambda: [
                    write_region(array, i, rows) for i in range(n)
                ],
                f"read {rows.nbytes // 10**6} MB": lambda: [
                    read_region(array, i, i + 1) for i in range(n)
                ],
            }

        found = compare(make_actions, repeats)
        print_table("chunk by chunk", found, "s per GB", 1000 / (megabytes * count))


def compare_concurrency(repeats: int) -> None:
    """Write and read whole arrays with several values of Zarr's concurrency; seconds per GB."""
    rng = np.random.default_rng(0)
    for megabytes in (1, 32):
        count = CHUNKS[megabytes]
        values = rng.random((count, megabytes * 250_000), np.float32)

        def make_actions(client: str, rows: Any = values) -> dict[str, Any]:
            root = Location.of(f"s3://runs/concurrency-{client}")
            root.create_array("a", rows.shape, "float32", 1, ("row", "x"), compress=False)
            array = root.open_array("a", write=True)
            size = rows.nbytes // 10**6 // len(rows)

            def run(concurrency: int, action: Callable[[], Any]) -> None:
                with zarr.config.set({"async.concurrency": concurrency}):
                    action()

            def write() -> None:
                array[...] = rows

            actions: dict[str, Any] = {}
            for n in CONCURRENCY:
                actions[f"write, {size} MB, {n}"] = lambda n=n: run(n, write)
                actions[f"read, {size} MB, {n}"] = lambda n=n: run(n, lambda: array[...])
            return actions

        found = compare(make_actions, repeats)
        print_table(
            "whole array, chunk, concurrency", found, "s per GB", 1000 / (megabytes * count)
        )


def compare_small_objects(repeats: int) -> None:
    """Write and read records one after the other; milliseconds each."""
    record = ["x" * SMALL_BYTES]

    def make_actions(client: str) -> dict[str, Any]:
        root = Location.of(f"s3://runs/small-{client}")
        names = [f"{i:04d}.json" for i in range(SMALL_OBJECTS)]
        return {
            "write a record": lambda: [(root / name).write_json(record) for name in names],
            "read a record": lambda: [(root / name).read_json() for name in names],
            "list 200 names, 200 times": lambda: [root.names() for _ in names],
        }

    print_table("small objects", compare(make_actions, repeats), "ms", 1000 / SMALL_OBJECTS)


def commit_layer(run: RunStore, claim: Claim, layer: int) -> None:
    """Store what a layer has learned, commit it, and make room for the next one."""
    claim.check()
    arrays = {
        name: (tuple(f"{name}_{i}" for i in range(len(shape))), np.ones(shape, np.float32))
        for name, shape in LAYER_ARRAYS.items()
    }
    path = f"layers/{layer:04d}"
    run.location.write_small(path, arrays, new_groups=(path,))
    claim.check()
    run.commit(layer, {"checksums": {}})
    run.create_layer(layer + 1, (40, 8, 8, 5), (40, 10), 10, with_groups=False)
    run.remove_maps_except(layer + 1, among=[layer])


def compare_commits(endpoint: str, repeats: int) -> None:
    """Commit layers; milliseconds each, and their requests, which a proxy counts."""

    def make_actions(client: str) -> dict[str, Any]:
        location = Location.of(f"s3://runs/commits-{client}")
        location.remove()
        run = RunStore(location)
        run.initialize({})
        claim = Claim.take(location)
        run.create_layer(1, (40, 8, 8, 5), (40, 10), 10)
        layers = range(1, 21)
        return {"commit of a layer": lambda: [commit_layer(run, claim, n) for n in layers]}

    print_table("commit", compare(make_actions, repeats), "ms", 1000 / 20)
    with open_s3_proxy(endpoint) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        for client in CLIENTS:
            with use_client(client):
                action = make_actions(client)["commit of a layer"]
                proxy.requests.clear()
                action()
                counts = Counter({kind: n / 20 for kind, n in proxy.requests.items()})
                print(f"requests of a commit with {client}: {dict(counts)}")


def main() -> None:
    """Run the comparisons that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = ("chunks", "concurrency", "small", "commits")
    parser.add_argument("names", nargs="*", default=names, help=f"of {', '.join(names)}")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, run_s3_server(Path(folder)) as endpoint:
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": S3_SECRET,
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        if "small" in options.names:
            compare_small_objects(options.repeats)
        if "commits" in options.names:
            compare_commits(endpoint, options.repeats)
            os.environ["AWS_ENDPOINT_URL"] = endpoint
            fsspec.get_filesystem_class("s3").clear_instance_cache()
        if "chunks" in options.names:
            compare_chunks(options.repeats)
        if "concurrency" in options.names:
            compare_concurrency(options.repeats)


if __name__ == "__main__":
    main()
