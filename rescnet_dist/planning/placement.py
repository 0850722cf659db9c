"""Where maps are kept and why, as a value, and the text that users read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rescnet_dist.formatting import format_bytes


class PlacementCause(StrEnum):
    """Why maps are kept in the memory of the workers or in the store."""

    FITS = "fits"  # memory
    FITS_WITHOUT_FEATURES = "fits_without_features"  # memory
    FITS_WITH_HOST = "fits_with_host"  # memory of the GPUs, and main memory for what is left
    MEMORY_REQUESTED = "memory_requested"  # memory, which has no limit
    UNLIMITED_MEMORY = "unlimited_memory"  # store, as nothing says how much memory there is
    STORE_REQUESTED = "store_requested"
    ALL_MAPS_REQUESTED = "all_maps_requested"  # store
    TILES_REQUESTED = "tiles_requested"  # store
    MATRIX_DOES_NOT_FIT = "matrix_does_not_fit"  # store
    MAPS_DO_NOT_FIT = "maps_do_not_fit"  # store
    NO_WORKERS = "no_workers"  # store


MEMORY_CAUSES = {
    PlacementCause.FITS,
    PlacementCause.FITS_WITHOUT_FEATURES,
    PlacementCause.FITS_WITH_HOST,
    PlacementCause.MEMORY_REQUESTED,
}

# Features of cached maps are computed a second time.
WITHOUT_FEATURES = {
    PlacementCause.FITS_WITHOUT_FEATURES,
    PlacementCause.FITS_WITH_HOST,
    PlacementCause.MAPS_DO_NOT_FIT,
}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where maps are kept until the next layer, and why. Numbers that do not matter are None.

    Attributes
    ----------
    cause : PlacementCause
        Why they are kept there. In memory: "fits", "fits_without_features", "fits_with_host" if
        GPUs have too little and main memory has the rest, or "memory_requested" if the memory has
        no limit. In the store: "store_requested", "all_maps_requested",
        "tiles_requested", "matrix_does_not_fit", "maps_do_not_fit", "unlimited_memory" if nothing
        is requested, or "no_workers".
    on_gpu : bool
        Whether the memory is that of GPUs.
    needed_bytes : int or None
        Bytes that the fullest worker needs for maps, and for features if these stay too. For
        "matrix_does_not_fit", bytes of the scatter matrices that it would hold at a time.
    free_bytes : int or None
        Bytes that a worker has left for them, on its GPU if there are GPUs.
    host_free_bytes : int or None
        Bytes of main memory that a worker has left for them, for "fits_with_host".
    feature_bytes : int or None
        Bytes that the fullest worker needs for the features of maps in the store.
    features : int or None
        Features per layer, for "matrix_does_not_fit".
    tile_features : int or None
        The option of this name, for "tiles_requested".
    needs_features : bool
        Whether the next layer needs the features of the maps.
    """

    cause: PlacementCause
    on_gpu: bool = False
    needed_bytes: int | None = None
    free_bytes: int | None = None
    features: int | None = None
    tile_features: int | None = None
    host_free_bytes: int | None = None
    feature_bytes: int | None = None
    needs_features: bool = True

    @property
    def in_memory(self) -> bool:
        """Whether maps stay in the memory of the workers."""
        return self.cause in MEMORY_CAUSES

    @property
    def keeps_features(self) -> bool:
        """Whether features stay in the memory of the workers although maps are in the store."""
        if self.in_memory or self.feature_bytes is None or self.free_bytes is None:
            return False
        if not self.needs_features:
            return False
        return self.feature_bytes <= self.free_bytes


def describe_placement(placement: Placement) -> str:
    """Return where maps are kept and why.

    >>> describe_placement(Placement(PlacementCause.FITS, True, 2**31, 2**32))
    "in workers' GPU memory, with their features: 2.0 GiB per worker, of 4.0 GiB free"
    >>> describe_placement(Placement(PlacementCause.STORE_REQUESTED))
    'in the store because maps="store"'
    >>> describe_placement(Placement(PlacementCause.STORE_REQUESTED, feature_bytes=2**31))
    'in the store because maps="store"; features are computed twice'
    """
    cause = describe_cause(placement)
    if not placement.in_memory:
        place = f"in the store because {cause}" if cause else "in the store"
        return place + _describe_stored_features(placement)
    has_features = placement.needs_features and placement.cause not in WITHOUT_FEATURES
    features = ", with their features" if has_features else ""
    has_host = placement.cause == PlacementCause.FITS_WITH_HOST
    memory = _describe_memory(placement) + (" and main memory" if has_host else "")
    return f"in workers' {memory}{features}: {cause}"


def _describe_stored_features(placement: Placement) -> str:
    """Return whether the features of maps in the store are computed once or twice, and why."""
    if placement.feature_bytes is None or not placement.needs_features:
        return ""
    if placement.free_bytes is None:
        return "; features are computed twice"
    needed, free = format_bytes(placement.feature_bytes), format_bytes(placement.free_bytes)
    sizes = f"{needed} per worker, of {free} free"
    if placement.keeps_features:
        return f"; features stay in workers' {_describe_memory(placement)}: {sizes}"
    return f"; no room for features, which are computed twice: {sizes}"


def describe_cause(placement: Placement) -> str:
    """Return why maps are kept where they are, without the place; empty if there is no cause.

    >>> describe_cause(Placement(PlacementCause.MAPS_DO_NOT_FIT, False, 2**31, 2**30))
    'they do not fit in memory: 2.0 GiB per worker, of 1.0 GiB free'
    """
    memory = _describe_memory(placement)
    match placement.cause:
        case PlacementCause.FITS | PlacementCause.MEMORY_REQUESTED:
            return _describe_sizes(placement)
        case PlacementCause.FITS_WITHOUT_FEATURES:
            sizes = _describe_sizes(placement)
            return f"{sizes}, no room for their features, which are computed twice"
        case PlacementCause.FITS_WITH_HOST:
            host = format_bytes(placement.host_free_bytes or 0)
            return f"{_describe_sizes(placement)} on the GPU and {host} in main memory"
        case PlacementCause.UNLIMITED_MEMORY:
            return ""
        case PlacementCause.STORE_REQUESTED:
            return 'maps="store"'
        case PlacementCause.ALL_MAPS_REQUESTED:
            return 'keep_maps="all"'
        case PlacementCause.TILES_REQUESTED:
            return f"tile_features={placement.tile_features}"
        case PlacementCause.MATRIX_DOES_NOT_FIT:
            size = format_bytes(placement.needed_bytes or 0)
            sums = f"whole scatter matrices of {placement.features:,} features"
            return f"{sums} do not fit in {memory}: {size} per worker"
        case PlacementCause.MAPS_DO_NOT_FIT:
            return f"they do not fit in {memory}: {_describe_sizes(placement)}"
        case PlacementCause.NO_WORKERS:
            return "no worker has joined yet"


def _describe_memory(placement: Placement) -> str:
    """Return the name of the memory."""
    return "GPU memory" if placement.on_gpu else "memory"


def _describe_sizes(placement: Placement) -> str:
    """Return the needed bytes, and the free bytes if there is a limit."""
    text = f"{format_bytes(placement.needed_bytes or 0)} per worker"
    if placement.free_bytes is None:
        return text
    return f"{text}, of {format_bytes(placement.free_bytes)} free"
