"""A report on a run: everything that its store tells, as plain values from which pages are made."""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np

from rescnet_dist.dashboard.evaluation import (
    MATRIX_CLASSES,
    MOST_IMAGES,
    Evaluation,
    Sample,
    confused_class_pairs,
    rows_where,
    sample_of_data,
    sample_of_run,
)
from rescnet_dist.dashboard.reproduce import reproduce
from rescnet_dist.dashboard.thumbnails import (
    data_uri,
    select_filters,
    shown_filters,
    shown_image,
    shown_maps,
    spread,
)
from rescnet_dist.dashboard.view import RunView
from rescnet_dist.data import classes_from_json
from rescnet_dist.errors import (
    SpecError,
    StoreError,
    StoreUnreachableError,
    mask_secrets,
    pluralize,
)
from rescnet_dist.formatting import plain_text
from rescnet_dist.network import Network
from rescnet_dist.planning.plan import Plan
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import RunStore, StoredLayers
from rescnet_dist.train import describe_run

REPORT_VERSION = 1  # changes when an entry is renamed, removed, or means something else
PAIRS, ERRORS = 20, 24
BANKS, MAP_LAYERS, SAMPLES, MAPS_PER_LAYER = 3, 4, 4, 4


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures as data: URIs: filter banks by layer with their names, samples with their maps by
    layer, and the images of the worst errors, in their order."""

    banks: list[tuple[int, list[tuple[str, str]]]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    """All that is told of a run. Everything but the pictures is plain values that JSON can hold.

    spec: tables of (option, value, whether it is not the default). planned: rows of what was
    planned and what was observed, None where it was not recorded. judged: how the network does, at
    `depth`; None where that is not known, and not_judged says why.
    """

    title: str
    outcome: str
    url: str
    state: str
    reason: str | None
    depth: int | None
    data: dict[str, Any]
    spec: dict[str, list[tuple[str, Any, bool]]]
    planned: list[dict[str, Any]]
    memory: dict[str, Any]
    layers: list[dict[str, Any]]
    judged: dict[str, Any] | None
    not_judged: str | None
    environment: dict[str, Any]
    command: str | None
    notes: list[str]
    pictures: Pictures = field(default_factory=Pictures)

    def to_dict(self) -> dict[str, Any]:
        """All but the pictures as plain values."""
        fields = asdict(replace(self, pictures=Pictures()))
        del fields["pictures"]
        return {"version": REPORT_VERSION, **fields}


def report_of(
    url: str | os.PathLike[str],
    *,
    images: int = MOST_IMAGES,
    test: str | None = None,
    pictures: bool = True,
) -> Report:
    """The report on the run at a URL, finished or not.

    Its network is judged on at most `images` images that the run held out, taken evenly, or was
    trained on where it held none out, or of `test`, a data set, if that is named. pictures: whether
    to make them, too.
    """
    if images < 1:
        raise SpecError(f"images={images} are too few to judge a network on: give 1 or more")
    run = RunStore.open(url)
    attributes = run.attributes()
    if not attributes.get("data_complete"):
        raise StoreError(
            f"the data of the run at {run} are not completely written, so that there is nothing to "
            "report yet: wait until it trains, or remove it and train again"
        )
    found = describe_run(url)
    found["source"] = mask_secrets(found["source"]) if found["source"] else None
    view = RunView.of(found)
    classes = [plain_text(label) for label in classes_from_json(attributes["classes"]).tolist()]
    held_out = len(rows_where(run.data_array("train"), False))
    specs = (
        NetworkSpec.from_stored(found["network"]),
        RunSpec.from_stored(found["run"]),
        AugmentSpec.from_stored(found["augment"]),
    )
    plan = Plan.from_dict(found["plan"])
    command, notes = reproduce(found["source"], *specs, plan, held_out=held_out > 0)
    depth = view.depth or len(view.layers) or None
    judged, shown, problem = None, Pictures(), "there is no finished layer yet"
    if depth:
        # not at the depth of the moment: a run that goes on may have more layers by now
        network = replace(Network.load(url), layers=StoredLayers(run.location, depth))
        seen, problem = _judged(run, network, images, test)
        judged = _judgement(seen, classes, is_test=test is not None) if seen else None
        shown = _pictures(network, seen, classes) if pictures else shown
    return Report(
        title=f"Run {view.name}",
        outcome=_outcome(view, found, judged),
        url=str(run),
        state=view.state,
        reason=view.reason,
        depth=depth,
        data=_data(found, held_out, classes),
        spec={type(spec).table: spec.rows() for spec in specs},
        planned=_planned(view, found),
        memory=_memory(view),
        layers=found["layers"],
        judged=judged,
        not_judged=None if judged else problem,
        environment=_environment(found),
        command=command,
        notes=notes,
        pictures=shown,
    )


def _judged(
    run: RunStore, network: Network, images: int, test: str | None
) -> tuple[Evaluation | None, str]:
    """The network on a sample; or, where the images of its run are not there any more, as those
    that it refers to may be gone, why not."""
    if test:
        return Evaluation.of(network, sample_of_data(test, None, network, images)), ""
    try:
        return Evaluation.of(network, sample_of_run(run, images)), ""
    except StoreUnreachableError:
        raise
    except StoreError as error:
        return None, f"the images of the run cannot be read ({error})"


def _outcome(view: RunView, found: dict[str, Any], judged: dict[str, Any] | None) -> str:
    """What came of a run, in a few sentences."""
    grown, layers = len(view.layers), pluralize(len(view.layers), "layer")
    if not grown:
        state = "is being trained" if view.state == "running" else "was stopped"
        return f"The run {state} and has no finished layer yet."
    if view.state == "done":
        text = f"The network has {pluralize(view.depth or grown, 'layer')}"
        text += f" of {grown} grown ({view.reason})." if view.reason else "."
    else:
        state = "goes on" if view.state == "running" else "is unfinished"
        text = f"The run {state}, with {layers} of at most {view.max_layers} finished."
    known = next((layer for layer in view.layers if layer.layer == view.depth), None)
    if known and known.train is not None:
        copies = ", copies included," if found["copies"] else ""
        text += f" After layer {known.layer} it classifies {100 * known.train:.2f} % of the "
        text += f"training images{copies} rightly"
        if known.validation is not None:
            text += f" and {100 * known.validation:.2f} % of those held out"
        text += "."
    if judged and judged["test"]:
        text += f" Of {judged['which']} it classifies {100 * judged['accuracy']:.2f} % rightly."
    return text


def _data(found: dict[str, Any], held_out: int, classes: list[str]) -> dict[str, Any]:
    return {
        "source": found["source"],
        "images": found["images"],
        "train": found["images"] - held_out,
        "held_out": held_out,
        "copies": found["copies"],
        "rows": found["rows"],
        "image_shape": found["image_shape"],
        "classes": classes,
        "features": found["features"],
    }


def _planned(view: RunView, found: dict[str, Any]) -> list[dict[str, Any]]:
    """What was planned beside what was observed; kind says of what kind the numbers are."""
    expected = found["expected"] or {}
    traffic = expected.get("traffic", {})
    observed = [layer["observed"] for layer in found["layers"] if layer["observed"]]

    def most(name: str) -> int | None:
        return max((entry[name] for entry in observed), default=None)

    memory = [size for entry in observed for size in entry["memory"].values()]
    seconds = [layer.seconds for layer in view.layers]
    rows = (
        ("memory of a worker, at most", "bytes", view.planned, max(memory, default=None)),
        ("read per layer, at most", "bytes", traffic.get("read"), most("read")),
        ("written per layer, at most", "bytes", traffic.get("written"), most("written")),
        ("size of the store", "bytes", traffic.get("store"), sum(found["bytes"].values())),
        ("chunks done more than once", "count", 0 if observed else None,
         sum(entry["redone"] for entry in observed) if observed else None),
        ("time of a layer, median", "seconds", None,
         statistics.median(seconds) if seconds else None),
    )  # fmt: skip
    keys = ("what", "kind", "planned", "observed")
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _memory(view: RunView) -> dict[str, Any]:
    """The most bytes resident in each worker, by layer, beside what was planned and is allowed."""
    workers = list(dict.fromkeys(name for layer in view.layers for name in layer.memory))
    return {
        "planned": view.planned,
        "allowed": view.allowed,
        "workers": {
            f"worker {number}": [layer.memory.get(name) for layer in view.layers]
            for number, name in enumerate(workers, start=1)
        },
    }


def _environment(found: dict[str, Any]) -> dict[str, Any]:
    provenance, expected = found["provenance"], found["expected"] or {}
    finished = [layer["finished"] for layer in found["layers"] if layer["finished"]]
    return {
        "began": provenance.get("created"),
        "last_layer": _when(finished[-1]) if finished else None,
        "seconds": sum(layer["seconds"] for layer in found["layers"]),
        "versions": provenance.get("versions", {}),
        "workers": expected.get("workers"),
        "plan": found["plan"],
        "bytes": found["bytes"],
        "reported": _when(datetime.now(UTC).timestamp()),
        "reported_by": version("rescnet-dist"),
    }


def _when(seconds: float) -> str:
    """A time in seconds since 1970, as ISO 8601 has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _judgement(judged: Evaluation, classes: list[str], *, is_test: bool) -> dict[str, Any]:
    """Accuracy, confusion, worst errors and calibration of a network on a sample."""
    sample, confusion = judged.sample, judged.confusion()
    bins, error = judged.calibration()
    return {
        "which": sample.which,
        "test": is_test,
        "images": len(sample.codes),
        "of": sample.total,
        "accuracy": judged.accuracy,
        "confusion": confusion.tolist() if len(classes) <= MATRIX_CLASSES else None,
        "pairs": [
            {"true": classes[i], "predicted": classes[j], "images": count}
            for i, j, count in confused_class_pairs(confusion, PAIRS)
        ],
        "errors": [
            {
                "image": int(sample.numbers[location]),
                "true": classes[sample.codes[location]],
                "predicted": classes[judged.predicted[location]],
                "margin": margin,
            }
            for location, margin in judged.worst(ERRORS)
        ],
        "calibration": bins,
        "calibration_error": error,
    }


def _pictures(network: Network, judged: Evaluation | None, classes: list[str]) -> Pictures:
    """Filter banks and, where it is judged, samples with their maps, and errors."""
    banks = [
        (layer, [(name, data_uri(pixels)) for name, pixels in shown_filters(network, layer)])
        for layer in spread(1, network.depth, BANKS)
    ]
    if judged is None:
        return Pictures(banks)
    sample = judged.sample
    errors = [
        data_uri(shown_image(sample.images[location])) for location, _ in judged.worst(ERRORS)
    ]
    return Pictures(banks, _samples(network, sample, classes), errors)


def _samples(network: Network, sample: Sample, classes: list[str]) -> list[dict[str, Any]]:
    """The first images of some classes, each with maps of some layers."""
    _, first = np.unique(sample.codes, return_index=True)
    chosen = [int(first[location]) for location in spread(0, len(first) - 1, SAMPLES)]
    layers = spread(1, network.depth, MAP_LAYERS)
    maps = shown_maps(network, sample.images[chosen], layers, MAPS_PER_LAYER)
    numbers = {layer: select_filters(network, layer, MAPS_PER_LAYER) for layer in layers}

    def tiles(layer: int, row: int) -> list[tuple[int, str]]:
        pairs = zip(numbers[layer], maps[layer][row], strict=True)
        return [(number + 1, data_uri(pixels)) for number, pixels in pairs]

    return [
        {
            "label": classes[sample.codes[location]],
            "image": data_uri(shown_image(sample.images[location])),
            "maps": [(layer, tiles(layer, row)) for layer in layers],
        }
        for row, location in enumerate(chosen)
    ]
