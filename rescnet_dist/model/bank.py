"""The parts of a filter bank, and the towers that they make up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rescnet_dist.model.components import FilterLearner
from rescnet_dist.model.filter_group import FilterGroup
from rescnet_dist.model.whitening import Whitened
from rescnet_dist.options import Options, option


@dataclass(frozen=True, slots=True)
class BankPart(Options):
    """A part of the filter bank of every layer, fitted by one learner.

    Parts with the same view are a tower: they see the same channels, which are those of the view
    and the maps of their own tower. Towers share only the features.
    """

    learner: FilterLearner = option(help="what fits the filters")
    share: float = option(
        1.0,
        help="share of the filters, relative to the sum of all shares",
        doc="Share of the filters, relative to the sum of all shares; 0 leaves the part out.",
        low=0,
    )
    view: str = option("image", help="what the filters see of the images, the name of a view")
    channels: Literal["all", "each"] = option(
        "all",
        help="whether a filter of layers 2 and later sees all maps, or is applied to each one",
        doc='Whether a filter of layers 2 and later sees all maps together ("all"), or is applied '
        'to each input channel, which gives a map for each ("each", as in PCANet). The filters '
        "are then learned from the patches of all channels. Those of layer 1 always see all.",
    )
    center: bool = option(
        False,
        help="subtract the mean of each patch and channel first",
        doc="Subtract the mean of each patch, channel by channel, before filters are learned and "
        "applied, as in PCANet.",
    )
    whiten: float | None = option(
        None,
        help="ridge of a whitening of the patches, relative to their mean variance",
        doc="Ridge of a whitening of the patches before the filters are fitted, relative to their "
        "mean variance; None does not whiten.",
        above=0,
    )

    @property
    def fitter(self) -> FilterLearner:
        """The learner, which sees whitened patches if the option is set."""
        return self.learner if self.whiten is None else Whitened(self.learner, self.whiten)

    def to_dict(self) -> dict[str, Any]:
        """Return the name of the learner, the options of the part, and those of the learner.

        Returns
        -------
        dict
            Values by name, JSON-serializable.
        """
        learner = self.learner.to_dict()
        name = learner.pop("name")
        options = Options.to_dict(self)
        del options["learner"]
        return {"name": name, **options, **learner}


@dataclass(frozen=True, slots=True)
class Tower:
    """The filters of a layer that see the same channels.

    Attributes
    ----------
    view : str
        What the filters see of the images.
    channels : tuple of int
        The input channels that the filters see.
    filters : range
        The indices of the filters in the bank, one for each map.
    groups : tuple of (FilterLearner, FilterGroup)
        The learners of the tower, and the filters that each fits.
    is_each : bool
        Whether filters are applied to each channel. The bank then has each filter once for each
        channel, with zeros for the others.
    """

    view: str
    channels: tuple[int, ...]
    filters: range
    groups: tuple[tuple[FilterLearner, FilterGroup], ...]
    is_each: bool = False
