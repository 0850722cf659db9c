"""The commands of `rescnet` that are about networks: train, plan, resume and so on."""

from __future__ import annotations

import csv
import json
import os
import sys
from dataclasses import fields, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import click
import dask.array as da
from rich.console import Console
from rich.table import Table

import rescnet_dist
from rescnet_dist.cli.clusters import cluster, working
from rescnet_dist.cli.files import finished_file
from rescnet_dist.cli.options import (
    BACKEND_OPTION,
    SHOW,
    SPLIT_OPTION,
    averaged_over,
    averaging_options,
    cluster_options,
    resolve_specs,
    spec_options,
    take_cluster,
)
from rescnet_dist.cli.progress import with_copies
from rescnet_dist.cli.reporting import (
    pop_report_options,
    report_outcome,
    reporting_options,
    telling,
    watched,
)
from rescnet_dist.data import (
    TrainingSet,
    check_test_set,
    evaluation_split,
    has_test_split,
    is_imported,
    open_split,
    training_set,
    verify_dataset,
)
from rescnet_dist.errors import (
    RescnetError,
    SpecError,
    mask_secrets,
    pluralize,
)
from rescnet_dist.flags import option_name
from rescnet_dist.kernels import Backend
from rescnet_dist.planning import forecast
from rescnet_dist.spec import PRESETS, AugmentSpec, NetworkSpec, RunSpec, Spec
from rescnet_dist.store import RunStore
from rescnet_dist.train import (
    CHANGEABLE,
    Changes,
    begin_run,
    check_resume,
    check_run,
    describe_run,
    find_matching_run,
    other_plan,
    resume_run,
    verify_run,
)


@click.command("train", **SHOW)
@click.argument("data", default="digits")
@click.option("--preset", help="network to start from; see `rescnet presets`")
@click.option("--config", help="TOML file with a [network] and a [run] table; flags win over it")
@click.option("--store", help="URL of the run store  [default: runs/DATA-DATE]")
@click.option("--or-resume", is_flag=True, help="or go on with this run, if it is in the store")
@click.option("--test", "test_data", help="data to report the test accuracy on")
@cluster_options
@reporting_options
@spec_options(NetworkSpec)
@spec_options(RunSpec)
@spec_options(AugmentSpec)
def train_command(
    data: str,
    preset: str | None,
    config: str | None,
    store: str | None,
    or_resume: bool,
    test_data: str | None,
    **flags: Any,
) -> None:
    """Train a network on DATA: "digits", or whatever `rescnet data import` takes or has made.

    With --or-resume the same command can be run any number of times: it begins the run, goes on
    with it where it was stopped, and leaves it as it is once it is done.

    \b
    Example:
      rescnet train --max-layers 3
      rescnet train s3://bucket/cifar10.zarr --preset cifar10 --store s3://bucket/runs/1
    """
    where, how = take_cluster(flags), pop_report_options(flags)
    if or_resume and not store:
        raise SpecError("--or-resume goes on with the run in a store: name it with --store")
    training, spec, run_spec = what_to_train(data, preset, config, flags, quiet=how.silent)
    url = store or default_store(data)
    there = or_resume and find_matching_run(url, spec, run_spec, training, data)
    check_run(url, spec, run_spec, training, free=not or_resume)
    if test_data:
        check_test_set(test_data, training)
    gpus = Backend.of(run_spec).on_gpu
    with telling(how) as teller, cluster(where, quiet=how.silent, gpus=gpus) as client:
        with watched(url, teller, client) as listeners:
            if there:
                if note := other_plan(there, run_spec):
                    click.echo(note, err=True)
                run = resume_run(url, client, listeners, changes=Changes.to(run_spec))
            else:
                run = begin_run(
                    url,
                    spec,
                    run_spec,
                    training,
                    client,
                    listeners,
                    source=data,
                    replace_incomplete=or_resume,
                )
        report_outcome(run, data, test_data, teller)


@click.command("plan", **SHOW)
@click.argument("data", default="digits")
@click.option("--preset", help="network to start from; see `rescnet presets`")
@click.option("--config", help="TOML file with a [network] and a [run] table; flags win over it")
@click.option("--store", help="URL of the run store  [default: runs/DATA-DATE]")
@click.option("--measure/--no-measure", default=True, help="time the cluster and the store")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@spec_options(NetworkSpec)
@spec_options(RunSpec)
@spec_options(AugmentSpec)
def plan_command(
    data: str,
    preset: str | None,
    config: str | None,
    store: str | None,
    measure: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """What `rescnet train` with the same options would take: memory, tasks, bytes and time.

    Refuses what `train` would refuse.

    \b
    Example:
      rescnet plan --max-layers 3
      rescnet plan s3://bucket/cifar10.zarr --preset cifar10 --scheduler tcp://...:8786
    """
    where = take_cluster(flags)
    training, spec, run_spec = what_to_train(data, preset, config, flags)
    url = store or default_store(data)
    check_run(url, spec, run_spec, training)
    gpus = Backend.of(run_spec).on_gpu
    with cluster(where, gpus=gpus) as client, working("measuring" if measure else "planning"):
        found = forecast(training, spec, run_spec, client, store=url, measure=measure)
    click.echo(json.dumps(found.to_dict()) if as_json else found)


class KeepsSettings(click.Command):
    """A command on a run, whose settings it keeps: it says so of options that would change them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words of the command; settings of `rescnet train` are refused as such."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            kinds: tuple[Any, ...] = (NetworkSpec, RunSpec, AugmentSpec)
            names = {"preset", "config", *(field.name for kind in kinds for field in fields(kind))}
            settings = {
                option
                for parameter in train_command.params
                if parameter.name in names
                for option in (*parameter.opts, *parameter.secondary_opts)
            }
            if (option := error.option_name) not in settings:
                raise
            free = ", ".join(option_name(field.name) for field in fields(Changes))
            raise SpecError(
                f"{option}: a run keeps the settings that it began with, but for {free}; "
                f"begin another by `rescnet train {option} …`"
            ) from None


@click.command("resume", cls=KeepsSettings, **SHOW)
@click.argument("run_url", metavar="RUN")
@click.option("--max-layers", type=int, help="grow up to so many layers instead")
@click.option("--take-over", is_flag=True, help="even if another driver, which is dead, claims it")
@click.option("--test", "test_data", help="data to report the test accuracy on")
@cluster_options
@reporting_options
@spec_options(RunSpec, only=CHANGEABLE)
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
    """Go on with a run after its last finished layer.

    \b
    Example:
      rescnet resume runs/digits-20260101-120000 --max-layers 8
    """
    where, how = take_cluster(flags), pop_report_options(flags)
    changes = Changes(max_layers, maps, checkpoint_every, keep_maps)
    store = RunStore.open(run_url)
    spec, kept = check_resume(store, changes, take_over=take_over)
    grown = len(store.commits()) - 1
    if grown >= spec.max_layers and not how.silent:
        there = f"all {pluralize(grown, 'layer')} are there"
        click.echo(f"{there}: --max-layers {grown + 1} or more adds some", err=True)
    gpus = Backend.of(kept).on_gpu
    with telling(how) as teller, cluster(where, quiet=how.silent, gpus=gpus) as client:
        with watched(run_url, teller, client) as listeners:
            run = resume_run(run_url, client, listeners, changes=changes, take_over=take_over)
        report_outcome(run, run.attributes()["source"], test_data, teller)


@click.command("evaluate", **SHOW)
@click.argument("run_url", metavar="RUN")
@click.argument("data", required=False)
@SPLIT_OPTION
@click.option("--staged", is_flag=True, help="accuracy after each layer, up to the depth chosen")
@averaging_options
@cluster_options
@BACKEND_OPTION
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def evaluate_command(
    run_url: str,
    data: str | None,
    split: str | None,
    staged: bool,
    flips: bool,
    copies: int | None,
    array_backend: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Accuracy of the network at RUN, a run or a saved network, on DATA.

    Of DATA the test split is used, or all of it where it has no splits, or but one; left out, it is
    what the run was trained on, where that has a test split.

    \b
    Example:
      rescnet evaluate runs/digits-20260101-120000 --staged
    """
    clf = rescnet_dist.ResCNetClassifier.load(run_url, array_backend=array_backend)
    data = data or test_of_run(run_url)
    chosen = open_split(data, split) if split else data
    augment = averaged_over(flips, copies)
    outcome: dict[str, Any] = {"depth": clf.depth_, "flips": flips, "copies": copies}
    with cluster(take_cluster(flags), embedded=False), working("evaluating"):
        if staged:
            outcome["staged"] = clf.staged_score(chosen, augment=augment).tolist()
            outcome["accuracy"] = outcome["staged"][-1]
        else:
            outcome["accuracy"] = clf.score(chosen, augment=augment)
    if as_json:
        click.echo(json.dumps(outcome))
        return
    for layer, accuracy in enumerate(outcome.get("staged", ()), start=1):
        click.echo(f"after layer {layer}: {100 * accuracy:.2f} %")
    click.echo(f"accuracy {100 * outcome['accuracy']:.2f} % with {pluralize(clf.depth_, 'layer')}")


@click.command("predict", **SHOW)
@click.argument("run_url", metavar="RUN")
@click.argument("data")
@click.option("--output", "-o", default="-", help="CSV file to write  [default: standard output]")
@SPLIT_OPTION
@click.option("--proba", is_flag=True, help="a column of probability per class, too")
@averaging_options
@BACKEND_OPTION
def predict_command(
    run_url: str,
    data: str,
    output: str,
    split: str | None,
    proba: bool,
    flips: bool,
    copies: int | None,
    array_backend: str,
) -> None:
    """Predict the labels of DATA with the network at RUN, a run or a saved network, as CSV.

    Of DATA the test split is used, or all of it where it has no splits, or but one; images are
    numbered within it, and those that are files named.

    \b
    Example:
      rescnet predict runs/digits-20260101-120000 digits -o labels.csv
    """
    clf = rescnet_dist.ResCNetClassifier.load(run_url, array_backend=array_backend)
    part = evaluation_split(open_split(data, split) if split else data)
    images, files = part.images, part.files
    clf.network_.check_images(images)
    clf.network_.look_at(images)
    augment = averaged_over(flips, copies)
    with finished_file(output) as file:
        writer = csv.writer(file)
        names = [f"p({c})" for c in clf.classes_] if proba else []
        writer.writerow(["image", *(["file"] if files is not None else []), "label", *names])
        lazy = da.asarray(images.array).rechunk({0: clf.network_.batch_images})
        number = 0
        for block in clf.predict_proba(lazy, augment=augment).blocks:
            probabilities = block.compute(scheduler="threads")
            labels = clf.classes_[probabilities.argmax(axis=1)]
            for label, row in zip(labels, probabilities, strict=True):
                file_name = [] if files is None else [files[number]]
                writer.writerow([number, *file_name, label, *(f"{p:.6f}" for p in row if proba)])
                number += 1
    if output != "-":
        click.echo(f"wrote {pluralize(number, 'label')} to {output}", err=True)


@click.command("info", **SHOW)
@click.argument("run_url", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def info_command(run_url: str, as_json: bool) -> None:
    """What a run is and how far it got: spec, layers, accuracies, sizes.

    \b
    Example:
      rescnet info runs/digits-20260101-120000
    """
    found = describe_run(run_url)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    height, width, channels = found["image_shape"]
    click.echo(f"run       {found['url']}")
    click.echo(f"state     {found['state']}" + (f": {found['reason']}" if found["reason"] else ""))
    click.echo(
        f"data      {found['source'] or 'arrays'}: {found['images']:,} images of "
        f"{height}×{width}×{channels}, {pluralize(found['classes'], 'class')}"
    )
    if found["copies"]:
        click.echo(
            f"copies    {found['copies']} of each image to train on, {found['rows']:,} rows in all"
        )
    click.echo(f"features  {found['features']:,} per layer")
    sizes = ", ".join(f"{name} {size / 2**20:,.1f} MiB" for name, size in found["bytes"].items())
    click.echo(f"store     {sizes}")
    click.echo(f"network   {_changed(found['network'], NetworkSpec())}")
    if settings := _changed(found["run"], RunSpec()):
        click.echo(f"settings  {settings}")
    if not found["layers"]:
        return
    train = f"train %{with_copies(found['copies'])}"
    table = Table("layer", train, "validation %", "seconds", "")
    for layer in found["layers"]:
        shown = [
            "" if layer[key] is None else f"{100 * layer[key]:.2f}"
            for key in ("train", "validation")
        ]
        chosen = "chosen" if layer["layer"] == found["depth"] else ""
        table.add_row(str(layer["layer"]), *shown, f"{layer['seconds']:.1f}", chosen)
    Console().print(table)


def _changed(values: dict[str, Any], default: Spec) -> str:
    """The values of a spec that are not the default, in words."""
    usual = default.to_dict()
    return ", ".join(f"{k}={v}" for k, v in values.items() if usual.get(k) != v)


@click.command("check", **SHOW)
@click.argument("url", metavar="RUN")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def check_command(url: str, as_json: bool, **flags: Any) -> None:
    """Verify a run store against its commit records: chunks missing, altered or stale; or the
    chunks of an imported data set.

    Exit code 0 if all is as committed, 1 if not.

    \b
    Example:
      rescnet check runs/digits-20260101-120000
    """
    with cluster(take_cluster(flags), embedded=False), working("reading every chunk"):
        problems = verify_dataset(url) if is_imported(url) else verify_run(url)
    if as_json:
        click.echo(json.dumps({"url": mask_secrets(url), "problems": problems}))
    else:
        click.echo(
            "\n".join(problems) or f"{mask_secrets(url)}: every chunk is as it was committed"
        )
    sys.exit(1 if problems else 0)


@click.command("presets", **SHOW)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def presets_command(name: str | None, as_json: bool) -> None:
    """List the named networks, or print one as TOML to start a --config file from.

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
    table = Table("option", *PRESETS)
    for field in fields(NetworkSpec):
        values = [getattr(spec, field.name) for spec in PRESETS.values()]
        if len(set(values)) > 1:
            table.add_row(field.name, *(str(value) for value in values))
    Console().print(table)


# ------------------------------------------------------------------------------------------------


def what_to_train(
    data: str,
    preset: str | None,
    config: str | None,
    flags: dict[str, Any],
    *,
    quiet: bool = False,
) -> tuple[TrainingSet, NetworkSpec, RunSpec]:
    """The data and the specs of a run, from the options of `train` or `plan`."""
    with working(f"looking at {mask_secrets(data)}", quiet=quiet):
        own = flags["validation"] is None
        training = training_set(data, None, own_validation=own)
        spec, run_spec, augment = resolve_specs(preset, config, data, flags)
        return replace(training, augment=augment), spec, run_spec


def default_store(data: str) -> str:
    """A new folder under runs/, named after the data and the time."""
    path = urlsplit(data).path if "://" in data else data  # not the secrets that a URL may carry
    stem = os.path.splitext(os.path.basename(path.rstrip("/")))[0] or "data"
    return f"runs/{stem}-{datetime.now():%Y%m%d-%H%M%S}"


def test_of_run(run_url: str) -> str:
    """The data with a test split that a run was trained on; an error where there is none."""
    source: str | None = RunStore.open(run_url).attributes()["source"]
    if source is None or not has_test_split(source):
        raise RescnetError(
            f"the run at {run_url} was trained on {source or 'arrays'}, which has no test split "
            "known here: name the DATA to evaluate on"
        )
    return source
