"""Accuracy from few images: a network in closed form and a small ResNet, on the same images.

Each row has nested, stratified subsets of the training images. Depth and epoch are chosen on images
held out of the subset; the test images are read once per row. Rows that are recorded are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import baseline
import click
import numpy as np
from baseline import DEFAULT, Baseline
from distributed import Client
from environment import get_commit, get_environment
from make import describe_data, name_of_data, train
from records import make_folder, write_record

from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cli.common import HELP_SETTINGS, cluster_options, pop_cluster_options
from rescnet_dist.cli.files import open_atomic
from rescnet_dist.cli.flag_table import declared_flags
from rescnet_dist.cli.group import exit_codes
from rescnet_dist.cli.options import CommaSeparated, spec_options
from rescnet_dist.cli.resolve import resolve_specs
from rescnet_dist.cli.signals import raise_on_signal
from rescnet_dist.dashboard.figures import new_figure
from rescnet_dist.data import Images, encode, has_test_split, select_split, training_set
from rescnet_dist.errors import DataError, RescnetError
from rescnet_dist.network import Network
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.runs import describe_run
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import Location, RunStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
RECORD_VERSION = 1
NAME = "few-images"
COUNTS = "500,1000,2000,5000,10000,20000,50000"
DEFAULT_HELD_OUT = 0.1  # fraction of the images of a row

Array = np.ndarray[Any, np.dtype[Any]]
Specs = tuple[NetworkSpec, RunSpec, AugmentSpec]
Row = dict[str, Any]


@click.command(**HELP_SETTINGS)
@click.argument("settings")
@click.option("--data", required=True, help="the data, with a test split, as for `rescnet train`")
@click.option(
    "--images", default=COUNTS, type=CommaSeparated(int), show_default=True, help="of each row"
)
@click.option("--cnn-width", default=DEFAULT.width, show_default=True, help="maps of the ResNet")
@click.option("--cnn-blocks", default=DEFAULT.blocks, show_default=True, help="blocks per width")
@click.option("--cnn-epochs", default=DEFAULT.epochs, show_default=True, help="least epochs")
@click.option("--cnn-steps", default=DEFAULT.steps, show_default=True, help="least steps")
@click.option("--store", default=f"runs/{NAME}", show_default=True, help="URL of the runs' folder")
@click.option("--into", default=str(HERE / "curves"), help="folder of record and figure")
@cluster_options
@spec_options(declared_flags(NetworkSpec))
@spec_options(declared_flags(RunSpec))
@spec_options(declared_flags(AugmentSpec))
def main(
    settings: str,
    data: str,
    images: tuple[int, ...],
    store: str,
    into: str,
    **flags: Any,
) -> None:
    """Train the network of the file SETTINGS and a small ResNet on more and more images.

    few-images.json gets a row for each number of images and seed, few-images.png draws them. The
    same command continues what was stopped.

    \b
    Example:
      python few_images.py cifar10.toml --data cifar10.npz --array-backend cupy --max-layers 60
    """
    with exit_codes(), raise_on_signal():
        baseline.require_torch()
        cluster_flags, record = pop_cluster_options(flags), Path(into) / f"{NAME}.json"
        make_folder(record)
        cnn = {key: flags.pop(f"cnn_{key}") for key in ("width", "blocks", "epochs", "steps")}
        given = {key: value for key, value in flags.items() if value is not None}
        specs = resolve_specs(None, settings, data, {"validation": DEFAULT_HELD_OUT} | given)
        pool = open_pool(data)
        for count in images:
            if not len(pool.classes) <= count <= len(pool.codes):
                raise DataError(
                    f"A row of {count} images cannot be drawn from {len(pool.codes)} images of "
                    f"{len(pool.classes)} classes. Leave it out of --images."
                )
        rows = Rows(Path(settings).name, specs, Baseline.like(specs[2], **cnn), pool)
        with cluster(cluster_flags, gpus=get_backend(specs[1]).on_gpu) as client:
            make_rows(rows, images, Location.of(store), record, client)
        click.echo(format_rows(read_rows(record)))


# data -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pool:
    """Images (N, H, W, d) and codes (N,) of the training split, from which rows are drawn."""

    source: str
    images: Any
    codes: Array
    classes: Array
    described: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """What all rows have in common: the settings of both networks, and the images."""

    settings: str
    specs: Specs
    cnn: Baseline
    pool: Pool

    def describe(self) -> dict[str, Any]:
        """Return the settings, without the seed, which each row has."""
        spec = {kind.table: kind.to_dict() for kind in self.specs}
        del spec["run"]["seed"]
        return {
            "settings": self.settings,
            "spec": spec,
            "cnn": self.cnn.to_dict(),
            "data": {"name": name_of_data(self.pool.source), **self.pool.described},
        }


def open_pool(source: str) -> Pool:
    """Open the training split of data that have a test split, which is not read here."""
    if not has_test_split(source):
        raise DataError(f"{source} has no test images. Give data with a test split.")
    training = training_set(source, None)
    images, codes = training.images[0].array, np.asarray(training.codes[0])
    return Pool(source, images, codes, training.classes, describe_data(images, codes))


def nested_order(codes: Array, seed: int) -> Array:
    """Return an order (N,) of images with codes (N,) whose first n are stratified, for every n.

    A larger n adds images and removes none.
    """
    shuffled = np.random.default_rng(seed).permutation(len(codes))
    position = np.empty(len(codes))
    for code in np.unique(codes):
        rows = shuffled[codes[shuffled] == code]
        position[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    return np.lexsort((codes, position))


# rows -------------------------------------------------------------------------------------------


def make_rows(
    rows: Rows, counts: Sequence[int], store: Location, record: Path, client: Client
) -> None:
    """Make the rows that the record does not have, and write record and figure after each."""
    seed, described = rows.specs[1].seed, rows.describe()
    done = read_rows(record, described)
    environment = {"commit": get_commit(), "environment": get_environment(client)}
    for count in counts:
        if any((row["images"], row["seed"]) == (count, seed) for row in done):
            continue
        done.append(make_row(rows, count, store, client) | environment)
        done.sort(key=lambda row: (row["images"], row["seed"]))
        content = {"version": RECORD_VERSION, **described, "rows": done}
        write_record(record, content)
        with open_atomic(str(record.with_suffix(".png")), binary=True) as file:
            plot_rows(done).savefig(file, format="png", dpi=150)
        click.echo(format_rows(done[-1:]).splitlines()[-1], err=True)


def make_row(rows: Rows, count: int, store: Location, client: Client) -> Row:
    """Train both networks on a subset, then read the test images once and return the row."""
    spec, run_spec, augment = rows.specs
    pool, seed = rows.pool, run_spec.seed
    chosen = np.sort(nested_order(pool.codes, seed)[:count])
    images, codes = np.asarray(pool.images[chosen]), pool.codes[chosen]
    training = training_set(images, pool.classes[codes], augment=augment)
    digest = hashlib.sha256(json.dumps(rows.describe(), sort_keys=True).encode()).hexdigest()[:12]
    run = RunStore(store / f"{count}-seed-{seed}-{digest}")
    source = f"{name_of_data(pool.source)}, {count} images, seed {seed}"
    train(run.url, spec, run_spec, training, source, client)
    trained = run.data_array("train")[...] != 0
    resnet = baseline.train(
        rows.cnn,
        (images[trained], codes[trained]),
        (images[~trained], codes[~trained]),
        classes=len(pool.classes),
        seed=seed,
    )
    part = select_split(pool.source, None, "test")
    test, test_codes = np.asarray(part.images.array), np.asarray(encode(part.labels, pool.classes))
    found, network = describe_run(run.url), Network.load(run.url).on(run_spec.array_backend)
    scores = network.scores(Images(test))
    evaluated = [layer["validation"] for layer in found["layers"]]
    return {
        "images": count,
        "seed": seed,
        "held_out": int(np.count_nonzero(~trained)),
        "test_images": len(test_codes),
        "network": {
            "layers": len(evaluated),
            "depth": found["depth"],
            "validation": evaluated[found["depth"] - 1],
            "test": float((scores.argmax(axis=1) == test_codes).mean()),
            "seconds": sum(layer["seconds"] for layer in found["layers"]),
        },
        "cnn": {
            "epochs": len(resnet.curve),
            "epoch": resnet.epoch,
            "validation": resnet.curve[resnet.epoch - 1]["validation"],
            "test": resnet.accuracy(test, test_codes),
            "seconds": resnet.curve[-1]["seconds"],
            "device": resnet.device,
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


# the record -------------------------------------------------------------------------------------


def read_rows(record: Path, described: dict[str, Any] | None = None) -> list[Row]:
    """Return the rows of a record; raise RescnetError if it has other settings than `described`."""
    if not record.exists():
        return []
    content = json.loads(record.read_text())
    if described and any(content.get(key) != value for key, value in described.items()):
        raise RescnetError(
            f"{record} has rows of other settings or data. Use another folder with --into, or "
            "remove it."
        )
    return list(content["rows"])


def format_rows(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table."""
    head = ("images", "seed", "depth", "network %", "network s", "epoch", "ResNet %", "ResNet s")
    lines = [head, ("---",) * len(head)]
    for row in rows:
        network, cnn = row["network"], row["cnn"]
        lines.append(
            (
                f"{row['images']:,}",
                str(row["seed"]),
                f"{network['depth']} of {network['layers']}",
                f"{100 * network['test']:.2f}",
                f"{network['seconds']:.1f}",
                f"{cnn['epoch']} of {cnn['epochs']}",
                f"{100 * cnn['test']:.2f}",
                f"{cnn['seconds']:.1f}",
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot_rows(rows: Sequence[Row]) -> Figure:
    """Plot test accuracies by the number of images: the mean over seeds, and each seed."""
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    counts = sorted({row["images"] for row in rows})
    for key, label, color in (
        ("network", "closed form", "tab:blue"),
        ("cnn", "small ResNet, backpropagation", "tab:orange"),
    ):
        accuracies = [100 * row[key]["test"] for row in rows]
        axes.plot([row["images"] for row in rows], accuracies, "o", ms=4, color=color, alpha=0.6)
        means = [
            np.mean([100 * row[key]["test"] for row in rows if row["images"] == count])
            for count in counts
        ]
        axes.plot(counts, means, color=color, label=label, lw=1.6)
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="training images, held-out ones included", ylabel="test accuracy (%)")
    axes.grid(alpha=0.25)
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
