"""Accuracy against seconds: recorded results next to a small ResNet trained by backpropagation.

The ResNet is trained on the images that the results were trained on, and evaluated on those that
they held out, after each epoch. Test images are never opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import baseline
import click
import numpy as np
from baseline import DEFAULT, Baseline
from environment import describe_machine, get_commit
from make import describe_data, format_machine, name_of_data
from records import make_folder, write_record

from rescnet_dist.cli.common import HELP_SETTINGS
from rescnet_dist.cli.files import open_atomic
from rescnet_dist.cli.group import exit_codes
from rescnet_dist.cli.signals import raise_on_signal
from rescnet_dist.dashboard.figures import new_figure
from rescnet_dist.data import select_validation, training_set
from rescnet_dist.errors import DataError, RescnetError
from rescnet_dist.spec import AugmentSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
RECORD_VERSION = 1
NAME = "cost"

Array = np.ndarray[Any, np.dtype[Any]]
Curve = dict[str, Any]


@click.command(**HELP_SETTINGS)
@click.argument("names", nargs=-1, required=True)
@click.option("--data", required=True, help="the data of the results; only train is opened")
@click.option("--cnn-width", default=DEFAULT.width, show_default=True, help="maps of the ResNet")
@click.option("--cnn-blocks", default=DEFAULT.blocks, show_default=True, help="blocks per width")
@click.option("--cnn-epochs", default=DEFAULT.epochs, show_default=True, help="number of epochs")
@click.option("--results", default=str(HERE), help="folder of the results  [default: cost.py's]")
@click.option("--into", default=str(HERE / "curves"), help="folder of record and figure")
def main(
    names: tuple[str, ...],
    data: str,
    cnn_width: int,
    cnn_blocks: int,
    cnn_epochs: int,
    results: str,
    into: str,
) -> None:
    """Compare the recorded results NAMES, of the same data, with a small ResNet on this machine.

    cost.json gets the held-out accuracy and the seconds after each layer or epoch, cost.png draws
    them. There is one ResNet for each kind of copies that the results have: none, or images
    mirrored and shifted as theirs.

    \b
    Example:
      python cost.py cifar10 cifar10-flips --data cifar10.npz
    """
    with exit_codes(), raise_on_signal():
        baseline.require_torch()
        record = Path(into) / f"{NAME}.json"
        make_folder(record)
        found = [read_result(Path(results) / f"{name}.json") for name in names]
        images, codes, classes = read_images(data, found)
        options = {"width": cnn_width, "blocks": cnn_blocks, "epochs": cnn_epochs, "steps": 0}
        curves = [describe_result(result) for result in found]
        for settings, result in choose_baselines(found, options):
            curves.append(train_baseline(settings, result, images, codes, classes))
        content = {
            "version": RECORD_VERSION,
            "data": {"name": name_of_data(data), "train": found[0]["data"]["train"]},
            "curves": curves,
            "machine": describe_machine(),
            "commit": get_commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_record(record, content)
        with open_atomic(str(record.with_suffix(".png")), binary=True) as file:
            plot_curves(curves).savefig(file, format="png", dpi=150)
        click.echo(f"wrote {record} and {record.with_suffix('.png')}", err=True)


# recorded results -------------------------------------------------------------------------------


def read_result(path: Path) -> dict[str, Any]:
    """Read the record of a result, as make.py writes it."""
    try:
        result = json.loads(path.read_text())
        describe_result(result)
    except OSError as error:
        raise RescnetError(f"{path} cannot be read ({error.strerror}). Make it first.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RescnetError(f"{path} is not a result ({error!r}). Make it again.") from error
    return dict(result)


def describe_result(result: dict[str, Any]) -> Curve:
    """Return the held-out accuracy and the seconds since the start after each layer.

    Older records have only the sum of the seconds; each layer then counts as the mean.
    """
    layers, by_layer = result["curve"], "seconds" in result["curve"][0]
    mean = result["seconds"]["layers"] / len(layers)
    seconds = [layer["seconds"] if by_layer else mean for layer in layers]
    return {
        "name": result["name"],
        "title": result["title"],
        "kind": "closed form",
        "machine": format_machine(result),
        "seconds_of_a_layer": "measured" if by_layer else "mean of all layers",
        "seconds": list(accumulate(seconds)),
        "validation": [layer["validation"] for layer in layers],
    }


def read_images(data: str, found: Sequence[dict[str, Any]]) -> tuple[Array, Array, int]:
    """Return images (N, H, W, d), codes (N,) and the number of classes of the training split.

    Raise DataError if they are not those that the results were trained on.
    """
    training = training_set(data, None)
    array, codes = training.images[0].array, np.asarray(training.codes[0])
    described = describe_data(array, codes)
    for result in found:
        if result["data"]["train"] != described:
            raise DataError(
                f"{data} does not have the images of {result['name']}: their checksums differ. "
                "Give the data of all results with --data."
            )
    return np.asarray(array), codes, len(training.classes)


# the ResNet -------------------------------------------------------------------------------------


def choose_baselines(
    found: Sequence[dict[str, Any]], options: dict[str, Any]
) -> list[tuple[Baseline, dict[str, Any]]]:
    """Return the different ResNets to train, each with the first result that it is like."""
    chosen: dict[Baseline, dict[str, Any]] = {}
    for result in found:
        augment = AugmentSpec.from_stored(result["spec"]["augment"])
        chosen.setdefault(Baseline.like(augment, **options), result)
    return list(chosen.items())


def train_baseline(
    settings: Baseline, result: dict[str, Any], images: Array, codes: Array, classes: int
) -> Curve:
    """Train a ResNet on the images that a result was trained on and return its curve."""
    run = result["spec"]["run"]
    before = np.zeros(classes, np.int64)
    held_out = select_validation(codes, before, run["validation"], run["seed"])
    if np.count_nonzero(held_out) != result["data"]["held_out"]:
        raise DataError(
            f"{np.count_nonzero(held_out)} images are held out, but {result['name']} held out "
            f"{result['data']['held_out']}. Make the result again."
        )
    trained = baseline.train(
        settings,
        (images[~held_out], codes[~held_out]),
        (images[held_out], codes[held_out]),
        classes=classes,
        seed=run["seed"],
        report=report,
    )
    copies = [text for text, used in (("flips", settings.flip), ("shifts", settings.shift)) if used]
    return {
        "name": "-".join(["resnet", *copies]),
        "title": ", ".join(["small ResNet", *copies]),
        "kind": "backpropagation",
        "machine": trained.device,
        "settings": settings.to_dict(),
        "held_out_as": result["name"],
        "seconds": [entry["seconds"] for entry in trained.curve],
        "validation": [entry["validation"] for entry in trained.curve],
    }


def report(entry: dict[str, float]) -> None:
    """Print the accuracy after an epoch."""
    click.echo(
        f"epoch {entry['epoch']}: {100 * entry['validation']:.2f} %, {entry['seconds']:.1f} s",
        err=True,
    )


def plot_curves(curves: Sequence[Curve]) -> Figure:
    """Plot held-out accuracies against seconds: solid in closed form, dashed by backpropagation."""
    figure = new_figure(7.2, 4.4)
    axes = figure.subplots()
    for curve in curves:
        style = "-" if curve["kind"] == "closed form" else "--"
        accuracies = [100 * value for value in curve["validation"]]
        label = f"{curve['title']} ({curve['machine']})"
        axes.plot(curve["seconds"], accuracies, style, label=label, lw=1.6)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="seconds of training", ylabel="accuracy on held-out images (%)")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="lower right")
    return figure


if __name__ == "__main__":
    main()
