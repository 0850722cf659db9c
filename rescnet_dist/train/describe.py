"""What can be told of a run from its store alone."""

from __future__ import annotations

import os
from typing import Any

from rescnet_dist.store import RunStore
from rescnet_dist.train.decide import History
from rescnet_dist.train.state import RunState


def describe_run(url: str | os.PathLike[str]) -> dict[str, Any]:
    """State, spec, layers with their accuracies and times, and sizes of the run at a URL, as plain
    values."""
    run = RunStore.open(url)
    attributes, commits, result = run.attributes(), run.commits(), run.result()
    state, history = RunState.of(run), History.of(commits, result)
    judged = {accuracy.layer: accuracy for accuracy in history.accuracies}
    layers = []
    for record in commits[1:]:
        accuracy = judged.get(record["step"])
        layers.append(
            {
                "layer": record["step"],
                "train": accuracy.train if accuracy else None,
                "validation": accuracy.validation if accuracy else None,
                "seconds": record.get("seconds", 0.0),
            }
        )
    reason = result.get("reason") if result else None
    return {
        "url": str(run),
        "state": "done" if reason else "unfinished",
        "reason": reason,
        "depth": result["depth"] if result else None,
        "source": attributes.get("source"),
        "images": state.rows.images,
        "copies": state.augment.copies,
        "rows": state.rows.rows,
        "image_shape": list(state.image_shape),
        "classes": state.classes,
        "features": state.features,
        "layers": layers,
        "network": attributes["network"],
        "augment": attributes["augment"],
        "run": attributes["run"],
        "plan": attributes["plan"],
        "bytes": {name: (run.place / name).size() for name in ("data", "layers", "maps", "scores")},
        "provenance": attributes.get("provenance", {}),
    }
