"""The command `rescnet resume`: more layers of a run."""

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
from rescnet_dist.cli.flag_table import SPEC_TABLES, read_flags
from rescnet_dist.cli.options import TEST_OPTION, spec_options
from rescnet_dist.errors import SpecError
from rescnet_dist.formatting import option_name

RESUME_FLAGS = ("maps", "checkpoint_every", "keep_maps")  # CHANGEABLE of RunSpec


class FixedSettingsCommand(GroupedCommand):
    """A command on a run with fixed settings: options that would change them raise SpecError."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; raise SpecError for options of `rescnet train`."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from rescnet_dist.cli.train import train_command

            flags = [flag for table in SPEC_TABLES for flag in read_flags(table)]
            names = {"preset", "config", *(flag.name for flag in flags)}
            settings = {
                option
                for parameter in train_command.params
                if parameter.name in names
                for option in (*parameter.opts, *parameter.secondary_opts)
            }
            settings |= {option_name(flag.old_name) for flag in flags if flag.old_name}
            if (option := error.option_name) not in settings:
                raise
            allowed = ", ".join(map(option_name, ("max_layers", *RESUME_FLAGS)))
            raise SpecError(
                f"{option} cannot be changed: a run keeps its settings, except {allowed}. Start "
                f"another run with `rescnet train {option} …`."
            ) from None


@click.command("resume", cls=FixedSettingsCommand, **HELP_SETTINGS)
@click.argument("run_url", metavar="RUN")
@grouped_option("Run", "--max-layers", type=int, help="new maximum number of layers")
@grouped_option(
    *("Run", "--take-over"),
    is_flag=True,
    help="resume although another driver, which is dead, claims the run",
)
@spec_options(flag for flag in read_flags("run") if flag.name in RESUME_FLAGS)
@TEST_OPTION
@cluster_options
@reporting_options
@defer("training.resume", starts_workers=True)
def resume_command() -> None:
    """Resume a run after its last finished layer.

    \b
    Example:
      rescnet resume runs/digits-20260101-120000 --max-layers 8
    """
