"""Make the results of the README, one command each: python make.py NAME writes NAME.json.

NAME.toml holds the settings, as `rescnet train --config` takes them. The depth is chosen on images
held out of the training data; the test images are read once, at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import dask.array as da
import numpy as np
from distributed import Client
from rich.console import Console

from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cli.files import check_folder, open_atomic
from rescnet_dist.cli.group import exit_codes
from rescnet_dist.cli.options import (
    HELP_SETTINGS,
    cluster_options,
    pop_cluster_options,
    resolve_specs,
    spec_options,
)
from rescnet_dist.cli.progress import TerminalProgress
from rescnet_dist.cli.signals import raise_on_signal
from rescnet_dist.cluster import available_cores
from rescnet_dist.data import (
    Images,
    TrainingSet,
    check_test_set,
    encode,
    has_test_split,
    select_split,
    training_set,
)
from rescnet_dist.errors import (
    DataError,
    RescnetError,
    SpecError,
    mask_secrets,
    pluralize,
    suggest_name,
)
from rescnet_dist.flags import flag
from rescnet_dist.kernels import Backend
from rescnet_dist.network import Network
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import RunStore, StoredLayers
from rescnet_dist.train import (
    Changes,
    begin_run,
    check_run,
    describe_run,
    find_matching_run,
    resume_run,
)

HERE = Path(__file__).parent
RESULT_VERSION = 2  # changes when an entry is renamed, removed, or means something else
MIRRORED = {"cifar10"}  # data sets whose images mean the same when they are mirrored
SHAPES = {"digits": (28, 28, 1), "mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
IMAGES = {"digits": 6000, "mnist": 60_000, "cifar10": 50_000}  # to train on
FLIPS = AugmentSpec(copies=1, flip=True)
PACKAGES = ("rescnet-dist", "numpy", "scipy", "numba", "dask", "distributed", "zarr")
HEAD = ("result", "what", "layers", "validation %", "test %", "paper %", "s per layer", "machine")


@dataclass(frozen=True, slots=True)
class Result:
    """What a result is of: a title, the name of its data, and the share that the paper reaches,
    and how, where it does the like."""

    title: str
    data: str
    paper: float | None = None
    paper_how: str = ""


RESULTS = {
    "digits": Result("embedded digits", "digits"),
    "mnist": Result("MNIST", "mnist", 0.9952, "231 layers"),
    "mnist-shifts": Result(
        "MNIST, shifted, turned copies", "mnist", 0.9952, "231 layers, no copies"
    ),
    "cifar10": Result("CIFAR-10", "cifar10", 0.8754, "937 layers, stride 1"),
    "cifar10-stride1": Result("CIFAR-10, stride 1", "cifar10", 0.8754, "937 layers"),
    "cifar10-flips": Result("CIFAR-10, flips", "cifar10", 0.8835, "flips"),
    "cifar10-rich": Result("CIFAR-10, flips, shifts", "cifar10", 0.8835, "flips alone"),
    "cifar10-classify": Result(
        "CIFAR-10, the paper's mode", "cifar10", 0.8754, "937 layers, stride 1"
    ),
}


@click.command(**HELP_SETTINGS)
@click.argument("name", required=False)
@click.option("--data", help="the data, if not at their public home: what `rescnet train` takes")
@click.option("--test", "test_data", help="the test data, if --data has no test split")
@click.option("--store", help="URL of the run store  [default: runs/NAME]")
@click.option("--into", default=str(HERE), help="folder of the JSON files  [default: make.py's]")
@click.option("--table", "as_table", is_flag=True, help="print the README's table of all results")
@cluster_options
@spec_options(NetworkSpec)
@spec_options(RunSpec)
@spec_options(AugmentSpec)
def main(
    name: str | None,
    data: str | None,
    test_data: str | None,
    store: str | None,
    into: str,
    as_table: bool,
    **flags: Any,
) -> None:
    """Train the network of the result NAME, evaluate it once on the test images, and write
    NAME.json.

    Given again, the command goes on with the run in its store. Options of the network and the run
    win over those of NAME.toml, and are told in NAME.json.

    \b
    Example:
      python make.py digits
      python make.py cifar10 --data cifar10.npz --max-layers 50
      python make.py --table
    """
    with exit_codes(), raise_on_signal():
        if as_table:
            if name:
                raise RescnetError(f"--table is of all results: leave {name!r} out")
            click.echo(table(stored_results(Path(into))))
            return
        if name not in RESULTS:
            problem = f"there is no result {name!r}" if name else "which result? Give its name"
            raise RescnetError(f"{problem}: {suggest_name(name or '', RESULTS)}")
        where, path = pop_cluster_options(flags), os.path.join(into, f"{name}.json")
        with suppress(OSError):
            os.makedirs(into, exist_ok=True)
        check_folder(path)  # tells what is wrong with it
        given = {key: value for key, value in flags.items() if value is not None}
        location = store or f"runs/{name}"
        record = make(name, data, test_data, location, where, given)
        with open_atomic(path) as file:
            file.write(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        click.echo(table([record]))
        click.echo(f"wrote {path}; the run is at {mask_secrets(location)}", err=True)


# a result ---------------------------------------------------------------------------------------


def make(
    name: str,
    data: str | None,
    test_data: str | None,
    store: str,
    where: dict[str, Any],
    given: dict[str, Any],
) -> dict[str, Any]:
    """Train, or go on, and evaluate; all that is told of a result, as plain values."""
    result = RESULTS[name]
    source = data or result.data
    spec, run_spec, augment = resolve_specs(None, str(HERE / f"{name}.toml"), source, given)
    if not run_spec.validation:
        raise SpecError(
            "validation=0.0 holds no images out, and the depth is chosen on those: give a share "
            "above 0, such as 0.1"
        )
    with naming_the_data(result.data):
        training = training_set(source, None, augment=augment)
        if not test_data and not has_test_split(source):  # else the network is judged by `train`
            raise DataError(f"{source} has no images to test: name those by --test")
        if training.image_shape != SHAPES[result.data]:
            raise DataError(
                f"{source} has images of {training.image_shape} (height, width, channels), and "
                f"those of {result.data} are {SHAPES[result.data]}: give those by --data"
            )
        check_test_set(test_data or source, training)  # their shape: they are read at the end
    with cluster(where, gpus=Backend.of(run_spec).on_gpu) as client:
        train(store, spec, run_spec, training, source, client)
        found, run = describe_run(store), RunStore.open(store)
        environment = run.attributes()["environment"]
        test = judge(run, test_data or source, averaged=result.data in MIRRORED)
    curve = [
        {key: layer[key] for key in ("layer", "train", "validation")} | {"test": share}
        for layer, share in zip(found["layers"], test["curve"], strict=False)
    ]  # a run that stops early has grown one layer more than it has judged
    depth, held_out = found["depth"], run.data_array("train")[...] == 0
    seconds = [layer["seconds"] for layer in found["layers"]]
    return {
        "version": RESULT_VERSION,
        "name": name,
        "title": result.title,
        "command": command(name, data, test_data, given),
        "spec": {kind: found[kind] for kind in ("network", "run", "augment")},
        "seed": found["run"]["seed"],
        "plan": found["plan"],
        "data": {
            "name": result.data,
            "image_shape": found["image_shape"],
            "classes": found["classes"],
            "train": digest(training.images[0].array, training.codes[0]),
            "held_out": int(np.count_nonzero(held_out)),
            "test": test["data"],
        },
        "depth": depth,
        "depth_chosen_by": "best validation accuracy, the first of equals",
        "stopped_by": found["reason"],
        "curve": curve,
        "validation": curve[depth - 1]["validation"],
        "test": curve[depth - 1]["test"],
        "test_averaged_over_flips": test["averaged"],
        "paper": {"test": result.paper, "how": result.paper_how} if result.paper else None,
        "seconds": {
            "layers": sum(seconds),
            "median_layer": statistics.median(seconds),
            "test": test["seconds"],
        },
        "environment": environment,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@contextmanager
def naming_the_data(name: str) -> Iterator[None]:
    """Say how to come by data that cannot be had."""
    try:
        yield
    except DataError as error:
        raise DataError(
            f"{error}\nThe result is of {name}. Where there is a network, `rescnet data import "
            f"{name} {name}.zarr` fetches it; give such a store, or a file .npz with x_train, "
            "y_train, x_test and y_test, by --data"
        ) from None


def train(
    store: str,
    spec: NetworkSpec,
    run_spec: RunSpec,
    training: TrainingSet,
    source: str,
    client: Client,
) -> None:
    """Train in a run store, or go on with the same run if it is there; what it was grown on is noted
    in it, as it may be judged elsewhere."""
    there = find_matching_run(store, spec, run_spec, training, source)
    check_run(store, spec, run_spec, training, free=False)
    before = len(RunStore.open(store).commits()) if there else 0
    with TerminalProgress(Console(stderr=True)) as progress, naming_how_to_go_on():
        if there:
            resume_run(store, client, [progress], changes=Changes.to(run_spec))
        else:
            begin_run(
                store,
                spec,
                run_spec,
                training,
                client,
                [progress],
                source=source,
                replace_incomplete=True,
            )
    run = RunStore.open(store)
    if len(run.commits()) > before or "environment" not in run.attributes():
        run.update_attributes(environment=environment_of(client))


@contextmanager
def naming_how_to_go_on() -> Iterator[None]:
    """Say so where training is interrupted."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise type(stop)("the same command goes on with it") from None


def judge(run: RunStore, source: str, *, averaged: bool) -> dict[str, Any]:
    """Read the test images, once: the share that is right after each layer that was judged in
    training, and, if `averaged`, with the chosen layers over each image and its mirror image."""
    began = time.perf_counter()
    backend = RunSpec.from_stored(run.attributes()["run"]).array_backend  # with the run's products
    network, result = Network.load(run.url).on(backend), run.result()
    part = select_split(source, None, "test")
    images = Images(np.asarray(part.images.array))
    codes = np.asarray(encode(part.labels, network.classes, unknown=-1))
    grown = StoredLayers(run.location, len(result["accuracies"] if result else ()))
    right = replace(network, layers=grown).staged_correct(images, codes)
    scores = network.scores(images, FLIPS) if averaged else None
    return {
        "data": digest(images.array, codes),
        "curve": (right / len(codes)).tolist(),
        "averaged": None if scores is None else float((scores.argmax(axis=1) == codes).mean()),
        "seconds": time.perf_counter() - began,
    }


def digest(images: Any, codes: Any) -> dict[str, Any]:
    """Number of images (N, H, W, d) and the SHA-256 of their pixels, then of their classes as
    numbers (N,) of 8 bytes: the same wherever the images are from, and in whatever chunks."""
    found = hashlib.sha256()
    for block in da.asarray(images).rechunk({1: -1, 2: -1, 3: -1}).blocks:
        found.update(np.ascontiguousarray(block.compute()).data)
    found.update(np.asarray(codes).astype("<i8").data)
    return {"images": len(codes), "sha256": found.hexdigest()}


def command(name: str, data: str | None, test_data: str | None, given: dict[str, Any]) -> str:
    """The command that makes a result; of files on this machine it has the names alone."""
    words = ["python", "notebooks/results/make.py", name]
    for option, url in (("--data", data), ("--test", test_data)):
        if url:
            words += [
                option,
                mask_secrets(url) if "://" in url else os.path.basename(url.rstrip("/")),
            ]
    return shlex.join(words + [word for key in given for word in flag(key, given[key])])


# where it was made ------------------------------------------------------------------------------


def environment_of(client: Client) -> dict[str, Any]:
    """Versions, which are those of the workers too, and what machines the workers are on."""
    machines = list(client.run(machine).values())
    return {
        "versions": {"python": platform.python_version()} | {n: version(n) for n in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "workers": len(machines),
        "threads": sum(client.nthreads().values()),
        "machines": [kind for n, kind in enumerate(machines) if kind not in machines[:n]],
    }


def machine() -> dict[str, Any]:
    """Processor, cores and, where CuPy finds any, GPUs of this machine, and the bytes that this
    process may take of one, by which the run was planned."""
    found: dict[str, Any] = {"processor": processor(), "cores": available_cores()}
    try:
        import cupy

        devices = range(cupy.cuda.runtime.getDeviceCount())
        names = [cupy.cuda.runtime.getDeviceProperties(device)["name"] for device in devices]
        memory = Backend("cupy").memory()
    except Exception:  # not installed, or without a driver, in as many ways as there are versions
        return found
    return found | {
        "gpus": [name.decode() for name in names],
        "gpu_memory": memory[2] if memory else None,
        "cupy": cupy.__version__,
    }


def processor() -> str:
    """The name of the processor, as far as the system tells it."""
    if shutil.which("lscpu"):
        told = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
        for line in told.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Model name" and value.strip() not in ("", "-"):
                return value.strip()
    return platform.processor() or platform.machine()


# the README's table -----------------------------------------------------------------------------


def stored_results(folder: Path) -> list[dict[str, Any]]:
    """All results in a folder, in the order of `RESULTS`."""
    if not folder.is_dir():
        raise RescnetError(f"there is no folder {folder}: name that of the results by --into")
    found = []
    for path in (folder / f"{name}.json" for name in RESULTS):
        if path.exists():
            try:
                found.append(json.loads(path.read_text()))
                table(found[-1:])
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                raise RescnetError(
                    f"{path} is not what this command writes ({type(error).__name__}: {error}): "
                    "remove it, or make it again"
                ) from None
    if not found:
        raise RescnetError(f"there is no result in {folder}: name the folder of some by --into")
    return found


def table(results: list[dict[str, Any]]) -> str:
    """Results as a Markdown table; averaging over flips is a row of its own."""
    lines = [HEAD, ("---",) * len(HEAD)]
    for result in results:
        paper, name, title = result["paper"], f"`{result['name']}`", result["title"]
        count = result["data"]["train"]["images"]
        if count != IMAGES[result["data"]["name"]]:  # which the paper's figure is not of
            paper, title = None, f"{title}, {count:,} images"
        told = f"{100 * paper['test']:.2f} ({paper['how']})" if paper else "–"
        layers = f"{result['depth']} of {len(result['curve'])}"
        seconds, where = f"{result['seconds']['median_layer']:.2g}", machine_text(result)
        validation = f"{100 * result['validation']:.2f}"
        test, averaged = (
            share_text(result[key], result["data"]["test"]["images"])
            for key in ("test", "test_averaged_over_flips")
        )
        lines.append((name, title, layers, validation, test, told, seconds, where))
        if averaged:
            lines.append((name, "… averaged over flips", layers, "", averaged, "", "", ""))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def share_text(share: float | None, count: int) -> str:
    """A share of so many images in per cent, with one standard deviation.

    >>> share_text(0.984, 1000)
    '98.40 ± 0.40'
    """
    if share is None:
        return ""
    return f"{100 * share:.2f} ± {100 * (share * (1 - share) / count) ** 0.5:.2f}"


def machine_text(result: dict[str, Any]) -> str:
    """What computed: the GPUs of a run on those, else the processors."""
    on_gpu = result["spec"]["run"].get("array_backend", "numpy") != "numpy"
    names = []
    for kind in result["environment"]["machines"]:
        cores = f"{kind['processor']}, {pluralize(kind['cores'], 'core')}"
        names.append(", ".join(kind["gpus"]) if on_gpu and kind.get("gpus") else cores)
    return "; ".join(names)


if __name__ == "__main__":
    main()
