"""What to train and how to run it: frozen, validated specs with a TOML form."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from rescnet_dist.errors import SpecError, suggest_name
from rescnet_dist.formatting import html_table

CHOICES = {
    "minmax": ("global", "channel"),
    "cells": ("center", "even"),
    "pool": ("max", "mean"),
    "zscore": ("channel", "block"),
    "pairs": ("all", "tower"),
    "residual": ("classify", "regress"),
    "probability": ("sigmoid", "softmax"),
    "keep_maps": ("last", "all", "none"),
    "store_dtype": ("float32", "float16"),
    "codec": ("none", "zstd"),
    "maps": ("auto", "store", "memory"),
    "array_backend": ("numpy", "cupy"),
    "matmul_precision": ("float32", "split", "half"),
    "padding": ("zero", "edge", "reflect"),
}
RENAMED_OPTIONS = {"products": "matmul_precision"}  # names of earlier releases, in stored runs too
RENAMED_VALUES = {("cells", "centre"): "center"}


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)


def _plain(value: Any) -> Any:
    """A NumPy number, as from a grid of settings, as Python's own."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(v, arguments[0]) for v in value)
    if arguments:
        return any(_fits(value, a) for a in arguments)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(arguments)
    if origin is tuple:
        return "a list of whole numbers"
    if arguments:
        return " or ".join(_describe(a) for a in arguments)
    return {int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing"}[
        hint
    ]


def read_toml(source: str | Path) -> dict[str, Any]:
    """Parse TOML text, or the file at a `Path`; only the tables of the specs are allowed."""
    where = f"{source}: " if isinstance(source, Path) else ""
    try:
        text = source.read_text() if isinstance(source, Path) else source
        tables = tomllib.loads(text)
    except OSError as error:
        raise SpecError(f"{where}cannot be read ({error.strerror})") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{where}not valid TOML: {error}") from error
    kinds = {"preset": str} | {spec.table: dict for spec in (NetworkSpec, RunSpec, AugmentSpec)}
    for name, value in tables.items():
        if not isinstance(value, kinds.get(name, ())):
            raise SpecError(
                f"{where}unexpected entry {name!r}: {suggest_name(name, kinds)} "
                "(preset is a string, network, run and augment are tables)"
            )
    return tables


class Spec:
    """What all specs share: checked replacement, plain dictionaries and TOML."""

    table: ClassVar[str]

    def __new__(cls, *_args: Any, **values: Any) -> Self:
        """Raise SpecError for an unknown option, before the dataclass raises a TypeError."""
        cls._check_names(values)
        return super().__new__(cls)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated anew."""
        return type(self).from_dict(self.to_dict() | changes)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values; what has no value (None) is left out."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {
            k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the spec with these options, the inverse of `to_dict`."""
        return cls(**values)

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> Self:
        """Return the spec that a run or network store holds, perhaps of an earlier release."""
        current = {RENAMED_OPTIONS.get(name, name): value for name, value in values.items()}
        for (name, old), new in RENAMED_VALUES.items():
            if current.get(name) == old:
                current[name] = new
        return cls.from_dict(current)

    @classmethod
    def _check_names(cls, values: Mapping[str, Any]) -> None:
        options = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name in values:
            if name not in options:
                new = RENAMED_OPTIONS.get(name)
                remedy = f"use {new!r}" if new in options else suggest_name(name, options)
                renamed = " any more" if new in options else ""
                raise SpecError(f"{cls.__name__} has no option {name!r}{renamed}: {remedy}")

    def rows(self) -> list[tuple[str, Any, bool]]:
        """Name and value of each field, and whether it differs from the default."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = [(field, getattr(self, field.name)) for field in fields]
        return [(field.name, value, value != field.default) for field, value in values]

    def _repr_html_(self) -> str:
        return html_table(f"{type(self).__name__}, bold where not the default", self.rows())

    def to_toml(self) -> str:
        """One TOML table with every field that has a value."""
        lines = [f"{name} = {_toml_value(value)}" for name, value in self.to_dict().items()]
        return "\n".join([f"[{self.table}]", *lines]) + "\n"

    @classmethod
    def from_toml(cls, source: str | Path) -> Self:
        """Read the spec's table from TOML text, or from the file at a `Path`."""
        return cls.from_dict(read_toml(source).get(cls.table, {}))

    def _check_types(self) -> None:
        for name, hint in typing.get_type_hints(type(self)).items():
            if typing.get_origin(hint) is ClassVar:
                continue
            value = _plain(getattr(self, name))
            object.__setattr__(self, name, value)
            if not _fits(value, hint):
                raise SpecError(f"{name}={value!r} is not {_describe(hint)}")
            if name in CHOICES and value not in CHOICES[name]:
                if new := RENAMED_VALUES.get((name, value)):
                    raise SpecError(f"{name}={value!r} is now called {new!r}: use {name}={new!r}")
                raise SpecError(f"{name}={value!r}: {suggest_name(value, CHOICES[name])}")

    def _check_range(
        self, name: str, low: float, high: float = math.inf, *, above: bool = False
    ) -> None:
        value = getattr(self, name)
        if value is None:
            return
        inside = low < value <= high if above else low <= value <= high
        if not (inside and math.isfinite(value)):
            limit = f"greater than {low}" if above else f"at least {low}"
            limit += f" and at most {high}" if high < math.inf else ""
            raise SpecError(f"{name}={value!r} is out of range: it must be {limit}")


@dataclass(frozen=True, slots=True)
class Tower:
    """A part of the bank of a layer: its filters see these input channels alone. The first `pca` of
    them are of PCA, the others stacked-LDA filters."""

    channels: tuple[int, ...]
    filters: range
    pca: int

    @property
    def lda(self) -> int:
        """Number of stacked-LDA filters."""
        return len(self.filters) - self.pca


@dataclass(frozen=True, slots=True)
class NetworkSpec(Spec):
    """Every choice that defines a network; the defaults are the paper's.

    Layers
        filters, filter_size, first_filter_size: filters per layer, and their side in pixels in
        the later layers and in the first. minmax: one range for the whole input of a layer, or
        one per channel. rectify: maps go on to the next layer as ReLU(maps), so that it is no
        longer linear in the images; the paper's go on as they are. local_contrast: the network has
        two towers, half of the filters each, which meet in the features alone: one sees the images,
        as the paper's does, the other their local contrast.
    Stacked-LDA filters
        lda_fraction: their share of the bank, the rest is PCA. lda_positives, lda_negatives,
        lda_tolerance, lda_ridge: patches per draw, training error up to which a draw is kept, and
        the ridge of its covariance. lda_draws: draws made per filter wanted; where too few of
        them are kept, the bank is filled up with those of least error.
    Features
        block, stride: second-order pooling. zscore, power: normalization. pairs: of maps whose
        covariance is a feature, all, or those of one tower (local_contrast), which leaves room for
        more filters. levels, cells, pool: the spatial pyramid.
    Classifiers
        residual: classify the sign of the largest error (the paper), or regress all of them.
        ridge: γ, relative to the mean feature variance. probability, sigma, beta: sigmoid(s/σ) or
        softmax(β·s). target: λ.
    Growth
        learning_rate: α, lowered by the share `decay` every `decay_every` layers down to
        `rate_floor`. max_layers; patience: layers without a better validation accuracy before
        stopping (None: never). stop_at_zero_error: stop once the training error is 0.
    Storage
        store_dtype: precision that the maps of a layer are rounded to, before anything is learned
        from them, and stored in.
    """

    table: ClassVar[str] = "network"

    filters: int = 50
    filter_size: int = 3
    first_filter_size: int = 3
    minmax: Literal["global", "channel"] = "global"
    rectify: bool = False
    local_contrast: bool = False
    lda_fraction: float = 0.5
    lda_positives: int = 2
    lda_negatives: int = 32
    lda_tolerance: float = 0.0
    lda_ridge: float = 1e-2
    lda_draws: int = 8
    block: int = 16
    stride: int = 4
    zscore: Literal["channel", "block"] = "channel"
    power: bool = False
    pairs: Literal["all", "tower"] = "all"
    levels: tuple[int, ...] = (4, 2, 1)
    cells: Literal["center", "even"] = "center"
    pool: Literal["max", "mean"] = "max"
    residual: Literal["classify", "regress"] = "classify"
    ridge: float = 1.0
    probability: Literal["sigmoid", "softmax"] = "sigmoid"
    sigma: float = 16.0
    beta: float = 0.001
    target: float = 0.8
    learning_rate: float = 1.0
    decay: float = 0.0
    decay_every: int = 10
    rate_floor: float = 0.0
    max_layers: int = 100
    patience: int | None = None
    stop_at_zero_error: bool = True
    store_dtype: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        if isinstance(self.levels, list | tuple):
            object.__setattr__(self, "levels", tuple(_plain(level) for level in self.levels))
        self._check_types()
        for name in (
            *("filters", "filter_size", "first_filter_size", "lda_positives", "lda_negatives"),
            *("lda_draws", "stride", "decay_every", "max_layers", "patience"),
        ):
            self._check_range(name, 1)
        self._check_range("block", 2)
        for name in ("lda_tolerance", "ridge", "learning_rate", "rate_floor"):
            self._check_range(name, 0)
        for name in ("lda_fraction", "target", "decay"):
            self._check_range(name, 0, 1)
        for name in ("lda_ridge", "sigma", "beta"):
            self._check_range(name, 0, above=True)
        if self.rate_floor > self.learning_rate:
            raise SpecError(
                f"rate_floor={self.rate_floor} is above learning_rate={self.learning_rate}: "
                "the rate falls down to the floor, so use a lower one"
            )
        if not self.levels or min(self.levels) < 1:
            raise SpecError(f"levels={self.levels!r}: give at least one level, each at least 1")
        if self.filters < self.views:
            raise SpecError(
                f"filters={self.filters} with local_contrast leaves a tower without any: use at "
                f"least {self.views} filters, or leave local_contrast out"
            )
        if self.pairs == "tower" and not self.local_contrast:
            raise SpecError(
                'pairs="tower" is for networks of two towers, and this one has one: give '
                'local_contrast, or use pairs="all"'
            )
        if self.zscore == "channel" and min(map(len, self.pooling_groups)) < 2:
            raise SpecError(
                f"filters={self.filters} leaves no feature "
                + ("of a tower " if self.pairs == "tower" else "")
                + 'with zscore="channel", which drops the diagonal: use at least '
                f'{2 * len(self.pooling_groups)} filters, or zscore="block"'
            )

    @classmethod
    def preset(cls, name: str) -> NetworkSpec:
        """One of the named networks of `PRESETS`: `digits`, or one of the paper's four."""
        if name not in PRESETS:
            raise SpecError(f"unknown preset {name!r}: {suggest_name(name, PRESETS)}")
        return PRESETS[name]

    @classmethod
    def from_toml(cls, source: str | Path) -> NetworkSpec:
        """Read TOML text, or the file at a `Path`: the [network] table, on top of its `preset`."""
        tables = read_toml(source)
        base = cls.preset(tables["preset"]) if "preset" in tables else cls()
        return base.replace(**tables.get(cls.table, {}))

    def filter_size_at(self, layer: int) -> int:
        """Side k of the filters of layer `layer`, counted from 1."""
        return self.first_filter_size if layer == 1 else self.filter_size

    def learning_rate_at(self, layer: int) -> float:
        """Learning rate α of layer `layer`, counted from 1.

        >>> NetworkSpec.preset("cifar100").learning_rate_at(11)
        0.9
        """
        steps = (layer - 1) // self.decay_every
        return max(self.rate_floor, self.learning_rate * (1 - self.decay) ** steps)

    @property
    def views(self) -> int:
        """How many forms of an image layers see: itself, and its local contrast if wanted."""
        return 1 + self.local_contrast

    @property
    def tower_filters(self) -> list[range]:
        """The filters of each tower: one for each view."""
        ends = [self.filters * view // self.views for view in range(self.views + 1)]
        return [range(*pair) for pair in itertools.pairwise(ends)]

    @property
    def pooling_groups(self) -> list[range]:
        """The filters whose maps are pooled together: features are of pairs among these."""
        return self.tower_filters if self.pairs == "tower" else [range(self.filters)]

    def input_channels(self, layer: int, channels: int) -> int:
        """Input channels of a layer, of images with `channels`: the maps of the layer before, if
        there is one, and all views of the images."""
        return (self.filters if layer > 1 else 0) + self.views * channels

    def layer_towers(self, layer: int, channels: int) -> list[Tower]:
        """The parts of the bank of a layer, of images with `channels`; together they have all of
        its filters and input channels.

        A patch has k² directions per channel; where PCA wants more, stacked-LDA fills up.
        """
        towers, maps = [], self.filters if layer > 1 else 0
        for view, filters in enumerate(self.tower_filters):
            seen = range(maps + view * channels, maps + (view + 1) * channels)
            inputs = (*(filters if layer > 1 else ()), *seen)
            directions = self.filter_size_at(layer) ** 2 * len(inputs)
            lda = math.floor(len(filters) * self.lda_fraction + 0.5)
            towers.append(Tower(inputs, filters, min(len(filters) - lda, directions)))
        return towers

    def check_images(self, height: int, width: int, channels: int) -> None:
        """Refuse images this network cannot be trained on."""
        side = min(height, width)
        for name in ("block", "first_filter_size", "filter_size"):
            size = getattr(self, name)
            if size > side:
                raise SpecError(
                    f"{name}={size} is larger than the image ({height}×{width} pixels): "
                    f"use {name} of at most {side}"
                )
        # of layer 1: later layers have more than `filters`
        directions = self.views * self.first_filter_size**2 * channels
        if self.lda_fraction == 0 and self.filters > directions:
            raise SpecError(
                f"filters={self.filters} PCA filters are more than the {directions} directions "
                f"of a patch in layer 1: use filters of at most {directions}, a larger "
                "first_filter_size, or lda_fraction above 0 so that stacked-LDA filters fill up"
            )


_PAPER = NetworkSpec()
PRESETS: dict[str, NetworkSpec] = {
    "digits": NetworkSpec(
        filters=16,
        first_filter_size=7,
        block=7,
        residual="regress",
        ridge=0.3,
        sigma=2.0,
        learning_rate=0.7,
        max_layers=4,
        stop_at_zero_error=False,
    ),
    "mnist": dataclasses.replace(
        _PAPER,
        filters=60,
        first_filter_size=13,
        lda_fraction=0.0,
        block=7,
        probability="softmax",
        ridge=0.001,
        max_layers=231,
    ),
    "cifar10": dataclasses.replace(_PAPER, stride=1, learning_rate=0.4, max_layers=937),
    "cifar100": dataclasses.replace(_PAPER, decay=0.1, rate_floor=0.387, max_layers=436),
    "tiny-imagenet": dataclasses.replace(
        _PAPER, filters=40, block=32, stride=8, decay=0.1, rate_floor=0.478, max_layers=512
    ),
}


@dataclass(frozen=True, slots=True)
class RunSpec(Spec):
    """How a network is trained; none of it changes the mathematics, `seed` and split aside.

    seed: of the draws and the split. validation: share of the training images held out when no
    validation set is given. chunk_images: images per chunk (None: from the plan).
    accumulators: partial sums before the tree reduction (None: from the plan). split_every: fan-in
    of the reduction. solve_threads: BLAS threads of the solve. tile_features: side of the tiles
    that the features' scatter matrix is cut into (None: from the plan, which does so only where a
    worker cannot hold it whole). keep_maps: maps and scores kept in the store, of the last layer or
    of all, or of none once the run is done: whoever goes on with it computes them again. codec:
    that maps are compressed with.
    maps: where those of a layer wait for the next, in the store, in the workers' memory, or (auto)
    in memory where the plan finds room. checkpoint_every: layers after which those in memory are
    stored as well, as they are at the end unless none are kept; what lies between is computed again
    on resume.
    array_backend: "numpy", or "cupy" for workers with a GPU. matmul_precision: of products on a GPU, in
    single precision, as three products of halves, or in half precision.
    """

    table: ClassVar[str] = "run"

    seed: int = 0
    validation: float = 0.0
    chunk_images: int | None = None
    accumulators: int | None = None
    split_every: int = 2
    solve_threads: int | None = None
    tile_features: int | None = None
    keep_maps: Literal["last", "all", "none"] = "last"
    codec: Literal["none", "zstd"] = "none"
    maps: Literal["auto", "store", "memory"] = "auto"
    checkpoint_every: int = 10
    array_backend: Literal["numpy", "cupy"] = "numpy"
    matmul_precision: Literal["float32", "split", "half"] = "split"

    def __post_init__(self) -> None:
        self._check_types()
        self._check_range("seed", 0, 2**63 - 1)
        self._check_range("validation", 0, 0.9)
        for name in (
            *("chunk_images", "accumulators", "solve_threads", "tile_features"),
            "checkpoint_every",
        ):
            self._check_range(name, 1)
        self._check_range("split_every", 2)
        if self.maps == "memory" and self.keep_maps == "all":
            raise SpecError(
                'keep_maps="all" stores the maps of every layer, and maps="memory" does not: leave '
                "one of them out"
            )
        if self.tile_features and (self.maps == "memory" or self.array_backend == "cupy"):
            other = 'maps="memory"' if self.maps == "memory" else 'array_backend="cupy"'
            raise SpecError(
                f"tile_features={self.tile_features} is for scatter matrices that no worker can "
                f"hold, and {other} needs workers that can: leave one of them out"
            )

    @property
    def maps_stay(self) -> bool:
        """Whether the store has the maps of the last layer once the run is done."""
        return self.keep_maps != "none"

    def check_effect(self) -> None:
        """Refuse, of a run that is to begin, what would do nothing."""
        if self.matmul_precision != "split" and self.array_backend != "cupy":
            raise SpecError(
                f'matmul_precision="{self.matmul_precision}" is how a GPU multiplies: give array_backend="cupy", '
                "or leave matmul_precision out"
            )


@dataclass(frozen=True, slots=True)
class AugmentSpec(Spec):
    """Copies of the training images, made whenever they are read and never stored.

    copies: of each image, beside the image itself.
    Geometry
        flip, flip_vertical: mirror left to right, top to bottom; the copies take turns, so that of
        one copy it is always mirrored. shift: by up to so many whole pixels. crop: to a square part
        of at least this share of the sides, enlarged to full size. rotate: by up to so many
        degrees. scale: larger or smaller by up to this share. padding: what comes in at the
        borders, zeros, the border's pixels, or the image mirrored.
    Pixels
        brightness, contrast, saturation: times a factor of up to this share from 1. cutout: a
        square of so many pixels is set to 0. noise: Gaussian, its standard deviation as a share of
        the pixels' range (255 for uint8, 1 for floating point).
    """

    table: ClassVar[str] = "augment"

    copies: int = 0
    flip: bool = False
    flip_vertical: bool = False
    shift: int = 0
    crop: float = 1.0
    rotate: float = 0.0
    scale: float = 0.0
    padding: Literal["zero", "edge", "reflect"] = "zero"
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    cutout: int = 0
    noise: float = 0.0

    def __post_init__(self) -> None:
        self._check_types()
        self._check_range("copies", 0, 10_000)
        for name in ("shift", "cutout", "noise"):
            self._check_range(name, 0)
        self._check_range("crop", 0, 1, above=True)
        self._check_range("rotate", 0, 180)
        for name in ("scale", "brightness", "contrast", "saturation"):
            self._check_range(name, 0, 1)
        ways = [f.name for f in dataclasses.fields(self) if f.name not in ("copies", "padding")]
        if self.copies and not self.changes:
            raise SpecError(
                f"copies={self.copies} would all be the same as their image: give at least one of "
                + ", ".join(ways)
            )
        if self.changes and not self.copies:
            raise SpecError(
                f"{self.changes[0]}={getattr(self, self.changes[0])} changes copies of the images, "
                "and there are none: give copies of at least 1"
            )

    @property
    def changes(self) -> list[str]:
        """What differs between copies."""
        return [
            f.name
            for f in dataclasses.fields(self)
            if f.name not in ("copies", "padding") and getattr(self, f.name) != f.default
        ]

    @property
    def moves(self) -> bool:
        """Whether the geometry of copies differs."""
        geometry = {"flip", "flip_vertical", "shift", "crop", "rotate", "scale"}
        return not geometry.isdisjoint(self.changes)

    def check_images(self, height: int, width: int, channels: int) -> None:
        """Refuse images that cannot be augmented so."""
        for name in ("shift", "cutout"):
            if getattr(self, name) >= min(height, width):
                raise SpecError(
                    f"{name}={getattr(self, name)} leaves nothing of images of {height}×{width} "
                    f"pixels: use {name} of at most {min(height, width) - 1}"
                )
        if self.saturation and channels != 3:
            raise SpecError(
                f"saturation={self.saturation} is of images in color, and these have {channels} "
                "channels: leave saturation out"
            )
