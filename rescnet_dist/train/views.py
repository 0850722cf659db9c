"""The passes in which views of the images learn, before anything else is learned."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rescnet_dist.data import check_finite
from rescnet_dist.kernels import to_host
from rescnet_dist.kernels.cpu.threads import blas_threads
from rescnet_dist.model.view import View, ViewArrays
from rescnet_dist.planning.plan import Group
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import write_views
from rescnet_dist.train.chunk_cache import ChunkCache
from rescnet_dist.train.chunks import Reader, chunk_error_context
from rescnet_dist.train.object_cache import load_state
from rescnet_dist.train.passes import Pass
from rescnet_dist.train.task import Task
from rescnet_dist.train.task_events import (
    log_chunk_done,
    log_solving,
    log_task_done,
    reports_retries,
)

PHASE = "views"

Statistics = dict[str, Any]  # by the name of the view


def learning_views(state: RunState, stage: int) -> list[View]:
    """Return the views that learn in a pass, counted from 0."""
    return [view for view in state.spec.views if view.passes > stage]


@reports_retries
def observe_group(
    task: Task,
    group: Group,
    _cache: ChunkCache | None = None,
    *,
    stage: int,
    known: Mapping[str, ViewArrays],
) -> Statistics:
    """Return the statistics of the training images of a group, for the views that learn.

    known has the arrays of earlier passes, by the name of the view.
    """
    state, images = load_state(task), task.run.images()
    views, xp = learning_views(state, stage), state.backend.xp
    statistics = {v.name: v.empty(state.image_shape, known.get(v.name, {}), xp) for v in views}
    # nothing is committed yet, and classes are not counted, so that no chunk may be cached
    reader = Reader(task, group, state, 0)
    with blas_threads(1), state.backend.working():
        for chunk in reader.chunks():
            with chunk_error_context(group, chunk):
                with reader.meter.timing("read"):
                    raw, on_device = reader.read_both(images, chunk)
                with reader.meter.timing("compute"):
                    check_finite(raw, chunk.rows.image)
                    train = on_device[state.backend.put(chunk.train)]
                    del raw, on_device
                    weights = None if chunk.weights is None else chunk.weights[chunk.train]
                    for view in views:
                        statistics[view.name] = view.observe(
                            statistics[view.name], train, known.get(view.name, {}), weights
                        )
            log_chunk_done(task, PHASE, chunk.start, chunk.stop)
    log_task_done(task, PHASE, reader.meter)
    return statistics


def merge_statistics(one: Statistics, later: Statistics) -> Statistics:
    """Return the statistics of two sets of images."""
    return {name: one[name].merge(later[name]) for name in one}


def finish_views(
    task: Task, merged: Statistics, *, stage: int, known: Mapping[str, ViewArrays]
) -> dict[str, ViewArrays]:
    """Compute what a pass has learned; store the arrays of views that are done with learning.

    Return those of the others.
    """
    state = load_state(task)
    log_solving(task, PHASE)
    done, others = dict[str, ViewArrays](), dict[str, ViewArrays]()
    with blas_threads(state.plan.solve_threads), state.backend.working():
        for view in learning_views(state, stage):
            arrays = to_host(view.fit(merged[view.name], known.get(view.name, {})))
            (done if view.passes == stage + 1 else others)[view.name] = arrays
    write_views(task.run.location, done, state.spec.views)
    return others


def view_pass(stage: int, known: Mapping[str, ViewArrays]) -> Pass:
    """Return a pass in which views learn, counted from 0, after those that gave `known`."""
    return Pass(
        PHASE,
        partial(observe_group, stage=stage, known=known),
        merge_statistics,
        partial(finish_views, stage=stage, known=known),
    )
