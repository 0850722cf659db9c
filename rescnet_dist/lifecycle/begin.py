"""Start or resume a whole run, as its only writer."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from distributed import Client

from rescnet_dist.cluster import translate_errors
from rescnet_dist.data import TrainingSet
from rescnet_dist.errors import DataError, SingularError, SpecError, StoreError
from rescnet_dist.events.classes import Listener
from rescnet_dist.lifecycle.match import is_incomplete
from rescnet_dist.lifecycle.prepare import (
    NO_CHANGES,
    Changes,
    check_run,
    prepare_resume,
    prepare_run,
)
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store import Claim, Location, RunStore, with_retries
from rescnet_dist.train.loop import train


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
    replace_incomplete: bool = False,
) -> RunStore:
    """Train on `data` in a new run store, which is removed if the data are unusable.

    Images at a Zarr URL are referenced, others are copied. source is a name for the data, stored
    with the run. A temporary store may have classes that cannot be read back from it. With
    `replace_incomplete`, a run that died before its data were complete is replaced.
    """
    run = RunStore(Location.of(url))
    replace_incomplete = replace_incomplete and is_incomplete(run.location)
    if not replace_incomplete:
        check_run(url, spec, run_spec, data)
    claim = Claim.take(run.location, new=not replace_incomplete)
    with claim.hold(), translate_errors(client):
        if replace_incomplete:
            _remove_incomplete(run)
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
    """Resume a run after its last committed layer, with changes.

    Raise StoreError if another driver writes to the run, unless take_over says that it is dead.
    """
    run = RunStore.open(url)
    with Claim.take(run.location, take_over=take_over).hold() as claim, translate_errors(client):
        prepare_resume(run, client, changes)
        train(claim, client, listeners)
    return run


def _remove_incomplete(run: RunStore) -> None:
    """Remove all but the claims of an incomplete run; raise StoreError if it is complete."""
    if not is_incomplete(run.location):
        raise StoreError(f"Store {run.url} already holds another run. Choose another URL.")
    for name in set(run.location.names()) - {"claims"}:
        with_retries((run.location / name).remove, f"removing {name} of {run}")


REMOVE_ATTEMPTS = 10
REMOVE_WAIT_SECONDS = 0.2


def _remove(run: RunStore) -> None:
    """Remove a run, and what tasks in progress when it failed may still write to it."""
    for attempt in range(REMOVE_ATTEMPTS):
        try:
            with_retries(run.location.remove, f"removing {run}")
        except StoreError:  # as files change during the removal
            if attempt == REMOVE_ATTEMPTS - 1:
                raise
        time.sleep(REMOVE_WAIT_SECONDS)
        if not run.location.exists():
            return
