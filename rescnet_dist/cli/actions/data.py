"""What `rescnet data import`, `info` and `preview` do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import click
from rich.console import Console
from rich.table import Table

from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cli.common import pop_cluster_options
from rescnet_dist.cli.files import open_atomic
from rescnet_dist.cli.status import show_progress, show_status
from rescnet_dist.data import import_dataset
from rescnet_dist.data.inspect import inspect_dataset
from rescnet_dist.data.named import DATASETS, fetch_dataset
from rescnet_dist.data.sheet import augmentation_sheet, class_sheet
from rescnet_dist.errors import mask_secrets, pluralize
from rescnet_dist.spec import AugmentSpec

MAX_LISTED_SKIPPED_IMAGES = 5  # of those that an import has skipped


def import_images(
    source: str,
    dest: str,
    resize: tuple[int, int] | None,
    channels: str | None,
    on_error: Literal["error", "skip"],
    chunk_images: int | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Import SRC into one Zarr store at DEST for training."""
    if source in DATASETS:
        with show_progress("fetching", "bytes") as progress:
            fetch_dataset(source, progress=progress)
    try:
        with (
            cluster(pop_cluster_options(flags)) as client,
            show_progress("importing", "images") as progress,
        ):
            imported = import_dataset(
                source,
                dest,
                client,
                resize=resize,
                channels=channels,
                on_error=on_error,
                chunk_images=chunk_images,
                progress=progress,
            )
    except KeyboardInterrupt as stop:
        raise type(stop)("run the same command again to resume the import") from None
    if as_json:
        record = {
            "url": imported.url,
            "splits": imported.splits,
            "classes": list(imported.classes),
            "image_shape": imported.image_shape,
            "skipped": [list(entry) for entry in imported.skipped],
            "passed_over": list(imported.passed_over),
        }
        click.echo(json.dumps(record))
        return
    splits = ", ".join(f"{count:,} to {split}" for split, count in imported.splits.items())
    height, width, depth = imported.image_shape
    click.echo(f"images    {splits}; {height}×{width}×{depth}, {len(imported.classes)} classes")
    if count := len(imported.passed_over):
        are = "is no PNG, JPEG or WebP image" if count == 1 else "are no PNG, JPEG or WebP images"
        example = imported.passed_over[0]
        click.echo(f"ignored   {pluralize(count, 'file')} that {are}, such as {example}")
    print_skipped(len(imported.skipped), imported.skipped)
    click.echo(f"data      {imported.url}")
    click.echo(f"next      rescnet data info {imported.url}")


def print_skipped(count: int, images: Sequence[tuple[str, str]]) -> None:
    """Print the number of images that an import has skipped, and name and reason of a few."""
    if count:
        more = ", such as" if images else ""
        click.echo(f"skipped   {pluralize(count, 'image')}{more}")
    for name, reason in images[:MAX_LISTED_SKIPPED_IMAGES]:
        click.echo(f"          {mask_secrets(name)}: {reason}")


def info(data: str, sheet: str | None, as_json: bool) -> None:
    """Describe a dataset and its possible problems."""
    with show_status(f"reading {mask_secrets(data)}"):
        info = inspect_dataset(data)
        if sheet:
            write_picture(class_sheet(data), sheet)
    if as_json:
        click.echo(json.dumps(info.to_dict()))
        return
    height, width, depth = info.image_shape
    click.echo(f"data      {mask_secrets(data)}")
    click.echo(f"images    {info.images:,} of {height}×{width}×{depth}, {info.dtype}")
    stored = ""
    if info.stored_bytes is not None:
        stored = f"{info.stored_bytes / 2**20:,.1f} MiB stored, "
    click.echo(f"bytes     {stored}{info.decoded_bytes / 2**20:,.1f} MiB decoded")
    click.echo(f"chunks    of {info.chunk_images:,} images")
    print_skipped(info.skipped, info.skipped_images)
    table = Table("class", *info.splits)
    for name, counts in info.classes.items():
        table.add_row(name, *(f"{counts[split]:,}" for split in info.splits))
    table.add_section()
    table.add_row("all", *(f"{count:,}" for count in info.splits.values()))
    Console().print(table)
    for warning in info.warnings:
        click.echo(f"warning   {warning}")
    if sheet:
        click.echo(f"samples   {sheet}")


def preview(data: str, output: str, images: int, seed: int, **flags: Any) -> None:
    """Write a picture of images and their augmented copies."""
    augment = AugmentSpec(**{name: value for name, value in flags.items() if value is not None})
    with show_status(f"reading {mask_secrets(data)}"):
        write_picture(augmentation_sheet(data, augment, seed, images), output)
    click.echo(f"preview   {output}")


def write_picture(picture: Any, path: str) -> None:
    """Write a picture as a PNG file."""
    with open_atomic(path, binary=True) as file:
        picture.save(file, "PNG")
