"""The stored form of networks: one Zarr group, or the store of a run at its chosen depth.

A fused network is a group with a network in each of the groups networks/0001, networks/0002, …
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rescnet_dist.data import ImageInput, RowTable, classes_from_json
from rescnet_dist.errors import SpecError, StoreError, suggest_name
from rescnet_dist.kernels import Backend
from rescnet_dist.model import Calibration, ImageScale, Layer
from rescnet_dist.network.describe import network_locations
from rescnet_dist.network.layer_cache import CachedLayers
from rescnet_dist.network.training_images import RunImages, SavedImages, TrainingImages
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import (
    FORMAT_VERSION,
    FUSED_FORMAT,
    FUSED_FORMAT_VERSION,
    NETWORK_FORMAT,
    RUN_FORMAT,
    Location,
    RunStore,
    StoredLayers,
    add_checksum,
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
    write_views,
)

MAX_DEPTH = 10**6  # of a network, far more than any has
WEIGHT_TYPES = ("float32", "float16")  # in which networks are saved


def check_vacant(url: str | os.PathLike[str]) -> Location:
    """Return the location of a URL; raise StoreError if something is stored there."""
    location = Location.of(url)
    with limit_retries(0):
        is_taken = location.exists()
    if is_taken:
        raise StoreError(f"{location.url} already holds something. Choose another URL.")
    return location


def write_store(
    url: str | os.PathLike[str], write: Callable[[Location, str], None], dtype: str
) -> None:
    """Write a Zarr store where nothing is stored yet, by a function; raise StoreError else.

    A URL that ends in .zip becomes one file, others a folder. `write` gets the folder, and `dtype`,
    one of `WEIGHT_TYPES`, which is that of the larger arrays. Nothing is left if it fails.
    """
    if dtype not in WEIGHT_TYPES:
        raise SpecError(f"dtype={dtype!r} is unknown. {suggest_name(str(dtype), WEIGHT_TYPES)}")
    location = check_vacant(url)
    if is_zip_url(location.url):
        with tempfile.TemporaryDirectory(prefix="rescnet-") as folder:
            write(Location(folder), dtype)
            with open_output(location) as file:
                pack_folder(folder, file)
        return
    try:
        write(location, dtype)
    except BaseException:
        location.remove()
        raise


def write_network(
    location: Location,
    dtype: str,
    attributes: dict[str, Any],
    spec: NetworkSpec,
    image_scale: ImageScale,
    layers: Sequence[Layer],
) -> None:
    """Write a network into a folder; `attributes` are JSON-serializable."""
    for number, layer in enumerate(layers, start=1):
        if layer.head:
            fitted = layer.head.arrays
            unused = {name: fitted[name][:0] for name in spec.head.training_arrays}
            layer = replace(layer, head=replace(layer.head, arrays={**fitted, **unused}))
        write_layer(location, number, layer, spec.head.arrays, in_half=dtype == "float16")
    write_image_scale(location, image_scale)
    write_views(location, image_scale.views, spec.views)
    attributes = {
        "format": NETWORK_FORMAT,
        "format_version": FORMAT_VERSION,
        "network": spec.to_dict(),
        "depth": len(layers),
        **attributes,
    }
    location.update_attributes(add_checksum(attributes))


def write_fused(
    location: Location,
    dtype: str,
    attributes: dict[str, Any],
    writers: Sequence[Callable[[Location, str], None]],
) -> None:
    """Write a fused network into a folder, its networks by a function each."""
    for location_of_network, write in zip(
        network_locations(location, len(writers)), writers, strict=True
    ):
        write(location_of_network, dtype)
    kind = {"format": FUSED_FORMAT, "format_version": FUSED_FORMAT_VERSION}
    location.update_attributes(add_checksum({**kind, "networks": len(writers), **attributes}))


def read_network(location: Location) -> dict[str, Any]:
    """Return the attributes of the `Network` that is stored at a location; its layers are lazy."""
    attributes = check_format(location, NETWORK_FORMAT, RUN_FORMAT)
    depth, stored = attributes.get("depth"), attributes.get("calibration")
    if depth is None:
        run = RunStore(location)
        result = run.result()
        commits = [] if result else run.commits()
        depth = result["depth"] if result else len(commits) - 1
        stored = _find_calibration(calibration_records(commits, result), depth)
    with translate_attribute_errors(location):
        if depth < 1:
            raise StoreError(
                f"The run at {location.url} has no finished layer yet. Resume it first."
            )
        spec = NetworkSpec.from_stored(attributes["network"])
        run_spec = RunSpec.from_stored(attributes.get("run", {}))
        height, width, channels = attributes["image_shape"]
        made, classes = attributes.get("input"), classes_from_json(attributes["classes"])
        architecture = spec.architecture((height, width, channels), len(classes))
        if not (len(classes) and depth <= MAX_DEPTH):
            raise ValueError(f"there are {len(classes)} classes and {depth} layers")
        for layer in range(1, min(depth, 2) + 1):
            architecture.dimension_sizes(layer)  # raises ValueError if they are impossible
        if depth < spec.first_head:
            raise StoreError(
                f"The run at {location.url} has {depth} of {spec.max_layers} layers, of which only "
                "the last has a head. Resume it first."
            )
        return {
            "spec": spec,
            "classes": classes,
            "image_shape": (height, width, channels),
            "image_scale": read_image_scale(location, spec.views),
            "layers": CachedLayers(
                StoredLayers(
                    location,
                    depth,
                    spec.head.arrays,
                    spec.first_head,
                    architecture.dimension_sizes,
                    without=spec.head.training_arrays,
                )
            ),
            "augment": AugmentSpec.from_stored(attributes.get("augment", {})),
            "input": ImageInput.from_dict(made) if made else None,
            "training_images": _find_training_images(location, attributes, spec, run_spec),
            "calibration": Calibration.from_dict(stored),
            "backend": Backend(
                matmul_precision=attributes.get("matmul_precision", run_spec.matmul_precision)
            ),
        }


def _find_training_images(
    location: Location, attributes: dict[str, Any], spec: NetworkSpec, run_spec: RunSpec
) -> TrainingImages | None:
    """Return the training images of a network or run; None if its heads do not need them."""
    if not spec.head.fits_samples:
        return None
    if attributes["format"] == NETWORK_FORMAT:
        return SavedImages(location, tuple(attributes["training_images"]))
    augment = AugmentSpec.from_stored(attributes["augment"])
    table, chunk_images = RowTable.from_dict(attributes["rows"]), attributes["plan"]["chunk_images"]
    return RunImages(location, table, int(chunk_images), augment, run_spec.seed)


def read_fused(location: Location) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the attributes of a fused network, and those of each `Network` that it is made of."""
    attributes = check_format(location, FUSED_FORMAT)
    with translate_attribute_errors(location):
        members = network_locations(location, attributes["networks"])
    return attributes, [read_network(member) for member in members]


def _find_calibration(records: dict[int, dict[str, Any]], depth: int) -> dict[str, Any] | None:
    """Return the calibration after layer `depth` of a run, None if it has none.

    That of the last layer of an unfinished run is not known yet; it is that of the layer before.
    """
    return next((records[layer] for layer in (depth, depth - 1) if layer in records), None)


def stored_accuracies(url: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the accuracy of the run at a URL after each evaluated layer; empty for a network."""
    location = Location.of(url)
    if location.attributes()["format"] != RUN_FORMAT:
        return []
    result = RunStore(location).result()
    return list(result["accuracies"]) if result else []
