"""What `rescnet estimate` does."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import click

from rescnet_dist import planning
from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cli.common import parse_size
from rescnet_dist.cli.resolve import find_preset, resolve_specs
from rescnet_dist.cli.status import show_status
from rescnet_dist.cluster import Workers
from rescnet_dist.cluster.load import MAX_OTHER_SHARE, CpuTimes
from rescnet_dist.errors import SpecError
from rescnet_dist.planning import Problem, calibrate
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.planning.cost import Prices, describe_cost
from rescnet_dist.spec import DEFAULT_VALIDATION, AugmentSpec, NetworkSpec, RunSpec

DEFAULT_CLASSES = 10
# Number of classes of the data that each preset is for.
PRESET_CLASSES = {"digits": 10, "mnist": 10, "cifar10": 10, "cifar100": 100, "tiny-imagenet": 200}


def estimate(
    images: str,
    classes: int | None,
    workers: int,
    threads: int,
    machines: int | None,
    memory: str,
    gpu_memory: str | None,
    stable_price: float | None,
    spot_price: float | None,
    preset: str | None,
    config: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Estimate the time and memory of a run on a cluster."""
    prices = resolve_prices(stable_price, spot_price)
    classes = resolve_classes(classes, find_preset(preset, config)) or DEFAULT_CLASSES
    number, *shape = parse_shape(images)
    size = ((shape[0], shape[1], shape[2]), number, classes)
    spec, run_spec, augment = resolve_specs(preset, config, images, flags, size)
    problem = make_problem(images, classes, spec, run_spec, augment)
    if workers % (machines or workers):
        raise SpecError(
            f"--machines {machines} cannot share {workers} workers evenly. Give a number that "
            f"divides {workers}."
        )
    per_machine = workers // (machines or workers)
    described = Workers(
        count=workers,
        slots=workers * threads,
        threads=threads,
        machine_threads=per_machine * threads,
        memory=parse_size("--memory", memory),
        gpu_memory=resolve_gpu_memory(run_spec, gpu_memory),
    )
    if prices and described.gpu_memory is not None:
        raise SpecError(
            f"--stable-price {prices.stable:g} is for the cost, but no time is estimated for GPUs. "
            "Leave prices out."
        )
    # Raise for a run that does not fit before anything is measured.
    forecast = planning.estimate(problem, spec, run_spec, described, None)
    if described.gpu_memory is None:
        with cluster({}) as client, show_status("measuring"):
            checked, start = Workers.from_client(client), CpuTimes.now()
            speed = calibrate(client, problem, spec, checked, None)
            share = CpuTimes.now().other_share(start)
        if share > MAX_OTHER_SHARE:
            click.echo(describe_load(share), err=True)
        forecast = planning.estimate(problem, spec, run_spec, described, speed)
    record, cost = forecast.to_dict(), ""
    if prices and forecast.seconds is not None:
        amounts = {
            name: prices.run_cost(forecast.seconds, machines or workers, spot=name == "spot")
            for name in ("stable", "spot")
            if getattr(prices, name) is not None
        }
        record["cost"] = amounts
        cost = f"\n{'cost':<9} {describe_cost(forecast.seconds, machines or workers, prices)}"
    click.echo(json.dumps(record) if as_json else f"{forecast}{cost}")


def describe_load(share: float) -> str:
    """Return what to say of times that were measured while others used a share of the machine."""
    return (
        f"warning: The machine was busy: others used {100 * share:.0f} % of its cores while its "
        "speed was measured, so that times and costs are too high. Estimate again when it is idle."
    )


def resolve_prices(stable: float | None, spot: float | None) -> Prices | None:
    """Return the prices of machines, or None without any; raise SpecError without a stable one."""
    for option, price in (("--stable-price", stable), ("--spot-price", spot)):
        if price is not None and not math.isfinite(price):
            raise SpecError(f"{option} {price:g} is not a price. Give a number, such as 0.20.")
    if stable is None:
        if spot is not None:
            raise SpecError(
                f"--spot-price {spot:g} is for workers; scheduler and driver need a machine that "
                "stays. Add its price, --stable-price."
            )
        return None
    return Prices(stable, spot)


def resolve_classes(given: int | None, preset: str | None) -> int | None:
    """Return the number of classes: as given, or of the data that a preset is for, if known."""
    if preset is not None:
        NetworkSpec.preset(preset)  # raises SpecError for an unknown name
    return PRESET_CLASSES.get(preset or "") if given is None else given


def resolve_gpu_memory(run_spec: RunSpec, given: str | None) -> int | None:
    """Return the bytes of a GPU, or None for a run without; raise SpecError if they do not fit."""
    if not get_backend(run_spec).on_gpu:
        if given is not None:
            raise SpecError(
                f"--gpu-memory {given} is for GPUs, but this run uses none. Add --array-backend "
                "cupy, or leave --gpu-memory out."
            )
        return None
    if given is None:
        raise SpecError(
            'array_backend="cupy" uses GPUs, but their memory is not given. Add it, such as '
            "--gpu-memory 80GiB."
        )
    return parse_size("--gpu-memory", given)


def make_problem(
    images: str, classes: int, spec: NetworkSpec, run_spec: RunSpec, augment: AugmentSpec
) -> Problem:
    """Return the size of the data from text such as 50000x32x32x3.

    Raise SpecError if the specs do not fit it.
    """
    number, *shape = parse_shape(images)
    spec.check_images(shape[0], shape[1], shape[2])
    augment.check_images(shape[0], shape[1], shape[2])
    validation = DEFAULT_VALIDATION if run_spec.validation is None else run_spec.validation
    rows = round(number * (1 + augment.copies * (1 - validation)))
    return Problem(rows, (shape[0], shape[1], shape[2]), classes, copies=augment.copies)


def parse_shape(images: str) -> list[int]:
    """Return the numbers of text such as 50000x32x32x3; raise SpecError for other text."""
    match = re.fullmatch(r"(\d+)[x×](\d+)[x×](\d+)[x×](\d+)", images.replace(",", ""))
    if not match or 0 in map(int, match.groups()):
        raise SpecError(
            f"{images!r} is not a number of images and their shape. Give them as "
            "IMAGESxHEIGHTxWIDTHxCHANNELS, such as 50000x32x32x3."
        )
    return [int(number) for number in match.groups()]
