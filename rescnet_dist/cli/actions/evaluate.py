"""What `rescnet evaluate` does."""

from __future__ import annotations

import csv
import json
import math
from typing import Any

import click

from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cli.common import pop_cluster_options
from rescnet_dist.cli.files import check_folder, open_atomic
from rescnet_dist.cli.resolve import resolve_averaging
from rescnet_dist.cli.status import show_status
from rescnet_dist.data import (
    Channels,
    DecodeOptions,
    encode,
    find_splits,
    open_for_network,
    open_split,
    select_split,
)
from rescnet_dist.errors import DataError, RescnetError, StoreReadError, pluralize
from rescnet_dist.network import Metrics, load_network, require_layers
from rescnet_dist.spec import AugmentSpec
from rescnet_dist.spec.augment import MIRROR
from rescnet_dist.store import FUSED_FORMAT, NETWORK_FORMAT, Location, RunStore


def evaluate(
    run_url: str,
    data: str | None,
    split: str | None,
    staged: bool,
    confusion: str | None,
    resize: tuple[int, int] | None,
    channels: Channels | None,
    flips: bool,
    copies: int | None,
    array_backend: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Evaluate the network at RUN, a run or a saved network, on DATA."""
    if confusion and staged:
        raise RescnetError("--confusion and --staged exclude each other. Run the command twice.")
    if confusion == "-" and as_json:
        raise RescnetError("--json has the confusion matrix, too. Leave out --confusion -.")
    if confusion:
        check_folder(confusion)
    network = load_network(run_url).on(array_backend)
    data = data or find_test_data(run_url)
    chosen: Any = data
    decoder = network.photo_decoder(resize, channels)
    if resize or channels:
        chosen = open_for_network(data, decoder, DecodeOptions(resize, channels))
    chosen = open_split(chosen, split, decoder) if split else chosen
    augment = resolve_averaging(flips, copies)
    outcome: dict[str, Any] = {"depth": network.depth, "flips": flips, "copies": copies}
    metrics = None
    with cluster(pop_cluster_options(flags), embedded=False), show_status("evaluating"):
        part = select_split(chosen, None, "test", decoder=network.photo_decoder())
        codes = encode(part.labels, network.classes)
        averaging = network.resolve_copies(augment)
        if staged:
            layered = require_layers(network)
            accuracies = layered.staged_accuracy(part.images, codes, averaging).tolist()
            outcome["staged"] = [None if math.isnan(value) else value for value in accuracies]
            outcome["accuracy"] = outcome["staged"][-1]
        else:
            metrics = network.evaluate(part.images, codes, averaging)
            outcome |= metrics.to_dict()
    if confusion and metrics:
        write_confusion(confusion, metrics)
    if as_json:
        click.echo(json.dumps(outcome))
        return
    averaged = describe_averaging(averaging or network.averaging)
    if metrics:
        click.echo(f"{pluralize(network.depth, 'layer')}{averaged}, {metrics!r}")
        return
    for layer, accuracy in enumerate(outcome["staged"], start=1):
        text = "no head" if accuracy is None else f"{100 * accuracy:.2f} %"
        click.echo(f"after layer {layer}: {text}")
    click.echo(
        f"accuracy {100 * outcome['accuracy']:.2f} % with {pluralize(network.depth, 'layer')}"
        f"{averaged}"
    )


def describe_averaging(augment: AugmentSpec) -> str:
    """Return what scores are averaged over, with a comma before it; empty for images alone.

    >>> describe_averaging(AugmentSpec(copies=3, shift=2))
    ', averaged over each image and its copies (3)'
    """
    if not augment.copies:
        return ""
    if augment == MIRROR:
        return ", averaged over each image and its mirror image"
    return f", averaged over each image and its copies ({augment.copies})"


def write_confusion(path: str, metrics: Metrics) -> None:
    """Write the confusion matrix as CSV: a row per true class, a column per predicted class."""
    with open_atomic(path) as file:
        writer = csv.writer(file)
        writer.writerow(["true", *metrics.classes.tolist()])
        rows = zip(metrics.classes.tolist(), metrics.confusion.tolist(), strict=True)
        writer.writerows([label, *counts] for label, counts in rows)


def find_test_data(run_url: str) -> str:
    """Return the data that a run was trained on.

    Raise RescnetError if they have no test split, and DataError if they cannot be opened.
    """
    if Location.of(run_url).attributes().get("format") in (NETWORK_FORMAT, FUSED_FORMAT):
        raise RescnetError(
            f"{run_url} is a saved network, which does not know the data that it was trained on. "
            "Name the DATA to evaluate on."
        )
    source: str | None = RunStore.open(run_url).attributes()["source"]
    if source is None:
        raise RescnetError(
            f"The run at {run_url} was trained on arrays, which have no test split. Name the DATA "
            "to evaluate on."
        )
    try:
        splits = find_splits(source)
    except (DataError, StoreReadError) as error:
        raise DataError(
            f"The run at {run_url} was trained on {source}, which cannot be opened. {error} "
            "Restore the data, or name the DATA to evaluate on: `rescnet evaluate "
            f"{run_url} DATA`.",
            missing_path=error.missing_path,
        ) from None
    if "test" not in splits:
        raise RescnetError(
            f"The run at {run_url} was trained on {source}, which has no test split. Name the DATA "
            "to evaluate on."
        )
    return source
