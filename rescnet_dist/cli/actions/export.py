"""What `rescnet export` does."""

from __future__ import annotations

import os

import click

from rescnet_dist.cli.status import show_status
from rescnet_dist.errors import RescnetError
from rescnet_dist.formatting import format_bytes
from rescnet_dist.network import load_network

EXTENSION = ".onnx"


def export(run_url: str, output: str, dtype: str, opset: int, external_data: bool | None) -> None:
    """Write the network at RUN as an ONNX file, such as net.onnx."""
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
