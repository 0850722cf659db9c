"""Make the results of the book, one command each: python make.py NAME writes NAME.json.

NAME.toml holds the settings, as `rescnet train --config` takes them. The depth is chosen on images
held out of the training data; the test images are read once, at the end. With another seed than
that of the settings, --seed K, the record is NAME-seedK.json.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shlex
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import dask.array as da
import numpy as np
from distributed import Client
from environment import get_environment
from records import make_folder, write_record
from rich.console import Console

from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cli.common import HELP_SETTINGS, cluster_options, pop_cluster_options
from rescnet_dist.cli.files import check_folder, open_atomic
from rescnet_dist.cli.flag_table import declared_flags
from rescnet_dist.cli.group import exit_codes
from rescnet_dist.cli.options import spec_options
from rescnet_dist.cli.resolve import resolve_specs
from rescnet_dist.cli.signals import raise_on_signal
from rescnet_dist.dashboard.progress import TerminalProgress
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
from rescnet_dist.lifecycle import begin_or_resume, check_run
from rescnet_dist.network import Network
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.runs import describe_run
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import RunStore, StoredLayers

HERE = Path(__file__).parent
RESULT_VERSION = 3  # changes when an entry is renamed, removed, or means something else
MIRRORED = {"cifar10", "cifar100", "tiny-imagenet"}  # whose mirror images mean the same
SHAPES = {
    "digits": (28, 28, 1),
    "mnist": (28, 28, 1),
    "cifar10": (32, 32, 3),
    "cifar100": (32, 32, 3),
    "tiny-imagenet": (64, 64, 3),
}
TRAINING_IMAGES = {
    "digits": 6000,
    "mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "tiny-imagenet": 100_000,
}
FLIPS = AugmentSpec(copies=1, flip=True)
AVERAGED_COPIES = 7  # that scores are averaged over if training has other copies than flips
AVERAGES = {
    "test_averaged_over_flips": "flips",
    "test_averaged_over_copies": f"{AVERAGED_COPIES} copies",
}
HEAD = (
    "result",
    "what",
    "layers",
    "validation %",
    "test %",
    "published %",
    "s per layer",
    "machine",
)
RESCNET = "ResCNet"  # the method of the paper, with which results are compared by default


@dataclass(frozen=True, slots=True)
class Result:
    """A result: its title, the name of its data, and the comparable accuracy published, if any.

    `method` is the one that it was published for.
    """

    title: str
    data: str
    published: float | None = None
    how: str = ""
    method: str = RESCNET


RESULTS = {
    "digits": Result("embedded digits", "digits"),
    "mnist": Result("MNIST", "mnist", 0.9952, "231 layers"),
    "mnist-shifts": Result(
        "MNIST, shifted, rotated copies", "mnist", 0.9952, "231 layers, no copies"
    ),
    "mnist-kernel": Result("MNIST, correlation roots, kernel", "mnist", 0.9952, "231 layers"),
    "mnist-kernel-shifts": Result(
        "MNIST, shifted, rotated copies, kernel",
        "mnist",
        0.9952,
        "231 layers, no copies",
    ),
    "cifar10": Result("CIFAR-10", "cifar10", 0.8754, "937 layers, stride 1"),
    "cifar10-stride1": Result("CIFAR-10, stride 1", "cifar10", 0.8754, "937 layers"),
    "cifar10-flips": Result("CIFAR-10, flips", "cifar10", 0.8835, "flips"),
    "cifar10-max-mean": Result(
        "CIFAR-10, max and mean pooling", "cifar10", 0.8754, "937 layers, stride 1"
    ),
    "cifar10-max-mean-flips": Result(
        "CIFAR-10, flips, max and mean pooling", "cifar10", 0.8835, "flips"
    ),
    "cifar10-max-mean-rich": Result(
        "CIFAR-10, flips, shifts, max and mean pooling", "cifar10", 0.8835, "flips alone"
    ),
    "cifar10-leave-one-out": Result(
        "CIFAR-10, leave-one-out errors", "cifar10", 0.8754, "937 layers, stride 1"
    ),
    "cifar10-root": Result(
        "CIFAR-10, correlation roots, images left out",
        "cifar10",
        0.8754,
        "937 layers, stride 1",
    ),
    "cifar10-root-flips": Result("CIFAR-10, flips, correlation roots", "cifar10", 0.8835, "flips"),
    "cifar10-root-rich": Result(
        "CIFAR-10, flips, shifts, correlation roots", "cifar10", 0.8835, "flips alone"
    ),
    "cifar10-kernel": Result(
        "CIFAR-10, correlation roots, kernel", "cifar10", 0.8754, "937 layers, stride 1"
    ),
    "cifar10-kernel-flips": Result(
        "CIFAR-10, flips, correlation roots, kernel", "cifar10", 0.8835, "flips"
    ),
    "cifar10-kernel-flips-block8": Result(
        "CIFAR-10, flips, small blocks, kernel", "cifar10", 0.8835, "flips"
    ),
    "cifar10-kernel-flips-contrast1": Result(
        "CIFAR-10, flips, narrow contrast, kernel", "cifar10", 0.8835, "flips"
    ),
    "cifar100-kernel": Result(
        "CIFAR-100, correlation roots, kernel", "cifar100", 0.649, "no copies"
    ),
    "cifar100-kernel-flips": Result(
        "CIFAR-100, flips, correlation roots, kernel", "cifar100", 0.678, "flips"
    ),
    "tiny-imagenet-kernel": Result(
        "TinyImageNet, correlation roots, kernel", "tiny-imagenet", 0.4437, "no copies"
    ),
    "tiny-imagenet-root-flips": Result(
        "TinyImageNet, flips, correlation roots", "tiny-imagenet", 0.4591, "flips"
    ),
    "cifar10-rich": Result("CIFAR-10, flips, shifts", "cifar10", 0.8835, "flips alone"),
    "cifar10-classify": Result(
        "CIFAR-10, the paper's head", "cifar10", 0.8754, "937 layers, stride 1"
    ),
    "cifar10-classify-left-out": Result(
        "CIFAR-10, the paper's head, leave-one-out errors",
        "cifar10",
        0.8754,
        "937 layers, stride 1",
    ),
    # The presets of the PCANet family; figures as the paper compares itself with them.
    "cifar10-pcanet": Result("CIFAR-10, PCANet", "cifar10", 0.7714, "SVM", "PCANet-2"),
    "cifar10-pcanet+": Result("CIFAR-10, PCANet+", "cifar10"),
    "cifar10-ldanet": Result("CIFAR-10, LDANet", "cifar10", 0.7833, "SVM", "LDANet"),
    "cifar10-dctnet": Result("CIFAR-10, DCTNet", "cifar10"),
    "cifar10-randnet": Result("CIFAR-10, RandNet", "cifar10"),
    "cifar10-ccanet": Result("CIFAR-10, CCANet", "cifar10"),
    "cifar10-multilayer-pcanet": Result(
        "CIFAR-10, Multi-layer PCANet", "cifar10", 0.8172, "", "Multi-layer PCANet"
    ),
    "mnist-pcanet": Result("MNIST, PCANet", "mnist", 0.9934, "SVM", "PCANet-2"),
    "mnist-pcanet+": Result("MNIST, PCANet+", "mnist"),
    "mnist-ldanet": Result("MNIST, LDANet", "mnist", 0.9938, "SVM", "LDANet"),
    "mnist-dctnet": Result("MNIST, DCTNet", "mnist"),
    "mnist-randnet": Result("MNIST, RandNet", "mnist"),
    "mnist-ccanet": Result("MNIST, CCANet", "mnist"),
    "mnist-multilayer-pcanet": Result(
        "MNIST, Multi-layer PCANet", "mnist", 0.994, "", "Multi-layer PCANet"
    ),
}


@click.command(**HELP_SETTINGS)
@click.argument("name", required=False)
@click.option("--data", help="the data, as for `rescnet train`  [default: fetched by name]")
@click.option("--test", "test_data", help="the test data, if --data has no test split")
@click.option("--store", help="URL of the run store  [default: runs/NAME]")
@click.option("--into", default=str(HERE), help="folder of the JSON files  [default: make.py's]")
@click.option("--scores", "scores_path", help="write the test images' scores to this .npz file")
@click.option("--table", "as_table", is_flag=True, help="print the table of all results")
@cluster_options
@spec_options(declared_flags(NetworkSpec))
@spec_options(declared_flags(RunSpec))
@spec_options(declared_flags(AugmentSpec))
def main(
    name: str | None,
    data: str | None,
    test_data: str | None,
    store: str | None,
    into: str,
    scores_path: str | None,
    as_table: bool,
    **flags: Any,
) -> None:
    """Train the network of the result NAME, evaluate it once on the test images, and write
    NAME.json.

    The same command resumes the run in its store. Options of the network and the run override
    NAME.toml and are recorded in NAME.json.

    \b
    Example:
      python make.py digits
      python make.py cifar10 --data cifar10.npz --max-layers 50
      python make.py --table
    """
    with exit_codes(), raise_on_signal():
        if as_table:
            if name:
                raise RescnetError(
                    f"--table prints all results, but {name!r} is given. Omit the name."
                )
            click.echo(format_table(read_results(Path(into))))
            return
        if name not in RESULTS:
            problem = f"There is no result {name!r}." if name else "No result is named."
            raise RescnetError(f"{problem} {suggest_name(name or '', RESULTS)}")
        cluster_flags = pop_cluster_options(flags)
        given = {key: value for key, value in flags.items() if value is not None}
        record_name = name_record(name, given.get("seed"))
        path = os.path.join(into, f"{record_name}.json")
        make_folder(path)
        if scores_path:
            check_folder(scores_path)
        location = store or f"runs/{record_name}"
        record, scores = make(name, data, test_data, location, cluster_flags, given)
        if scores_path:
            with open_atomic(scores_path, binary=True) as file:
                np.savez(file, name=record["name"], seed=record["seed"], **scores)
        write_record(path, record)
        click.echo(format_table([record]))
        click.echo(f"wrote {path}; the run is at {mask_secrets(location)}", err=True)


def name_record(name: str, seed: int | None) -> str:
    """Return the name of a result's record, without suffix, if its run has this seed."""
    default = RunSpec.from_toml(HERE / f"{name}.toml").seed
    return name if seed in (None, default) else f"{name}-seed{seed}"


# making a result ------------------------------------------------------------------------------


def make(
    name: str,
    data: str | None,
    test_data: str | None,
    store: str,
    cluster_flags: dict[str, Any],
    given: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train or resume, evaluate once on the test images, and return the record of the result.

    Also the arrays of `--scores`: scores (n, C) of the test images at the chosen depth, the same
    averaged over copies, by name of the average, and codes (n,).
    """
    result = RESULTS[name]
    source = data or result.data
    spec, run_spec, augment = resolve_specs(None, str(HERE / f"{name}.toml"), source, given)
    if run_spec.validation == 0:
        raise SpecError(
            "validation=0.0 holds no images out, but the depth is chosen on held-out images. Give "
            "a fraction above 0, such as 0.1."
        )
    with explain_missing_data(result.data, data):
        training = training_set(source, None, augment=augment)
        if not test_data and not has_test_split(source):  # else `train` would be evaluated
            raise DataError(f"{source} has no test images. Name them with --test.")
        if training.image_shape != SHAPES[result.data]:
            raise DataError(
                f"{source} has images of {training.image_shape} (height, width, channels), but "
                f"those of {result.data} are {SHAPES[result.data]}. Name its data with --data."
            )
        check_test_set(test_data or source, training)  # their shape only
    with cluster(cluster_flags, gpus=get_backend(run_spec).on_gpu) as client:
        train(store, spec, run_spec, training, source, client)
        found, run = describe_run(store), RunStore.open(store)
        environment = run.attributes()["environment"]
        averages = {"flips": FLIPS} if result.data in MIRRORED else {}
        if {*augment.changes} - {"flip"}:
            averages["copies"] = replace(augment, copies=AVERAGED_COPIES)
        test = evaluate(run, test_data or source, averages)
    curve = [
        {key: layer[key] for key in ("layer", "train", "validation", "seconds")}
        | {"test": test["curve"][layer["layer"]]}
        for layer in found["layers"]
        if layer["layer"] in test["curve"]
    ]  # without layers that have no head, and the last of a run that stops early
    depth, held_out = found["depth"], run.data_array("train")[...] == 0
    chosen = next(layer for layer in curve if layer["layer"] == depth)
    seconds = [layer["seconds"] for layer in found["layers"]]
    record = {
        "version": RESULT_VERSION,
        "name": name,
        "title": result.title,
        "command": format_command(name, data, test_data, given),
        "spec": {kind: found[kind] for kind in ("network", "run", "augment")},
        "seed": found["run"]["seed"],
        "plan": found["plan"],
        "data": {
            "name": result.data,
            "image_shape": found["image_shape"],
            "classes": found["classes"],
            "train": describe_data(training.images[0].array, training.codes[0]),
            "held_out": int(np.count_nonzero(held_out)),
            "test": test["data"],
        },
        "depth": depth,
        "depth_chosen_by": "best validation accuracy, the first of equals",
        "stopped_by": found["reason"],
        "curve": curve,
        "validation": chosen["validation"],
        "test": chosen["test"],
        "test_averaged_over_flips": test["averaged"].get("flips"),
        "test_averaged_over_copies": test["averaged"].get("copies"),
        "published": describe_published(result),
        "seconds": {
            "layers": sum(seconds),
            "median_layer": statistics.median(seconds),
            "test": test["seconds"],
        },
        "environment": environment,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return record, test["scores"]


def describe_published(result: Result) -> dict[str, Any] | None:
    """Return what is published to compare a result with; None if nothing is."""
    if result.published is None:
        return None
    return {"method": result.method, "test": result.published, "how": result.how}


@contextmanager
def explain_missing_data(name: str, given: str | None) -> Iterator[None]:
    """Add to a DataError how the data of a result can be obtained; `given` is that of --data."""
    try:
        yield
    except DataError as error:
        if name == "digits":
            remedy = f"digits, which are embedded{f'. Leave out --data {given}' if given else ''}."
        else:
            remedy = (
                f"{name}. With a network connection, `rescnet data import {name} {name}.zarr` "
                "fetches it. Give such a store, or an .npz file with x_train, y_train, x_test and "
                f"y_test, with --data{f' instead of {given}' if given else ''}."
            )
        raise DataError(
            f"{error}\nThe result needs {remedy}", missing_path=error.missing_path
        ) from None


def train(
    store: str,
    spec: NetworkSpec,
    run_spec: RunSpec,
    training: TrainingSet,
    source: str,
    client: Client,
) -> None:
    """Train in a run store, or resume the same run in it.

    The environment is recorded in the store: the run may be evaluated on another machine.
    """
    checked = check_run(store, spec, run_spec, training, source=source, or_resume=True)
    before = len(checked.store.commits()) if checked.stored else 0
    with TerminalProgress(Console(stderr=True)) as progress, explain_resuming():
        run = begin_or_resume(checked, client, [progress])
    if len(run.commits()) > before or "environment" not in run.attributes():
        run.update_attributes(environment=get_environment(client))


@contextmanager
def explain_resuming() -> Iterator[None]:
    """Say that an interrupted run can be resumed."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise type(stop)("the same command resumes the run") from None


def evaluate(run: RunStore, source: str, averages: dict[str, AugmentSpec]) -> dict[str, Any]:
    """Read the test images once and return the accuracy after each layer evaluated in training.

    Also that at the chosen depth with scores averaged over each image and its copies, by name of
    these averages, and the scores at this depth. Accuracies are by number of the layer.
    """
    started = time.perf_counter()
    backend = RunSpec.from_stored(run.attributes()["run"]).array_backend
    network, result = Network.load(run.url).on(backend), run.result()
    part = select_split(source, None, "test")
    images = np.asarray(part.images.array)
    codes = np.asarray(encode(part.labels, network.classes))
    layers = [accuracy["layer"] for accuracy in (result["accuracies"] if result else ())]
    views = [images, images[:, :, ::-1]] if averages.get("flips") == FLIPS else [images]
    # Together, as heads that compare images run all training images forward at each call
    together = Images(np.concatenate(views))
    if network.spec.heads == "last":
        staged = network.scores(together)
    else:
        grown = StoredLayers(run.location, len(layers), network.spec.head.arrays)
        staged = replace(network, layers=grown).staged_scores(together)
    staged = np.asarray(staged).reshape(len(views), len(codes), len(layers), -1)
    chosen = layers.index(network.depth)
    scores = {"plain": staged[0, :, chosen]}
    for name, augment in averages.items():
        if augment == FLIPS:
            scores[name] = staged[:, :, chosen].mean(axis=0)
        else:
            scores[name] = np.asarray(network.scores(Images(images), augment))
    shares = (staged[0].argmax(axis=2) == codes[:, None]).mean(axis=0).tolist()
    return {
        "data": describe_data(images, codes),
        "curve": dict(zip(layers, shares, strict=True)),
        "averaged": {name: find_accuracy(scores[name], codes) for name in averages},
        "scores": {**scores, "codes": codes},
        "seconds": time.perf_counter() - started,
    }


def find_accuracy(scores: Any, codes: Any) -> float:
    """Return the share of images whose largest score (n, C) is that of their code (n,)."""
    return float((scores.argmax(axis=1) == codes).mean())


def describe_data(images: Any, codes: Any) -> dict[str, Any]:
    """Return the number of images (N, H, W, d) and the SHA-256 of pixels and codes (N,) as int64.

    It does not depend on the source of the images, nor on their chunks.
    """
    digest = hashlib.sha256()
    for block in da.asarray(images).rechunk({1: -1, 2: -1, 3: -1}).blocks:
        here = block.compute(scheduler="synchronous")  # a cluster would get all images
        digest.update(np.ascontiguousarray(here).data)
    digest.update(np.asarray(codes).astype("<i8").data)
    return {"images": len(codes), "sha256": digest.hexdigest()}


def format_command(
    name: str, data: str | None, test_data: str | None, given: dict[str, Any]
) -> str:
    """Return the command that makes a result, with the names of local files only."""
    words = ["python", "notebooks/results/make.py", name]
    for option, url in (("--data", data), ("--test", test_data)):
        if url:
            words += [option, name_of_data(url)]
    return shlex.join(words + [word for key in given for word in flag(key, given[key])])


def name_of_data(url: str) -> str:
    """Return the URL of data without secrets, or the name of a local file without its folder."""
    return mask_secrets(url) if "://" in url else os.path.basename(url.rstrip("/"))


# the table of results -----------------------------------------------------------------------------


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Read all results in a folder, in the order of `RESULTS`, those of one result by seed."""
    if not folder.is_dir():
        raise RescnetError(f"There is no folder {folder}. Name the folder of results with --into.")
    found = []
    for name in RESULTS:
        paths = [folder / f"{name}.json", *folder.glob(f"{name}-seed*.json")]
        records = [read_result(path) for path in paths if path.exists()]
        found += sorted(records, key=lambda record: record["seed"])
    if not found:
        raise RescnetError(f"There is no result in {folder}. Name another folder with --into.")
    return found


def read_result(path: Path) -> dict[str, Any]:
    """Read the record of a result; `paper` of versions 1 and 2 is what ResCNet has published."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        if "published" not in record:
            paper = record.pop("paper")
            record["published"] = {"method": RESCNET, **paper} if paper else None
        format_table([record])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RescnetError(
            f"{path} is not a result of this command ({type(error).__name__}: {error}). "
            "Remove it, or make it again."
        ) from None
    return record


def format_table(results: list[dict[str, Any]]) -> str:
    """Return results as a Markdown table, with a row of its own for averaging over flips.

    Results of several seeds with the same settings are followed by their mean and standard
    deviation.
    """
    lines = [HEAD, ("---",) * len(HEAD)]
    for _, group in itertools.groupby(results, key=lambda result: result["name"]):
        records = list(group)
        lines += format_runs(records)
        if len(records) > 1 and have_same_settings(records):
            lines.append(format_mean(records))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def have_same_settings(results: list[dict[str, Any]]) -> bool:
    """Return whether results have the same network and copies.

    Older records lack options that were added later, which have their default.
    """
    defaults = NetworkSpec().to_dict() | AugmentSpec().to_dict()
    settings = [
        defaults | result["spec"]["network"] | result["spec"]["augment"] for result in results
    ]
    return all(own == settings[0] for own in settings)


def format_mean(results: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the row of the mean and the standard deviation over the seeds of a result."""
    values = {
        key: [100 * result[key] for result in results if result[key] is not None]
        for key in ("validation", "test", "test_averaged_over_flips")
    }
    validation, test, averaged = (
        f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f}" if found else ""
        for found in values.values()
    )
    what = f"… mean of {len(results)} seeds" + (f"; over flips {averaged}" if averaged else "")
    return (f"`{results[0]['name']}`", what, "", validation, test, "", "", "")


def format_runs(results: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the rows of runs."""
    lines = list[tuple[str, ...]]()
    for result in results:
        published, name, title = result["published"], f"`{result['name']}`", result["title"]
        if len(results) > 1 or name_record(result["name"], result["seed"]) != result["name"]:
            title = f"{title}, seed {result['seed']}"
        count = result["data"]["train"]["images"]
        if count != TRAINING_IMAGES[result["data"]["name"]]:  # published figures are for all images
            published, title = None, f"{title}, {count:,} images"
        layers = f"{result['depth']} of {result['curve'][-1]['layer']}"
        median, machine = result["seconds"]["median_layer"], format_machine(result)
        seconds = f"{median:.2g}" if median < 100 else f"{median:.0f}"
        validation = f"{100 * result['validation']:.2f}"
        test, *averages = (
            format_accuracy(result.get(key), result["data"]["test"]["images"])
            for key in ("test", *AVERAGES)
        )
        cell = format_published(published)
        lines.append((name, title, layers, validation, test, cell, seconds, machine))
        for how, averaged in zip(AVERAGES.values(), averages, strict=True):
            if averaged:
                lines.append((name, f"… averaged over {how}", layers, "", averaged, "", "", ""))
    return lines


def format_accuracy(share: float | None, count: int) -> str:
    """Format the accuracy on `count` images in percent, with one standard deviation.

    >>> format_accuracy(0.984, 1000)
    '98.40 ± 0.40'
    """
    if share is None:
        return ""
    return f"{100 * share:.2f} ± {100 * (share * (1 - share) / count) ** 0.5:.2f}"


def format_published(published: dict[str, Any] | None) -> str:
    """Format a published accuracy in percent, with its method and how it was reached.

    >>> format_published({"method": "PCANet-2", "test": 0.7714, "how": "SVM"})
    '77.14 (PCANet-2, SVM)'
    """
    if not published:
        return "–"
    words = [word for word in (published["method"], published["how"]) if word]
    return f"{100 * published['test']:.2f} ({', '.join(words)})"


def format_machine(result: dict[str, Any]) -> str:
    """Return the GPUs of a run that used them, else the processors."""
    on_gpu = result["spec"]["run"].get("array_backend", "numpy") != "numpy"
    names = []
    for kind in result["environment"]["machines"]:
        cores = f"{kind['processor']}, {pluralize(kind['cores'], 'core')}"
        names.append(", ".join(kind["gpus"]) if on_gpu and kind.get("gpus") else cores)
    return "; ".join(names)


if __name__ == "__main__":
    main()
