"""The command `rescnet presets`."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import HELP_SETTINGS
from rescnet_dist.cli.defer import defer


@click.command("presets", **HELP_SETTINGS)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@defer("presets")
def presets_command() -> None:
    """List the presets, or print one as TOML.

    The TOML is a start for a --config file.

    \b
    Example:
      rescnet presets cifar10 > network.toml
    """
