"""Options of a network, a run and its augmentation: frozen, validated specs with a TOML form."""

from __future__ import annotations

import dataclasses
import inspect
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
MAX_COLOR_CHANNELS = 4  # of RGBA images; images with a height below it look channels-first
# Names and values of earlier releases. Users get an error that names the new spelling; specs in
# stored runs are translated.
RENAMED_OPTIONS = {"products": "matmul_precision"}
RENAMED_VALUES = {("cells", "centre"): "center"}


def _to_toml_value(value: Any) -> str:
    """Return a value as TOML text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)


def _to_python_scalar(value: Any) -> Any:
    """Convert a NumPy scalar, such as one of a parameter grid, to a Python number."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


def _is_instance(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of an option's annotation; an int is a float too."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_instance(v, arguments[0]) for v in value)
    if arguments:
        return any(_is_instance(value, a) for a in arguments)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe_type(hint: Any) -> str:
    """Return the type of an annotation in words, for error messages."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(arguments)
    if origin is tuple:
        return "a list of whole numbers"
    if arguments:
        return " or ".join(_describe_type(a) for a in arguments)
    names = {int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing"}
    return names[hint]


def read_toml(source: str | Path) -> dict[str, Any]:
    """Parse TOML text, or the file at a `Path`; raise SpecError for tables that no spec has."""
    prefix = f"{source}: " if isinstance(source, Path) else ""
    try:
        text = source.read_text() if isinstance(source, Path) else source
        tables = tomllib.loads(text)
    except OSError as error:
        raise SpecError(f"{source} cannot be read ({error.strerror}). Check the path.") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(
            f"{prefix}The text is not valid TOML: {error}. Correct that line."
        ) from error
    kinds = {"preset": str} | {spec.table: dict for spec in (NetworkSpec, RunSpec, AugmentSpec)}
    for name, value in tables.items():
        if not isinstance(value, kinds.get(name, ())):
            raise SpecError(
                f"{prefix}Unexpected entry {name!r}. {suggest_name(name, kinds)} The preset is a "
                "string; network, run and augment are tables."
            )
    return tables


class Spec:
    """Base class of the specs: validated replacement, and conversion to and from dicts and TOML."""

    table: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Show the options in the signature, which `__new__` would hide."""
        if "__init__" in cls.__dict__:  # the second time, when dataclass has added slots
            parameters = inspect.signature(cls.__init__).parameters.values()
            cls.__signature__ = inspect.Signature(list(parameters)[1:])  # type: ignore[attr-defined]

    def __new__(cls, *_args: Any, **values: Any) -> Self:
        """Raise SpecError for an unknown option, before the dataclass raises a TypeError."""
        cls._check_names(values)
        return super().__new__(cls)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some options changed, validated again.

        Parameters
        ----------
        **changes
            New values by option name.

        Returns
        -------
        Spec
            A spec of the same class.

        Raises
        ------
        SpecError
            If an option is unknown or a value is not valid.

        Examples
        --------
        >>> NetworkSpec().replace(filters=8).filters
        8
        """
        return type(self).from_dict(self.to_dict() | changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON-serializable values.

        Returns
        -------
        dict
            Values by option name. Options that are None are left out.
        """
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {
            k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the spec with these options; the inverse of `to_dict`.

        Parameters
        ----------
        values : dict
            Values by option name; options that are missing have their default.

        Returns
        -------
        Spec
            A spec of this class.

        Raises
        ------
        SpecError
            If an option is unknown or a value is not valid.
        """
        return cls(**values)

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> Self:
        """Return the spec in a run or network store, which an earlier release may have written.

        Parameters
        ----------
        values : dict
            Values by option name; names and values of earlier releases are translated.

        Returns
        -------
        Spec
            A spec of this class.
        """
        current = {RENAMED_OPTIONS.get(name, name): value for name, value in values.items()}
        for (name, old), new in RENAMED_VALUES.items():
            if current.get(name) == old:
                current[name] = new
        return cls.from_dict(current)

    @classmethod
    def _check_names(cls, values: Mapping[str, Any]) -> None:
        """Raise SpecError for unknown options; the error for a renamed one has the new name."""
        options = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name in values:
            if name not in options:
                new = RENAMED_OPTIONS.get(name)
                if new in options:
                    problem, remedy = "has been renamed", f"Use {new}={values[name]!r}."
                    raise SpecError(f"The option {name!r} of {cls.__name__} {problem}. {remedy}")
                raise SpecError(
                    f"{cls.__name__} has no option {name!r}. {suggest_name(name, options)}"
                )

    def rows(self) -> list[tuple[str, Any, bool]]:
        """Return the name and value of each option, and whether it differs from the default.

        Returns
        -------
        list of tuple
            One `(name, value, is_changed)` for each option.
        """
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = [(field, getattr(self, field.name)) for field in fields]
        return [(field.name, value, value != field.default) for field, value in values]

    def _repr_html_(self) -> str:
        return html_table(
            f"{type(self).__name__}, options that are not the default in bold", self.rows()
        )

    def to_toml(self) -> str:
        """Return the spec as one TOML table.

        Returns
        -------
        str
            A table named `network`, `run` or `augment`, without the options that are None.
        """
        lines = [f"{name} = {_to_toml_value(value)}" for name, value in self.to_dict().items()]
        return "\n".join([f"[{self.table}]", *lines]) + "\n"

    @classmethod
    def from_toml(cls, source: str | Path) -> Self:
        """Read the spec from its table in TOML text or in a file.

        Parameters
        ----------
        source : str or pathlib.Path
            TOML text, or the path of a TOML file.

        Returns
        -------
        Spec
            The spec; options that the table does not have are the default.

        Raises
        ------
        SpecError
            If the file cannot be read, is not TOML, or has an option that is not valid.
        """
        return cls.from_dict(read_toml(source).get(cls.table, {}))

    def _check_types(self) -> None:
        """Raise SpecError for a value of the wrong type or one that is no choice of its option."""
        for name, hint in typing.get_type_hints(type(self)).items():
            if typing.get_origin(hint) is ClassVar:
                continue
            value = _to_python_scalar(getattr(self, name))
            object.__setattr__(self, name, value)
            if not _is_instance(value, hint):
                raise SpecError(f"{name}={value!r} is not {_describe_type(hint)}.")
            if name in CHOICES and value not in CHOICES[name]:
                if new := RENAMED_VALUES.get((name, value)):
                    raise SpecError(f"{name}={value!r} has been renamed. Use {name}={new!r}.")
                raise SpecError(
                    f"{name}={value!r} is not a choice. {suggest_name(value, CHOICES[name])}"
                )

    def _check_range(
        self, name: str, low: float, high: float = math.inf, *, exclude_low: bool = False
    ) -> None:
        """Raise SpecError if a number is outside [low, high], or (low, high]; None is valid."""
        value = getattr(self, name)
        if value is None:
            return
        is_inside = low < value <= high if exclude_low else low <= value <= high
        if not (is_inside and math.isfinite(value)):
            limit = f"greater than {low}" if exclude_low else f"at least {low}"
            limit += f" and at most {high}" if high < math.inf else ""
            raise SpecError(f"{name}={value!r} is out of range. It must be {limit}.")


@dataclass(frozen=True, slots=True)
class Tower:
    """A part of the filter bank of a layer, which sees only some of the input channels.

    Attributes
    ----------
    channels : tuple of int
        Input channels that the filters see.
    filters : range
        Indices of the filters in the bank.
    pca : int
        Number of PCA filters, which come first. The others are stacked-LDA filters.
    """

    channels: tuple[int, ...]
    filters: range
    pca: int

    @property
    def lda(self) -> int:
        """Number of stacked-LDA filters."""
        return len(self.filters) - self.pca


@dataclass(frozen=True, slots=True)
class NetworkSpec(Spec):
    """Options that define a network; the defaults are those of the paper.

    Attributes
    ----------
    filters : int, default 50
        Filters per layer.
    filter_size : int, default 3
        Width and height of the filters in layers 2 and later, in pixels.
    first_filter_size : int, default 3
        Width and height of the filters in layer 1, in pixels.
    minmax : {"global", "channel"}, default "global"
        Min-max normalization of the input of a layer: one range for all channels, or one per
        channel.
    rectify : bool, default False
        Pass ReLU(maps) to the next layer, which makes it nonlinear in the images. The paper passes
        the maps unchanged.
    local_contrast : bool, default False
        Use two towers with half of the filters each, which share only the features. One sees the
        images, as in the paper, the other their local contrast.
    lda_fraction : float, default 0.5
        Fraction of stacked-LDA filters in the bank, from 0 to 1; the rest are PCA filters.
    lda_positives : int, default 2
        Patches of the class in each stacked-LDA draw.
    lda_negatives : int, default 32
        Patches of other classes in each stacked-LDA draw.
    lda_tolerance : float, default 0.0
        Largest training error of a draw that is accepted.
    lda_ridge : float, default 0.01
        Ridge added to the covariance of a draw.
    lda_draws : int, default 8
        Draws per stacked-LDA filter. If too few are accepted, the bank is filled with the draws of
        lowest error.
    block : int, default 16
        Width and height of the blocks of second-order pooling, in pixels.
    stride : int, default 4
        Distance between neighboring blocks, in pixels.
    zscore : {"channel", "block"}, default "channel"
        Normalization within a block: divide by the standard deviation of each channel, which gives
        correlations, or by that of the whole block.
    power : bool, default False
        Replace each feature v by sign(v)·|v|^½.
    pairs : {"all", "tower"}, default "all"
        Pairs of maps whose covariance is a feature: all, or only those within a tower (for
        `local_contrast`), which allows more filters at the same number of features.
    levels : tuple of int, default (4, 2, 1)
        Cells per side at each level of the spatial pyramid.
    cells : {"center", "even"}, default "center"
        Assignment of blocks to pyramid cells: by the center of the block, or in equal shares.
    pool : {"max", "mean"}, default "max"
        Pooling over the blocks of a cell.
    residual : {"classify", "regress"}, default "classify"
        Target of later layers: classify the sign of the largest error (the paper), or regress all
        errors.
    ridge : float, default 1.0
        Ridge γ of the classifiers, relative to the mean variance of the features.
    probability : {"sigmoid", "softmax"}, default "sigmoid"
        Probability of a class from its score s: sigmoid(s/σ) or softmax(β·s).
    sigma : float, default 16.0
        Scale σ of the sigmoid.
    beta : float, default 0.001
        Scale β of the softmax.
    target : float, default 0.8
        Target score λ of the true class, from 0 to 1.
    learning_rate : float, default 1.0
        Learning rate α of the first layers.
    decay : float, default 0.0
        Fraction by which α decreases every `decay_every` layers.
    decay_every : int, default 10
        Layers between two decreases of α.
    rate_floor : float, default 0.0
        Lowest α.
    max_layers : int, default 100
        Maximum number of layers.
    patience : int or None, default None
        Stop after this many layers without a higher validation accuracy; None never stops.
    stop_at_zero_error : bool, default True
        Stop once the training error is 0.
    store_dtype : {"float32", "float16"}, default "float32"
        Precision to which the maps of a layer are rounded before anything is learned from them,
        and in which they are stored.

    Raises
    ------
    SpecError
        If an option is unknown, or a value is out of range or does not fit the others.

    Examples
    --------
    >>> spec = NetworkSpec.preset("digits").replace(filters=8)
    >>> spec.filters, spec.block
    (8, 7)
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
            object.__setattr__(
                self, "levels", tuple(_to_python_scalar(level) for level in self.levels)
            )
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
            self._check_range(name, 0, exclude_low=True)
        if self.rate_floor > self.learning_rate:
            raise SpecError(
                f"rate_floor={self.rate_floor} is above learning_rate={self.learning_rate}. "
                "The rate decays down to the floor; use a lower floor."
            )
        if not self.levels or min(self.levels) < 1:
            raise SpecError(
                f"levels={self.levels!r} is not valid. Give at least one level, each at least 1."
            )
        if self.filters < self.views:
            raise SpecError(
                f"filters={self.filters} with local_contrast leaves a tower without filters. Use "
                f"at least {self.views} filters, or leave local_contrast out."
            )
        if self.pairs == "tower" and not self.local_contrast:
            raise SpecError(
                'pairs="tower" is for networks with two towers, but this network has one. Set '
                'local_contrast=True, or use pairs="all".'
            )
        if self.zscore == "channel" and min(map(len, self.pooling_groups)) < 2:
            raise SpecError(
                f"filters={self.filters} leaves no feature "
                + ("of a tower " if self.pairs == "tower" else "")
                + 'with zscore="channel", which drops the diagonal. Use at least '
                f'{2 * len(self.pooling_groups)} filters, or zscore="block".'
            )

    @classmethod
    def preset(cls, name: str) -> NetworkSpec:
        """Return a preset.

        Parameters
        ----------
        name : {"digits", "mnist", "cifar10", "cifar100", "tiny-imagenet"}
            The network for the embedded digits, or one of the four networks of the paper.

        Returns
        -------
        NetworkSpec
            The preset.

        Raises
        ------
        SpecError
            If there is no preset of this name.

        Examples
        --------
        >>> NetworkSpec.preset("cifar10").stride
        1
        """
        if name not in PRESETS:
            raise SpecError(f"Unknown preset {name!r}. {suggest_name(name, PRESETS)}")
        return PRESETS[name]

    @classmethod
    def from_toml(cls, source: str | Path) -> NetworkSpec:
        """Read the [network] table of TOML text or of a file, applied to its `preset` if any.

        Parameters
        ----------
        source : str or pathlib.Path
            TOML text, or the path of a TOML file.

        Returns
        -------
        NetworkSpec
            The spec; options that the table does not have are those of the preset, or the default.

        Raises
        ------
        SpecError
            If the file cannot be read, is not TOML, or has an option that is not valid.
        """
        tables = read_toml(source)
        base = cls.preset(tables["preset"]) if "preset" in tables else cls()
        return base.replace(**tables.get(cls.table, {}))

    def filter_size_at(self, layer: int) -> int:
        """Return the width and height k of the filters of a layer.

        Parameters
        ----------
        layer : int
            Number of the layer, from 1.

        Returns
        -------
        int
            Pixels.
        """
        return self.first_filter_size if layer == 1 else self.filter_size

    def learning_rate_at(self, layer: int) -> float:
        """Return the learning rate α of a layer.

        Parameters
        ----------
        layer : int
            Number of the layer, from 1.

        Returns
        -------
        float
            The learning rate after decay, at least `rate_floor`.

        Examples
        --------
        >>> NetworkSpec.preset("cifar100").learning_rate_at(11)
        0.9
        """
        steps = (layer - 1) // self.decay_every
        return max(self.rate_floor, self.learning_rate * (1 - self.decay) ** steps)

    @property
    def views(self) -> int:
        """Number of forms of an image that layers see: the image, and its local contrast if set."""
        return 1 + self.local_contrast

    @property
    def tower_filters(self) -> list[range]:
        """Indices of the filters of each tower; there is one tower for each view."""
        ends = [self.filters * view // self.views for view in range(self.views + 1)]
        return [range(*pair) for pair in itertools.pairwise(ends)]

    @property
    def pooling_groups(self) -> list[range]:
        """Groups of filters whose maps are pooled together: features are of pairs in a group."""
        return self.tower_filters if self.pairs == "tower" else [range(self.filters)]

    def input_channels(self, layer: int, channels: int) -> int:
        """Return the number of input channels of a layer.

        They are the maps of the previous layer, if any, and all views of the images.

        Parameters
        ----------
        layer : int
            Number of the layer, from 1.
        channels : int
            Channels of the images.

        Returns
        -------
        int
            Number of channels.
        """
        return (self.filters if layer > 1 else 0) + self.views * channels

    def layer_towers(self, layer: int, channels: int) -> list[Tower]:
        """Return the parts of the filter bank of a layer.

        Together they have all its filters and input channels. A patch has k² directions per
        channel; if there are more PCA filters than that, the others become stacked-LDA filters.

        Parameters
        ----------
        layer : int
            Number of the layer, from 1.
        channels : int
            Channels of the images.

        Returns
        -------
        list of Tower
            One tower for each view.
        """
        towers, maps = [], self.filters if layer > 1 else 0
        for view, filters in enumerate(self.tower_filters):
            pixels = range(maps + view * channels, maps + (view + 1) * channels)
            inputs = (*(filters if layer > 1 else ()), *pixels)
            directions = self.filter_size_at(layer) ** 2 * len(inputs)
            lda = math.floor(len(filters) * self.lda_fraction + 0.5)
            towers.append(Tower(inputs, filters, min(len(filters) - lda, directions)))
        return towers

    def check_images(self, height: int, width: int, channels: int) -> None:
        """Raise SpecError if the network cannot be trained on images of this shape.

        Parameters
        ----------
        height, width : int
            Size of the images in pixels.
        channels : int
            Channels of the images.

        Raises
        ------
        SpecError
            If a block or a filter is larger than the images, or there are more PCA filters than
            directions of a patch.
        """
        side = min(height, width)
        for name in ("block", "first_filter_size", "filter_size"):
            size = getattr(self, name)
            if size > side:
                remedy = f"Use {name} of at most {side}."
                if height <= MAX_COLOR_CHANNELS < min(width, channels):
                    remedy = "The array looks channels-first; pass images.transpose(0, 2, 3, 1)."
                raise SpecError(
                    f"{name}={size} is larger than the image ({height}×{width} pixels). {remedy}"
                )
        # Layer 1 has the fewest: later layers have more directions than `filters`.
        directions = self.views * self.first_filter_size**2 * channels
        if self.lda_fraction == 0 and self.filters > directions:
            raise SpecError(
                f"filters={self.filters} PCA filters are more than the {directions} directions "
                f"of a patch in layer 1. Use filters of at most {directions}, a larger "
                "first_filter_size, or lda_fraction above 0, which adds stacked-LDA filters."
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
    """Options of how a network is trained.

    Except `seed` and `validation`, none of them changes the mathematics.

    Attributes
    ----------
    seed : int, default 0
        Seed of the patch draws, the validation split and the augmented copies.
    validation : float, default 0.0
        Fraction of the training images held out if there is no validation set, up to 0.9.
    chunk_images : int or None, default None
        Images per chunk; None lets the plan choose.
    accumulators : int or None, default None
        Partial sums that the tree reduction starts from; None lets the plan choose.
    split_every : int, default 2
        Fan-in of the tree reduction.
    solve_threads : int or None, default None
        BLAS threads of the solve; None uses all threads of a machine.
    tile_features : int or None, default None
        Width and height of the tiles of the scatter matrix of the features; None lets the plan
        choose, which uses tiles only if a worker cannot hold the whole matrix.
    keep_maps : {"last", "all", "none"}, default "last"
        Layers whose maps and scores stay in the store: the last, all, or none once the run is
        done. A run without them computes them again when it is resumed.
    codec : {"none", "zstd"}, default "none"
        Compression of the stored maps.
    maps : {"auto", "store", "memory"}, default "auto"
        Where maps are kept until the next layer: in the store, in the memory of the workers, or
        (auto) in memory if the plan finds room.
    checkpoint_every : int, default 10
        Layers after which maps in memory are written to the store. They are also written at the
        end, unless `keep_maps` is "none". Layers since the last checkpoint are computed again on
        resume.
    array_backend : {"numpy", "cupy"}, default "numpy"
        Array library of the workers; "cupy" is for workers with a GPU.
    matmul_precision : {"float32", "split", "half"}, default "split"
        Precision of matrix products on a GPU: single precision, three products of halves, or half
        precision.

    Raises
    ------
    SpecError
        If an option is unknown, or a value is out of range or does not fit the others.

    Examples
    --------
    >>> RunSpec(validation=0.1, chunk_images=500).chunk_images
    500
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
                'keep_maps="all" stores the maps of every layer, but maps="memory" does not. Leave '
                "one of them out."
            )
        if self.tile_features and (self.maps == "memory" or self.array_backend == "cupy"):
            other = 'maps="memory"' if self.maps == "memory" else 'array_backend="cupy"'
            raise SpecError(
                f"tile_features={self.tile_features} is for scatter matrices that no worker can "
                f"hold, but {other} needs workers that can. Leave one of them out."
            )

    @property
    def maps_stay(self) -> bool:
        """Whether the maps of the last layer stay in the store once the run is done."""
        return self.keep_maps != "none"

    def check_effect(self) -> None:
        """Raise SpecError if an option would have no effect on a new run.

        Raises
        ------
        SpecError
            If `matmul_precision` is set for a run without a GPU.
        """
        if self.matmul_precision != "split" and self.array_backend != "cupy":
            raise SpecError(
                f'matmul_precision="{self.matmul_precision}" is how a GPU multiplies matrices, but '
                f'array_backend="{self.array_backend}" does not use one. Set array_backend="cupy", '
                "or leave matmul_precision out."
            )


@dataclass(frozen=True, slots=True)
class AugmentSpec(Spec):
    """Augmented copies of the training images, made whenever images are read and never stored.

    Attributes
    ----------
    copies : int, default 0
        Copies of each training image, in addition to the image, up to 10,000.
    flip : bool, default False
        Mirror every second copy left to right, starting with the first: a single copy is always
        mirrored. With `flip_vertical`, copies cycle through left to right, top to bottom, both and
        neither.
    flip_vertical : bool, default False
        Mirror every second copy top to bottom, as for `flip`.
    shift : int, default 0
        Largest shift in whole pixels.
    crop : float, default 1.0
        Smallest side of a random square crop, as a fraction of the image's sides; the crop is
        enlarged to the full size.
    rotate : float, default 0.0
        Largest rotation in degrees, up to 180.
    scale : float, default 0.0
        Largest change of size, up or down, as a fraction.
    padding : {"zero", "edge", "reflect"}, default "zero"
        Pixels beyond the border: zeros, the pixels of the border, or the mirrored image.
    brightness : float, default 0.0
        Largest change of brightness: pixels are multiplied by a factor this far from 1.
    contrast : float, default 0.0
        Largest change of contrast, as for `brightness`.
    saturation : float, default 0.0
        Largest change of saturation, as for `brightness`; only for color images.
    cutout : int, default 0
        Width and height in pixels of a square that is set to 0.
    noise : float, default 0.0
        Standard deviation of Gaussian noise, as a fraction of the pixel range (255 for uint8, 1 for
        floating point).

    Raises
    ------
    SpecError
        If an option is unknown, or a value is out of range or does not fit the others.

    Examples
    --------
    >>> AugmentSpec(copies=4, flip=True, shift=2).changes
    ['flip', 'shift']
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
        self._check_range("crop", 0, 1, exclude_low=True)
        self._check_range("rotate", 0, 180)
        for name in ("scale", "brightness", "contrast", "saturation"):
            self._check_range(name, 0, 1)
        options = [f.name for f in dataclasses.fields(self) if f.name not in ("copies", "padding")]
        if self.copies and not self.changes:
            raise SpecError(
                f"copies={self.copies} would all be the same as their image. Set at least one of "
                + ", ".join(options)
                + "."
            )
        if self.changes and not self.copies:
            raise SpecError(
                f"{self.changes[0]}={getattr(self, self.changes[0])} changes copies of the images, "
                "but copies=0. Use copies of at least 1."
            )

    @property
    def changes(self) -> list[str]:
        """Names of the options by which copies differ from their image."""
        return [
            f.name
            for f in dataclasses.fields(self)
            if f.name not in ("copies", "padding") and getattr(self, f.name) != f.default
        ]

    @property
    def moves(self) -> bool:
        """Whether copies differ from their image in geometry."""
        geometry = {"flip", "flip_vertical", "shift", "crop", "rotate", "scale"}
        return not geometry.isdisjoint(self.changes)

    def check_images(self, height: int, width: int, channels: int) -> None:
        """Raise SpecError if images of this shape cannot be augmented.

        Parameters
        ----------
        height, width : int
            Size of the images in pixels.
        channels : int
            Channels of the images.

        Raises
        ------
        SpecError
            If a shift or a cutout is as large as the images, or saturation is to change in images
            that are not in color.
        """
        for name in ("shift", "cutout"):
            if getattr(self, name) >= min(height, width):
                raise SpecError(
                    f"{name}={getattr(self, name)} leaves nothing of images of {height}×{width} "
                    f"pixels. Use {name} of at most {min(height, width) - 1}."
                )
        if self.saturation and channels != 3:
            raise SpecError(
                f"saturation={self.saturation} is for color images with 3 channels, but these "
                f"have {channels}. Leave saturation out."
            )
