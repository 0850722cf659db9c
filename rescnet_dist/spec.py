"""Options of a network, a run and its augmentation: frozen, validated specs with a TOML form."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import tomli_w

from rescnet_dist.automatic import automatic_options
from rescnet_dist.composition import (
    BANK_SHORTHANDS,
    COMPONENT_FIELDS,
    apply_shorthands,
    bank_shorthands,
    check_flat_options,
    flat_options,
    flat_values,
    format_bank,
    make_bank,
    make_component,
    make_components,
    make_views,
    paper_bank,
    read_components,
    update_component,
)
from rescnet_dist.errors import SpecError, suggest_name
from rescnet_dist.model.architecture import Architecture, BankPart
from rescnet_dist.model.components import Component, FeatureExtractor, Head
from rescnet_dist.model.features.second_order import SecondOrder
from rescnet_dist.model.heads.classify import Classify
from rescnet_dist.model.registry import FEATURES, FILTERS, HEADS, VIEWS
from rescnet_dist.model.view import View
from rescnet_dist.model.views.image import Image
from rescnet_dist.options import Option, Options, option
from rescnet_dist.presets import PRESET_OPTIONS

MAX_MAPS = 2**16  # of a layer
MAX_EACH_LAYERS = 32  # whose filters are applied to each map
DEFAULT_VALIDATION = 0.1  # fraction of the training images that is held out

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
    >>> spec.head
    Regress(ridge=0.3, target=0.8)
    """

    table: ClassVar[str] = "network"

    filters: int | tuple[int, ...] = option(
        50,
        help="filters per layer, or those of each layer such as 40,8",
        doc="Filters per layer; or a list with one number per layer, of which the last holds for "
        "all later layers.",
        low=1,
    )
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
    bank: tuple[BankPart, ...] = option(
        paper_bank(),
        help="filter learners as NAME:SHARE@VIEW+each+center,..., such as pca:0.5,dct:0.5",
        doc="Filter learners, their shares of the filters, and the view of the images that they "
        'see, such as "image" or "contrast". Parts with the same view are a tower.',
    )
    views: tuple[View, ...] = option(
        (Image(),),
        help="what the filters see of the images",
        doc="The views that the bank names, the image first. They need to be given only to set "
        "their options.",
    )
    features: tuple[FeatureExtractor, ...] = option(
        (SecondOrder(),),
        help="feature extractors, separated by commas",
        doc="Feature extractors, whose features are concatenated.",
    )
    head: Head = option(
        Classify(),
        help="what a layer is fitted to and adds to the scores",
        doc="What a layer is fitted to, and what it adds to the scores: `classify` the sign of the "
        "largest error (the paper), or `regress` all errors.",
        old_name="residual",
    )
    heads: Literal["every", "last"] = option(
        "every",
        help="layers that are fitted to the classes: every one, or the last of max_layers only",
        doc="Layers that have a head, and add to the scores: every one, as in the paper; or the "
        "last of `max_layers` only, as in PCANet. Layers before it then have no features, and the "
        "accuracy is that of the last layer.",
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

    def __init__(self, **options: Any) -> None:
        composed = _compose(options)
        for name, declared in self.__options__.items():
            object.__setattr__(self, name, composed.get(name, declared.default))
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
        known = cls._options_with_flat(load=False)
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
        return cls._options_with_flat(load=True)

    @classmethod
    def _options_with_flat(cls, *, load: bool) -> dict[str, Option]:
        """Return all options by name; `load` is that of `Registry.classes`."""
        found: dict[str, Option] = {}
        registries = {"bank": FILTERS, "views": VIEWS, "features": FEATURES, "head": HEADS}
        for name, declared in cls.__options__.items():
            if name not in registries:
                found[name] = declared
                continue
            registry = registries[name]
            names = ", ".join(component.name for component in registry.classes(load=load))
            if name == "views":  # chosen by the bank
                bank = found["bank"]
                found["bank"] = dataclasses.replace(bank, help=f"{bank.help}; views: {names}")
            else:
                found[name] = dataclasses.replace(
                    declared,
                    type=str,
                    default=_format_components(declared.default),
                    help=f"{declared.help}; known: {names}",
                )
            if name == "bank":
                found |= BANK_SHORTHANDS
            flat = flat_options(registry, load=load)
            found |= {key: value for key, value in flat.items() if key not in cls.__options__}
        return found

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
        return type(self)(**_compose(changes, current))

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
                value = _format_components(getattr(self, name))
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
            If there are no filters or no features, or the learning rate is below its floor.
        """
        if self.rate_floor > self.learning_rate:
            raise SpecError(
                f"rate_floor={self.rate_floor} is above learning_rate={self.learning_rate}. "
                "The rate decays down to the floor; use a lower floor."
            )
        for name in ("bank", "features"):
            if not getattr(self, name):
                raise SpecError(f"{name} is empty. Give at least one component.")
        if not self.views:
            raise SpecError(
                f"bank={format_bank(self.bank)} has no part with a share above 0. Give one a share."
            )
        if not self.filters:
            raise SpecError("filters is empty. Give at least one number.")
        architecture = self.architecture((1, 1, 1), 1)
        self._check_channels(architecture)
        for layer in architecture.distinct_layers:
            towers = architecture.tower_maps(layer)
            self._check_towers(towers)
            if architecture.has_head(layer):
                for extractor in self.features:
                    extractor.check_network(towers)

    def _check_channels(self, architecture: Architecture) -> None:
        """Raise SpecError for towers that apply only some filters to each map, or too many."""
        for view in (view.name for view in architecture.views):
            if len({part.channels for part in self.bank if part.share and part.view == view}) > 1:
                raise SpecError(
                    f"bank={format_bank(self.bank)} applies only some filters of the view {view} "
                    "to each map. Add +each to all parts of that view, or to none."
                )
        if not any(part.channels == "each" for part in self.bank):
            return
        for layer in range(1, self.max_layers + 1):
            if layer > MAX_EACH_LAYERS or architecture.map_count(layer) > MAX_MAPS:
                raise SpecError(
                    f"bank={format_bank(self.bank)} applies filters to each map, but layer {layer} "
                    f"would be one of more than {MAX_EACH_LAYERS}, or have more than {MAX_MAPS:,} "
                    f"maps. Use max_layers of at most {layer - 1}, or fewer filters."
                )

    def _check_towers(self, towers: tuple[int, ...]) -> None:
        """Raise SpecError if one of the towers of a layer has no maps, or a learner needs more."""
        if not all(towers):
            raise SpecError(
                f"filters={self.filters} with {len(towers)} towers (local_contrast, or "
                f"bank={format_bank(self.bank)}) leaves one without filters. Use at least "
                f"{len(towers)} filters, or larger shares for that view."
            )
        for part in self.bank:
            if part.share and part.learner.min_towers > len(towers):
                raise SpecError(
                    f"bank={format_bank(self.bank)} has {len(towers)} tower, but "
                    f"{part.learner.name} filters need {part.learner.min_towers}, as they compare "
                    "views. Use local_contrast=True, or add a part with another view."
                )

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
            `head="classify"`, the other settings are chosen for that head.

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
        return cls(**automatic_options(image_shape, images, name)).set_params(**changes)

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
            seed=seed,
            concatenate=self.concatenate,
            heads=self.heads,
        )

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


def _compose(
    options: Mapping[str, Any], current: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the fields of a network from its current fields and changed options.

    Components come first, then the shorthands of the bank, then the flat options of components.
    """
    defaults = {name: declared.default for name, declared in NetworkSpec.__options__.items()}
    old = current or defaults
    fields = {**old, **{name: value for name, value in options.items() if name in old}}
    fields["bank"] = make_bank(fields["bank"], old["bank"])
    fields["features"] = make_components(FEATURES, fields["features"], old["features"])
    fields["head"] = make_component(HEADS, fields["head"], [old["head"]])
    flat = {name: value for name, value in options.items() if name not in fields}
    shorthands = {name: flat.pop(name) for name in BANK_SHORTHANDS if name in flat}
    if shorthands:
        fields["bank"] = apply_shorthands(fields["bank"], shorthands)
    fields["views"] = make_views(options.get("views"), fields["bank"], old["views"])
    if flat:
        learners = [part.learner for part in fields["bank"]]
        components = *learners, *fields["views"], *fields["features"], fields["head"]
        check_flat_options(flat, components)
        fields["bank"] = tuple(
            part.replace(learner=update_component(part.learner, flat)) for part in fields["bank"]
        )
        for name in ("views", "features"):
            fields[name] = tuple(update_component(part, flat) for part in fields[name])
        fields["head"] = update_component(fields["head"], flat)
    return fields


def _format_components(value: Any) -> str:
    """Return the text by which a bank, feature extractors or a head can be given."""
    if isinstance(value, Head):
        return value.name
    if isinstance(value[0], BankPart):
        return format_bank(value)
    return ",".join(extractor.name for extractor in value)


PRESETS: dict[str, NetworkSpec] = {
    name: NetworkSpec(**options) for name, options in PRESET_OPTIONS.items()
}


@dataclass(frozen=True, slots=True)
class RunSpec(Spec):
    """Options of how a network is trained.

    Except `seed`, `validation` and `class_weight`, none of them changes the mathematics.

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
    validation: float | None = option(
        None,
        help="fraction of the training images to hold out  "
        f"[default: {DEFAULT_VALIDATION}, if there are {round(1 / DEFAULT_VALIDATION)} per class]",
        doc="Fraction of the training images held out if there is no validation set, up to 0.9. "
        f"None is {DEFAULT_VALIDATION}, or 0 if there are fewer than "
        f"{round(1 / DEFAULT_VALIDATION)} images per class.",
        low=0,
        high=0.9,
    )
    class_weight: Literal["balanced"] | None = option(
        None,
        help="weights of classes; balanced: all classes count the same in what is learned",
        doc='Weights of classes: "balanced" weights the images of each class in inverse proportion '
        "to their number, so that all classes count the same; None weights all images the same.",
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
