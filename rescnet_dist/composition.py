"""The composition of a network from names, tables and flat options.

A bank is a list of parts, features are extractors side by side, and there is one head. The parts of
the bank name the views that they see, which need a mention only to set their options. Each can be
given as objects, as tables (dicts with a `name`), or as text such as `pca:0.5,dct:0.5@contrast`.
Options of components also have flat names, the component's prefix and the name of the option, by
which presets, the command line and parameter grids set them: `block`, `lda_draws`, `ridge`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rescnet_dist.errors import SpecError, shorten_repr
from rescnet_dist.model.bank import BankPart
from rescnet_dist.model.components import Component, FilterLearner
from rescnet_dist.model.filters.pca import PCA
from rescnet_dist.model.filters.stacked_lda import StackedLDA
from rescnet_dist.model.registry import FEATURES, FILTERS, HEADS, VIEWS, Registry
from rescnet_dist.model.view import View
from rescnet_dist.options import Option, validate_option

COMPONENT_FIELDS = ("bank", "features", "head")
BANK_FORM = (
    "name:share@view, separated by commas, such as pca:0.5,stacked-lda:0.5; +each, +center and "
    "+whiten=ridge may follow, as in pca:0.5@contrast+each+center"
)
PART_PATTERN = re.compile(
    r"(?P<name>[^:@+\s]+)\s*(?::\s*(?P<share>[^:@+\s]+)\s*)?(?:@\s*(?P<view>[^:@+\s]+)\s*)?"
    r"(?P<changes>(?:\+\s*(?:each|center|whiten\s*=\s*[^:@+\s]+)\s*)*)"
)
PART_CHANGES: dict[str, dict[str, Any]] = {"each": {"channels": "each"}, "center": {"center": True}}
# Options that stand for a bank of PCA and stacked-LDA filters.
BANK_SHORTHANDS = {
    "local_contrast": Option(
        name="local_contrast",
        type=bool,
        is_required=False,
        default=False,
        help="use half of the filters on the local contrast of the images",
        doc="Use two towers with half of the filters each, which share only the features. One "
        "sees the images, as in the paper, the other their local contrast.",
    ),
    "lda_fraction": Option(
        name="lda_fraction",
        type=float,
        is_required=False,
        default=0.5,
        help="fraction of stacked-LDA filters; the rest are PCA filters",
        doc="Fraction of stacked-LDA filters in the bank, from 0 to 1; the rest are PCA filters.",
        low=0,
        high=1,
    ),
}


# flat options -------------------------------------------------------------------------------------


def flat_options(registry: Registry, *, load: bool = True) -> dict[str, Option]:
    """Return the options of all members of a registry by their flat names.

    Members may share a name, such as the ridge of all heads; the first one declares it. `load` is
    that of `Registry.classes`.
    """
    found: dict[str, Option] = {}
    for component in registry.classes(load=load):
        for name, option in _own_options(component).items():
            found.setdefault(name, option)
    return found


_OWN_OPTIONS: dict[type[Component], dict[str, Option]] = {}


def _own_options(component: type[Component]) -> dict[str, Option]:
    """Return the options of a component by their flat names; made once, not to be changed."""
    if component not in _OWN_OPTIONS:
        options = component.__options__.values()
        named = {f"{component.prefix}{option.name}": option for option in options}
        _OWN_OPTIONS[component] = {
            name: replace(option, name=name) for name, option in named.items()
        }
    return _OWN_OPTIONS[component]


def flat_values(component: Component) -> dict[str, Any]:
    """Return the values of the options of a component by their flat names."""
    values = component.get_params(deep=False)
    return {f"{component.prefix}{name}": value for name, value in values.items()}


def _changed_values(component: Component) -> dict[str, Any]:
    """Return the flat options of a component that are not the default."""
    declared, values = _own_options(type(component)), flat_values(component)
    return {
        name: value
        for name, value in values.items()
        if declared[name].is_required or value != declared[name].default
    }


def _values_to_take_over(component: Component, old: Component) -> dict[str, Any]:
    """Return the flat options of an old component that mean the same in a new one."""
    if old.name == component.name:
        return _changed_values(old)
    own_scale = {kind.prefix + name for kind in (component, old) for name in kind.own_scale}
    return {name: value for name, value in _changed_values(old).items() if name not in own_scale}


def update_component(component: Any, changes: Mapping[str, Any]) -> Any:
    """Return a component with those flat options changed that it has."""
    declared = _own_options(type(component))
    own = {name: value for name, value in changes.items() if name in declared}
    for name, value in own.items():
        own[name] = validate_option(declared[name], value)  # its error has the flat name
    prefix = len(component.prefix)
    return component.replace(**{name[prefix:]: value for name, value in own.items()})


def check_flat_options(changes: Iterable[str], components: Iterable[Component]) -> None:
    """Raise SpecError for a flat option that no component of the network has."""
    components = list(components)
    known = {name for component in components for name in _own_options(type(component))}
    for name in changes:
        if name in known:
            continue
        for registry in (FILTERS, VIEWS, FEATURES, HEADS):
            owners = [c for c in registry.classes() if name in _own_options(c)]
            if owners:
                names = [c.name for c in components if isinstance(c, registry.base)]
                raise SpecError(
                    f"{name} is an option of the {registry.kind} "
                    f"{' or '.join(owner.name for owner in owners)}, but the network has "
                    f"{' and '.join(names)}. Leave {name} out, or use that {registry.kind}."
                )


# components from text and tables ------------------------------------------------------------------


def make_component(
    registry: Registry, value: Any, current: Iterable[Any] = (), *, is_stored: bool = False
) -> Any:
    """Return a component from itself, its name, or a table with its name and options.

    A name takes over the options of current components that are not the default and have the same
    scale; a table has the default where it says nothing. A table without a name changes the only
    current component. A table in a store may have names of earlier releases.
    """
    current = list(current)
    if isinstance(value, registry.base):
        return value
    if isinstance(value, str):
        component = registry.get(value).from_dict({})
        for old in current:
            component = update_component(component, _values_to_take_over(component, old))
        return component
    if isinstance(value, Mapping):
        options = {key: item for key, item in value.items() if key != "name"}
        if "name" not in value:
            if len(current) == 1:
                return current[0].replace(**options)
            raise SpecError(
                f"The table {shorten_repr(dict(value))} of a {registry.kind} has no name. "
                f"Add name, one of {', '.join(registry.names())}."
            )
        kind = registry.get(str(value["name"]))
        return kind.from_stored(options) if is_stored else kind.from_dict(options)
    raise SpecError(
        f"{shorten_repr(value)} is not a {registry.kind}. Give its name, one of "
        f"{', '.join(registry.names())}, an object of its class, or a table with name and options."
    )


def make_components(registry: Registry, value: Any, current: Iterable[Any]) -> tuple[Any, ...]:
    """Return the components of a list, or of text with their names separated by commas."""
    current = list(current)
    return tuple(make_component(registry, item, current) for item in _list_items(value))


def _list_items(value: Any) -> list[Any]:
    """Return the items of a list, or of text where they are separated by commas."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",")]
    return list(value) if isinstance(value, list | tuple) else [value]


# banks --------------------------------------------------------------------------------------------


def make_bank(value: Any, current: tuple[BankPart, ...]) -> tuple[BankPart, ...]:
    """Return the parts of a bank from parts, learners, tables or text.

    Learners that are given by name take over the options that they have in the current bank.
    """
    return tuple(_make_part(item, current) for item in _list_items(value))


def _make_part(
    value: Any, current: tuple[BankPart, ...] = (), *, is_stored: bool = False
) -> BankPart:
    """Return one part of a bank."""
    if isinstance(value, BankPart):
        return value
    options: dict[str, Any] = {}
    learner = value
    if isinstance(value, str):
        learner, options = _parse_part(value)
    elif isinstance(value, Mapping):
        names = BankPart.__options__.keys() - {"learner"}
        options = {key: item for key, item in value.items() if key in names}
        learner = {key: item for key, item in value.items() if key not in names}
    own = [part.learner for part in current if part.learner.name == learner]
    return BankPart(make_component(FILTERS, learner, own[:1], is_stored=is_stored), **options)


def read_components(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bank, its views, the extractors and the head of a stored spec."""
    views = values.get("views")  # earlier releases stored none, as these had no options
    return {
        "views": views and tuple(make_component(VIEWS, table, is_stored=True) for table in views),
        "bank": tuple(_make_part(table, is_stored=True) for table in values["bank"]),
        "features": tuple(
            make_component(FEATURES, table, is_stored=True) for table in values["features"]
        ),
        "head": make_component(HEADS, values["head"], is_stored=True),
    }


def make_views(value: Any, bank: tuple[BankPart, ...], current: Iterable[View]) -> tuple[View, ...]:
    """Return the views that the parts of a bank see, the image first, the others by name.

    Those that are not given are the current ones, or have their default options.
    """
    current = list(current)
    given = [] if value is None else make_components(VIEWS, value, current)
    used = {part.view for part in bank if part.share}
    for view in given:
        if view.name not in used:
            raise SpecError(
                f"views has {view.name}, but no part of bank={format_bank(bank)} sees it. Add "
                f"@{view.name} to a part of the bank, or leave the view out."
            )
    known = {view.name: view for view in (*current, *given)}
    names = sorted(used, key=lambda name: (name != "image", name))
    return tuple(known.get(name) or make_component(VIEWS, name) for name in names)


def _parse_part(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the learner and the options of the part in the text of a part."""
    found = PART_PATTERN.fullmatch(text)
    if not found:
        raise SpecError(f"The part {text!r} of the bank cannot be read. Give {BANK_FORM}.")
    options: dict[str, Any] = {"view": found["view"]} if found["view"] else {}
    numbers = {"share": found["share"]} if found["share"] else {}
    for change in found["changes"].split("+")[1:]:
        name, is_number, number = map(str.strip, change.partition("="))
        if is_number:
            numbers[name] = number
        else:
            options |= PART_CHANGES[name]
    for name, number in numbers.items():
        try:
            options[name] = float(number)
        except ValueError:
            raise SpecError(
                f"bank part {text!r} has the {name} {number!r}, which is not a number. Give "
                f"{BANK_FORM}."
            ) from None
    return found["name"], options


def format_bank(bank: tuple[BankPart, ...]) -> str:
    """Return the text that `make_bank` reads.

    >>> format_bank((BankPart(PCA(), 0.5), BankPart(StackedLDA(), 0.5, "contrast")))
    'pca:0.5,stacked-lda:0.5@contrast'
    """
    return ",".join(map(_format_part, bank))


def _format_part(part: BankPart) -> str:
    """Return the text of one part."""
    text = f"{part.learner.name}:{_format_number(part.share)}"
    if part.view != "image":
        text += f"@{part.view}"
    for name, options in PART_CHANGES.items():
        if all(getattr(part, option) == value for option, value in options.items()):
            text += f"+{name}"
    return text if part.whiten is None else f"{text}+whiten={_format_number(part.whiten)}"


def _format_number(number: float) -> str:
    """Return the shortest text that is read as the same number, such as 1 or 0.1."""
    return repr(float(number)).removesuffix(".0")


def paper_bank(
    lda_fraction: float = 0.5, *, local_contrast: bool = False, lda: StackedLDA | None = None
) -> tuple[BankPart, ...]:
    """Return a bank of PCA filters and, after them, stacked-LDA filters, for one or two views."""
    views = ("image", "contrast") if local_contrast else ("image",)
    learners: tuple[tuple[FilterLearner, float], ...] = (
        (PCA(), 1 - lda_fraction),
        (lda or StackedLDA(), lda_fraction),
    )
    return tuple(
        BankPart(learner, share / len(views), view) for view in views for learner, share in learners
    )


def bank_shorthands(bank: tuple[BankPart, ...]) -> dict[str, Any] | None:
    """Return the options `lda_fraction` and `local_contrast` that give a bank; None if none do."""
    lda = next((part for part in bank if isinstance(part.learner, StackedLDA)), None)
    if lda is None:
        return None
    local_contrast = any(part.view == "contrast" for part in bank)
    fraction = lda.share * (2 if local_contrast else 1)  # exact, unlike a sum of shares
    if fraction > 1:
        return None
    expected = paper_bank(fraction, local_contrast=local_contrast, lda=lda.learner)  # type: ignore[arg-type]
    is_same = bank == expected
    return {"local_contrast": local_contrast, "lda_fraction": fraction} if is_same else None


def apply_shorthands(
    bank: tuple[BankPart, ...], changes: Mapping[str, Any]
) -> tuple[BankPart, ...]:
    """Return a bank with `lda_fraction` and `local_contrast` changed.

    Any bank can get or lose a second tower; a fraction of stacked-LDA filters is for banks of PCA
    and stacked-LDA filters.
    """
    changes = {
        name: validate_option(BANK_SHORTHANDS[name], value) for name, value in changes.items()
    }
    shorthands = bank_shorthands(bank)
    if shorthands is not None:
        lda = next(part.learner for part in bank if isinstance(part.learner, StackedLDA))
        return paper_bank(**shorthands | changes, lda=lda)
    if "lda_fraction" in changes:
        raise SpecError(
            f"lda_fraction={changes['lda_fraction']} is for banks of pca and stacked-lda filters, "
            f"but the bank is {format_bank(bank)}. Change the shares in bank instead."
        )
    has_contrast = any(part.view == "contrast" for part in bank)
    if changes["local_contrast"] == has_contrast:
        return bank
    images = [part for part in bank if part.view == "image"]
    if has_contrast:
        if len(bank) != 2 * len(images) or any(
            part.replace(view="contrast") not in bank for part in images
        ):
            raise SpecError(
                f"local_contrast=False would remove parts of bank={format_bank(bank)} that have no "
                "counterpart. Give the bank that you want instead."
            )
        return tuple(part.replace(share=2 * part.share) for part in images)
    if not images:
        raise SpecError(
            "local_contrast=True divides the parts that see the image, but "
            f"bank={format_bank(bank)} has none. Add @contrast to a part instead."
        )
    halves = (
        part.replace(share=part.share / 2, view=view)
        for view in ("image", "contrast")
        for part in images
    )
    return (*halves, *(part for part in bank if part.view != "image"))
