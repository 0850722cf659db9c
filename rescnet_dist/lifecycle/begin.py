"""Begin a run, or resume it if the store has it: a whole run, as its only writer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from distributed import Client

from rescnet_dist.cluster import translate_errors
from rescnet_dist.errors import DataError, SingularError, SpecError, StoreError
from rescnet_dist.events.classes import Listener
from rescnet_dist.lifecycle.check import CheckedRun
from rescnet_dist.lifecycle.match import is_incomplete
from rescnet_dist.lifecycle.prepare import prepare_run
from rescnet_dist.lifecycle.resume import Changes, resume_run
from rescnet_dist.store import Claim, RunStore, with_retries
from rescnet_dist.train.loop import train


def begin_or_resume(
    checked: CheckedRun, client: Client, listeners: Sequence[Listener] = ()
) -> RunStore:
    """Train as `check_run` has found possible: in a new run store, or in that of the same run.

    A new run is removed if the data are unusable. A run that is resumed gets the options of the run
    spec that may be changed.
    """
    if checked.stored is not None:
        changes = Changes.to(checked.run_spec)
        return resume_run(checked.store, client, listeners, changes=changes)
    run = checked.store
    claim = Claim.take(run.location, new=not checked.replaces_incomplete)
    with claim.hold(), translate_errors(client):
        _clear(run, incomplete=checked.replaces_incomplete)
        try:
            state, workers = prepare_run(checked, client)
        except BaseException:
            _remove(run)
            raise
        try:
            train(claim, state, client, listeners, workers)
        except (DataError, SpecError, SingularError):
            if not run.commits():
                _remove(run)
            raise
    return run


def _clear(run: RunStore, *, incomplete: bool) -> None:
    """Remove all but the claims of an incomplete run that was found before it was claimed.

    Raise StoreError if the store has anything else by now.
    """
    found = set(with_retries(run.location.names, f"reading {run}")) - {"claims"}
    if found and not (incomplete and is_incomplete(run.location)):
        raise StoreError(f"Store {run.url} already holds another run. Choose another URL.")
    for name in found:
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
