"""Requests to an object store, compared with those counted in runs with other plans."""

from __future__ import annotations

from typing import Any

import pytest

from rescnet_dist.planning import Plan
from rescnet_dist.planning.requests import count_requests

FEATURES = 126
# Counted at a proxy in front of SeaweedFS, with one worker of two threads and obstore, in layers 2
# and 3 of 4: chunks, tasks, side of tiles, GET, PUT. Two threads may read a record once or twice.
STORED = [(10, 4, 0, 75, 42), (20, 4, 0, 105, 62), (20, 8, 0, 137, 62)]
TILED = [(10, 4, 64, 181, 74), (20, 8, 64, 307, 114), (10, 4, 128, 116, 60)]
# chunks, tasks, whether maps are in memory and stored, iterations, reads of features, GET, PUT
SOLVED = [
    (10, 4, False, True, 3, 3, 297, 95),
    (20, 8, False, True, 3, 3, 477, 125),
    (10, 4, False, True, 3, 1, 277, 95),
    (20, 4, False, True, 3, 1, 317, 125),
    (20, 8, False, True, 3, 1, 437, 125),
    (10, 4, False, True, 6, 1, 409, 110),
    (10, 4, True, True, 3, 0, 213, 95),
    (20, 8, True, True, 3, 0, 309, 125),
    (10, 4, True, True, 6, 0, 345, 110),
    (10, 4, True, False, 3, 0, 201, 73),
    (20, 8, True, False, 3, 0, 289, 83),
]


@pytest.mark.parametrize(("chunks", "tasks", "side", "gets", "puts"), [*STORED, *TILED])
def test_requests_are_those_counted(
    chunks: int, tasks: int, side: int, gets: int, puts: int
) -> None:
    """With maps in the store; the scatter matrix whole or in tiles."""
    plan = Plan(120, 120 // chunks, tasks, 2, 1, tile_features=side)
    found = count_requests(plan, FEATURES, in_memory=False)
    assert abs(found.gets - gets) <= 1
    assert found.puts == puts


@pytest.mark.parametrize(
    ("chunks", "tasks", "in_memory", "is_stored", "iterations", "reads", "gets", "puts"), SOLVED
)
def test_requests_of_iterations_are_those_counted(
    chunks: int,
    tasks: int,
    in_memory: bool,
    is_stored: bool,
    iterations: int,
    reads: int,
    gets: int,
    puts: int,
) -> None:
    """Features are read in each iteration, once, or never if they stay with the maps in memory."""
    found = count_requests(
        Plan(120, 120 // chunks, tasks, 2, 1),
        FEATURES,
        in_memory=in_memory,
        is_stored=is_stored,
        iterations=iterations,
        feature_reads=reads,
    )
    assert (found.gets, found.puts) == (gets, puts)


def test_chunks_of_columns_are_requests_of_their_own() -> None:
    """Each is written once, and read in each iteration that reads features."""
    options: dict[str, Any] = {"in_memory": False, "iterations": 5, "feature_reads": 5}
    plan = Plan(120, 12, 4, 2, 1)
    one, three = (count_requests(plan, FEATURES, **options, feature_chunks=n) for n in (1, 3))
    assert (three.gets - one.gets, three.puts - one.puts) == (5 * 10 * 2, 10 * 2)


@pytest.mark.parametrize(
    ("chunks", "tasks", "gets", "puts"), [(10, 4, 21, 42), (20, 4, 21, 62), (20, 8, 29, 62)]
)
def test_maps_in_memory_are_written_only(chunks: int, tasks: int, gets: int, puts: int) -> None:
    """In layers that are stored. In the others nothing depends on chunks and tasks."""
    plan = Plan(120, 120 // chunks, tasks, 2, 1)
    stored = count_requests(plan, FEATURES, in_memory=True)
    assert (stored.gets, stored.puts) == (gets, puts)
    others = count_requests(plan, FEATURES, in_memory=True, is_stored=False)
    assert (others.gets, others.puts) == (9, 20)
