"""Whole runs: begin one or go on with one, as its only writer."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from distributed import Client

from rescnet_dist.cluster import translate_errors
from rescnet_dist.data import TrainingSet
from rescnet_dist.errors import DataError, SingularError, SpecError, StoreError
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store import Claim, Location, RunStore, with_retries
from rescnet_dist.train.events import Listener
from rescnet_dist.train.loop import train
from rescnet_dist.train.prepare import (
    NO_CHANGES,
    Changes,
    check_run,
    prepare_resume,
    prepare_run,
)
from rescnet_dist.train.resume import is_incomplete

STILL_WRITING = 10  # times that a place that is written to again is cleared


def begin_run(
    url: str | os.PathLike[str],
    spec: NetworkSpec,
    run_spec: RunSpec,
    data: TrainingSet,
    client: Client,
    listeners: Sequence[Listener] = (),
    *,
    source: str | None = None,
    temporary: bool = False,
    again: bool = False,
) -> RunStore:
    """Train on `data` in a new run store; nothing is left of it where the data are unusable.

    Images at a Zarr URL are referred to, others are copied. source is a name for the data, kept
    with the run. A temporary store may hold classes that could not be read back from it. With
    `again`, the beginnings of a run that died before its data were complete are replaced.
    """
    run = RunStore(Location.of(url))
    again = again and is_incomplete(run.location)
    if not again:
        check_run(url, spec, run_spec, data)
    with Claim.take(run.location, new=not again).hold() as claim, translate_errors(client):
        if again:
            _clear(run)
        try:
            prepare_run(run, spec, run_spec, data, client, source=source, temporary=temporary)
        except BaseException:
            _remove(run)
            raise
        try:
            train(claim, client, listeners)
        except (DataError, SpecError, SingularError):
            if not run.commits():
                _remove(run)
            raise
    return run


def resume_run(
    url: str | os.PathLike[str],
    client: Client,
    listeners: Sequence[Listener] = (),
    *,
    changes: Changes = NO_CHANGES,
    take_over: bool = False,
) -> RunStore:
    """Go on with a run after its last committed layer, with changes.

    A run that another driver writes to is refused unless take_over says that it is dead.
    """
    run = RunStore.open(url)
    with Claim.take(run.location, take_over=take_over).hold() as claim, translate_errors(client):
        prepare_resume(run, client, changes)
        train(claim, client, listeners)
    return run


def _clear(run: RunStore) -> None:
    """Remove the beginnings of a run, which is claimed; refused if there is more by now."""
    if not is_incomplete(run.location):
        raise StoreError(f"store {run.url} already holds another run: choose another URL")
    for name in set(run.location.names()) - {"claims"}:
        with_retries((run.location / name).remove, f"removing {name} of {run}")


def _remove(run: RunStore) -> None:
    """Remove a run, and what tasks that were under way when it failed may still write to it."""
    for attempt in range(STILL_WRITING):
        try:
            with_retries(run.location.remove, f"removing {run}")
        except StoreError:  # as files come and go under its hands
            if attempt == STILL_WRITING - 1:
                raise
        time.sleep(0.2)
        if not run.location.exists():
            return
