"""The command `rescnet estimate`: cost of a run on a cluster that need not exist."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import HELP_SETTINGS, GroupedCommand, grouped_option
from rescnet_dist.cli.defer import defer
from rescnet_dist.cli.flag_table import read_flags
from rescnet_dist.cli.options import CONFIG_OPTION, PRESET_OPTION, spec_options

GPU_MEMORY_OPTION = grouped_option(
    "Cluster", "--gpu-memory", help="memory of each worker's GPU, for --array-backend cupy"
)


@click.command("estimate", cls=GroupedCommand, **HELP_SETTINGS)
@click.argument("images")
@grouped_option(
    *("Data", "--classes"),
    type=click.IntRange(2),
    help="number of classes  [default: of the preset, or 10]",
)
@grouped_option(
    *("Cluster", "--workers"), type=click.IntRange(1), required=True, help="number of workers"
)
@grouped_option(
    *("Cluster", "--threads"),
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="threads per worker",
)
@grouped_option(
    *("Cluster", "--machines"), type=click.IntRange(1), help="machines  [default: one per worker]"
)
@grouped_option(
    *("Cluster", "--memory"), default="8GiB", show_default=True, help="memory of each worker"
)
@GPU_MEMORY_OPTION
@grouped_option(
    *("Cost", "--stable-price"),
    type=click.FloatRange(0),
    help="price of a machine for an hour, in any currency",
)
@grouped_option(
    *("Cost", "--spot-price"),
    type=click.FloatRange(0),
    help="price of a spot machine for an hour, for workers; needs --stable-price",
)
@PRESET_OPTION
@CONFIG_OPTION
@spec_options(read_flags("network"))
@spec_options(read_flags("run"))
@spec_options(read_flags("augment"))
@grouped_option("Output", "--json", "as_json", is_flag=True, help="print JSON")
@defer("estimate", starts_workers=True)
def estimate_command() -> None:
    """Estimate the time and memory of a run on a cluster.

    The cluster need not exist; its cores are taken to be as fast as those of this machine. IMAGES
    is their number and shape, such as 50000x32x32x3. The speed of a core is measured here, in half
    a minute; the rest is the arithmetic of `rescnet plan`. The store is taken to be fast enough. No
    time is estimated for GPUs. With --stable-price, the cost is printed too.

    \b
    Example:
      rescnet estimate 50000x32x32x3 --preset cifar10 --workers 4 --threads 16 --memory 64GiB
      rescnet estimate 50000x32x32x3 --workers 4 --stable-price 0.20 --spot-price 0.06
    """
