"""What `rescnet ablate` does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click
import numpy as np
from distributed import Client

from rescnet_dist.cli.clusters import training_cluster
from rescnet_dist.cli.common import pop_cluster_options
from rescnet_dist.cli.reporting import ReportOptions, open_listeners, open_reporter
from rescnet_dist.cli.resolve import is_automatic, resolve_specs
from rescnet_dist.cli.signals import Terminated
from rescnet_dist.cli.status import show_status
from rescnet_dist.dashboard.ablations import (
    ABLATIONS,
    PAPER_PRESET,
    Ablation,
    Variant,
    ablation_train_suffix,
    find_ablation,
    plot_ablation,
)
from rescnet_dist.dashboard.figures import check_matplotlib
from rescnet_dist.data import Images, encode, has_test_split, select_split, training_set
from rescnet_dist.errors import SpecError, StoreError, mask_secrets, pluralize
from rescnet_dist.formatting import (
    format_bytes,
    format_changes,
    format_time,
    option_name,
    url_name,
)
from rescnet_dist.lifecycle import CheckedRun, begin_or_resume, check_run
from rescnet_dist.network import Network
from rescnet_dist.planning import Problem, forecast
from rescnet_dist.planning.backend import get_available_backend
from rescnet_dist.runs import describe_run
from rescnet_dist.spec import CHANGEABLE, AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import Location, RunStore, StoredLayers, open_output

RECORD_VERSION = 1


def ablate(
    name: str,
    data: str,
    output: str,
    values: tuple[str, ...] | None,
    preset: str | None,
    config: str | None,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train networks that differ in one option, as in the paper."""
    check_matplotlib()
    cluster_flags = pop_cluster_options(flags)
    ablation = find_ablation(name)
    ablation = ablation.with_values(values) if values else ablation
    base, run_spec, augment = resolve_base(ablation, preset, config, data, flags)
    with show_status(f"opening {mask_secrets(data)}", quiet=quiet):
        own_validation = flags["validation"] is None
        training = training_set(data, None, own_validation=own_validation)
        training = replace(training, augment=augment)
    folder = Location.of(output)
    checked = [
        check_variant(folder, ablation.run_name(variant), spec, run_spec, training, source=data)
        for variant, spec in zip(ablation.variants, ablation.specs(base), strict=True)
    ]
    runs, is_silent = list[RunStore](), quiet or as_json
    if not is_silent:
        click.echo(describe_settings(ablation, base), err=True)
    with (
        open_reporter(ReportOptions(quiet=is_silent)) as reporter,
        training_cluster(
            cluster_flags, run_spec, base, partial(Problem.of, training, run_spec), quiet=quiet
        ) as client,
    ):
        if not is_silent:
            print_estimates(ablation, checked, client)
        for entry, variant in zip(checked, ablation.variants, strict=True):
            url = entry.store.url
            if not is_silent:
                already = ", already trained" if is_finished(entry) else ""
                click.echo(f"{variant.label}: {mask_secrets(url)}{already}", err=True)
            with hint_to_repeat(), open_listeners(url, reporter, client) as listeners:
                runs.append(begin_or_resume(entry, client, listeners))
        with show_status("test accuracy", quiet=quiet):
            record = make_record(ablation, data, base, run_spec, runs)
    (folder / f"{name}.json").write_json(record)
    with open_output(folder / f"{name}.png") as file:
        plot_ablation(record).savefig(file, format="png", dpi=150, bbox_inches="tight")
    report(record, output, as_json=as_json)


def resolve_base(
    ablation: Ablation, preset: str | None, config: str | None, data: str, flags: dict[str, Any]
) -> tuple[NetworkSpec, RunSpec, AugmentSpec]:
    """Return what all runs have in common; raise SpecError if a flag sets what is varied."""
    if flags.get(ablation.option) is not None:
        flag = option_name(ablation.option)
        remedy = "Leave it out." if ablation.form is None else "Name the values by --values."
        raise SpecError(f"{flag} is what the ablation {ablation.name} varies. {remedy}")
    automatic = is_automatic(preset, config)
    specs = resolve_specs(PAPER_PRESET if automatic else preset, config, data, flags)
    if not automatic:
        return specs
    changes = {key: value for key, value in ablation.base.items() if flags.get(key) is None}
    return specs[0].replace(**changes), *specs[1:]


def describe_settings(ablation: Ablation, base: NetworkSpec) -> str:
    """Return one line on what all networks have in common, and what is varied."""
    rows = (row for row in base.rows() if row[0] != ablation.option)
    labels = ", ".join(variant.label for variant in ablation.variants)
    return f"settings of all networks: {format_changes(rows)}; compared: {labels}"


def print_estimates(ablation: Ablation, checked: Sequence[CheckedRun], client: Client) -> None:
    """Print what each network that is not finished takes, and the time of all, if measured."""
    total = 0.0
    for entry, variant in zip(checked, ablation.variants, strict=True):
        if is_finished(entry):
            continue
        grown = max(0, len(entry.store.commits()) - 1) if entry.stored else 0
        with show_status("measuring"):
            found = forecast(entry.data, entry.spec, entry.run_spec, client, store=entry.store.url)
        parts = [f"at most {pluralize(found.max_layers, 'layer')}"]
        if grown:
            parts.append(f"of which {grown} {'is' if grown == 1 else 'are'} grown")
        if found.layer_seconds is not None:
            seconds = found.layer_seconds * max(0, found.max_layers - grown)
            parts.append(f"about {format_time(found.layer_seconds)} per layer")
            parts.append(f"{format_time(seconds)} for {'the others' if grown else 'all'}")
            total += seconds
        parts.append(f"{format_bytes(found.traffic.store)} in the store at most")
        click.echo(f"{variant.label}: {', '.join(parts)}", err=True)
    if total:
        click.echo(f"all networks: about {format_time(total)}, if all layers are grown", err=True)


@contextmanager
def hint_to_repeat() -> Iterator[None]:
    """Name the command that continues an ablation in interruptions: not that of one network."""
    hint = "run the same command again, which continues with this network"
    try:
        yield
    except Terminated:
        raise Terminated(hint) from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(hint) from None


def is_finished(run: CheckedRun) -> bool:
    """Return whether a run is in the store, and has grown all its layers."""
    return bool(run.stored and (run.store.result() or {}).get("reason"))


def check_variant(
    folder: Location, name: str, *asked: Any, source: str | None = None
) -> CheckedRun:
    """Check the run of a network; see `check_run`, whose specs and data are `asked`.

    That is the run of its name, or else a finished run of the same network in the folder, which
    keeps its own options: several ablations compare with the same network.
    """
    if not (folder / name).exists():
        for other in filter(is_ablation_run, folder.names()):
            with suppress(StoreError):  # of another network
                found = check_run((folder / other).url, *asked, source=source, or_resume=True)
                if found.stored and is_finished(found):
                    own = RunSpec.from_stored(found.stored["run"])
                    kept = {option: getattr(own, option) for option in CHANGEABLE}
                    return replace(found, run_spec=found.run_spec.replace(**kept))
    return check_run((folder / name).url, *asked, source=source, or_resume=True)


def is_ablation_run(name: str) -> bool:
    """Return whether a run of this name is one of an ablation, such as rate-0.4."""
    return name.startswith(tuple(f"{ablation}-" for ablation in ABLATIONS))


def make_record(
    ablation: Ablation, data: str, base: NetworkSpec, run_spec: RunSpec, runs: Sequence[RunStore]
) -> dict[str, Any]:
    """Return the curves of all runs, with what the paper reports, as JSON-serializable values."""
    test = open_test_images(data)
    variants = [
        describe_variant(variant, run, test)
        for variant, run in zip(ablation.variants, runs, strict=True)
    ]
    has_validation = all(v["curve"][-1]["validation"] is not None for v in variants)
    return {
        "version": RECORD_VERSION,
        "ablation": ablation.name,
        "title": ablation.title,
        "option": ablation.option,
        "data": mask_secrets(data),
        "curve": "test" if test else "validation" if has_validation else "train",
        "network": base.to_dict(),
        "run": run_spec.to_dict(),
        "variants": variants,
    }


def open_test_images(data: str) -> tuple[Images, Any] | None:
    """Return the test images of a dataset, lazy if they are stored, and their labels (n,).

    It is None if there is no test split.
    """
    if not has_test_split(data):
        return None
    part = select_split(data, None, "test")
    return part.images, np.asarray(part.labels)


def describe_variant(
    variant: Variant, run: RunStore, test: tuple[Images, Any] | None
) -> dict[str, Any]:
    """Return the accuracy of a run after each layer, on the test images too if there are any."""
    described = describe_run(run.url)
    layers = [layer for layer in described["layers"] if layer["train"] is not None]
    accuracies: dict[int, float] = {}
    if test:
        backend = get_available_backend(RunSpec.from_stored(described["run"]))
        network = Network.load(run.url).on(backend)
        spec = network.spec
        head = spec.head
        grown = StoredLayers(
            *(run.location, layers[-1]["layer"], head.arrays, spec.first_head),
            without=head.training_arrays,
        )
        images, labels = test
        codes = np.asarray(encode(labels, network.classes))
        correct = replace(network, layers=grown).staged_correct(images, codes)
        accuracies = dict(enumerate((correct / len(codes)).tolist(), start=1))
    keys = ("layer", "train", "validation")
    return {
        "value": variant.value,
        "label": variant.label,
        "run": url_name(run.url),
        "depth": described["depth"],
        "layers": layers[-1]["layer"],
        "copies": described["copies"],
        "leave_one_out": described["leave_one_out"],
        "curve": [
            {**{key: layer[key] for key in keys}, "test": accuracies.get(layer["layer"])}
            for layer in layers
        ],
        "seconds": sum(layer["seconds"] for layer in described["layers"]),
        "published": [asdict(published) for published in variant.published],
    }


def report(record: dict[str, Any], output: str, *, as_json: bool) -> None:
    """Print the accuracy of each variant at its chosen depth, or the whole record as JSON."""
    if as_json:
        click.echo(json.dumps(record))
        return
    width = max(len(variant["label"]) for variant in record["variants"])
    for variant in record["variants"]:
        chosen = next(e for e in variant["curve"] if e["layer"] == variant["depth"])
        suffixes = {"train": ablation_train_suffix(variant), "validation": "", "test": ""}
        parts = [
            f"{key} {100 * chosen[key]:.2f} %{suffix}"
            for key, suffix in suffixes.items()
            if chosen[key] is not None
        ]
        layers = f"{variant['depth']} of {pluralize(variant['layers'], 'layer')}"
        click.echo(f"{variant['label']:<{width}}  {layers}: {', '.join(parts)}")
        for published in variant["published"]:
            text = f"{published['layers']} layers: {published['accuracy']:.2f} %"
            click.echo(f"{'':<{width}}  paper, {text} ({published['reference']})")
    name = record["ablation"]
    folder = mask_secrets(output).rstrip("/")
    click.echo(f"wrote {folder}/{name}.json and {folder}/{name}.png", err=True)
