"""Free disk space, compared with what a run writes before it starts."""

from __future__ import annotations

import warnings

from rescnet_dist.errors import StoreFullError, pluralize
from rescnet_dist.formatting import format_bytes
from rescnet_dist.planning.estimates import Forecast
from rescnet_dist.planning.requirements import layer_bytes
from rescnet_dist.store import Location


def check_disk(
    expected: Forecast, location: Location, *, copies_images: bool, freed: int = 0
) -> None:
    """Raise StoreFullError if the first layers of a run do not fit the free space of its store.

    Warn if all layers may not fit: the run may stop before. Only local disks are checked.
    `copies_images` says whether the images are copied into the store, `freed` how many bytes are
    removed from it before.
    """
    free = location.free_bytes()
    if free is None:
        return
    free += freed
    referenced = 0 if copies_images else expected.problem.image_bytes
    most = expected.traffic.store - referenced
    first = most - (expected.max_layers - 1) * layer_bytes(expected.problem, expected.spec)
    solver = ' or solver="cg"' if expected.plan.tile_features else ""
    if first > free:
        raise StoreFullError(
            f"{location} has {format_bytes(free)} of free space, but the first layers of the run "
            f"take {format_bytes(first)}. Free some space, choose another store, or use fewer "
            f"filters{solver}."
        )
    if most > free:
        warnings.warn(
            f"{location} has {format_bytes(free)} of free space, but a run of "
            f"{pluralize(expected.max_layers, 'layer')} takes up to {format_bytes(most)}. Free "
            "some space or use fewer layers; a run that stops on a full disk can be resumed.",
            stacklevel=2,
        )
