"""The fields of a network from its options, and the flat options of its components."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rescnet_dist.composition import (
    BANK_SHORTHANDS,
    apply_shorthands,
    check_flat_options,
    flat_options,
    format_bank,
    make_bank,
    make_component,
    make_components,
    make_views,
    update_component,
)
from rescnet_dist.model.bank import BankPart
from rescnet_dist.model.head import Head
from rescnet_dist.model.registry import FEATURES, FILTERS, HEADS, VIEWS
from rescnet_dist.options import Option


def compose(options: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a network from the old fields and changed options.

    Components come first, then the shorthands of the bank, then the flat options of components.
    """
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


def format_components(value: Any) -> str:
    """Return the text by which a bank, feature extractors or a head can be given."""
    if isinstance(value, Head):
        return value.name
    if isinstance(value[0], BankPart):
        return format_bank(value)
    return ",".join(extractor.name for extractor in value)


def add_flat_options(declared_options: Mapping[str, Option], *, load: bool) -> dict[str, Option]:
    """Return options of a network and the flat ones of components, by name.

    `load` is that of `Registry.classes`.
    """
    found: dict[str, Option] = {}
    registries = {"bank": FILTERS, "views": VIEWS, "features": FEATURES, "head": HEADS}
    for name, declared in declared_options.items():
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
                default=format_components(declared.default),
                help=f"{declared.help}; known: {names}",
            )
        flat = flat_options(registry, load=load)
        if name == "bank":
            flat = BANK_SHORTHANDS | flat
        found |= {
            key: dataclasses.replace(option, group=declared.group)
            for key, option in flat.items()
            if key not in declared_options
        }
    return found
