"""The command `rescnet fuse`: networks averaged by weights fitted on held-out images."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

import click

from rescnet_dist.cli.clusters import cluster, show_status
from rescnet_dist.cli.options import (
    BACKEND_OPTION,
    HELP_SETTINGS,
    SPLIT_OPTION,
    cluster_options,
    pop_cluster_options,
)
from rescnet_dist.data import open_source, open_split
from rescnet_dist.errors import DataError, mask_secrets, pluralize
from rescnet_dist.network import FusedNetwork, Network, check_vacant, fuse, load_network
from rescnet_dist.spec import AugmentSpec
from rescnet_dist.store import Location


@click.command("fuse", **HELP_SETTINGS)
@click.argument("urls", metavar="RUN...", nargs=-1, required=True)
@click.option("--data", required=True, help="held-out images, which no network was trained on")
@click.option(
    "--output", "-o", required=True, help="URL to save the network at; one file if it ends in .zip"
)
@SPLIT_OPTION
@click.option("--flips", is_flag=True, help="average over each image and its mirror image")
@cluster_options
@BACKEND_OPTION
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def fuse_command(
    urls: tuple[str, ...],
    data: str,
    output: str,
    split: str | None,
    flips: bool,
    array_backend: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Average networks, by weights fitted on held-out images.

    Each RUN is a run or a saved network. All have the same classes and images of the same shape.
    The val split of the data is used, or all of it if it has no splits or only one. The result is
    one network, used like a saved one. With --flips, it averages over mirror images whenever it
    predicts.

    \b
    Example:
      rescnet fuse runs/a runs/b --data held-out.zarr -o fused.zip
      rescnet evaluate fused.zip cifar10.zarr
    """
    check_vacant(output)
    networks = [open_network(url) for url in urls]
    warn_if_trained_on(urls, data, split)
    chosen: Any = data
    if split:
        chosen = open_split(data, split, networks[0].photo_decoder())
    augment = AugmentSpec(copies=1, flip=True) if flips else None
    with cluster(pop_cluster_options(flags), embedded=False), show_status("fitting weights"):
        fused = fuse([network.on(array_backend) for network in networks], chosen, augment=augment)
        fused.save(output)
    report(fused, urls, output, as_json=as_json)


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
