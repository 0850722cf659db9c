"""The command `rescnet evaluate`: how well a network classifies a dataset."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import (
    BACKEND_OPTION,
    CHANNELS_OPTION,
    HELP_SETTINGS,
    RESIZE_OPTION,
    SPLIT_OPTION,
    averaging_options,
    cluster_options,
)
from rescnet_dist.cli.defer import defer


@click.command("evaluate", **HELP_SETTINGS)
@click.argument("run_url", metavar="RUN")
@click.argument("data", required=False)
@SPLIT_OPTION
@click.option("--staged", is_flag=True, help="accuracy after each layer, up to the chosen depth")
@click.option("--confusion", metavar="FILE", help="write the confusion matrix as CSV")
@RESIZE_OPTION
@CHANNELS_OPTION
@averaging_options
@cluster_options
@BACKEND_OPTION
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@defer("evaluate")
def evaluate_command() -> None:
    """Evaluate the network at RUN, a run or a saved network, on DATA.

    Prints accuracy, top-5 accuracy, log loss and expected calibration error, and precision, recall
    and F1 of each class, or of the worst of many classes. With --json, all of these and the
    confusion matrix.

    The test split of DATA is used, or all of it if it has no splits or only one. Without DATA, the
    data that the run was trained on are used, if they have a test split. Photos may have any size:
    they are converted as the training images were imported.

    \b
    Example:
      rescnet evaluate runs/digits-20260101-120000 --staged
    """
