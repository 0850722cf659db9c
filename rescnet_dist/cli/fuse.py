"""The command `rescnet fuse`: networks averaged by weights fitted on held-out images."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import BACKEND_OPTION, HELP_SETTINGS, SPLIT_OPTION, cluster_options
from rescnet_dist.cli.defer import defer


@click.command("fuse", **HELP_SETTINGS)
@click.argument("urls", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--data",
    help="held-out images, which no network was trained on  [default: those of the runs]",
)
@click.option(
    "--output", "-o", required=True, help="URL to save the network at; one file if it ends in .zip"
)
@SPLIT_OPTION
@click.option("--flips", is_flag=True, help="average over each image and its mirror image")
@cluster_options
@BACKEND_OPTION
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@defer("fuse")
def fuse_command() -> None:
    """Average networks, by weights fitted on held-out images.

    Each RUN is a run or a saved network. All have the same classes and images of the same shape.
    The images are those that the runs held out, if all held out the same ones: the same data with
    the same --validation and --seed. Of other --data, the val split is used, or all of it if it has
    no splits or only one. The result is one network, used like a saved one. With --flips, it
    averages over mirror images whenever it predicts.

    \b
    Example:
      rescnet fuse runs/a runs/b -o fused.zip
      rescnet evaluate fused.zip cifar10.zarr
    """
