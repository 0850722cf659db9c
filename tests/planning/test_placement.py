"""Where maps are kept and why: the values, and the text made of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from rescnet_dist import ClusterError, NetworkSpec, RunSpec
from rescnet_dist.cluster import Workers
from rescnet_dist.planning import (
    NO_WORKERS,
    Placement,
    PlacementCause,
    Problem,
    choose_tier,
    describe_placement,
    estimate,
    make_plan,
)
from rescnet_dist.planning.placement import MEMORY_CAUSES

CIFAR = Problem(50_000, (32, 32, 3), 10)
SPEC = NetworkSpec.preset("cifar10").replace(stride=4)
LARGE = Workers(1, 1, 1, 1, 64 * 2**30)

TEXTS = {
    PlacementCause.FITS: "in workers' memory, with their features: 2.0 GiB per worker, of 1.0 GiB "
    "free",
    PlacementCause.FITS_WITHOUT_FEATURES: "in workers' memory: 2.0 GiB per worker, of 1.0 GiB "
    "free, no room for their features, which are computed twice",
    PlacementCause.FITS_WITH_HOST: "in workers' memory and main memory: 2.0 GiB per worker, of 1.0 "
    "GiB free on the GPU and 4.0 GiB in main memory",
    PlacementCause.MEMORY_REQUESTED: "in workers' memory, with their features: 2.0 GiB per worker",
    PlacementCause.UNLIMITED_MEMORY: "in the store",
    PlacementCause.STORE_REQUESTED: 'in the store because maps="store"',
    PlacementCause.ALL_MAPS_REQUESTED: 'in the store because keep_maps="all"',
    PlacementCause.TILES_REQUESTED: "in the store because tile_features=99",
    PlacementCause.MATRIX_DOES_NOT_FIT: "in the store because whole scatter matrices of 1,234 "
    "features do not fit in memory: 2.0 GiB per worker",
    PlacementCause.MAPS_DO_NOT_FIT: "in the store because they do not fit in memory: 2.0 GiB per "
    "worker, of 1.0 GiB free",
    PlacementCause.NO_WORKERS: "in the store because no worker has joined yet",
}


@pytest.mark.parametrize("cause", PlacementCause)
def test_text_of_every_cause(cause: PlacementCause) -> None:
    """The place in the text is that of the value; a GPU is named."""
    free = None if cause == PlacementCause.MEMORY_REQUESTED else 2**30
    placement = Placement(cause, False, 2**31, free, 1234, 99, host_free_bytes=2**32)
    text = describe_placement(placement)
    assert text == TEXTS[cause]
    assert placement.in_memory == text.startswith("in workers' ")
    on_gpu = describe_placement(replace(placement, on_gpu=True))
    for place in ("workers' ", "fit in "):
        text = text.replace(f"{place}memory", f"{place}GPU memory")
    assert on_gpu == text


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (2**31, "; features stay in workers' memory: 1.5 GiB per worker, of 2.0 GiB free"),
        (2**30, "; no room for features, which are computed twice: 1.5 GiB per worker, of 1.0 GiB"),
        (None, "; features are computed twice"),
    ],
)
@pytest.mark.parametrize("cause", sorted(set(PlacementCause) - MEMORY_CAUSES))
def test_text_of_features_without_their_maps(
    cause: PlacementCause, free: int | None, expected: str
) -> None:
    """Of maps in the store: whether features are computed once or twice, and why."""
    placement = Placement(cause, False, 2**31, free, 1234, 99, feature_bytes=3 * 2**29)
    assert placement.keeps_features == (free == 2**31)
    assert expected in describe_placement(placement)
    assert "features stay in workers' GPU memory" in describe_placement(
        replace(placement, on_gpu=True, free_bytes=2**31)
    )


@pytest.mark.parametrize(
    ("gib", "run", "expected"),
    [
        (64, RunSpec(), PlacementCause.FITS),
        (28, RunSpec(), PlacementCause.FITS_WITHOUT_FEATURES),
        (16, RunSpec(), PlacementCause.MAPS_DO_NOT_FIT),
        (2, RunSpec(), PlacementCause.MATRIX_DOES_NOT_FIT),
        (64, RunSpec(maps="store"), PlacementCause.STORE_REQUESTED),
        (64, RunSpec(keep_maps="all"), PlacementCause.ALL_MAPS_REQUESTED),
        (64, RunSpec(tile_features=999), PlacementCause.TILES_REQUESTED),
        (None, RunSpec(), PlacementCause.UNLIMITED_MEMORY),
        (None, RunSpec(maps="memory"), PlacementCause.MEMORY_REQUESTED),
    ],
)
def test_cause_and_numbers_of_a_tier(
    gib: int | None, run: RunSpec, expected: PlacementCause
) -> None:
    """They agree with the tier, and survive JSON."""
    workers = replace(LARGE, memory=None if gib is None else gib * 2**30)
    tier = choose_tier(CIFAR, SPEC, run, make_plan(CIFAR, SPEC, run, workers), workers)
    placement = tier.placement
    assert (placement.cause, placement.in_memory) == (expected, tier.in_memory)
    assert tier.features == (gib not in (28, 2) and (gib is not None or tier.in_memory))
    assert placement.keeps_features == (tier.features and not tier.in_memory)
    if placement.cause == PlacementCause.MATRIX_DOES_NOT_FIT:
        assert (placement.features, placement.needed_bytes) == (17_150, 3 * 4 * 17_150**2)
    else:
        kept = placement.feature_bytes if placement.keeps_features else placement.needed_bytes
        assert kept in (None, tier.cached_bytes)
    if placement.free_bytes is not None and placement.needed_bytes is not None:
        assert (placement.needed_bytes <= placement.free_bytes) == tier.in_memory
    assert placement.tile_features == run.tile_features
    stored = json.loads(json.dumps(tier.to_dict()))
    assert Placement(**stored["placement"]) == placement
    assert stored["why"] == describe_placement(Placement(**stored["placement"]))


def test_error_does_not_depend_on_how_the_text_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of maps="memory" is made of the value."""
    monkeypatch.setattr("rescnet_dist.planning.tier.describe_placement", lambda _: "elsewhere")
    with pytest.raises(ClusterError, match=r"possible: they do not fit in memory: 9\.7 GiB per"):
        estimate(CIFAR, SPEC, RunSpec(maps="memory"), replace(LARGE, memory=16 * 2**30), None)


def test_no_workers_have_no_numbers() -> None:
    """Nothing is known about their memory."""
    assert asdict(NO_WORKERS.placement) == {
        "cause": "no_workers",
        "on_gpu": False,
        "needed_bytes": None,
        "free_bytes": None,
        "features": None,
        "tile_features": None,
        "host_free_bytes": None,
        "feature_bytes": None,
        "needs_features": True,
    }
