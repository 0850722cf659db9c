"""The command `rescnet train`: train a network."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import (
    HELP_SETTINGS,
    GroupedCommand,
    cluster_options,
    grouped_option,
    reporting_options,
)
from rescnet_dist.cli.defer import defer
from rescnet_dist.cli.flag_table import read_flags
from rescnet_dist.cli.options import (
    CONFIG_OPTION,
    PRESET_OPTION,
    STORE_OPTION,
    TEST_OPTION,
    spec_options,
)


@click.command("train", cls=GroupedCommand, **HELP_SETTINGS)
@click.argument("data", default="digits")
@TEST_OPTION
@PRESET_OPTION
@CONFIG_OPTION
@spec_options(read_flags("network"))
@STORE_OPTION
@grouped_option("Run", "--or-resume", is_flag=True, help="resume this run if it is in the store")
@grouped_option("Run", "--overwrite", is_flag=True, help="replace the run in the store, if any")
@spec_options(read_flags("run"))
@spec_options(read_flags("augment"))
@cluster_options
@reporting_options
@defer("training.train", starts_workers=True)
def train_command() -> None:
    """Train a network on a dataset.

    DATA is "digits", or any source or result of `rescnet data import`. Without --preset or
    --config, settings are chosen for the images, and printed; flags change single ones. With
    --or-resume the same command can be repeated: it starts the run, resumes it after an
    interruption, and changes nothing once the run is done.

    \b
    Example:
      rescnet train --max-layers 3
      rescnet train s3://bucket/cifar10.zarr --preset cifar10 --store s3://bucket/runs/1
    """
