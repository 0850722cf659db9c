"""The commands of `rescnet` for runs and networks: train, plan, resume, evaluate and so on."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.table import Table

from rescnet_dist.automatic import describe_choice
from rescnet_dist.cli.clusters import cluster, show_status
from rescnet_dist.cli.options import (
    CONFIG_OPTION,
    HELP_SETTINGS,
    PRESET_OPTION,
    GroupedCommand,
    cluster_options,
    grouped_option,
    is_automatic,
    pop_cluster_options,
    resolve_specs,
    spec_options,
)
from rescnet_dist.cli.reporting import (
    open_listeners,
    open_reporter,
    pop_report_options,
    report_outcome,
    reporting_options,
)
from rescnet_dist.dashboard.progress import copies_suffix
from rescnet_dist.data import (
    TrainingSet,
    check_test_set,
    is_imported,
    training_set,
    verify_dataset,
)
from rescnet_dist.errors import (
    SpecError,
    mask_secrets,
    pluralize,
)
from rescnet_dist.flags import option_name
from rescnet_dist.formatting import format_bytes
from rescnet_dist.lifecycle import (
    CHANGEABLE,
    Changes,
    begin_or_resume,
    check_resume,
    check_run,
    resume_run,
)
from rescnet_dist.network import describe_network
from rescnet_dist.options import declared_options
from rescnet_dist.planning import forecast
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.runs import describe_run
from rescnet_dist.spec import PRESETS, AugmentSpec, NetworkSpec, RunSpec, Spec
from rescnet_dist.store import RunStore
from rescnet_dist.train import verify_run

MAX_CLASSES = 12  # names in the description of a network


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
def train_command(
    data: str,
    preset: str | None,
    config: str | None,
    store: str | None,
    or_resume: bool,
    overwrite: bool,
    test_data: str | None,
    **flags: Any,
) -> None:
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
    cluster_flags, report_options = pop_cluster_options(flags), pop_report_options(flags)
    if or_resume and not store:
        raise SpecError("--or-resume needs the store of the run. Add --store URL.")
    quiet = report_options.is_silent
    training, spec, run_spec = prepare_training(data, preset, config, flags, quiet=quiet)
    url = store or default_store(data)
    checked = check_run(
        url, spec, run_spec, training, source=data, or_resume=or_resume, overwrite=overwrite
    )
    if test_data:
        check_test_set(test_data, training)
    gpus = get_backend(run_spec).on_gpu
    with (
        open_reporter(report_options) as reporter,
        cluster(cluster_flags, quiet=quiet, gpus=gpus) as client,
    ):
        with open_listeners(url, reporter, client) as listeners:
            if note := checked.plan_difference:
                click.echo(note, err=True)
            run = begin_or_resume(checked, client, listeners)
        report_outcome(run, data, test_data, reporter)


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
def plan_command(
    data: str,
    preset: str | None,
    config: str | None,
    store: str | None,
    measure: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Estimate the memory, tasks, bytes and time of `rescnet train`.

    Options are the same. Fails with an error if `rescnet train` would.

    \b
    Example:
      rescnet plan --max-layers 3
      rescnet plan s3://bucket/cifar10.zarr --preset cifar10 --scheduler tcp://...:8786
    """
    cluster_flags = pop_cluster_options(flags)
    training, spec, run_spec = prepare_training(data, preset, config, flags)
    url = store or default_store(data)
    check_run(url, spec, run_spec, training)
    gpus = get_backend(run_spec).on_gpu
    status = "measuring" if measure else "planning"
    with cluster(cluster_flags, gpus=gpus) as client, show_status(status):
        estimated = forecast(training, spec, run_spec, client, store=url, measure=measure)
    click.echo(json.dumps(estimated.to_dict()) if as_json else estimated)


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
            allowed = ", ".join(option_name(field.name) for field in fields(Changes))
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
def resume_command(
    run_url: str,
    max_layers: int | None,
    maps: str | None,
    checkpoint_every: int | None,
    keep_maps: str | None,
    take_over: bool,
    test_data: str | None,
    **flags: Any,
) -> None:
    """Resume a run after its last finished layer.

    \b
    Example:
      rescnet resume runs/digits-20260101-120000 --max-layers 8
    """
    cluster_flags, report_options = pop_cluster_options(flags), pop_report_options(flags)
    quiet = report_options.is_silent
    changes = Changes(max_layers, maps, checkpoint_every, keep_maps)
    store = RunStore.open(run_url)
    spec, run_spec = check_resume(store, changes, take_over=take_over)
    layers = len(store.commits()) - 1
    if layers >= spec.max_layers and not quiet:
        click.echo(
            f"All {pluralize(layers, 'layer')} are finished. Add --max-layers {layers + 1} or more "
            "to grow more layers.",
            err=True,
        )
    gpus = get_backend(run_spec).on_gpu
    with (
        open_reporter(report_options) as reporter,
        cluster(cluster_flags, quiet=quiet, gpus=gpus) as client,
    ):
        with open_listeners(run_url, reporter, client) as listeners:
            run = resume_run(store, client, listeners, changes=changes, take_over=take_over)
        report_outcome(run, run.attributes()["source"], test_data, reporter)


@click.command("info", **HELP_SETTINGS)
@click.argument("run_url", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def info_command(run_url: str, as_json: bool) -> None:
    """Describe a run or a saved network.

    Of a run: its state, data, spec, sizes, and the accuracy of each layer. Of a saved network, a
    folder or a zip file: its images, classes, layers and size.

    \b
    Example:
      rescnet info runs/digits-20260101-120000
    """
    if saved := describe_network(run_url):
        click.echo(json.dumps(saved, indent=1) if as_json else _format_network(saved))
        return
    run = describe_run(run_url)
    if as_json:
        click.echo(json.dumps(run, indent=1))
        return
    height, width, channels = run["image_shape"]
    click.echo(f"run       {run['url']}")
    click.echo(f"state     {run['state']}" + (f": {run['reason']}" if run["reason"] else ""))
    click.echo(
        f"data      {run['source'] or 'arrays'}: {run['images']:,} images of "
        f"{height}×{width}×{channels}, {pluralize(run['classes'], 'class')}"
    )
    if run["copies"]:
        click.echo(f"copies    {run['copies']} of each training image, {run['rows']:,} rows in all")
    click.echo(f"features  {run['features']:,} per layer")
    sizes = ", ".join(f"{name} {size / 2**20:,.1f} MiB" for name, size in run["bytes"].items())
    click.echo(f"store     {sizes}")
    click.echo(f"network   {_format_changes(run['network'], NetworkSpec)}")
    if settings := _format_changes(run["run"], RunSpec):
        click.echo(f"settings  {settings}")
    if not run["layers"]:
        return
    train = f"train (%){copies_suffix(run['copies'])}"
    table = Table("layer", train, "validation (%)", "seconds", "")
    for layer in run["layers"]:
        accuracies = [
            "" if layer[key] is None else f"{100 * layer[key]:.2f}"
            for key in ("train", "validation")
        ]
        chosen = "chosen" if layer["layer"] == run["depth"] else ""
        table.add_row(str(layer["layer"]), *accuracies, f"{layer['seconds']:.1f}", chosen)
    Console().print(table)


def _format_network(saved: dict[str, Any]) -> str:
    """Return the description of a saved network as text."""
    (height, width, channels), made = saved["image_shape"], saved["input"] or {}
    size = "×".join(map(str, made.get("resize") or ()))
    resized = f", resized to {size}" if size else ""
    converted = f", converted to {made['channels']}" if made.get("channels") else ""
    kind = f"{made.get('dtype', 'unknown type')}{resized}{converted}"
    lines = [
        f"network   {saved['url']}",
        f"images    {height}×{width}×{channels}, {kind}",
        f"classes   {len(saved['class_names'])}: {', '.join(saved['class_names'][:MAX_CLASSES])}",
        f"layers    {saved['depth']}",
        f"store     {format_bytes(saved['bytes'])}",
    ]
    if "networks" not in saved:
        lines.append(f"options   {_format_changes(saved['network'], NetworkSpec)}")
        return "\n".join(lines)
    return "\n".join(lines + _format_fused(saved))


def _format_fused(saved: dict[str, Any]) -> list[str]:
    """Return what a fused network averages, and the accuracies on held-out images, as lines."""
    lines, held_out = [], saved["held_out"]
    if copies := _format_changes(saved["averaging"], AugmentSpec):
        lines.append(f"averaged  {copies}")
    if held_out:
        images, accuracy = pluralize(held_out["images"], "image"), 100 * held_out["accuracy"]
        lines.append(f"held out  {images}, accuracy {accuracy:.2f} %")
    for number, network in enumerate(saved["networks"]):
        line = f"network {number + 1}: weight {saved['weights'][number]:.3f}"
        if held_out:
            line += f", accuracy {100 * held_out['network_accuracies'][number]:.2f} %"
        lines.append(f"{line}, {pluralize(network['depth'], 'layer')}")
        lines.append(f"          {_format_changes(network['network'], NetworkSpec)}")
    return lines


def _format_changes(values: dict[str, Any], kind: type[Spec]) -> str:
    """Return the options of a stored spec that are not the default as text."""
    rows = kind.from_stored(values).rows()
    return ", ".join(f"{name}={value}" for name, value, is_changed in rows if is_changed)


@click.command("check", **HELP_SETTINGS)
@click.argument("url", metavar="RUN")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def check_command(url: str, as_json: bool, **flags: Any) -> None:
    """Verify a run: find chunks that are missing, altered or stale.

    Chunks are compared with the commit records of the run. RUN may be an imported dataset too. The
    exit code is 0 if all chunks are as committed, else 1.

    \b
    Example:
      rescnet check runs/digits-20260101-120000
    """
    with cluster(pop_cluster_options(flags), embedded=False), show_status("reading every chunk"):
        problems = verify_dataset(url) if is_imported(url) else verify_run(url)
    if as_json:
        click.echo(json.dumps({"url": mask_secrets(url), "problems": problems}))
    else:
        click.echo(
            "\n".join(problems) or f"{mask_secrets(url)}: every chunk is as it was committed"
        )
    sys.exit(1 if problems else 0)


@click.command("presets", **HELP_SETTINGS)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def presets_command(name: str | None, as_json: bool) -> None:
    """List the presets, or print one as TOML.

    The TOML is a start for a --config file.

    \b
    Example:
      rescnet presets cifar10 > network.toml
    """
    if name:
        spec = NetworkSpec.preset(name)
        click.echo(json.dumps(spec.to_dict()) if as_json else spec.to_toml(), nl=as_json)
        return
    if as_json:
        click.echo(json.dumps({key: spec.to_dict() for key, spec in PRESETS.items()}))
        return
    table = Table("preset", "options that are not the default")
    for key, spec in PRESETS.items():
        changes = (f"{option}={value}" for option, value, is_changed in spec.rows() if is_changed)
        table.add_row(key, ", ".join(changes))
    Console().print(table)


def prepare_training(
    data: str,
    preset: str | None,
    config: str | None,
    flags: dict[str, Any],
    *,
    quiet: bool = False,
) -> tuple[TrainingSet, NetworkSpec, RunSpec]:
    """Return the data and the specs of a run from the options of `train` or `plan`."""
    with show_status(f"opening {mask_secrets(data)}", quiet=quiet):
        own_validation = flags["validation"] is None
        training = training_set(data, None, own_validation=own_validation)
        spec, run_spec, augment = resolve_specs(preset, config, data, flags, training.size)
    if is_automatic(preset, config) and not quiet:
        click.echo(describe_choice(spec.rows(), *training.size), err=True)
    return replace(training, augment=augment), spec, run_spec


def default_store(data: str) -> str:
    """Return the URL of a new folder under runs/, named after the data and the time."""
    path = urlsplit(data).path if "://" in data else data  # without user and query: secrets
    stem = os.path.splitext(os.path.basename(path.rstrip("/")))[0] or "data"
    return f"runs/{stem}-{datetime.now():%Y%m%d-%H%M%S}"
