"""The formats of stores: the version that this release reads, checked in one place."""

from __future__ import annotations

from typing import Any

from rescnet_dist.errors import StoreReadError
from rescnet_dist.store.location import Location
from rescnet_dist.store.retry import limit_retries

RUN_FORMAT = "rescnet-run"
NETWORK_FORMAT = "rescnet-network"
DATASET_FORMAT = "rescnet-dataset"

FORMAT_VERSION = 4  # of runs and networks
DATASET_FORMAT_VERSION = 1
OLDEST_RUN_VERSION = 2  # that can be resumed


@limit_retries(0)
def check_format(location: Location, *formats: str) -> dict[str, Any]:
    """Return the attributes of a store that is being opened; see `read_format`.

    A store that does not answer raises StoreUnreachableError at once, as its URL may be wrong.
    """
    return read_format(location, *formats)


def read_format(location: Location, *formats: str) -> dict[str, Any]:
    """Return the attributes of the store at a location.

    Raise StoreReadError if it has none of the formats, or another version than this release reads.
    """
    attributes = location.attributes()
    found = attributes.get("format")
    if found not in formats:
        usable_by = "`rescnet evaluate`, `rescnet predict` and `rescnet_dist.load` accept it. "
        raise StoreReadError(
            f"{location.url} is not a {' or '.join(formats)} store (its format is {found!r}). "
            f"{usable_by if found == NETWORK_FORMAT else ''}Check the URL."
        )
    check_version(location, attributes)
    return attributes


def check_version(location: Location, attributes: dict[str, Any]) -> None:
    """Raise StoreReadError if this release does not read the version of a run or network."""
    version = attributes.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise StoreReadError(
            f"{location.url} has format version {version}. This release of rescnet_dist reads "
            f"versions up to {FORMAT_VERSION}; install a newer release."
        )
    if attributes["format"] == RUN_FORMAT and version < OLDEST_RUN_VERSION:
        raise StoreReadError(
            f"{location.url} has format version {version}, which had no augmentation. This release "
            f"resumes runs of version {OLDEST_RUN_VERSION} and later; use the release that made it."
        )
