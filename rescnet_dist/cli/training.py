"""The commands `rescnet train`, `plan` and `resume`."""

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
from rescnet_dist.cli.options import (
    CONFIG_OPTION,
    PRESET_OPTION,
    spec_options,
)
from rescnet_dist.errors import (
    SpecError,
)
from rescnet_dist.formatting import option_name
from rescnet_dist.options import declared_options
from rescnet_dist.spec import CHANGEABLE, AugmentSpec, NetworkSpec, RunSpec, Spec

STORE_OPTION = grouped_option(
    "Run", "--store", help="URL of the run store  [default: runs/DATA-DATE]"
)


TEST_OPTION = grouped_option(
    "Data", "--test", "test_data", help="data to report the test accuracy on"
)


@click.command("train", cls=GroupedCommand, **HELP_SETTINGS)
@click.argument("data", default="digits")
@TEST_OPTION
@PRESET_OPTION
@CONFIG_OPTION
@spec_options(NetworkSpec)
@STORE_OPTION
@grouped_option("Run", "--or-resume", is_flag=True, help="resume this run if it is in the store")
@grouped_option("Run", "--overwrite", is_flag=True, help="replace the run in the store, if any")
@spec_options(RunSpec)
@spec_options(AugmentSpec)
@cluster_options
@reporting_options
@defer("training.train")
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


@click.command("plan", cls=GroupedCommand, **HELP_SETTINGS)
@click.argument("data", default="digits")
@PRESET_OPTION
@CONFIG_OPTION
@spec_options(NetworkSpec)
@STORE_OPTION
@spec_options(RunSpec)
@spec_options(AugmentSpec)
@cluster_options
@grouped_option(
    *("Output", "--measure/--no-measure"),
    default=True,
    help="measure the speed of the cluster and the store",
)
@grouped_option("Output", "--json", "as_json", is_flag=True, help="print JSON")
@defer("training.plan")
def plan_command() -> None:
    """Estimate the memory, tasks, bytes and time of `rescnet train`.

    Options are the same. Fails with an error if `rescnet train` would.

    \b
    Example:
      rescnet plan --max-layers 3
      rescnet plan s3://bucket/cifar10.zarr --preset cifar10 --scheduler tcp://...:8786
    """


class FixedSettingsCommand(GroupedCommand):
    """A command on a run with fixed settings: options that would change them raise SpecError."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; raise SpecError for options of `rescnet train`."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            kinds: tuple[type[Spec], ...] = (NetworkSpec, RunSpec, AugmentSpec)
            options = [found for kind in kinds for found in declared_options(kind).values()]
            names = {"preset", "config", *(found.name for found in options)}
            settings = {
                option
                for parameter in train_command.params
                if parameter.name in names
                for option in (*parameter.opts, *parameter.secondary_opts)
            }
            settings |= {option_name(found.old_name) for found in options if found.old_name}
            if (option := error.option_name) not in settings:
                raise
            allowed = ", ".join(map(option_name, ("max_layers", *CHANGEABLE)))
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
@spec_options(RunSpec, only=CHANGEABLE)
@TEST_OPTION
@cluster_options
@reporting_options
@defer("training.resume")
def resume_command() -> None:
    """Resume a run after its last finished layer.

    \b
    Example:
      rescnet resume runs/digits-20260101-120000 --max-layers 8
    """
