"""Options of a network, a run and its augmentation: frozen, validated specs with a TOML form."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import tomli_w

from rescnet_dist.errors import SpecError, suggest_name
from rescnet_dist.options import Options, option

MAX_COLOR_CHANNELS = 4  # of RGBA images; images with a height below it look channels-first
# As tomli_w writes it, one item per line; strings have no line breaks there.
ARRAY_OF_NUMBERS = re.compile(r"\[\n((?: *[-+\w.]+,\n)+)\]")


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


class Spec(Options):
    """Base class of the specs, each of which is one table of a TOML file."""

    __slots__ = ()
    table: ClassVar[str]

    def to_toml(self) -> str:
        """Return the spec as one TOML table.

        Returns
        -------
        str
            A table named `network`, `run` or `augment`, without the options that are None.
        """
        text = tomli_w.dumps({self.table: self.to_dict()})
        return ARRAY_OF_NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())[:-1]}]", text)

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

    filters: int = option(50, help="filters per layer", low=1)
    filter_size: int = option(
        3,
        help="filter width and height in layers 2 and later, in pixels",
        doc="Width and height of the filters in layers 2 and later, in pixels.",
        low=1,
    )
    first_filter_size: int = option(
        3,
        help="filter width and height in layer 1, in pixels",
        doc="Width and height of the filters in layer 1, in pixels.",
        low=1,
    )
    minmax: Literal["global", "channel"] = option(
        "global",
        help="min-max normalization: one range for all channels, or one per channel",
        doc="Min-max normalization of the input of a layer: one range for all channels, or "
        "one per channel.",
    )
    rectify: bool = option(
        False,
        help="pass ReLU(maps) to the next layer instead of the maps",
        doc="Pass ReLU(maps) to the next layer, which makes it nonlinear in the images. The "
        "paper passes the maps unchanged.",
    )
    local_contrast: bool = option(
        False,
        help="use half of the filters on the local contrast of the images",
        doc="Use two towers with half of the filters each, which share only the features. One "
        "sees the images, as in the paper, the other their local contrast.",
    )
    lda_fraction: float = option(
        0.5,
        help="fraction of stacked-LDA filters; the rest are PCA filters",
        doc="Fraction of stacked-LDA filters in the bank, from 0 to 1; the rest are PCA filters.",
        low=0,
        high=1,
    )
    lda_positives: int = option(2, help="patches of the class in each stacked-LDA draw", low=1)
    lda_negatives: int = option(32, help="patches of other classes in each stacked-LDA draw", low=1)
    lda_tolerance: float = option(
        0.0, help="largest training error of a draw that is accepted", low=0
    )
    lda_ridge: float = option(1e-2, help="ridge added to the covariance of a draw", above=0)
    lda_draws: int = option(
        8,
        help="draws per stacked-LDA filter",
        doc="Draws per stacked-LDA filter. If too few are accepted, the bank is filled with "
        "the draws of lowest error.",
        low=1,
    )
    block: int = option(
        16,
        help="width and height of the pooling blocks, in pixels",
        doc="Width and height of the blocks of second-order pooling, in pixels.",
        low=2,
    )
    stride: int = option(
        4,
        help="distance between pooling blocks, in pixels",
        doc="Distance between neighboring blocks, in pixels.",
        low=1,
    )
    zscore: Literal["channel", "block"] = option(
        "channel",
        help="normalization within a block: per channel, or of the whole block",
        doc="Normalization within a block: divide by the standard deviation of each channel, "
        "which gives correlations, or by that of the whole block.",
    )
    power: bool = option(False, help="replace each feature v by sign(v)·|v|^½")
    pairs: Literal["all", "tower"] = option(
        "all",
        help="pairs of maps whose covariance is a feature: all, or those within a tower",
        doc="Pairs of maps whose covariance is a feature: all, or only those within a tower "
        "(for `local_contrast`), which allows more filters at the same number of "
        "features.",
    )
    levels: tuple[int, ...] = option(
        (4, 2, 1),
        help="cells per side at each level of the spatial pyramid, such as 4,2,1",
        doc="Cells per side at each level of the spatial pyramid.",
    )
    cells: Literal["center", "even"] = option(
        "center",
        help="assignment of blocks to pyramid cells: by block center, or in equal shares",
        doc="Assignment of blocks to pyramid cells: by the center of the block, or in equal "
        "shares.",
        old_values={"centre": "center"},
    )
    pool: Literal["max", "mean"] = option("max", help="pooling over the blocks of a cell")
    residual: Literal["classify", "regress"] = option(
        "classify",
        help="target of later layers: classify the sign of the largest error, or regress errors",
        doc="Target of later layers: classify the sign of the largest error (the paper), or "
        "regress all errors.",
    )
    ridge: float = option(
        1.0,
        help="ridge γ of the classifiers, relative to the mean feature variance",
        doc="Ridge γ of the classifiers, relative to the mean variance of the features.",
        low=0,
    )
    probability: Literal["sigmoid", "softmax"] = option(
        "sigmoid",
        help="probability of a class from its score",
        doc="Probability of a class from its score s: sigmoid(s/σ) or softmax(β·s).",
    )
    sigma: float = option(16.0, help="scale σ of the sigmoid", above=0)
    beta: float = option(0.001, help="scale β of the softmax", above=0)
    target: float = option(
        0.8,
        help="target score λ of the true class",
        doc="Target score λ of the true class, from 0 to 1.",
        low=0,
        high=1,
    )
    learning_rate: float = option(
        1.0, help="learning rate α", doc="Learning rate α of the first layers.", low=0
    )
    decay: float = option(
        0.0,
        help="fraction by which α decreases every decay_every layers",
        doc="Fraction by which α decreases every `decay_every` layers.",
        low=0,
        high=1,
    )
    decay_every: int = option(10, help="layers between two decreases of α", low=1)
    rate_floor: float = option(0.0, help="lowest α", low=0)
    max_layers: int = option(100, help="maximum number of layers", low=1)
    patience: int | None = option(
        None,
        help="stop after this many layers without a higher validation accuracy",
        doc="Stop after this many layers without a higher validation accuracy; None never stops.",
        low=1,
    )
    stop_at_zero_error: bool = option(True, help="stop once the training error is 0")
    store_dtype: Literal["float32", "float16"] = option(
        "float32",
        help="precision of the maps",
        doc="Precision to which the maps of a layer are rounded before anything is learned "
        "from them, and in which they are stored.",
    )

    def check(self) -> None:
        """Raise SpecError if options do not fit each other.

        Raises
        ------
        SpecError
            If there are no filters or no features, or the learning rate is below its floor.
        """
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

    seed: int = option(
        0,
        help="seed of the draws, the validation split and the copies",
        doc="Seed of the patch draws, the validation split and the augmented copies.",
        low=0,
        high=2**63 - 1,
    )
    validation: float = option(
        0.0,
        help="fraction of the training images to hold out",
        doc="Fraction of the training images held out if there is no validation set, up to 0.9.",
        low=0,
        high=0.9,
    )
    chunk_images: int | None = option(
        None, help="images per chunk", doc="Images per chunk; None lets the plan choose.", low=1
    )
    accumulators: int | None = option(
        None,
        help="partial sums that the tree reduction starts from",
        doc="Partial sums that the tree reduction starts from; None lets the plan choose.",
        low=1,
    )
    split_every: int = option(2, help="fan-in of the tree reduction", low=2)
    solve_threads: int | None = option(
        None,
        help="BLAS threads of the solve",
        doc="BLAS threads of the solve; None uses all threads of a machine.",
        low=1,
    )
    tile_features: int | None = option(
        None,
        help="width and height of the tiles of the scatter matrix, in features",
        doc="Width and height of the tiles of the scatter matrix of the features; None lets "
        "the plan choose, which uses tiles only if a worker cannot hold the whole matrix.",
        low=1,
    )
    keep_maps: Literal["last", "all", "none"] = option(
        "last",
        help="layers whose maps stay in the store",
        doc="Layers whose maps and scores stay in the store: the last, all, or none once the "
        "run is done. A run without them computes them again when it is resumed.",
    )
    codec: Literal["none", "zstd"] = option("none", help="compression of the stored maps")
    maps: Literal["auto", "store", "memory"] = option(
        "auto",
        help="where maps are kept until the next layer; auto: in memory if they fit",
        doc="Where maps are kept until the next layer: in the store, in the memory of the "
        "workers, or (auto) in memory if the plan finds room.",
    )
    checkpoint_every: int = option(
        10,
        help="layers after which maps in memory are stored",
        doc="Layers after which maps in memory are written to the store. They are also "
        'written at the end, unless `keep_maps` is "none". Layers since the last '
        "checkpoint are computed again on resume.",
        low=1,
    )
    array_backend: Literal["numpy", "cupy"] = option(
        "numpy",
        help="array library of the workers; cupy: on their GPUs",
        doc='Array library of the workers; "cupy" is for workers with a GPU.',
    )
    matmul_precision: Literal["float32", "split", "half"] = option(
        "split",
        help="precision of matrix products on a GPU; split is nearly float32, half is fastest",
        doc="Precision of matrix products on a GPU: single precision, three products of "
        "halves, or half precision.",
        old_name="products",
    )

    def check(self) -> None:
        """Raise SpecError if options do not fit each other.

        Raises
        ------
        SpecError
            If options for maps in memory, maps in the store and tiles are mixed.
        """
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

    copies: int = option(
        0,
        help="augmented copies of each training image, in addition to the image",
        doc="Copies of each training image, in addition to the image, up to 10,000.",
        low=0,
        high=10_000,
    )
    flip: bool = option(
        False,
        help="mirror every second copy left to right",
        doc="Mirror every second copy left to right, starting with the first: a single copy "
        "is always mirrored. With `flip_vertical`, copies cycle through left to right, "
        "top to bottom, both and neither.",
    )
    flip_vertical: bool = option(
        False,
        help="mirror every second copy top to bottom",
        doc="Mirror every second copy top to bottom, as for `flip`.",
    )
    shift: int = option(
        0, help="largest shift of copies, in pixels", doc="Largest shift in whole pixels.", low=0
    )
    crop: float = option(
        1.0,
        help="smallest crop of copies, as a fraction of the sides; crops are enlarged to full size",
        doc="Smallest side of a random square crop, as a fraction of the image's sides; the "
        "crop is enlarged to the full size.",
        above=0,
        high=1,
    )
    rotate: float = option(
        0.0,
        help="largest rotation of copies, in degrees",
        doc="Largest rotation in degrees, up to 180.",
        low=0,
        high=180,
    )
    scale: float = option(
        0.0,
        help="largest change of size of copies, as a fraction",
        doc="Largest change of size, up or down, as a fraction.",
        low=0,
        high=1,
    )
    padding: Literal["zero", "edge", "reflect"] = option(
        "zero",
        help="pixels beyond the borders of copies",
        doc="Pixels beyond the border: zeros, the pixels of the border, or the mirrored image.",
    )
    brightness: float = option(
        0.0,
        help="largest change of brightness, as a fraction",
        doc="Largest change of brightness: pixels are multiplied by a factor this far from 1.",
        low=0,
        high=1,
    )
    contrast: float = option(
        0.0,
        help="largest change of contrast, as a fraction",
        doc="Largest change of contrast, as for `brightness`.",
        low=0,
        high=1,
    )
    saturation: float = option(
        0.0,
        help="largest change of saturation, as a fraction",
        doc="Largest change of saturation, as for `brightness`; only for color images.",
        low=0,
        high=1,
    )
    cutout: int = option(
        0,
        help="width and height of a square that is set to 0 in copies, in pixels",
        doc="Width and height in pixels of a square that is set to 0.",
        low=0,
    )
    noise: float = option(
        0.0,
        help="standard deviation of Gaussian noise, as a fraction of the pixel range",
        doc="Standard deviation of Gaussian noise, as a fraction of the pixel range (255 for "
        "uint8, 1 for floating point).",
        low=0,
    )

    def check(self) -> None:
        """Raise SpecError if options do not fit each other.

        Raises
        ------
        SpecError
            If copies would not differ from their image, or there are none to change.
        """
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
    def copy_options(self) -> dict[str, Any]:
        """Values of the options of a single copy, by name: all options but `copies`."""
        names = (f.name for f in dataclasses.fields(self) if f.name != "copies")
        return {name: getattr(self, name) for name in names}

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
