"""The command `rescnet fuse`: networks averaged by weights fitted on held-out images."""

from __future__ import annotations

import json
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
from rescnet_dist.data import open_split
from rescnet_dist.errors import mask_secrets, pluralize
from rescnet_dist.network import FusedNetwork, Network, check_vacant, fuse
from rescnet_dist.spec import AugmentSpec


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
    """Average networks by weights fitted on held-out images, and save them as one network.

    Each RUN is a run or a saved network. All have the same classes and images of the same shape.
    The val split of the data is used, or all of it if it has no splits or only one. The result is
    used like a saved network. With --flips, it averages over mirror images whenever it predicts.

    \b
    Example:
      rescnet fuse runs/a runs/b --data held-out.zarr -o fused.zip
      rescnet evaluate fused.zip cifar10.zarr
    """
    check_vacant(output)
    networks = [Network.load(url) for url in urls]
    chosen: Any = data
    if split:
        chosen = open_split(data, split, networks[0].photo_decoder())
    augment = AugmentSpec(copies=1, flip=True) if flips else None
    with cluster(pop_cluster_options(flags), embedded=False), show_status("fitting weights"):
        fused = fuse([network.on(array_backend) for network in networks], chosen, augment=augment)
        fused.save(output)
    report(fused, urls, output, as_json=as_json)


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
