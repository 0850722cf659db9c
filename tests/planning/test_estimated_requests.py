"""Requests to an object store, compared with those counted in runs with other plans."""

from __future__ import annotations

import pytest

from rescnet_dist.planning import Plan
from rescnet_dist.planning.requests import count_requests

FEATURES = 126
# Counted at a proxy in front of SeaweedFS, in a layer that is not the first: chunks, tasks, side of
# tiles, iterations, GET, PUT.
STORED = [(10, 4, 0, 0, 75, 42), (20, 4, 0, 0, 105, 62), (20, 8, 0, 0, 137, 62)]
TILED = [(10, 4, 64, 0, 179, 74), (20, 8, 64, 0, 305, 114), (10, 4, 128, 0, 114, 60)]
SOLVED = [(10, 4, 0, 3, 293, 95), (20, 8, 0, 3, 475, 125), (10, 4, 0, 6, 457, 110)]


@pytest.mark.parametrize(
    ("chunks", "tasks", "side", "iterations", "gets", "puts"), [*STORED, *TILED, *SOLVED]
)
def test_requests_are_those_counted(
    chunks: int, tasks: int, side: int, iterations: int, gets: int, puts: int
) -> None:
    """With maps in the store; the scatter matrix whole or in tiles, or conjugate gradients."""
    plan = Plan(120, 120 // chunks, tasks, 2, 1, tile_features=side)
    found = count_requests(plan, FEATURES, in_memory=False, iterations=iterations)
    assert abs(found.gets - gets) <= 3
    assert abs(found.puts - puts) <= 3


@pytest.mark.parametrize(
    ("chunks", "tasks", "gets", "puts"), [(10, 4, 19, 42), (20, 4, 19, 62), (20, 8, 27, 62)]
)
def test_maps_in_memory_are_written_only(chunks: int, tasks: int, gets: int, puts: int) -> None:
    """In layers that are stored. In the others nothing depends on chunks and tasks."""
    plan = Plan(120, 120 // chunks, tasks, 2, 1)
    stored = count_requests(plan, FEATURES, in_memory=True)
    assert (stored.gets, stored.puts) == (gets, puts)
    others = count_requests(plan, FEATURES, in_memory=True, is_stored=False)
    assert (others.gets, others.puts) == (11, 20)
