"""Checks of a filter bank: which parts fit each other, and how many maps they may make."""

from __future__ import annotations

from rescnet_dist.composition import format_bank
from rescnet_dist.errors import SpecError
from rescnet_dist.model.architecture import Architecture
from rescnet_dist.model.bank import BankPart

MAX_MAPS = 2**16  # of a layer
MAX_EACH_LAYERS = 32  # whose filters are applied to each map


def check_channels(architecture: Architecture) -> None:
    """Raise SpecError for towers that apply only some filters to each map, or too many."""
    bank = architecture.bank
    for view in (view.name for view in architecture.views):
        if len({part.channels for part in bank if part.share and part.view == view}) > 1:
            raise SpecError(
                f"bank={format_bank(bank)} applies only some filters of the view {view} "
                "to each map. Add +each to all parts of that view, or to none."
            )
    if not any(part.channels == "each" for part in bank):
        return
    for layer in range(1, architecture.layers + 1):
        if layer > MAX_EACH_LAYERS or architecture.map_count(layer) > MAX_MAPS:
            raise SpecError(
                f"bank={format_bank(bank)} applies filters to each map, but layer {layer} "
                f"would be one of more than {MAX_EACH_LAYERS}, or have more than {MAX_MAPS:,} "
                f"maps. Use max_layers of at most {layer - 1}, or fewer filters."
            )


def check_towers(
    bank: tuple[BankPart, ...], filters: int | tuple[int, ...], towers: tuple[int, ...]
) -> None:
    """Raise SpecError if one of the towers of a layer has no maps, or a learner needs more."""
    if not all(towers):
        raise SpecError(
            f"filters={filters} with {len(towers)} towers (local_contrast, or "
            f"bank={format_bank(bank)}) leaves one without filters. Use at least "
            f"{len(towers)} filters, or larger shares for that view."
        )
    for part in bank:
        if part.share and part.learner.min_towers > len(towers):
            raise SpecError(
                f"bank={format_bank(bank)} has {len(towers)} tower, but "
                f"{part.learner.name} filters need {part.learner.min_towers}, as they compare "
                "views. Use local_contrast=True, or add a part with another view."
            )
