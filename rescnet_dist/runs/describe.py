"""Description of a run from its store alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rescnet_dist.errors import CorruptDataError, StoreError
from rescnet_dist.events.metrics import Accuracy
from rescnet_dist.runs.history import History, find_contradiction
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import RunStore, is_being_written, is_claimed

MEASURED_FOLDERS = ("data", "layers", "maps", "scores")  # of a run store


def describe_run(url: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe the run at a URL.

    Parameters
    ----------
    url : str or PathLike
        URL of the run store.

    Returns
    -------
    dict
        State, specs, layers with their accuracies and times, and sizes in bytes, as
        JSON-serializable values.

    Raises
    ------
    StoreError
        If there is no run, or its data were never completely written.
    CorruptDataError
        If the result contradicts the commit records, and no driver is writing to the run.
    """
    run = RunStore.open(url)
    sizes = {name: (run.location / name).size() for name in MEASURED_FOLDERS}
    return describe_commits(run, run.commits()) | {"bytes": sizes}


def describe_commits(run: RunStore, commits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Describe a run as `describe_run` does, but without the sizes, which take long to measure."""
    attributes, result = run.attributes(), run.result()
    if not attributes.get("data_complete"):
        raise StoreError(
            f"The run at {run} has not started: its data are still being written, or were never "
            "completely written. Try again later, or remove it and train again."
        )
    claimed = is_claimed(run.location)
    if find_contradiction(max(0, len(commits) - 1), result):
        if is_being_written(run.location):
            result = None  # the layers that it needs are being computed again
        else:
            # The run may have finished since `commits` was read: read again.
            commits, result = run.commits(), run.result()
            if problem := find_contradiction(max(0, len(commits) - 1), result):
                raise CorruptDataError(f"The run at {run} is damaged: {problem}")
    state, history = RunState.from_attributes(run, attributes), History.of(list(commits), result)
    accuracies = {accuracy.layer: accuracy for accuracy in history.accuracies}
    reason = result.get("reason") if result else None
    test = None
    if result and reason and not claimed:
        test = _find_test(run, result["depth"], len(commits) - 1)
    return {
        "url": str(run),
        "state": "running" if claimed else "done" if reason else "unfinished",
        "reason": None if claimed else reason,  # a finished run may be resumed
        "depth": result["depth"] if result else None,
        "source": attributes.get("source"),
        "images": state.rows.images,
        "copies": state.augment.copies,
        "leave_one_out": state.spec.head.leave_one_out_scores,
        "rows": state.rows.rows,
        "image_shape": list(state.image_shape),
        "classes": state.classes,
        "features": state.architecture.features,
        "test": test,
        "layers": [
            _describe_layer(record, accuracies.get(record["step"])) for record in commits[1:]
        ],
        "network": state.spec.to_dict(),
        "augment": state.augment.to_dict(),
        "run": state.run_spec.to_dict(),
        "plan": attributes["plan"],
        "expected": attributes.get("expected"),
        "provenance": attributes.get("provenance", {}),
    }


def _find_test(run: RunStore, depth: int, layers: int) -> dict[str, Any] | None:
    """Return the accuracy on test images; None if it is not that of this depth of all layers."""
    test = run.test()
    if test is None or (test["depth"], test["layers"]) != (depth, layers):
        return None
    return {key: test[key] for key in ("data", "images", "accuracy")}


def _describe_layer(record: dict[str, Any], accuracy: Accuracy | None) -> dict[str, Any]:
    """Describe a layer from its commit record and the accuracy after it, if that is known."""
    return {
        "layer": record["step"],
        "train": accuracy.train if accuracy else None,
        "validation": accuracy.validation if accuracy else None,
        "seconds": record.get("seconds", 0.0),
        "residual": record.get("residual"),
        "observed": record.get("observed"),
        "finished": record.get("finished"),
    }
