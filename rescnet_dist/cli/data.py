"""The commands of `rescnet data`: import, info, preview and names."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import (
    CHANNELS_OPTION,
    HELP_SETTINGS,
    ON_ERROR_OPTION,
    RESIZE_OPTION,
    SuggestingGroup,
    cluster_options,
)
from rescnet_dist.cli.defer import defer
from rescnet_dist.cli.flag_table import read_flags
from rescnet_dist.cli.options import spec_options


@click.group("data", cls=SuggestingGroup, **HELP_SETTINGS)
def data_command() -> None:
    """Datasets: import and inspect them, and preview augmentation."""


@data_command.command("import", **HELP_SETTINGS)
@click.argument("source", metavar="SRC")
@click.argument("dest", metavar="DEST")
@RESIZE_OPTION
@CHANNELS_OPTION
@ON_ERROR_OPTION
@click.option("--chunk-images", type=click.IntRange(min=1), help="images per chunk")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="print the outcome as JSON")
@defer("data.import_images", starts_workers=True)
def import_command() -> None:
    """Import SRC into one Zarr store at DEST for training.

    SRC is a name (see `rescnet data names`), or the URL of a folder of images (split/class/image or
    class/image), of IDX, CIFAR, NumPy, Parquet or WebDataset files, of a CSV file of paths and
    labels, or of a Zarr store. Repeat the command to resume an interrupted import.

    \b
    Example:
      rescnet data import photos/ photos.zarr --resize 64
      rescnet data import cifar10 s3://bucket/cifar10.zarr
    """


@data_command.command("info", **HELP_SETTINGS)
@click.argument("data")
@click.option("--sheet", help="PNG file with samples of each class to write")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@defer("data.info")
def info_command() -> None:
    """Describe a dataset and its possible problems.

    Prints its shape, splits, classes, chunks and bytes. All images are read once to find duplicates
    between splits and constant images.

    \b
    Example:
      rescnet data info cifar10.zarr --sheet cifar10.png
    """


@data_command.command("preview", **HELP_SETTINGS)
@click.argument("data", default="digits")
@click.option(
    "--output", "-o", default="preview.png", help="PNG file to write  [default: preview.png]"
)
@click.option(
    "--images", type=click.IntRange(1, 100), default=10, help="images to show  [default: 10]"
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="seed of the run")
@spec_options(read_flags("augment"))
@defer("data.preview")
def preview_command() -> None:
    """Write a picture of images and their augmented copies.

    The images are those of DATA, and the copies exactly those of a run.

    \b
    Example:
      rescnet data preview cifar10.zarr --copies 8 --flip --shift 4 --rotate 10 -o copies.png
    """


@data_command.command("names", **HELP_SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@defer("data_names.names")
def names_command() -> None:
    """List the datasets that have a name.

    Each with its origin, and the folder of downloads.
    """
