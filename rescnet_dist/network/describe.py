"""Descriptions of saved networks, from the attributes of their stores."""

from __future__ import annotations

import os
from typing import Any

from rescnet_dist.data import classes_from_json
from rescnet_dist.spec import AugmentSpec, NetworkSpec
from rescnet_dist.store import (
    FUSED_FORMAT,
    NETWORK_FORMAT,
    RUN_FORMAT,
    Location,
    check_format,
    translate_attribute_errors,
)


def describe_network(url: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Describe the saved network at a URL as JSON-serializable values; None if it is a run.

    A fused one has a list of its `networks`, each described in the same way.
    """
    location = Location.of(url)
    attributes = check_format(location, NETWORK_FORMAT, FUSED_FORMAT, RUN_FORMAT)
    if attributes["format"] == RUN_FORMAT:
        return None
    saved = {"url": str(location), "state": "saved", "bytes": location.size()}
    if attributes["format"] == NETWORK_FORMAT:
        return saved | _describe_attributes(location, attributes)
    with translate_attribute_errors(location):
        members = network_locations(location, attributes["networks"])
    networks = [_describe_attributes(m, check_format(m, NETWORK_FORMAT)) for m in members]
    with translate_attribute_errors(location):
        AugmentSpec.from_stored(attributes["averaging"])  # raises if it cannot be used
        shared = {name: networks[0][name] for name in ("image_shape", "input", "class_names")}
        return {
            **saved,
            **shared,
            "depth": sum(network["depth"] for network in networks),
            **{name: attributes[name] for name in ("weights", "averaging", "held_out")},
            "networks": networks,
        }


def _describe_attributes(location: Location, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of one network, from the attributes of its store."""
    names = ("depth", "image_shape", "input", "network", "augment")
    with translate_attribute_errors(location):
        NetworkSpec.from_stored(attributes["network"])  # raises if it cannot be used
        classes = [str(label) for label in classes_from_json(attributes["classes"]).tolist()]
    return {**{name: attributes.get(name) for name in names}, "class_names": classes}


def network_locations(location: Location, count: int) -> list[Location]:
    """Return the groups of the networks of a fused network."""
    return [location / f"networks/{number:04d}" for number in range(1, count + 1)]
