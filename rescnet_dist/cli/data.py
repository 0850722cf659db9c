"""The commands of `rescnet data`: import, info, preview, names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from rescnet_dist.cli.clusters import cluster, working
from rescnet_dist.cli.files import finished_file
from rescnet_dist.cli.options import SHOW, cluster_options, spec_options, take_cluster
from rescnet_dist.cli.signals import terminated_by_signal
from rescnet_dist.data import import_dataset
from rescnet_dist.data.inspect import inspect_dataset
from rescnet_dist.data.named import DATASETS, cache_folder, fetch_dataset
from rescnet_dist.data.sheet import augmentation_sheet, class_sheet
from rescnet_dist.errors import mask_secrets, pluralize
from rescnet_dist.spec import AugmentSpec


@click.group("data", **SHOW)
def data_command() -> None:
    """Data sets: import them, look at them, see what augmentation makes of them."""


class Size(click.ParamType):
    """A side in pixels, or height and width with an × or x between them."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """Read "32" as (32, 32), and "28x32" as (28, 32)."""
        found = re.fullmatch(r"(\d+)(?:[x×](\d+))?", str(value))
        if not found:
            self.fail(f"{value!r} is not a size such as 32 or 28x32", param, ctx)
        return int(found[1]), int(found[2] or found[1])


@data_command.command("import", **SHOW)
@click.argument("source", metavar="SRC")
@click.argument("dest", metavar="DEST")
@click.option("--resize", type=Size(), help="make all images of this size, such as 32 or 28x32")
@click.option(
    "--channels", type=click.Choice(["gray", "color"]), help="make all images gray, or color"
)
@click.option("--on-error", type=click.Choice(["error", "skip"]), default="error",
              help="what to do with images that cannot be used  [default: error]")  # fmt: skip
@click.option("--chunk-images", type=click.IntRange(min=1), help="images per chunk")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="print the outcome as JSON")
def import_command(
    source: str,
    dest: str,
    resize: tuple[int, int] | None,
    channels: str | None,
    on_error: Literal["error", "skip"],
    chunk_images: int | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Import SRC to one Zarr store at DEST, from which networks train.

    SRC is a name (see `rescnet data names`), or the URL of a folder of images (split/class/image or
    class/image), of IDX, CIFAR, NumPy, Parquet or WebDataset files, or of a Zarr store. An import
    that is killed goes on when it is started again.

    \b
    Example:
      rescnet data import photos/ photos.zarr --resize 64
      rescnet data import cifar10 s3://bucket/cifar10.zarr
    """
    if source in DATASETS:
        with bar("fetching", "bytes") as progress:
            fetch_dataset(source, progress=progress)
    try:
        with (
            terminated_by_signal(),
            cluster(take_cluster(flags)) as client,
            bar("importing", "images") as progress,
        ):
            found = import_dataset(
                source, dest, client, resize=resize, channels=channels, on_error=on_error,
                chunk_images=chunk_images, progress=progress,
            )  # fmt: skip
    except KeyboardInterrupt as stop:
        raise type(stop)("run the same command again, which goes on with it") from None
    if as_json:
        skipped = [list(entry) for entry in found.skipped]
        shown = {"url": found.url, "splits": found.splits, "classes": list(found.classes)}
        more = {"image_shape": found.image_shape, "skipped": skipped}
        click.echo(json.dumps(shown | more | {"passed_over": list(found.passed_over)}))
        return
    splits = ", ".join(f"{count:,} to {split}" for split, count in found.splits.items())
    height, width, depth = found.image_shape
    click.echo(f"images    {splits}; {height}×{width}×{depth}, {len(found.classes)} classes")
    if count := len(found.passed_over):
        are = "is no PNG, JPEG or WebP image" if count == 1 else "are no PNG, JPEG or WebP images"
        click.echo(
            f"passed over  {pluralize(count, 'file')} that {are}, such as {found.passed_over[0]}"
        )
    show_left_out(len(found.skipped), found.skipped)
    click.echo(f"data      {found.url}")
    click.echo(f"next      rescnet data info {found.url}")


def show_left_out(count: int, images: Sequence[tuple[str, str]]) -> None:
    """How many images an import has left out, and name and reason of some of them."""
    if count:
        more = ", such as" if images else ""
        click.echo(f"left out  {pluralize(count, 'image')}{more}")
    for name, reason in images[:5]:
        click.echo(f"          {mask_secrets(name)}: {reason}")


@data_command.command("info", **SHOW)
@click.argument("data")
@click.option("--sheet", help="PNG file to write with samples of each class")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def info_command(data: str, sheet: str | None, as_json: bool) -> None:
    """What is in a data set: shape, splits, classes, chunks, bytes; and what to be wary of.

    All images are read once, to look for duplicates between splits and for constant images.

    \b
    Example:
      rescnet data info cifar10.zarr --sheet cifar10.png
    """
    with working(f"reading {mask_secrets(data)}"):
        found = inspect_dataset(data)
        if sheet:
            save_picture(class_sheet(data), sheet)
    if as_json:
        click.echo(json.dumps(found.to_dict()))
        return
    height, width, depth = found.image_shape
    click.echo(f"data      {mask_secrets(data)}")
    click.echo(f"images    {found.images:,} of {height}×{width}×{depth}, {found.dtype}")
    stored = "" if found.stored_bytes is None else f"{found.stored_bytes / 2**20:,.1f} MiB stored, "
    click.echo(f"bytes     {stored}{found.decoded_bytes / 2**20:,.1f} MiB decoded")
    click.echo(f"chunks    of {found.chunk_images:,} images")
    show_left_out(found.skipped, found.skipped_images)
    table = Table("class", *found.splits)
    for name, counts in found.classes.items():
        table.add_row(name, *(f"{counts[split]:,}" for split in found.splits))
    table.add_section()
    table.add_row("all", *(f"{count:,}" for count in found.splits.values()))
    Console().print(table)
    for warning in found.warnings:
        click.echo(f"warning   {warning}")
    if sheet:
        click.echo(f"samples   {sheet}")


@data_command.command("preview", **SHOW)
@click.argument("data", default="digits")
@click.option("--output", "-o", default="preview.png", help="PNG file  [default: preview.png]")
@click.option(
    "--images", type=click.IntRange(1, 100), default=10, help="images to show  [default: 10]"
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="seed of the run to be shown")
@spec_options(AugmentSpec)
def preview_command(data: str, output: str, images: int, seed: int, **flags: Any) -> None:
    """A picture of images of DATA, each beside its augmented copies, exactly as a run would see.

    \b
    Example:
      rescnet data preview cifar10.zarr --copies 8 --flip --shift 4 --rotate 10 -o copies.png
    """
    augment = AugmentSpec(**{name: value for name, value in flags.items() if value is not None})
    with working(f"reading {mask_secrets(data)}"):
        save_picture(augmentation_sheet(data, augment, seed, images), output)
    click.echo(f"preview   {output}")


@data_command.command("names", **SHOW)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def names_command(as_json: bool) -> None:
    """List the data sets that are known by name, and where they come from and are kept."""
    if as_json:
        click.echo(json.dumps({name: found.home for name, found in DATASETS.items()}))
        return
    table = Table("name", "MiB", "home")
    table.add_row("digits", "1", "in the package: a sample of MNIST")
    for name, found in DATASETS.items():
        table.add_row(name, f"{(found.size or 0) / 2**20:,.0f}", found.home)
    Console().print(table)
    click.echo(f"kept in {cache_folder()}")


@contextmanager
def bar(what: str, unit: str) -> Iterator[Any]:
    """A progress bar with rate and time left on a terminal; nothing elsewhere. Gives a function of
    what is done, and of how much."""
    console = Console(stderr=True)
    columns = (
        *(SpinnerColumn(), TextColumn(what), BarColumn(), MofNCompleteColumn()),
        *(TextColumn(unit), TextColumn("{task.fields[rate]}"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None, rate="")

        def report(done: int, total: int | None) -> None:
            speed = progress.tasks[0].speed
            rate = f"{speed:,.0f} {unit}/s" if speed else ""
            progress.update(task, completed=done, total=total, rate=rate)

        yield report


def save_picture(picture: Any, path: str) -> None:
    """Write a picture as a PNG file."""
    with finished_file(path, binary=True) as file:
        picture.save(file, "PNG")
