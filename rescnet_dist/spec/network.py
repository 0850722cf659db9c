"""Options that define a network: its layers, components and schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from rescnet_dist.automatic import automatic_options
from rescnet_dist.composition import (
    COMPONENT_FIELDS,
    bank_shorthands,
    flat_values,
    format_bank,
    paper_bank,
    read_components,
)
from rescnet_dist.errors import SpecError, suggest_name
from rescnet_dist.model.architecture import Architecture
from rescnet_dist.model.bank import BankPart
from rescnet_dist.model.components import Component, FeatureExtractor
from rescnet_dist.model.features.second_order import SecondOrder
from rescnet_dist.model.head import Head
from rescnet_dist.model.heads.classify import Classify
from rescnet_dist.model.registry import HEADS
from rescnet_dist.model.view import View
from rescnet_dist.model.views.image import Image
from rescnet_dist.options import Option, option
from rescnet_dist.spec.bank_checks import check_channels, check_towers
from rescnet_dist.spec.base import Spec, read_toml
from rescnet_dist.spec.compose import add_flat_options, compose, format_components
from rescnet_dist.spec.presets import PRESET_OPTIONS


@dataclass(frozen=True, slots=True, init=False)
class NetworkSpec(Spec):
    """Options that define a network; the defaults are those of the paper.

    A network is composed of a filter bank, feature extractors and a head. Each is given by objects
    of `rescnet_dist.model`, by name, or by tables as in TOML. The options of the components also
    have flat names, which the presets, the command line and parameter grids use: `block` is that
    of second-order pooling, `lda_draws` that of stacked-LDA filters, `ridge` that of the head.
    A flat option is for all components that have it, and can be read as an attribute.

    Raises
    ------
    SpecError
        If an option is unknown, or a value is out of range or does not fit the others.

    Examples
    --------
    >>> spec = NetworkSpec.preset("digits").replace(filters=8)
    >>> spec.filters, spec.block
    (8, 7)
    >>> spec = NetworkSpec(bank="pca:0.5,dct:0.5", head="regress", ridge=0.3)
    >>> spec.head.name, spec.head.ridge
    ('regress', 0.3)
    """

    table: ClassVar[str] = "network"
    title: ClassVar[str] = "Network"

    filters: int | tuple[int, ...] = option(
        50,
        help="filters per layer, or those of each layer such as 40,8",
        doc="Filters per layer; or a list with one number per layer, of which the last holds for "
        "all later layers.",
        low=1,
        group="Filters",
    )
    filter_size: int = option(
        3,
        help="filter width and height in layers 2 and later, in pixels",
        doc="Width and height of the filters in layers 2 and later, in pixels.",
        low=1,
        group="Filters",
    )
    first_filter_size: int = option(
        3,
        help="filter width and height in layer 1, in pixels",
        doc="Width and height of the filters in layer 1, in pixels.",
        low=1,
        group="Filters",
    )
    minmax: Literal["global", "channel", "images"] = option(
        "global",
        help="min-max normalization: one range for all channels, one per channel, or of images "
        "only",
        doc="Min-max normalization of the input of a layer: one range for all channels, or one "
        'per channel; "images" has one range for the images and leaves maps as they are.',
    )
    rectify: bool = option(
        False,
        help="pass ReLU(maps) to the next layer instead of the maps",
        doc="Pass ReLU(maps) to the next layer, which makes it nonlinear in the images. The "
        "paper passes the maps unchanged.",
    )
    concatenate: bool = option(
        True,
        help="give layers 2 and later the images in addition to the maps",
        doc="Give layers 2 and later the images in addition to the maps of the layer before, as "
        "in the paper. False gives them the maps only.",
    )
    filter_images: int | None = option(
        None,
        help="number of training images whose patches the filters are learned from",
        doc="About how many training images filters are learned from: moments of patches are "
        "gathered from as many of them, spread evenly over each class, at least one. None takes "
        "all. Drawn patches are always drawn from all images.",
        low=1,
        group="Filters",
    )
    bank: tuple[BankPart, ...] = option(
        paper_bank(),
        help="filter learners as NAME:SHARE@VIEW,..., such as pca:0.5,dct:0.5; +each, +center and "
        "+whiten=RIDGE may follow",
        doc="Filter learners, their shares of the filters, and the view of the images that they "
        'see, such as "image" or "contrast". Parts with the same view are a tower.',
        group="Filters",
    )
    views: tuple[View, ...] = option(
        (Image(),),
        help="what the filters see of the images",
        doc="The views that the bank names, the image first. They need to be given only to set "
        "their options.",
        group="Filters",
    )
    features: tuple[FeatureExtractor, ...] = option(
        (SecondOrder(),),
        help="feature extractors, separated by commas",
        doc="Feature extractors, whose features are concatenated.",
        group="Features",
    )
    head: Head = option(
        Classify(),
        help="what a layer is fitted to and adds to the scores",
        doc="What a layer is fitted to, and what it adds to the scores: `classify` the class and "
        "sign of the largest error (the paper), `regress` all errors. `classify-leave-one-out`, "
        "`leave-one-out` and `kernel-ridge` are fitted to the errors that images would have "
        "without training on them.",
        old_name="residual",
        group="Head",
    )
    heads: Literal["every", "last"] = option(
        "every",
        help="layers that are fitted to the classes: every one, or the last of max_layers only",
        doc="Layers that have a head, and add to the scores: every one, as in the paper; or the "
        "last of `max_layers` only, as in PCANet. Layers before it then have no features, and the "
        "accuracy is that of the last layer.",
        group="Head",
    )
    learning_rate: float = option(
        1.0, help="learning rate α", doc="Learning rate α of the first layers.", low=0, group="Head"
    )
    decay: float = option(
        0.0,
        help="fraction by which α decreases every decay_every layers",
        doc="Fraction by which α decreases every `decay_every` layers.",
        low=0,
        high=1,
        group="Head",
    )
    decay_every: int = option(10, help="layers between two decreases of α", low=1, group="Head")
    rate_floor: float = option(0.0, help="lowest α", low=0, group="Head")
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
    feature_dtype: Literal["float32", "float16"] = option(
        "float32",
        help="precision of the features",
        doc="Precision to which the features of a layer are rounded before anything is learned "
        "from them, and in which they are kept in memory, or stored for conjugate gradients. "
        "Counts of binary-hash are integers, and `kernel-ridge` keeps features in `store_dtype`.",
    )

    def __init__(self, **options: Any) -> None:
        defaults = {name: declared.default for name, declared in self.__options__.items()}
        for name, value in (defaults | compose(options, defaults)).items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __getattr__(self, name: str) -> Any:
        """Return the value of a flat option."""
        if not name.startswith("_") and name not in self.__options__:
            values = self._flat_values()
            if name in values:
                return values[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def components(self) -> tuple[Component, ...]:
        """All filter learners, views, feature extractors and the head."""
        learners = (part.learner for part in self.bank)
        return (*learners, *self.views, *self.features, self.head)

    def _flat_values(self) -> dict[str, Any]:
        """Return the values of the flat options of the components, in the order of the flags."""
        values: dict[str, Any] = bank_shorthands(self.bank) or {}
        for component in self.components:
            values = flat_values(component) | values
        return {name: value for name, value in values.items() if name not in self.__options__}

    @classmethod
    def _check_names(cls, values: Mapping[str, Any]) -> None:
        """Raise SpecError for unknown options; packages that may have them are imported last."""
        known = add_flat_options(cls.__options__, load=False)
        Spec._check_names.__func__(cls, {k: v for k, v in values.items() if k not in known})  # type: ignore[attr-defined]

    @classmethod
    def settable_options(cls) -> dict[str, Option]:
        """Return the options that users can set: those of the spec, and the flat ones.

        Returns
        -------
        dict of str to Option
            Options by name; those of components follow the option that chooses the components.
            `views` is left out, as the bank chooses them.
        """
        return add_flat_options(cls.__options__, load=True)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name, as scikit-learn asks for the parameters of an estimator.

        Parameters
        ----------
        deep : bool, default True
            Add the flat options, and those by nested name: both `ridge` and `head__ridge`.

        Returns
        -------
        dict
            Values by option name.
        """
        # not super(): dataclass makes a new class to add slots
        return (self._flat_values() if deep else {}) | Spec.get_params(self, deep)

    def set_params(self, **params: Any) -> NetworkSpec:
        """Return a copy with some options changed, flat and nested ones included.

        Parameters
        ----------
        **params
            New values by name, such as `ridge`, `head__ridge` or `head`. Those of components come
            first, so that a component and its options can be given together.

        Returns
        -------
        NetworkSpec
            The new spec.

        Raises
        ------
        SpecError
            If an option is unknown or a value is not valid.
        """
        direct = {name: value for name, value in params.items() if "__" not in name}
        nested = {name: value for name, value in params.items() if "__" in name}
        return Spec.set_params(self.replace(**direct), **nested)

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> NetworkSpec:
        """Return the spec in a run or network store.

        Parameters
        ----------
        values : dict
            Values by option name. Those that were stored before components had tables of their own
            are all flat; options of components that the network does not have are left out.

        Returns
        -------
        NetworkSpec
            The spec.
        """
        if "head" in values:
            return cls(**{**values, **read_components(values)})
        current = {name: value for name, value in values.items() if name != "residual"}
        for name, declared in cls.settable_options().items():
            if declared.old_values and current.get(name) in declared.old_values:
                current[name] = declared.old_values[current[name]]
        head = values.get("residual", Classify.name)
        bank = paper_bank(
            current.pop("lda_fraction", 0.5), local_contrast=current.pop("local_contrast", False)
        )
        base = cls(head=head, bank=bank)
        known = {*cls.__options__, *base._flat_values()}
        others = cls.settable_options().keys() - known
        return base.replace(**{k: v for k, v in current.items() if k not in others})

    def replace(self, **changes: Any) -> NetworkSpec:
        """Return a copy with some options changed, validated again.

        Parameters
        ----------
        **changes
            New values by option name, flat names included. A component that is given by name takes
            over the options that the present one has too.

        Returns
        -------
        NetworkSpec
            The new spec.

        Raises
        ------
        SpecError
            If an option is unknown or a value is not valid.

        Examples
        --------
        >>> NetworkSpec(ridge=0.3).replace(head="regress").ridge
        0.3
        """
        self._check_names(changes)
        current = self.get_params(deep=False)
        return type(self)(**compose(changes, current))

    def rows(self) -> list[tuple[str, Any, bool]]:
        """Return the name and value of each option, and whether it differs from the default.

        Returns
        -------
        list of tuple
            One `(name, value, is_changed)` for each option; components are rows of text, their
            options have their flat names.
        """
        flat, rows = self._flat_values(), []
        for name, declared in self.settable_options().items():
            if name in COMPONENT_FIELDS:
                if name == "bank" and "lda_fraction" in flat:
                    continue  # the shorthands say it
                value = format_components(getattr(self, name))
            elif name in self.__options__:
                value = getattr(self, name)
            elif name in flat:
                value = flat[name]
            else:
                continue
            rows.append((name, value, value != declared.default))
        return rows

    def check(self) -> None:
        """Raise SpecError if options do not fit each other.

        Raises
        ------
        SpecError
            If there are no filters or no features, the learning rate is below its floor, or an
            option has no effect.
        """
        if self.rate_floor > self.learning_rate:
            raise SpecError(
                f"rate_floor={self.rate_floor} is above learning_rate={self.learning_rate}. "
                "The rate decays down to the floor; use a lower floor."
            )
        if self.heads == "last" and self.patience is not None:
            raise SpecError(
                f'patience={self.patience} has no effect with heads="last", as only the last layer '
                'has an accuracy. Leave it out, or use heads="every".'
            )
        for name in ("bank", "features"):
            if not getattr(self, name):
                raise SpecError(f"{name} is empty. Give at least one component.")
        if self.feature_dtype != "float32":
            self._check_feature_dtype()
        if not self.views:
            raise SpecError(
                f"bank={format_bank(self.bank)} has no part with a share above 0. Give one a share."
            )
        if not self.filters:
            raise SpecError("filters is empty. Give at least one number.")
        architecture = self.architecture((1, 1, 1), 1)
        check_channels(architecture)
        for layer in architecture.distinct_layers:
            towers = architecture.tower_maps(layer)
            check_towers(self.bank, self.filters, towers)
            if architecture.has_head(layer):
                for extractor in self.features:
                    extractor.check_network(towers)

    @classmethod
    def preset(cls, name: str) -> NetworkSpec:
        """Return a preset.

        Parameters
        ----------
        name : str
            "digits", the network for the embedded digits; "mnist", "cifar10", "cifar100" or
            "tiny-imagenet", the four networks of the paper; or "pcanet", "pcanet+", "ldanet",
            "dctnet", "randnet", "ccanet" or "multilayer-pcanet", the PCANet family for color
            images of 32×32 pixels.

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
    def auto(
        cls, image_shape: tuple[int, int, int], images: int, classes: int, **changes: Any
    ) -> NetworkSpec:
        """Return a network with settings that are chosen for the images.

        The rule is in `rescnet_dist.automatic`; the guide says how well it does. It is what
        `ResCNetClassifier` and `rescnet train` use if no network is given.

        Parameters
        ----------
        image_shape : tuple of int
            Height, width and channels (H, W, d) of the images.
        images : int
            Number of training images, held-out ones included.
        classes : int
            Number of classes. The rule does not depend on it so far.
        **changes
            Options to set to other values, flat and nested names included. With
            `head="classify"` or `"classify-leave-one-out"`, the other settings are chosen for that
            head.

        Returns
        -------
        NetworkSpec
            The network.

        Raises
        ------
        SpecError
            If an option is unknown or a value is not valid.

        Examples
        --------
        >>> spec = NetworkSpec.auto((32, 32, 3), images=4000, classes=10, filters=8)
        >>> spec.filters, spec.block, spec.head.name
        (8, 16, 'regress')
        """
        head = changes.get("head")
        name = head.get("name") if isinstance(head, Mapping) else getattr(head, "name", head)
        options = automatic_options(image_shape, images)
        own = HEADS.get(name).automatic_options if name in HEADS.names() else {}
        if own:
            options |= {"head": name, **own}
        return cls(**options).set_params(**changes)

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

    @property
    def first_head(self) -> int:
        """The number of the first layer that has a head."""
        return self.max_layers if self.heads == "last" else 1

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

    def architecture(
        self, image_shape: tuple[int, int, int], classes: int, seed: int = 0
    ) -> Architecture:
        """Return the architecture of the network for images of one shape.

        Parameters
        ----------
        image_shape : tuple of int
            Height, width and channels (H, W, d) of the images.
        classes : int
            Number of classes.
        seed : int, default 0
            Seed of the random filters and draws.

        Returns
        -------
        Architecture
            What the layers compute, and from what.
        """
        return Architecture(
            image_shape=image_shape,
            classes=classes,
            filters=self.filters if isinstance(self.filters, tuple) else (self.filters,),
            layers=self.max_layers,
            filter_sizes=(self.first_filter_size, self.filter_size),
            bank=self.bank,
            views=self.views,
            extractors=self.features,
            head=self.head,
            minmax=self.minmax,
            rectify=self.rectify,
            store_dtype=self.store_dtype,
            feature_precision=self.feature_dtype,
            seed=seed,
            concatenate=self.concatenate,
            filter_images=self.filter_images,
            heads=self.heads,
        )

    def _check_feature_dtype(self) -> None:
        """Raise SpecError if features are in another precision than `feature_dtype` anyway."""
        reason = ""
        if all(extractor.dtype.kind == "u" for extractor in self.features):
            reason = "as all features are integers. Leave it out."
        elif self.head.fits_samples:
            reason = (
                f"as head={self.head.name} keeps features in the precision of maps. Leave it out, "
                f"or use store_dtype={self.feature_dtype!r}."
            )
        if reason:
            raise SpecError(f"feature_dtype={self.feature_dtype!r} has no effect, {reason}")

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
            If a block or a filter is larger than the images, or the learners cannot fit so many
            filters.
        """
        self.architecture((height, width, channels), 1).check_images()


@cache
def _make_preset(name: str) -> NetworkSpec:
    """Return a preset network; raise KeyError if there is none of this name."""
    return NetworkSpec(**PRESET_OPTIONS[name])


class Presets(Mapping[str, NetworkSpec]):
    """The preset networks by name, made on first use."""

    def __getitem__(self, name: str) -> NetworkSpec:
        return _make_preset(name)

    def __iter__(self) -> Iterator[str]:
        return iter(PRESET_OPTIONS)

    def __len__(self) -> int:
        return len(PRESET_OPTIONS)


PRESETS = Presets()
