"""The command `rescnet export`: a network as a file that other runtimes can predict with."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import HELP_SETTINGS, Choice
from rescnet_dist.cli.defer import defer


@click.command("export", **HELP_SETTINGS)
@click.argument("run_url", metavar="RUN")
@click.argument("output", metavar="FILE")
@click.option(
    "--dtype",
    type=Choice(["float32", "uint8"]),
    default="float32",
    show_default=True,
    help="data type of the images",
)
@click.option(
    "--opset",
    type=int,
    default=23,
    show_default=True,
    help="version of the ONNX operators; older runtimes need a lower one, from 18",
)
@click.option(
    "--external-data/--no-external-data",
    default=None,
    help="write weights to a second file, FILE.data  [default: above 2 GB]",
)
@defer("export")
def export_command() -> None:
    """Write the network at RUN as an ONNX file, such as net.onnx.

    RUN is a run or a saved network. The input of the file is `images` (n, height, width, channels),
    with the values of the training images. Its outputs are `label`, `probabilities` and `scores`.

    \b
    Example:
      rescnet export runs/digits-20260101-120000 net.onnx
    """
