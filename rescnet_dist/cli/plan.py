"""The command `rescnet plan`: what `rescnet train` would need."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import HELP_SETTINGS, GroupedCommand, cluster_options, grouped_option
from rescnet_dist.cli.defer import defer
from rescnet_dist.cli.flag_table import read_flags
from rescnet_dist.cli.options import CONFIG_OPTION, PRESET_OPTION, STORE_OPTION, spec_options


@click.command("plan", cls=GroupedCommand, **HELP_SETTINGS)
@click.argument("data", default="digits")
@PRESET_OPTION
@CONFIG_OPTION
@spec_options(read_flags("network"))
@STORE_OPTION
@spec_options(read_flags("run"))
@spec_options(read_flags("augment"))
@cluster_options
@grouped_option(
    *("Output", "--measure/--no-measure"),
    default=True,
    help="measure the speed of the cluster and the store",
)
@grouped_option("Output", "--json", "as_json", is_flag=True, help="print JSON")
@defer("training.plan", starts_workers=True)
def plan_command() -> None:
    """Estimate the memory, tasks, bytes and time of `rescnet train`.

    Options are the same. Fails with an error if `rescnet train` would.

    \b
    Example:
      rescnet plan --max-layers 3
      rescnet plan s3://bucket/cifar10.zarr --preset cifar10 --scheduler tcp://...:8786
    """
