"""Options that come from the fields of the specs, and how files, presets and flags combine."""

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

SMALLEST = 64 * 2**20  # bytes that anybody can mean by a size of memory

AnySpec = TypeVar("AnySpec", bound=Spec)

SHOW: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100}
}

HELP = {
    "filters": "filters per layer",
    "filter_size": "side of the filters, layers 2 and later",
    "first_filter_size": "side of the filters of layer 1",
    "minmax": "range of the normalization",
    "rectify": "hand maps on as ReLU(maps), not as they are",
    "local_contrast": "have half of the filters see the images' local contrast",
    "lda_fraction": "share of stacked-LDA filters, the rest is PCA",
    "lda_positives": "patches of the class in a stacked-LDA draw",
    "lda_negatives": "patches of other classes in a draw",
    "lda_tolerance": "training error up to which a draw is kept",
    "lda_ridge": "ridge of a draw's covariance",
    "lda_draws": "draws made per filter wanted",
    "block": "side of the pooling blocks",
    "stride": "stride of the pooling blocks",
    "zscore": "normalization within a block",
    "power": "take sign(v)·|v|^½ of the features",
    "pairs": "maps whose covariance is a feature: all pairs, or those of a tower",
    "levels": "levels of the spatial pyramid, such as 4,2,1",
    "cells": "how blocks are shared out over pyramid cells",
    "pool": "pooling over the blocks of a cell",
    "residual": "what later layers are fitted to",
    "ridge": "ridge γ of the classifiers",
    "probability": "how scores become probabilities",
    "sigma": "scale σ of the sigmoid",
    "beta": "scale β of the softmax",
    "target": "λ, the score aimed at for the true class",
    "learning_rate": "learning rate α",
    "decay": "share by which α falls every decay_every layers",
    "decay_every": "layers between two falls of α",
    "rate_floor": "lowest α",
    "max_layers": "layers to grow at most",
    "patience": "stop after so many layers without a better validation accuracy",
    "stop_at_zero_error": "stop once the training error is 0",
    "store_dtype": "precision that maps are kept in",
    "seed": "seed of draws and split",
    "validation": "share of the training images held out  [default: 0.1]",
    "chunk_images": "images per chunk",
    "accumulators": "partial sums before the tree reduction",
    "split_every": "fan-in of the tree reduction",
    "solve_threads": "BLAS threads of the solve",
    "tile_features": "side of the tiles of the scatter matrix",
    "keep_maps": "layers whose maps stay in the store",
    "codec": "codec that maps are compressed with",
    "maps": "where maps wait for the next layer; auto: in memory where they fit",
    "checkpoint_every": "layers after which maps in memory are stored",
    "array_backend": "cupy: on workers' GPUs",
    "matmul_precision": "of matrices on a GPU: split is of nearly all digits, half is fastest",
    "copies": "augmented copies of each training image, beside it",
    "flip": "mirror copies left to right, in turns",
    "flip_vertical": "mirror copies top to bottom, in turns",
    "shift": "shift copies by up to so many pixels",
    "crop": "crop copies to at least this share of the sides, and enlarge",
    "rotate": "rotate copies by up to so many degrees",
    "scale": "scale copies up or down by up to this share",
    "padding": "what comes in at the borders of copies",
    "brightness": "change of brightness, up to this share",
    "contrast": "change of contrast, up to this share",
    "saturation": "change of saturation, up to this share",
    "cutout": "side of a square that is cut out of copies",
    "noise": "standard deviation of noise, as a share of the range",
}


SCHEDULER_VARIABLE = "DASK_SCHEDULER_ADDRESS"  # that Dask itself reads, and its operator sets
CLUSTER_HELP = {
    "scheduler": f"address of a Dask scheduler  [default: {SCHEDULER_VARIABLE}, or this machine]",
    "scheduler_file": "file that a Dask scheduler has written its address to",
    "gateway": "address of a Dask gateway",
    "gateway_cluster": "name of the cluster at the gateway  [default: the only one]",
}


def cluster_options(command: Any) -> Any:
    """A decorator that adds the options that name a cluster; `take_cluster` reads them."""
    for name in reversed(CLUSTER_HELP):
        flag = option_name(name)
        command = click.option(flag, name, help=CLUSTER_HELP[name])(command)
    patience = "for the cluster named, or a first worker of it, to come, such as 10m"
    return click.option("--wait", "wait", metavar="TIME", help=patience)(command)


def take_cluster(flags: dict[str, Any]) -> dict[str, Any]:
    """Take the options of a cluster that are given out of all flags; more than one is refused.
    Where none is, the environment may name a scheduler."""
    wait = flags.pop("wait")
    where = _named_cluster({name: flags.pop(name) for name in CLUSTER_HELP})
    address = os.environ.get(SCHEDULER_VARIABLE)
    if not where and address:
        where = {"scheduler": address}
    if wait is None:
        return where
    if not where:
        raise ClusterError(
            f"--wait {wait} is for a cluster to come, and none is named: give --scheduler, "
            "--scheduler-file or --gateway too"
        )
    return where | {"wait": _seconds(wait)}


def _seconds(wait: str) -> float:
    """A time such as 90, 90s or 10m."""
    from dask.utils import parse_timedelta  # which takes longer to load than `rescnet --help`

    try:
        seconds = float(parse_timedelta(wait, default="seconds"))
    except (IndexError, KeyError, TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise ClusterError(f"--wait {wait} is not a time: give it in seconds, or as 90s or 10m")
    return seconds


def _named_cluster(given: dict[str, Any]) -> dict[str, Any]:
    """The options that name a cluster and have a value."""
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        if not value:
            flag = option_name(name)
            raise ClusterError(f"{flag} is empty: give {CLUSTER_HELP[name].split('  [')[0]}")
    if "gateway_cluster" in given and "gateway" not in given:
        raise ClusterError("--gateway-cluster needs --gateway, the address of the gateway")
    if len(given.keys() - {"gateway_cluster"}) > 1:
        shown = " and ".join(option_name(name) for name in given)
        raise ClusterError(f"{shown} name different clusters: give one of them")
    return given


SPLIT_OPTION = click.option(
    "--split", type=click.Choice(["train", "val", "test"]), help="the part of DATA to use"
)
BACKEND_OPTION = click.option(
    "--array-backend",
    type=click.Choice(CHOICES["array_backend"]),
    default="numpy",
    show_default=True,
    help="cupy: on a GPU",
)


def averaging_options(command: Any) -> Any:
    """A decorator that adds the options that `averaged_over` reads."""
    copies = "average over each image and so many copies, made as those trained on"
    command = click.option("--copies", type=click.IntRange(min=1), help=copies)(command)
    flips = "average over each image and its mirror image"
    return click.option("--flips", is_flag=True, help=flips)(command)


def averaged_over(flips: bool, copies: int | None) -> AugmentSpec | int | None:
    """What predictions are averaged over."""
    if flips and copies:
        raise SpecError(f"--flips and --copies {copies} are two ways to average: give one of them")
    return AugmentSpec(copies=1, flip=True) if flips else copies


class Levels(click.ParamType):
    """Whole numbers with commas between them."""

    name = "levels"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """Read "4,2,1" as (4, 2, 1)."""
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 4,2,1", param, ctx)


def spec_options(spec: type[Spec], *, only: Sequence[str] | None = None) -> Callable[[Any], Any]:
    """A decorator that adds one option per field of a spec, or for some of them only; all are unset
    by default."""
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
            raise click.UsageError(f"{old} is now called {new}: use {new} {value}", ctx)

    return click.option(old, hidden=True, expose_value=False, callback=fail)


def resolve_specs(
    preset: str | None, config: str | None, data: str, flags: dict[str, Any]
) -> tuple[NetworkSpec, RunSpec, AugmentSpec]:
    """The specs of a command: the preset, changed by the file, changed by the flags."""
    tables = read_toml(Path(config)) if config else {}
    name = preset or tables.get("preset")
    if name is None and data == "digits":
        name = "digits"
    if name is None and NetworkSpec.table not in tables:
        raise SpecError(
            "which network? Give --preset (`rescnet presets` lists them), or --config with a "
            "[network] table"
        )
    base = NetworkSpec.preset(name) if name else NetworkSpec()
    given = {key: value for key, value in flags.items() if value is not None}

    def changed(spec: AnySpec) -> AnySpec:
        known = {field.name for field in dataclasses.fields(spec)}  # type: ignore[arg-type]
        by_flags = {key: value for key, value in given.items() if key in known}
        return spec.replace(**tables.get(spec.table, {}) | by_flags)

    return changed(base), changed(RunSpec(validation=0.1)), changed(AugmentSpec())


def size_of(option: str, size: str | None) -> int | None:
    """Bytes of a size of memory or of a disk such as 8GiB, that an option gives."""
    from dask.utils import parse_bytes

    if size is None:
        return None
    try:
        found = int(parse_bytes(size))
    except ValueError:
        found = 0
    if found < SMALLEST:
        raise SpecError(
            f"{option} {size} is not a size of memory of {format_bytes(SMALLEST)} or more: give it "
            "with its unit, as in 80GiB"
        )
    return found
