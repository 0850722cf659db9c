"""The command `rescnet export`: a network as a file that other runtimes can predict with."""

from __future__ import annotations

import os

import click

from rescnet_dist.cli.clusters import show_status
from rescnet_dist.cli.options import HELP_SETTINGS
from rescnet_dist.errors import RescnetError
from rescnet_dist.export import DEFAULT_OPSET, INPUT_DTYPES
from rescnet_dist.formatting import format_bytes
from rescnet_dist.network import load_network

EXTENSION = ".onnx"


@click.command("export", **HELP_SETTINGS)
@click.argument("run_url", metavar="RUN")
@click.argument("output", metavar="FILE")
@click.option(
    "--dtype",
    type=click.Choice(INPUT_DTYPES),
    default=INPUT_DTYPES[0],
    show_default=True,
    help="data type of the images",
)
@click.option(
    "--opset",
    type=int,
    default=DEFAULT_OPSET,
    show_default=True,
    help="version of the ONNX operators; older runtimes need a lower one, from 18",
)
@click.option(
    "--external-data/--no-external-data",
    default=None,
    help="write weights to a second file, FILE.data  [default: above 2 GB]",
)
def export_command(
    run_url: str, output: str, dtype: str, opset: int, external_data: bool | None
) -> None:
    """Write the network at RUN as an ONNX file, such as net.onnx.

    RUN is a run or a saved network. The input of the file is `images` (n, height, width, channels),
    with the values of the training images. Its outputs are `label`, `probabilities` and `scores`.

    \b
    Example:
      rescnet export runs/digits-20260101-120000 net.onnx
    """
    if os.path.splitext(output)[1] != EXTENSION:
        raise RescnetError(
            f"{output} does not end in {EXTENSION}, the only format of exports. Add the extension."
        )
    with show_status("exporting"):
        network = load_network(run_url)
        network.to_onnx(output, dtype=dtype, opset=opset, external_data=external_data)
    files = [path for path in (output, f"{output}.data") if os.path.exists(path)]
    size = format_bytes(sum(os.path.getsize(path) for path in files))
    click.echo(f"wrote {' and '.join(files)} ({size})", err=True)
