"""What `rescnet train`, `plan` and `resume` do."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from rescnet_dist.automatic import describe_choice
from rescnet_dist.cli.clusters import training_cluster
from rescnet_dist.cli.common import pop_cluster_options
from rescnet_dist.cli.reporting import (
    open_listeners,
    open_reporter,
    pop_report_options,
    report_outcome,
)
from rescnet_dist.cli.resolve import is_automatic, resolve_specs
from rescnet_dist.cli.status import show_status
from rescnet_dist.data import TrainingSet, check_test_set, training_set
from rescnet_dist.errors import SpecError, mask_secrets, pluralize
from rescnet_dist.lifecycle import Changes, begin_or_resume, check_resume, check_run, resume_run
from rescnet_dist.planning import Problem, forecast
from rescnet_dist.runs.state import RunState
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store import RunStore


def train(
    data: str,
    preset: str | None,
    config: str | None,
    store: str | None,
    or_resume: bool,
    overwrite: bool,
    test_data: str | None,
    **flags: Any,
) -> None:
    """Train a network on a dataset."""
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
    with (
        open_reporter(report_options) as reporter,
        training_cluster(
            cluster_flags, run_spec, spec, partial(Problem.of, training, run_spec), quiet=quiet
        ) as client,
    ):
        with open_listeners(url, reporter, client) as listeners:
            if note := checked.plan_difference:
                click.echo(note, err=True)
            run = begin_or_resume(checked, client, listeners)
        report_outcome(run, data, test_data, reporter)


def plan(
    data: str,
    preset: str | None,
    config: str | None,
    store: str | None,
    measure: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Estimate the memory, tasks, bytes and time of `rescnet train`."""
    cluster_flags = pop_cluster_options(flags)
    training, spec, run_spec = prepare_training(data, preset, config, flags)
    url = store or default_store(data)
    check_run(url, spec, run_spec, training)
    status = "measuring" if measure else "planning"
    with (
        training_cluster(
            cluster_flags, run_spec, spec, partial(Problem.of, training, run_spec)
        ) as client,
        show_status(status),
    ):
        estimated = forecast(training, spec, run_spec, client, store=url, measure=measure)
    if as_json:
        click.echo(json.dumps(estimated.to_dict()))
        return
    click.echo(f"data      {describe_data(data)}")
    click.echo(estimated)


def describe_data(data: str) -> str:
    """Return the name of the data, and that it is the default if none was given."""
    context = click.get_current_context(silent=True)
    is_default = context and context.get_parameter_source("data") == ParameterSource.DEFAULT
    return mask_secrets(data) + (", the default: no DATA was named" if is_default else "")


def resume(
    run_url: str,
    max_layers: int | None,
    maps: str | None,
    checkpoint_every: int | None,
    keep_maps: str | None,
    take_over: bool,
    test_data: str | None,
    **flags: Any,
) -> None:
    """Resume a run after its last finished layer."""
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
    with (
        open_reporter(report_options) as reporter,
        training_cluster(
            cluster_flags,
            run_spec,
            spec,
            lambda: RunState.of(store).problem(itemsize=1),
            quiet=quiet,
        ) as client,
    ):
        with open_listeners(run_url, reporter, client) as listeners:
            run = resume_run(store, client, listeners, changes=changes, take_over=take_over)
        report_outcome(run, run.attributes()["source"], test_data, reporter)


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
