"""What `rescnet fuse` does."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

import click
import dask.array as da
import numpy as np
from distributed import Client

from rescnet_dist.cli.batches import compute_batches, count_threads
from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cli.common import pop_cluster_options
from rescnet_dist.cli.status import show_progress, show_status
from rescnet_dist.data import Images, open_source, open_split
from rescnet_dist.errors import DataError, SpecError, mask_secrets, pluralize
from rescnet_dist.network import (
    FusedNetwork,
    Network,
    check_vacant,
    fuse_scores,
    load_network,
    select_for_fusion,
)
from rescnet_dist.runs import open_held_out
from rescnet_dist.spec import AugmentSpec
from rescnet_dist.spec.augment import MIRROR
from rescnet_dist.store import Location

Array = np.ndarray[Any, np.dtype[Any]]


def fuse(
    urls: tuple[str, ...],
    data: str | None,
    output: str,
    split: str | None,
    flips: bool,
    array_backend: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Average networks, by weights fitted on held-out images."""
    check_vacant(output)
    if split and data is None:
        raise SpecError("--split is a split of --data, which is not given. Add --data, or omit it.")
    networks = [open_network(url).on(array_backend) for url in urls]
    X, y = find_held_out(urls, networks[0], data, split)
    images, codes = select_for_fusion(networks, X, y)
    augment = MIRROR if flips else None
    with cluster(pop_cluster_options(flags), embedded=False) as client:
        scores = compute_scores(networks, images, augment, client)
    fused = fuse_scores(networks, scores, codes, augment)
    with show_status(f"writing {mask_secrets(output)}"):
        fused.save(output)
    report(fused, urls, output, as_json=as_json)


def find_held_out(
    urls: Sequence[str], network: Network, data: str | None, split: str | None
) -> tuple[Any, Any]:
    """Return held-out images and their labels, or a dataset and None."""
    if data is None:
        images, codes = open_held_out(urls)
        return images, network.classes[codes]
    warn_if_trained_on(urls, data, split)
    return open_split(data, split, network.photo_decoder()) if split else data, None


def compute_scores(
    networks: Sequence[Network],
    images: Images,
    augment: AugmentSpec | None,
    client: Client | None,
) -> list[Array]:
    """Return the scores (n, C) of each network, and show the progress."""
    count, threads = images.shape[0], count_threads(client)
    step = min(network.chunk_images(count, threads) for network in networks)
    lazy = Images(da.asarray(images.array).rechunk({0: step}))
    parts: list[list[Array]] = [[] for _ in networks]
    arrays: list[Any] = [network.scores(lazy, augment) for network in networks]
    with show_progress("scores of held-out images", "images") as progress:
        progress(0, count)
        for start, batch in compute_batches(arrays, client, threads):
            for part, rows in zip(parts, batch, strict=True):
                part.append(rows)
            progress(start + len(batch[0]), count)
    return [np.concatenate(part) for part in parts]


def open_network(url: str) -> Network:
    """Load a network; raise DataError if it is a fused one."""
    network = load_network(url)
    if isinstance(network, FusedNetwork):
        name = mask_secrets(url).rstrip("/")
        raise DataError(
            f"{name} is a fused network. Name the {len(network.networks)} networks that it is made "
            f"of instead: {name}/networks/0001 and so on."
        )
    return network


def warn_if_trained_on(urls: Sequence[str], data: str, split: str | None) -> None:
    """Warn if a run was trained on the images that the weights would be fitted on."""
    splits = open_source(data).splits
    if (split or ("val" if len(splits) > 1 else "train")) != "train":
        return
    for url in urls:
        source = Location.of(url).attributes().get("source")
        if source and Location.of(source) == Location.of(data):
            warnings.warn(
                f"{mask_secrets(url)} was trained on images of {mask_secrets(data)}, so that "
                "weights fitted on them say little about new images. Use held-out images.",
                stacklevel=2,
            )


def report(fused: FusedNetwork, urls: tuple[str, ...], output: str, *, as_json: bool) -> None:
    """Print weight and accuracy of each network, and the accuracy of all together."""
    held_out = fused.held_out
    assert held_out is not None
    names, weights = [mask_secrets(url) for url in urls], fused.weights.tolist()
    rows = list(zip(names, weights, held_out.network_accuracies, strict=True))
    if as_json:
        networks = [{"url": name, "weight": w, "accuracy": a} for name, w, a in rows]
        record = {
            "output": mask_secrets(output),
            "images": held_out.images,
            "networks": networks,
            "accuracy": held_out.accuracy,
            "log_loss": fused.calibration.log_loss,
            "temperature": fused.calibration.temperature,
        }
        click.echo(json.dumps(record))
        return
    width = max(map(len, [*names, "fused"]))
    click.echo(f"{pluralize(held_out.images, 'held-out image')}")
    for name, weight, accuracy in rows:
        click.echo(f"{name:<{width}}  weight {weight:.3f}  accuracy {100 * accuracy:.2f} %")
    click.echo(f"{'fused':<{width}}                accuracy {100 * held_out.accuracy:.2f} %")
    click.echo(f"wrote {mask_secrets(output)}", err=True)
