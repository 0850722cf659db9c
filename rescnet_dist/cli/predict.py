"""The command `rescnet predict`: the labels of photos or of a dataset, as a table."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import (
    BACKEND_OPTION,
    CHANNELS_OPTION,
    HELP_SETTINGS,
    ON_ERROR_OPTION,
    RESIZE_OPTION,
    SPLIT_OPTION,
    averaging_options,
    cluster_options,
)
from rescnet_dist.cli.defer import defer


@click.command("predict", **HELP_SETTINGS)
@click.argument("run_url", metavar="RUN")
@click.argument("data", nargs=-1, required=True)
@click.option(
    "--output",
    "-o",
    default="-",
    help="file or URL to write: .csv, .jsonl, .parquet or .zarr  [default: standard output]",
)
@SPLIT_OPTION
@click.option("--proba", is_flag=True, help="add the probability of each class")
@RESIZE_OPTION
@CHANNELS_OPTION
@ON_ERROR_OPTION
@averaging_options
@cluster_options
@BACKEND_OPTION
@click.option(
    "--json", "as_json", is_flag=True, help="print JSON lines; with --output, print the outcome"
)
@defer("predict")
def predict_command() -> None:
    """Predict the labels of photos or of a dataset.

    RUN is a run or a saved network. DATA are photos, a folder of photos, or a dataset. Photos may
    have any size: they are converted as the training images were imported. Of a dataset the test
    split is used, or all of it if it has no splits or only one. Images are numbered within it, and
    the names of image files are added.

    \b
    Example:
      rescnet predict runs/photos cat.jpg dog.jpg
      rescnet predict net.zip photos/ --proba -o labels.parquet
      rescnet predict runs/digits-20260101-120000 digits -o labels.csv
    """
