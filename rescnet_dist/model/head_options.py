"""Options that heads have in common, and the base class of heads that leave images out."""

from __future__ import annotations

from typing import Any

from rescnet_dist.options import option


def regression_target_option() -> Any:
    """Declare the option `target` of a head that regresses errors."""
    return option(
        0.8,
        help="target score λ of the true class",
        doc="Score λ of the true class above which an error counts as negative in reports, and "
        "of the errors that residual-metric filters are fitted to. The regression itself has the "
        "target 1.",
        low=0,
        high=1,
    )


def probes_option() -> Any:
    """Declare the option `probes` of a head that estimates leverages."""
    return option(
        64,
        help="random signs by which leverages are estimated",
        doc="Number of random signs of an image, as further targets, by which its leverage is "
        "estimated. Its standard error is at most 0.5/√probes.",
        low=1,
        high=1024,
    )


def leverage_share_option() -> Any:
    """Declare the option `leverage_share` of a head that leaves images out."""
    return option(
        1.0,
        help="share of its leverage by which an image is left out; 0 fits training errors",
        doc="Share of the leverage of an image that is removed from its score. 1 leaves the image "
        "out, 0 fits to training errors.",
        low=0,
        high=1,
    )


class LeavesImagesOut:
    """Mixin of heads with the options `probes` and `leverage_share`."""

    __slots__ = ()

    probes: int
    leverage_share: float

    @property
    def probe_count(self) -> int:
        """The number of random signs; see `Head.probe_count`."""
        return self.probes

    @property
    def leave_one_out_scores(self) -> bool:
        """True, unless `leverage_share` is 0; see `Head.leave_one_out_scores`."""
        return self.leverage_share > 0
