"""What can be told of a run from its store alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rescnet_dist.errors import (
    CorruptDataError,
    StoreClosedError,
    StoreError,
    StoreUnreachableError,
)
from rescnet_dist.store import RunStore, check_unclaimed
from rescnet_dist.train.decide import History, contradiction
from rescnet_dist.train.state import RunState

PARTS = ("data", "layers", "maps", "scores")  # of a run store, whose sizes are told


def describe_run(url: str | os.PathLike[str]) -> dict[str, Any]:
    """State, spec, layers with their accuracies and times, and sizes of the run at a URL, as plain
    values."""
    run = RunStore.open(url)
    sizes = {name: (run.location / name).size() for name in PARTS}
    return describe_commits(run, run.commits()) | {"bytes": sizes}


def describe_commits(run: RunStore, commits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `describe_run` tells but for the sizes, which take long, given the commit records."""
    attributes, result = run.attributes(), run.result()
    if not attributes.get("data_complete"):
        raise StoreError(
            f"the run at {run} has not begun: its data are still being written, or never were "
            "completely; look again later, or remove it and train again"
        )
    if wrong := contradiction(max(0, len(commits) - 1), result):
        raise CorruptDataError(f"the run at {run} is damaged: {wrong}")
    state, history = RunState.from_attributes(run, attributes), History.of(list(commits), result)
    judged = {accuracy.layer: accuracy for accuracy in history.accuracies}
    claimed, reason = is_claimed(run), result.get("reason") if result else None
    return {
        "url": str(run),
        "state": "running" if claimed else "done" if reason else "unfinished",
        "reason": None if claimed else reason,  # one that was done may be taken further
        "depth": result["depth"] if result else None,
        "source": attributes.get("source"),
        "images": state.rows.images,
        "copies": state.augment.copies,
        "rows": state.rows.rows,
        "image_shape": list(state.image_shape),
        "classes": state.classes,
        "features": state.features,
        "layers": [_layer(record, judged.get(record["step"])) for record in commits[1:]],
        "network": attributes["network"],
        "augment": attributes["augment"],
        "run": attributes["run"],
        "plan": attributes["plan"],
        "expected": attributes.get("expected"),
        "provenance": attributes.get("provenance", {}),
    }


def _layer(record: dict[str, Any], accuracy: Any) -> dict[str, Any]:
    """A layer, from the record of its commit and the accuracy after it, if that is known."""
    return {
        "layer": record["step"],
        "train": accuracy.train if accuracy else None,
        "validation": accuracy.validation if accuracy else None,
        "seconds": record.get("seconds", 0.0),
        "residual": record.get("residual"),
        "observed": record.get("observed"),
        "finished": record.get("finished"),
    }


def is_claimed(run: RunStore) -> bool:
    """Whether a driver that lives writes to the run."""
    try:
        check_unclaimed(run.location)
    except (StoreClosedError, StoreUnreachableError):
        raise
    except StoreError:
        return True
    return False
