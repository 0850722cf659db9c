"""What `rescnet data names` does, which reads no images."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from rescnet_dist.data.named import DATASETS, cache_folder


def names(as_json: bool) -> None:
    """List the datasets that have a name."""
    if as_json:
        click.echo(json.dumps({name: dataset.home for name, dataset in DATASETS.items()}))
        return
    table = Table("name", "MiB", "home")
    table.add_row("digits", "1", "in the package: a sample of MNIST")
    for name, dataset in DATASETS.items():
        table.add_row(name, f"{(dataset.size or 0) / 2**20:,.0f}", dataset.home)
    Console().print(table)
    click.echo(f"downloaded to {cache_folder()}")
