"""Models of runs as dicts of arrays, to compare two runs bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from rescnet_dist.runs import RunState
from rescnet_dist.store import RunStore, read_image_scale, read_layer

Array = np.ndarray[Any, Any]


def read_model(url: Any) -> dict[str, Array]:
    """Read every array of the committed layers of a run, and its accuracies."""
    run = RunStore.open(url)
    commits, result = run.commits(), run.result()
    spec = RunState.of(run).spec
    scale = read_image_scale(run.location, spec.views)
    arrays = {"image low": scale.low, "image scale": scale.scale}
    for view, learned in scale.views.items():
        arrays |= {f"{view} {name}": array for name, array in learned.items()}
    for number in range(1, len(commits)):
        dims = spec.head.arrays if number >= spec.first_head else None
        layer = read_layer(run.location, number, dims)
        found = {name: getattr(layer.bank, name) for name in type(layer.bank).__dataclass_fields__}
        if layer.head:
            found |= {**layer.head.arrays, "rate": layer.head.rate}
        for name, array in found.items():
            arrays[f"layer {number} {name}"] = np.asarray(array)
    accuracies = result["accuracies"] if result else []
    for name in ("train", "validation"):
        arrays[f"{name} accuracy"] = np.array([a[name] for a in accuracies], float)
    for name in ("temperature", "log_loss", "images"):
        calibrations = result["calibrations"] if result else []
        arrays[f"calibration {name}"] = np.array([c[name] for c in calibrations], float)
    return arrays


def assert_same_bits(one: dict[str, Array], other: dict[str, Array]) -> None:
    """Assert that every array of two models is equal in every bit."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype, name
        assert np.array_equal(array, other[name], equal_nan=name.endswith("accuracy")), name
