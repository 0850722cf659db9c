"""The command `rescnet predict`: the labels of images, as a table."""

from __future__ import annotations

import csv

import click
import dask.array as da

import rescnet_dist
from rescnet_dist.cli.files import open_atomic
from rescnet_dist.cli.options import (
    BACKEND_OPTION,
    HELP_SETTINGS,
    SPLIT_OPTION,
    averaging_options,
    resolve_averaging,
)
from rescnet_dist.data import evaluation_split, open_split
from rescnet_dist.errors import pluralize


@click.command("predict", **HELP_SETTINGS)
@click.argument("run_url", metavar="RUN")
@click.argument("data")
@click.option("--output", "-o", default="-", help="CSV file to write  [default: standard output]")
@SPLIT_OPTION
@click.option("--proba", is_flag=True, help="add a column of probabilities per class")
@averaging_options
@BACKEND_OPTION
def predict_command(
    run_url: str,
    data: str,
    output: str,
    split: str | None,
    proba: bool,
    flips: bool,
    copies: int | None,
    array_backend: str,
) -> None:
    """Predict the labels of DATA with the network at RUN, a run or a saved network, as CSV.

    The test split of DATA is used, or all of it if it has no splits or only one. Images are
    numbered within it, and the names of image files are added.

    \b
    Example:
      rescnet predict runs/digits-20260101-120000 digits -o labels.csv
    """
    clf = rescnet_dist.ResCNetClassifier.load(run_url, array_backend=array_backend)
    part = evaluation_split(open_split(data, split) if split else data)
    images, files = part.images, part.files
    clf.network_.check_images(images)
    clf.network_.look_at(images)
    augment = resolve_averaging(flips, copies)
    with open_atomic(output) as file:
        writer = csv.writer(file)
        names = [f"p({c})" for c in clf.classes_] if proba else []
        writer.writerow(["image", *(["file"] if files is not None else []), "label", *names])
        lazy = da.asarray(images.array).rechunk({0: clf.network_.batch_images})
        number = 0
        for block in clf.predict_proba(lazy, augment=augment).blocks:
            probabilities = block.compute(scheduler="threads")
            labels = clf.classes_[probabilities.argmax(axis=1)]
            for label, row in zip(labels, probabilities, strict=True):
                file_name = [] if files is None else [files[number]]
                writer.writerow([number, *file_name, label, *(f"{p:.6f}" for p in row if proba)])
                number += 1
    if output != "-":
        click.echo(f"wrote {pluralize(number, 'label')} to {output}", err=True)
