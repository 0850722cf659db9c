"""Command-line options made from the specs, and how files, presets and flags combine."""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from rescnet_dist.errors import ClusterError, SpecError
from rescnet_dist.flags import option_name
from rescnet_dist.formatting import format_bytes
from rescnet_dist.spec import (
    CHOICES,
    RENAMED_OPTIONS,
    AugmentSpec,
    NetworkSpec,
    RunSpec,
    Spec,
    read_toml,
)

MIN_MEMORY_BYTES = 64 * 2**20  # smaller sizes are taken for a missing unit

AnySpec = TypeVar("AnySpec", bound=Spec)

# Arguments of every click command.
HELP_SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100}
}

# Help texts of the options of all specs, by field. The documentation shows them too.
HELP = {
    "filters": "filters per layer",
    "filter_size": "filter width and height in layers 2 and later, in pixels",
    "first_filter_size": "filter width and height in layer 1, in pixels",
    "minmax": "min-max normalization: one range for all channels, or one per channel",
    "rectify": "pass ReLU(maps) to the next layer instead of the maps",
    "local_contrast": "use half of the filters on the local contrast of the images",
    "lda_fraction": "fraction of stacked-LDA filters; the rest are PCA filters",
    "lda_positives": "patches of the class in each stacked-LDA draw",
    "lda_negatives": "patches of other classes in each stacked-LDA draw",
    "lda_tolerance": "largest training error of a draw that is accepted",
    "lda_ridge": "ridge added to the covariance of a draw",
    "lda_draws": "draws per stacked-LDA filter",
    "block": "width and height of the pooling blocks, in pixels",
    "stride": "distance between pooling blocks, in pixels",
    "zscore": "normalization within a block: per channel, or of the whole block",
    "power": "replace each feature v by sign(v)·|v|^½",
    "pairs": "pairs of maps whose covariance is a feature: all, or those within a tower",
    "levels": "cells per side at each level of the spatial pyramid, such as 4,2,1",
    "cells": "assignment of blocks to pyramid cells: by block center, or in equal shares",
    "pool": "pooling over the blocks of a cell",
    "residual": "target of later layers: classify the sign of the largest error, or regress errors",
    "ridge": "ridge γ of the classifiers, relative to the mean feature variance",
    "probability": "probability of a class from its score",
    "sigma": "scale σ of the sigmoid",
    "beta": "scale β of the softmax",
    "target": "target score λ of the true class",
    "learning_rate": "learning rate α",
    "decay": "fraction by which α decreases every decay_every layers",
    "decay_every": "layers between two decreases of α",
    "rate_floor": "lowest α",
    "max_layers": "maximum number of layers",
    "patience": "stop after this many layers without a higher validation accuracy",
    "stop_at_zero_error": "stop once the training error is 0",
    "store_dtype": "precision of the maps",
    "seed": "seed of the draws, the validation split and the copies",
    "validation": "fraction of the training images to hold out  [default: 0.1]",
    "chunk_images": "images per chunk",
    "accumulators": "partial sums that the tree reduction starts from",
    "split_every": "fan-in of the tree reduction",
    "solve_threads": "BLAS threads of the solve",
    "tile_features": "width and height of the tiles of the scatter matrix, in features",
    "keep_maps": "layers whose maps stay in the store",
    "codec": "compression of the stored maps",
    "maps": "where maps are kept until the next layer; auto: in memory if they fit",
    "checkpoint_every": "layers after which maps in memory are stored",
    "array_backend": "array library of the workers; cupy: on their GPUs",
    "matmul_precision": "precision of matrix products on a GPU; split is nearly float32, half is "
    "fastest",
    "copies": "augmented copies of each training image, in addition to the image",
    "flip": "mirror every second copy left to right",
    "flip_vertical": "mirror every second copy top to bottom",
    "shift": "largest shift of copies, in pixels",
    "crop": "smallest crop of copies, as a fraction of the sides; crops are enlarged to full size",
    "rotate": "largest rotation of copies, in degrees",
    "scale": "largest change of size of copies, as a fraction",
    "padding": "pixels beyond the borders of copies",
    "brightness": "largest change of brightness, as a fraction",
    "contrast": "largest change of contrast, as a fraction",
    "saturation": "largest change of saturation, as a fraction",
    "cutout": "width and height of a square that is set to 0 in copies, in pixels",
    "noise": "standard deviation of Gaussian noise, as a fraction of the pixel range",
}


SCHEDULER_VARIABLE = "DASK_SCHEDULER_ADDRESS"  # Dask reads it too, and its operator sets it
CLUSTER_HELP = {
    "scheduler": f"address of a Dask scheduler  [default: {SCHEDULER_VARIABLE}, or this machine]",
    "scheduler_file": "file with the address of a Dask scheduler, written by the scheduler",
    "gateway": "address of a Dask gateway",
    "gateway_cluster": "name of the cluster at the gateway  [default: the only one]",
}


def cluster_options(command: Any) -> Any:
    """Add the options that name a cluster to a command; `pop_cluster_options` reads them."""
    for name in reversed(CLUSTER_HELP):
        flag = option_name(name)
        command = click.option(flag, name, help=CLUSTER_HELP[name])(command)
    text = "how long to wait for the named cluster and its first worker, such as 10m"
    return click.option("--wait", "wait", metavar="TIME", help=text)(command)


def pop_cluster_options(flags: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of a cluster from all flags and return those that are set.

    Without any, the environment may name a scheduler. Raise ClusterError for more than one.
    """
    wait = flags.pop("wait")
    options = _check_cluster_options({name: flags.pop(name) for name in CLUSTER_HELP})
    address = os.environ.get(SCHEDULER_VARIABLE)
    if not options and address:
        options = {"scheduler": address}
    if wait is None:
        return options
    if not options:
        raise ClusterError(
            f"--wait {wait} is for a cluster to start, but none is named. Add --scheduler, "
            "--scheduler-file or --gateway."
        )
    return options | {"wait": _parse_seconds(wait)}


def _parse_seconds(wait: str) -> float:
    """Return the seconds of a time such as 90, 90s or 10m."""
    from dask.utils import parse_timedelta  # takes longer to import than `rescnet --help` to run

    try:
        seconds = float(parse_timedelta(wait, default="seconds"))
    except (IndexError, KeyError, TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise ClusterError(
            f"--wait {wait} is not a time. Give it in seconds, or with a unit as in 90s or 10m."
        )
    return seconds


def _check_cluster_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the cluster options that are set; raise ClusterError if they name no one cluster."""
    options = {name: value for name, value in options.items() if value is not None}
    for name, value in options.items():
        if not value:
            text = CLUSTER_HELP[name].split("  [")[0]
            raise ClusterError(f"{option_name(name)} is empty. Give the {text}.")
    if "gateway_cluster" in options and "gateway" not in options:
        raise ClusterError(
            "--gateway-cluster is set without a gateway. Add --gateway, the address of the gateway."
        )
    if len(options.keys() - {"gateway_cluster"}) > 1:
        names = " and ".join(option_name(name) for name in options)
        raise ClusterError(f"{names} name different clusters. Give one of them.")
    return options


SPLIT_OPTION = click.option(
    "--split", type=click.Choice(["train", "val", "test"]), help="split of DATA to use"
)
BACKEND_OPTION = click.option(
    "--array-backend",
    type=click.Choice(CHOICES["array_backend"]),
    default="numpy",
    show_default=True,
    help="array library; cupy: on a GPU",
)


def averaging_options(command: Any) -> Any:
    """Add the options that `resolve_averaging` reads to a command."""
    copies = "average over each image and this many copies, made as in training"
    command = click.option("--copies", type=click.IntRange(min=1), help=copies)(command)
    flips = "average over each image and its mirror image"
    return click.option("--flips", is_flag=True, help=flips)(command)


def resolve_averaging(flips: bool, copies: int | None) -> AugmentSpec | int | None:
    """Return the copies that predictions are averaged over, as `ResCNetClassifier` takes them."""
    if flips and copies:
        raise SpecError(f"--flips and --copies {copies} exclude each other. Give one of them.")
    return AugmentSpec(copies=1, flip=True) if flips else copies


class Levels(click.ParamType):
    """Whole numbers separated by commas."""

    name = "levels"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """Read "4,2,1" as (4, 2, 1)."""
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 4,2,1.", param, ctx)


def spec_options(spec: type[Spec], *, only: Sequence[str] | None = None) -> Callable[[Any], Any]:
    """Return a decorator that adds one option per field of a spec, or only for those in `only`.

    All are None by default.
    """
    hints = typing.get_type_hints(spec)

    def decorate(command: Any) -> Any:
        fields = dataclasses.fields(spec)  # type: ignore[arg-type]
        for field in reversed([f for f in fields if only is None or f.name in only]):
            flag = option_name(field.name)
            kind: Any = hints[field.name]
            if field.name in CHOICES:
                kind = click.Choice(CHOICES[field.name])
            elif field.name == "levels":
                kind = Levels()
            elif kind is bool:
                flag, kind = f"{flag}/{option_name(f'no_{field.name}')}", None
            elif typing.get_args(kind):
                kind = typing.get_args(kind)[0]
            command = click.option(
                flag, field.name, type=kind, default=None, help=HELP[field.name]
            )(command)
            for old in (old for old, new in RENAMED_OPTIONS.items() if new == field.name):
                command = _renamed_option(option_name(old), flag)(command)
        return command

    return decorate


def _renamed_option(old: str, new: str) -> Callable[[Any], Any]:
    """Return a decorator for a hidden option that fails with the name of the one to use."""

    def fail(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{old} has been renamed. Use {new} {value}.", ctx)

    return click.option(old, hidden=True, expose_value=False, callback=fail)


def resolve_specs(
    preset: str | None, config: str | None, data: str, flags: dict[str, Any]
) -> tuple[NetworkSpec, RunSpec, AugmentSpec]:
    """Return the specs of a command: the preset, updated by the file, then by the flags."""
    tables = read_toml(Path(config)) if config else {}
    name = preset or tables.get("preset")
    if name is None and data == "digits":
        name = "digits"
    if name is None and NetworkSpec.table not in tables:
        raise SpecError(
            f"No network is given for {data}. Add --preset (`rescnet presets` lists them), or "
            "--config with a [network] table."
        )
    base = NetworkSpec.preset(name) if name else NetworkSpec()
    given = {key: value for key, value in flags.items() if value is not None}

    def update(spec: AnySpec) -> AnySpec:
        names = {field.name for field in dataclasses.fields(spec)}  # type: ignore[arg-type]
        by_flags = {key: value for key, value in given.items() if key in names}
        return spec.replace(**tables.get(spec.table, {}) | by_flags)

    return update(base), update(RunSpec(validation=0.1)), update(AugmentSpec())


def parse_size(option: str, size: str | None) -> int | None:
    """Return the bytes of the memory or disk size that an option has, such as 8GiB."""
    from dask.utils import parse_bytes

    if size is None:
        return None
    try:
        parsed = int(parse_bytes(size))
    except ValueError:
        parsed = 0
    if parsed < MIN_MEMORY_BYTES:
        raise SpecError(
            f"{option} {size} is not a size of memory of {format_bytes(MIN_MEMORY_BYTES)} or more. "
            "Give it with its unit, as in 80GiB."
        )
    return parsed
