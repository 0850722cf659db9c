"""The command `rescnet ablate`: an ablation of the paper, as runs, one record and one figure."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import HELP_SETTINGS, GroupedCommand, cluster_options, grouped_option
from rescnet_dist.cli.defer import defer
from rescnet_dist.cli.flag_table import read_flags
from rescnet_dist.cli.options import CONFIG_OPTION, CommaSeparated, spec_options


@click.command("ablate", cls=GroupedCommand, **HELP_SETTINGS)
@click.argument("name", metavar="NAME")
@click.argument("data")
@grouped_option(
    *("Output", "--output", "-o"),
    required=True,
    help="folder or URL of the runs, NAME.json and NAME.png",
)
@grouped_option("Output", "--quiet", "-q", is_flag=True, help="print no progress")
@grouped_option("Output", "--json", "as_json", is_flag=True, help="print the record as JSON")
@grouped_option(
    *("Network", "--values"),
    type=CommaSeparated(str),
    help="other values to compare, such as 8,16",
)
@grouped_option(
    "Network", "--preset", help="preset network to start from  [default: that of the paper]"
)
@CONFIG_OPTION
@spec_options(read_flags("network"))
@spec_options(read_flags("run"))
@spec_options(read_flags("augment"))
@cluster_options
@defer("ablate", starts_workers=True)
def ablate_command() -> None:
    """Train networks that differ in one option, as in the paper.

    NAME is rate (the learning rate, by depth), block (8×8 and 16×16), filters (30 and 50),
    stacked-lda or compensation (with and without). The settings are those of the paper for
    CIFAR-10, with up to 937 layers, unless others are given, such as --max-layers. Each network is
    an ordinary run in the folder of the output. The same command resumes what was interrupted. A
    network that another ablation has trained in this folder with the same settings is not trained
    again.

    The settings and an estimate of the time are printed before the training starts, unless --quiet
    or --json are given. The figure needs matplotlib: pip install "rescnet-dist[plot]".

    NAME.json has the accuracy of each network by layer. NAME.png draws them next to what the paper
    reports. Depth is chosen by the validation images; test images are only drawn.

    \b
    Example:
      rescnet ablate rate cifar10.zarr -o ablations
    """
