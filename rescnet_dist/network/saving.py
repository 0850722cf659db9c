"""The stored form of a network: one Zarr group, or the store of a run at its chosen depth."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

from rescnet_dist.data import ImageInput, classes_from_json
from rescnet_dist.errors import SpecError, StoreError, suggest_name
from rescnet_dist.kernels import Backend
from rescnet_dist.model import Calibration, ImageScale, Layer
from rescnet_dist.network.layer_cache import CachedLayers
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import (
    FORMAT_VERSION,
    NETWORK_FORMAT,
    RUN_FORMAT,
    Location,
    RunStore,
    StoredLayers,
    calibration_records,
    check_format,
    is_zip_url,
    limit_retries,
    open_output,
    pack_folder,
    read_image_scale,
    translate_attribute_errors,
    write_image_scale,
    write_layer,
)

WEIGHT_TYPES = ("float32", "float16")  # in which networks are saved


def write_network(
    url: str | os.PathLike[str],
    attributes: dict[str, Any],
    spec: NetworkSpec,
    image_scale: ImageScale,
    layers: Sequence[Layer],
    dtype: str = "float32",
) -> None:
    """Write a network to a Zarr store at which nothing is stored yet; raise StoreError else.

    A URL that ends in .zip becomes one file, others a folder. `attributes` are JSON-serializable.
    `dtype` is one of `WEIGHT_TYPES`, that of the larger arrays. Nothing is left if writing
    fails.
    """
    if dtype not in WEIGHT_TYPES:
        raise SpecError(f"dtype={dtype!r} is unknown. {suggest_name(str(dtype), WEIGHT_TYPES)}")
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

    def write(folder: Location) -> None:
        for number, layer in enumerate(layers, start=1):
            write_layer(folder, number, layer, spec.head.arrays, in_half=dtype == "float16")
        write_image_scale(folder, image_scale)
        folder.update_attributes(attributes)

    if is_zip_url(location.url):
        with tempfile.TemporaryDirectory(prefix="rescnet-") as folder:
            write(Location(folder))
            with open_output(location) as file:
                pack_folder(folder, file)
        return
    try:
        write(location)
    except BaseException:
        location.remove()
        raise


def read_network(url: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the attributes of the `Network` that is stored at a URL; its layers are lazy."""
    location = Location.of(url)
    attributes = check_format(location, NETWORK_FORMAT, RUN_FORMAT)
    depth, stored = attributes.get("depth"), attributes.get("calibration")
    if depth is None:
        run = RunStore(location)
        result = run.result()
        commits = [] if result else run.commits()
        depth = result["depth"] if result else len(commits) - 1
        stored = _find_calibration(calibration_records(commits, result), depth)
    if depth < 1:
        raise StoreError(f"The run at {location.url} has no finished layer yet. Resume it first.")
    with translate_attribute_errors(location):
        spec = NetworkSpec.from_stored(attributes["network"])
        run_spec = RunSpec.from_stored(attributes.get("run", {}))
        height, width, channels = attributes["image_shape"]
        made = attributes.get("input")
        return {
            "spec": spec,
            "classes": classes_from_json(attributes["classes"]),
            "image_shape": (height, width, channels),
            "image_scale": read_image_scale(location),
            "layers": CachedLayers(StoredLayers(location, depth, spec.head.arrays)),
            "augment": AugmentSpec.from_stored(attributes.get("augment", {})),
            "input": ImageInput.from_dict(made) if made else None,
            "calibration": Calibration.from_dict(stored),
            "backend": Backend(
                matmul_precision=attributes.get("matmul_precision", run_spec.matmul_precision)
            ),
        }


def _find_calibration(records: dict[int, dict[str, Any]], depth: int) -> dict[str, Any] | None:
    """Return the calibration after layer `depth` of a run, None if it has none.

    That of the last layer of an unfinished run is not known yet; it is that of the layer before.
    """
    return next((records[layer] for layer in (depth, depth - 1) if layer in records), None)


def describe_network(url: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Describe the saved network at a URL as JSON-serializable values; None if it is a run."""
    location = Location.of(url)
    attributes = check_format(location, NETWORK_FORMAT, RUN_FORMAT)
    if attributes["format"] != NETWORK_FORMAT:
        return None
    names = ("depth", "image_shape", "input", "network", "augment")
    classes = [str(label) for label in classes_from_json(attributes["classes"]).tolist()]
    return {
        "url": str(location),
        "state": "saved",
        **{name: attributes.get(name) for name in names},
        "class_names": classes,
        "bytes": location.size(),
    }


def stored_accuracies(url: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the accuracy of the run at a URL after each evaluated layer; empty for a network."""
    location = Location.of(url)
    if location.attributes()["format"] != RUN_FORMAT:
        return []
    result = RunStore(location).result()
    return list(result["accuracies"]) if result else []
