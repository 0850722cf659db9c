"""The command `rescnet estimate`."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from rescnet_dist.cli.clusters import cluster, working
from rescnet_dist.cli.options import SHOW, resolve_specs, size_of, spec_options
from rescnet_dist.cluster import Workers
from rescnet_dist.errors import SpecError
from rescnet_dist.kernels import Backend
from rescnet_dist.planning import Problem, calibrate, estimate
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec

GPU_MEMORY_OPTION = click.option(
    "--gpu-memory", help="of each worker's GPU, for --array-backend cupy"
)


@click.command("estimate", **SHOW)
@click.argument("images")
@click.option("--classes", type=click.IntRange(2), default=10, show_default=True)
@click.option("--workers", type=click.IntRange(1), required=True, help="workers of the cluster")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="of each")
@click.option("--machines", type=click.IntRange(1), help="they share  [default: one each]")
@click.option("--memory", default="8GiB", show_default=True, help="of each")
@GPU_MEMORY_OPTION
@click.option("--preset", help="network to start from; see `rescnet presets`")
@click.option("--config", help="TOML file with a [network] and a [run] table; flags win over it")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@spec_options(NetworkSpec)
@spec_options(RunSpec)
@spec_options(AugmentSpec)
def estimate_command(
    images: str,
    classes: int,
    workers: int,
    threads: int,
    machines: int | None,
    memory: str,
    gpu_memory: str | None,
    preset: str | None,
    config: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """What a run would take on a cluster, of workers as fast as this machine, that need not be
    there.

    IMAGES is their number and shape, such as 50000x32x32x3. How fast a core is, is measured here,
    in half a minute; the rest is the arithmetic of `rescnet plan`. Stores are taken to be fast
    enough. How fast a GPU is, is not told.

    \b
    Example:
      rescnet estimate 50000x32x32x3 --preset cifar10 --workers 4 --threads 16 --memory 64GiB
    """
    spec, run_spec, augment = resolve_specs(preset, config, images, flags)
    problem = problem_of(images, classes, spec, run_spec, augment)
    if workers % (machines or workers):
        raise SpecError(
            f"--machines {machines} cannot share {workers} workers evenly: give a number that "
            f"divides {workers}"
        )
    sharing = workers // (machines or workers)
    there = Workers(
        workers, workers * threads, threads, sharing * threads, size_of("--memory", memory),
        gpu_memory=gpu_memory_of(run_spec, gpu_memory),
    )  # fmt: skip
    # before anything is measured: does it fit?
    found = estimate(problem, spec, run_spec, there, None)
    if there.gpu_memory is not None:
        click.echo(json.dumps(found.to_dict()) if as_json else found)
        return
    with cluster({}) as client, working("measuring"):
        speed = calibrate(client, problem, spec, Workers.of(client), None)
    found = estimate(problem, spec, run_spec, there, speed)
    click.echo(json.dumps(found.to_dict()) if as_json else found)


def gpu_memory_of(run_spec: RunSpec, given: str | None) -> int | None:
    """Bytes of a GPU, for a run that uses one."""
    if not Backend.of(run_spec).on_gpu:
        if given is not None:
            raise SpecError(
                f"--gpu-memory {given} is of GPUs, and this run uses none: add --array-backend "
                "cupy, or leave it out"
            )
        return None
    if given is None:
        raise SpecError(
            'array_backend="cupy" uses GPUs, of a size that is not told: give it, such as '
            "--gpu-memory 80GiB"
        )
    return size_of("--gpu-memory", given)


def problem_of(
    images: str, classes: int, spec: NetworkSpec, run_spec: RunSpec, augment: AugmentSpec
) -> Problem:
    """What is trained on, from its number and shape in words, such as 50000x32x32x3; refused if
    the specs do not fit it."""
    number, *shape = _shape(images)
    spec.check_images(shape[0], shape[1], shape[2])
    augment.check_images(shape[0], shape[1], shape[2])
    rows = round(number * (1 + augment.copies * (1 - run_spec.validation)))
    return Problem(rows, (shape[0], shape[1], shape[2]), classes, copies=augment.copies)


def _shape(images: str) -> list[int]:
    """The numbers of 50000x32x32x3."""
    found = re.fullmatch(r"(\d+)[x×](\d+)[x×](\d+)[x×](\d+)", images.replace(",", ""))
    if not found or 0 in map(int, found.groups()):
        raise SpecError(
            f"{images!r} is not a number of images and their shape: give them as "
            "IMAGESxHEIGHTxWIDTHxCHANNELS, such as 50000x32x32x3"
        )
    return [int(number) for number in found.groups()]
