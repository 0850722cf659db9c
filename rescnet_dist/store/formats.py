"""The formats of stores: the version that this release reads, checked in one place."""

from __future__ import annotations

from typing import Any

from rescnet_dist.errors import CorruptDataError, StoreReadError, url_word
from rescnet_dist.store.checksums import checksum_json
from rescnet_dist.store.location import Location
from rescnet_dist.store.retry import limit_retries
from rescnet_dist.store.schema import (
    DatasetAttributes,
    FusedAttributes,
    NetworkAttributes,
    RunAttributes,
    find_type_error,
)

RUN_FORMAT = "rescnet-run"
NETWORK_FORMAT = "rescnet-network"
FUSED_FORMAT = "rescnet-fused-network"
DATASET_FORMAT = "rescnet-dataset"

FORMAT_VERSION = 4  # of runs and networks
FUSED_FORMAT_VERSION = 1
DATASET_FORMAT_VERSION = 1
VERSIONS = {
    RUN_FORMAT: FORMAT_VERSION,
    NETWORK_FORMAT: FORMAT_VERSION,
    FUSED_FORMAT: FUSED_FORMAT_VERSION,
    DATASET_FORMAT: DATASET_FORMAT_VERSION,
}
MAX_IMAGE_SIDE = 2**17  # pixels, far more than images of any run have
ATTRIBUTES = {
    RUN_FORMAT: RunAttributes,
    NETWORK_FORMAT: NetworkAttributes,
    FUSED_FORMAT: FusedAttributes,
    DATASET_FORMAT: DatasetAttributes,
}
CHECKSUM = "crc32c"  # attribute with the checksum of all others, which saved networks have
REMAKE = {
    RUN_FORMAT: "train",
    NETWORK_FORMAT: "train",
    FUSED_FORMAT: "fuse the networks",
    DATASET_FORMAT: "import the dataset",
}


@limit_retries(0)
def check_format(location: Location, *formats: str) -> dict[str, Any]:
    """Return the attributes of a store that is being opened; see `read_format`.

    A store that does not answer raises StoreUnreachableError at once, as its URL may be wrong.
    """
    return read_format(location, *formats)


def read_format(location: Location, *formats: str) -> dict[str, Any]:
    """Return the attributes of the store at a location.

    Raise StoreReadError if it has none of the formats, or another version than this release reads,
    and CorruptDataError if attributes do not have their types, or not their checksum.
    """
    attributes = location.attributes()
    found = attributes.get("format")
    if found not in formats:
        usable_by = "`rescnet info`, `evaluate` and `predict`, and `rescnet_dist.load` accept it. "
        raise StoreReadError(
            f"{location.url} is not a {' or '.join(formats)} store (its format is {found!r}). "
            f"{usable_by if found in (NETWORK_FORMAT, FUSED_FORMAT) else ''}Check the "
            f"{url_word(location.url)}."
        )
    check_version(location, attributes)
    error = find_type_error(attributes, ATTRIBUTES[found])
    sides = () if error else attributes.get("image_shape", ())
    if any(not 1 <= side <= MAX_IMAGE_SIDE for side in sides):
        error = f"image_shape is {sides}, not three numbers from 1 to {MAX_IMAGE_SIDE}"
    error = error or _find_checksum_error(attributes)
    if error:
        raise CorruptDataError(
            f"The attributes of {location.url} are damaged ({error}). Restore a copy of its "
            f"zarr.json, or {REMAKE[found]} again."
        )
    return attributes


def add_checksum(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return attributes with the checksum that `read_format` compares them with."""
    return {**attributes, CHECKSUM: checksum_json(attributes, sort_keys=True)}


def has_checksum(attributes: dict[str, Any]) -> bool:
    """Return whether attributes have a checksum, unlike networks that earlier releases saved."""
    return CHECKSUM in attributes


def _find_checksum_error(attributes: dict[str, Any]) -> str | None:
    """Return that attributes do not have their checksum; None if they have it, or have none."""
    if not has_checksum(attributes):
        return None
    others = {name: value for name, value in attributes.items() if name != CHECKSUM}
    expected, found = attributes[CHECKSUM], checksum_json(others, sort_keys=True)
    if found == expected:
        return None
    return f"they are not those that were saved: their checksum is {found}, not {expected}"


def check_version(location: Location, attributes: dict[str, Any]) -> None:
    """Raise StoreReadError if a store of one of our formats has another version than today's."""
    kind, version = attributes["format"], attributes.get("format_version")
    supported = VERSIONS[kind]
    if version == supported:
        return
    is_older = isinstance(version, int) and version < supported
    remedy = (
        f"use the release that made it, or {REMAKE[kind]} again"
        if is_older
        else "install a newer release"
    )
    raise StoreReadError(
        f"{location.url} has format version {version}. This release of rescnet_dist reads version "
        f"{supported} of {kind} stores; {remedy}."
    )


def read_format_name(location: Location) -> str | None:
    """Return the name of the format at a location; None if nothing there says it."""
    try:
        name = location.attributes().get("format")
    except StoreReadError:
        return None
    return name if isinstance(name, str) else None
