"""What `rescnet info` does."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rescnet_dist import data
from rescnet_dist.errors import RescnetError, StoreReadError, is_path, pluralize, url_word
from rescnet_dist.formatting import format_bytes, format_changes, train_suffix
from rescnet_dist.network import describe_network
from rescnet_dist.runs import check_no_folder_of_runs, describe_run
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec, Spec
from rescnet_dist.store import Location, limit_retries

MAX_CLASSES = 12  # names in the description of a network


def info(run_url: str, as_json: bool) -> None:
    """Describe a run or a saved network."""
    try:
        saved = describe_network(run_url)
    except StoreReadError:
        _check_exists(run_url)
        check_no_folder_of_runs(run_url)
        _check_no_dataset(run_url)
        raise
    location = Location.of(run_url)
    client = {} if location.is_local else {"client": location.client}
    described = {**(saved or describe_run(run_url)), **client}
    if as_json:
        click.echo(json.dumps(described, indent=1))
    elif saved:
        click.echo(_format_network(described))
    else:
        _print_run(described)


@limit_retries(0)
def _check_exists(url: str) -> None:
    """Raise StoreError if nothing is stored at a URL, or if its bucket does not exist."""
    location = Location.of(url)
    if location.exists():
        return
    location.check_bucket()
    parent = str(location).rpartition("/")[0]
    listed = str(location) if parent.endswith("/") else parent  # a bucket, or what is above
    raise StoreReadError(
        f"There is no run and no saved network at {location}: nothing is stored there. Check the "
        f"{url_word(str(location))}. `rescnet runs {listed or '/'}` lists the runs in "
        f"{listed or '/'}.",
        missing_path=is_path(str(location)),
    )


@limit_retries(0)
def _check_no_dataset(url: str) -> None:
    """Raise StoreReadError if there is a dataset at a URL."""
    try:
        images = data.open_source(Location.of(url).url).count  # a URL, as names are downloaded
    except RescnetError:
        return
    raise StoreReadError(
        f"{Location.of(url)} is a dataset of {pluralize(images, 'image')}, not a run or a saved "
        f"network. `rescnet data info {url}` describes it."
    )


def _print_run(run: dict[str, Any]) -> None:
    """Print the description of a run as text."""
    click.echo(f"run       {run['url']}")
    click.echo(f"state     {run['state']}" + (f": {run['reason']}" if run["reason"] else ""))
    click.echo(f"data      {run['source'] or 'arrays'}")
    click.echo(f"images    {run['images']:,} of {_format_shape(run)}")
    click.echo(f"classes   {run['classes']}")
    if run["copies"]:
        click.echo(f"copies    {run['copies']} of each training image, {run['rows']:,} rows in all")
    if run["depth"] is not None:
        click.echo(f"depth     {run['depth']} of {pluralize(len(run['layers']), 'layer')}")
    click.echo(f"features  {run['features']:,} per layer")
    sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in run["bytes"].items())
    click.echo(f"store     {sizes}{_format_client(run)}")
    click.echo(f"network   {_format_changes(run['network'], NetworkSpec)}")
    if settings := _format_changes(run["run"], RunSpec):
        click.echo(f"settings  {settings}")
    if test := run["test"]:
        share, count = 100 * test["accuracy"], pluralize(test["images"], "test image")
        click.echo(f"test      {share:.2f} % of {count} of {test['data']}")
    if not run["layers"]:
        return
    train = f"train %{train_suffix(run['copies'], run['leave_one_out'])}"
    table = Table("layer", train, "validation %", "seconds", "")
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
    made = saved["input"] or {}
    size = "×".join(map(str, made.get("resize") or ()))
    resized = f", resized to {size}" if size else ""
    converted = f", converted to {made['channels']}" if made.get("channels") else ""
    kind = f"{made.get('dtype', 'unknown type')}{resized}{converted}"
    lines = [
        f"saved     {saved['url']}",
        f"images    {_format_shape(saved)}, {kind}",
        f"classes   {len(saved['class_names'])}: {', '.join(saved['class_names'][:MAX_CLASSES])}",
        f"depth     {pluralize(saved['depth'], 'layer')}",
        f"store     {format_bytes(saved['bytes'])}{_format_client(saved)}",
    ]
    if "networks" not in saved:
        lines.append(f"network   {_format_changes(saved['network'], NetworkSpec)}")
        return "\n".join(lines)
    return "\n".join(lines + _format_fused(saved))


def _format_shape(described: dict[str, Any]) -> str:
    """Return the shape of the images of a run or a saved network."""
    return "×".join(map(str, described["image_shape"]))


def _format_client(described: dict[str, Any]) -> str:
    """Return what a store is opened with, if it is not on this machine."""
    return f", opened with {described['client']}" if "client" in described else ""


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
    return format_changes(kind.from_stored(values).rows())
