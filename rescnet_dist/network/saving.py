"""The stored form of a network: one Zarr group, or the store of a run at its chosen depth."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rescnet_dist.data import classes_from_json
from rescnet_dist.errors import StoreError
from rescnet_dist.kernels import Backend
from rescnet_dist.model import ImageScale, Layer
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import (
    FORMAT_VERSION,
    NETWORK_FORMAT,
    RUN_FORMAT,
    Location,
    RunStore,
    StoredLayers,
    check_format,
    limit_retries,
    read_image_scale,
    translate_attribute_errors,
    write_image_scale,
    write_layer,
)


def write_network(
    url: str | os.PathLike[str],
    attributes: dict[str, Any],
    spec: NetworkSpec,
    image_scale: ImageScale,
    layers: Sequence[Layer],
) -> None:
    """Write a network to a Zarr store at which nothing is stored yet; raise StoreError else.

    `attributes` are JSON-serializable. Nothing is left behind if writing fails.
    """
    location = Location.of(url)
    with limit_retries(0):
        is_taken = location.exists()
    if is_taken:
        raise StoreError(f"{location.url} already holds something. Choose another URL.")
    attributes = {
        "format": NETWORK_FORMAT,
        "format_version": FORMAT_VERSION,
        "network": spec.to_dict(),
        "depth": len(layers),
        **attributes,
    }
    try:
        for number, layer in enumerate(layers, start=1):
            write_layer(location, number, layer, spec.head.arrays)
        write_image_scale(location, image_scale)
        location.update_attributes(attributes)
    except BaseException:
        location.remove()
        raise


def read_network(url: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the attributes of the `Network` that is stored at a URL; its layers are lazy."""
    location = Location.of(url)
    attributes = check_format(location, NETWORK_FORMAT, RUN_FORMAT)
    depth = attributes.get("depth")
    if depth is None:
        result = RunStore(location).result()
        depth = result["depth"] if result else len(RunStore(location).commits()) - 1
    if depth < 1:
        raise StoreError(f"The run at {location.url} has no finished layer yet. Resume it first.")
    with translate_attribute_errors(location):
        spec = NetworkSpec.from_stored(attributes["network"])
        run_spec = RunSpec.from_stored(attributes.get("run", {}))
        height, width, channels = attributes["image_shape"]
        return {
            "spec": spec,
            "classes": classes_from_json(attributes["classes"]),
            "image_shape": (height, width, channels),
            "image_scale": read_image_scale(location),
            "layers": StoredLayers(location, depth, spec.head.arrays),
            "augment": AugmentSpec.from_stored(attributes.get("augment", {})),
            "backend": Backend(matmul_precision=run_spec.matmul_precision),
        }


def stored_accuracies(url: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the accuracy of the run at a URL after each evaluated layer; empty for a network."""
    location = Location.of(url)
    if location.attributes()["format"] != RUN_FORMAT:
        return []
    result = RunStore(location).result()
    return list(result["accuracies"]) if result else []
