"""Check a run store against its commit records: every chunk there, none altered or stale."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import dask
from dask.delayed import delayed

from rescnet_dist.errors import StoreError
from rescnet_dist.planning.plan import Group
from rescnet_dist.store import RunStore, chunk_problem, last_saved, read_image_scale, read_layer
from rescnet_dist.train.chunks import UNSAVED, Reader
from rescnet_dist.train.decide import contradiction
from rescnet_dist.train.state import RunState, Task

CHUNKS_PER_TASK = 16


def verify_run(url: str | os.PathLike[str]) -> list[str]:
    """What is wrong with the run at a URL, one sentence each; empty if all is as committed.

    Chunks are read in parallel, on the current Dask client's cluster if there is one.
    """
    run = RunStore.open(url)
    problems = list(_missing_commits(run))
    commits = run.commits()
    steps = range(len(commits))
    stored = last_saved(commits)
    problems += _wrong_result(run, len(steps) - 1)
    tasks = [
        delayed(_verify_chunks, pure=False)(run, path, first, chunks)
        for step in steps
        for path, first, chunks in _committed_chunks(run, step, last=step == stored)
    ]
    tasks += [delayed(_verify_layer, pure=False)(run, step) for step in steps]
    return problems + [problem for found in dask.compute(*tasks) for problem in found]


def _missing_commits(run: RunStore) -> Iterator[str]:
    """Commit records that are missing before others that are there."""
    names = (run.location / "commits").names()
    found = {int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json")}
    for step in sorted(set(range(max(found, default=0) + 1)) - found):
        yield f"commits/{step:04d}.json is missing: the steps after it do not count"


def _wrong_result(run: RunStore, layers: int) -> list[str]:
    """What is wrong with the result, which nothing is committed of."""
    try:
        found = contradiction(max(0, layers), run.result())
    except StoreError as error:
        return [str(error)]
    return [found] if found else []


def _committed_chunks(
    run: RunStore, step: int, *, last: bool
) -> Iterator[tuple[str, int, list[int]]]:
    """Path, number of the first chunk and checksums of some chunks at a time, of all arrays that
    were committed with a step and are kept; last: whether it is the last whose maps are."""
    how = RunState.of(run).run_spec
    # those of a run that keeps none are removed as it is done
    kept = how.keep_maps == "all" or (last and (how.maps_stay or run.has_maps(step)))
    for path, checksums in run.checksums(step).items():
        if path.startswith(UNSAVED):
            continue
        if path.startswith("data/") or kept:
            for first in range(0, len(checksums), CHUNKS_PER_TASK):
                yield path, first, checksums[first : first + CHUNKS_PER_TASK]


def _verify_chunks(run: RunStore, path: str, first: int, checksums: Sequence[int]) -> list[str]:
    """Read chunks of an array of the run and compare them with their checksums."""
    if path == "data/images":
        return _verify_images(run, first, len(checksums))
    found = [chunk_problem(run.location, path, n, e) for n, e in enumerate(checksums, start=first)]
    return [problem for problem in found if problem]


def _verify_images(run: RunStore, first: int, count: int) -> list[str]:
    """Read the images of chunks, and make copies of them, as a pass would."""
    state, problems = RunState.of(run), []
    size = state.plan.chunk_images
    group = Group(0, first * size, min((first + count) * size, state.plan.images), size)
    reader = Reader.of(Task(run, 0), group, state, 0)
    chunks = reader.chunks()
    for number in range(first, first + count):
        try:
            chunk = next(chunks)
        except StoreError:
            break  # labels that are damaged are told of on their own
        try:
            reader.read_images(run.images(), chunk)
        except (StoreError, OSError) as error:
            problems.append(f"data/images, chunk {number}: {error}")
    return problems


def _verify_layer(run: RunStore, step: int) -> list[str]:
    """Read the small arrays that were stored with a step."""
    try:
        read_layer(run.location, step) if step else read_image_scale(run.location)
    except (StoreError, OSError) as error:
        return [f"layer {step}: {error}" if step else f"image_scale: {error}"]
    return []
