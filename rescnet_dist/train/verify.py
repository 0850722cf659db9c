"""Verification of a run store: every committed chunk is there and unaltered."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rescnet_dist.cluster.tasks import call_each
from rescnet_dist.errors import StoreReadError, pluralize
from rescnet_dist.kernels import Backend
from rescnet_dist.planning.plan import Group
from rescnet_dist.runs.history import find_contradiction
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import RunStore, chunk_problem, last_saved, read_image_scale, read_layer
from rescnet_dist.train.chunks import UNSAVED_PREFIX, Reader
from rescnet_dist.train.task import Task

CHUNKS_PER_TASK = 16


def verify_run(url: str | os.PathLike[str]) -> list[str]:
    """Compare everything stored of a run with its commit records.

    Chunks are read in parallel, on the current Dask client's cluster if there is one.

    Parameters
    ----------
    url : str or PathLike
        URL of the run store.

    Returns
    -------
    list of str
        One description per problem; empty if everything is as committed.
    """
    run = RunStore.open(url)
    commits, damaged = run.undamaged_commits()
    steps = range(len(commits))
    stored_layer = last_saved(commits)
    problems = list(_find_missing_commits(run)) + damaged
    if not damaged:
        problems += _check_result(run, len(steps) - 1)
    arrays: list[tuple[str, list[int]]] = []
    for step in steps:
        if commits[step]["step"] != step:
            problems.append(
                f"commits/{step:04d}.json is the record of step {commits[step]['step']}. Remove "
                "it, then resume the run, which writes it anew."
            )
        try:
            arrays += _iter_kept_arrays(run, step, is_last=step == stored_layer)
        except StoreReadError as error:  # a file with checksums is damaged
            problems.append(str(error))
    calls: list[tuple[Any, ...]] = []
    exists = call_each(_exists, [(run, path) for path, _ in arrays])
    for (path, checksums), is_there in zip(arrays, exists, strict=True):
        if not is_there:
            problems.append(f"{path} is missing, with {pluralize(len(checksums), 'chunk')}.")
            continue
        for first in range(0, len(checksums), CHUNKS_PER_TASK):
            batch = checksums[first : first + CHUNKS_PER_TASK]
            calls.append((_verify_chunks, run, path, first, batch))
    calls += [(_verify_layer, run, step) for step in steps]
    return problems + [problem for found in call_each(_call, calls) for problem in found]


def _exists(run: RunStore, path: str) -> bool:
    """Return whether an array of a run is stored; if that cannot be read, its chunks say why."""
    if path == "data/images":  # which may be elsewhere
        return True
    try:
        return (run.location / path / "zarr.json").exists()
    except StoreReadError:
        return True


def _call(function: Callable[..., list[str]], *arguments: Any) -> list[str]:
    """Return the problems that a function finds."""
    return function(*arguments)


def _find_missing_commits(run: RunStore) -> Iterator[str]:
    """Yield a description of each commit record that is missing before existing ones."""
    names = (run.location / "commits").names()
    found = {int(name[:-5]) for name in names if name[:-5].isdecimal() and name.endswith(".json")}
    for step in sorted(set(range(max(found, default=0) + 1)) - found):
        yield f"commits/{step:04d}.json is missing. The steps after it do not count."


def _check_result(run: RunStore, layers: int) -> list[str]:
    """Return what is wrong with the result, which has no checksum."""
    try:
        problem = find_contradiction(max(0, layers), run.result())
    except StoreReadError as error:
        return [str(error)]
    return [problem] if problem else []


def _iter_kept_arrays(
    run: RunStore, step: int, *, is_last: bool
) -> Iterator[tuple[str, list[int]]]:
    """Yield path and checksums of the arrays that were committed with a step and are kept.

    is_last says whether it is the last step whose maps were stored.
    """
    run_spec = RunState.of(run).run_spec
    # a run that keeps no maps removes them when it is done
    has_maps = run_spec.keep_maps == "all" or (
        is_last and (run_spec.maps_stay or run.has_maps(step))
    )
    for path, checksums in run.checksums(step).items():
        if path.startswith(UNSAVED_PREFIX):
            continue
        if path.startswith("data/") or has_maps:
            yield path, checksums


def _verify_chunks(run: RunStore, path: str, first: int, checksums: Sequence[int]) -> list[str]:
    """Read chunks of an array and compare them with their checksums; return the problems."""
    if path == "data/images":
        return _verify_images(run, first, len(checksums))
    problems = [
        chunk_problem(run.location, path, number, expected)
        for number, expected in enumerate(checksums, start=first)
    ]
    return [problem for problem in problems if problem]


def _verify_images(run: RunStore, first: int, count: int) -> list[str]:
    """Read and augment the images of chunks as a pass does; return the problems."""
    state, problems = RunState.of(run), []
    size = state.plan.chunk_images
    group = Group(0, first * size, min((first + count) * size, state.plan.images), size)
    reader = Reader.of(Task(run, 0), group, state, 0)
    chunks = reader.chunks()
    for number in range(first, first + count):
        try:
            chunk = next(chunks, None)
        except StoreReadError:
            break  # damaged labels are reported on their own
        if chunk is None:
            problems.append(f"data/images, chunk {number}: it has a checksum, but no images")
            break
        try:
            reader.read_images(run.images(), chunk, Backend())  # also without a GPU
        except StoreReadError as error:
            problems.append(f"data/images, chunk {number}: {error}")
    return problems


def _verify_layer(run: RunStore, step: int) -> list[str]:
    """Read the small arrays that were stored with a step; return the problems."""
    spec = RunState.of(run).spec
    dims = spec.head.arrays if step >= spec.first_head else None
    try:
        if step:
            read_layer(run.location, step, dims)
        else:
            read_image_scale(run.location, spec.views)
    except StoreReadError as error:
        return [f"layer {step}: {error}" if step else f"image_scale: {error}"]
    return []
