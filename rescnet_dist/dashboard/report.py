"""The report on a run: everything that its store has, as plain values that pages are made from."""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np

from rescnet_dist.dashboard.evaluation import (
    MAX_EVALUATION_IMAGES,
    MAX_MATRIX_CLASSES,
    Evaluation,
    Sample,
    most_confused_pairs,
    sample_from_data,
    sample_from_run,
)
from rescnet_dist.dashboard.reproduce import reproduce_command
from rescnet_dist.dashboard.thumbnails import (
    data_uri,
    draw_filters,
    draw_image,
    draw_maps,
    select_filters,
    spaced_integers,
)
from rescnet_dist.dashboard.view import RunView
from rescnet_dist.data import classes_from_json
from rescnet_dist.errors import (
    SpecError,
    StoreError,
    StoreReadError,
    mask_secrets,
    pluralize,
)
from rescnet_dist.formatting import plain_text, train_suffix
from rescnet_dist.network import Network
from rescnet_dist.planning.plan import Plan
from rescnet_dist.runs import RunData, describe_run
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import RunStore, StoredLayers

REPORT_VERSION = 1  # changes when an entry is renamed, removed, or means something else
JSON_NAMES = {"evaluation": "judged", "evaluation_problem": "not_judged"}  # of version 1
MAX_REPORTED_PAIRS, MAX_REPORTED_ERRORS = 20, 24
MAX_FILTER_LAYERS, MAX_MAP_LAYERS, MAX_MAP_SAMPLES, REPORT_MAPS_PER_LAYER = 3, 4, 4, 4


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures of a report as data: URIs.

    Attributes
    ----------
    banks : list of (int, list of (str, str))
        Filters by layer, each with its name.
    samples : list of dict
        Images with their maps by layer.
    errors : list of str
        Images of the worst errors, in their order in the evaluation.
    """

    banks: list[tuple[int, list[tuple[str, str]]]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything known of a run. All fields but the pictures are JSON-serializable.

    Attributes
    ----------
    title, outcome, url : str
    state : {"running", "done", "unfinished"}
    reason : str or None
        Why the run ended.
    depth : int or None
        Depth at which the network is evaluated.
    data : dict
        Source, sizes and classes of the data.
    spec : dict of str to list of (option, value, is_changed)
        Tables of options; is_changed is true if the value is not the default.
    planned : list of dict
        Planned and observed values; observed is None if it was not recorded.
    memory : dict
        Bytes by worker and layer.
    layers : list of dict
    leave_one_out : bool
        Whether training accuracies are of images left out.
    evaluation : dict or None
        Accuracy, confusion, errors and calibration at `depth`; None if it could not be computed.
    evaluation_problem : str or None
        Why there is no evaluation.
    environment : dict
        Time, cluster and versions.
    command : str or None
        Command line that trains the same network.
    notes : list of str
        Notes on the command.
    pictures : Pictures
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
    leave_one_out: bool
    evaluation: dict[str, Any] | None
    evaluation_problem: str | None
    environment: dict[str, Any]
    command: str | None
    notes: list[str]
    pictures: Pictures = field(default_factory=Pictures)

    @property
    def train_suffix(self) -> str:
        """Suffix of the name of training accuracies."""
        return train_suffix(self.data["copies"], self.leave_one_out)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the pictures as JSON-serializable values."""
        fields = asdict(replace(self, pictures=Pictures()))
        del fields["pictures"]
        named = {JSON_NAMES.get(name, name): value for name, value in fields.items()}
        return {"version": REPORT_VERSION, **named}


def make_report(
    url: str | os.PathLike[str],
    *,
    images: int = MAX_EVALUATION_IMAGES,
    test: str | None = None,
    pictures: bool = True,
) -> Report:
    """Make the report on a run, finished or not.

    Parameters
    ----------
    url : str or path-like
        Run store.
    images : int
        The network is evaluated on at most this many evenly spaced images: those that the run
        held out, or training images if it held out none.
    test : str, optional
        Dataset to evaluate the network on instead.
    pictures : bool
        Whether to make the pictures, too.

    Returns
    -------
    Report

    Raises
    ------
    SpecError
        If images is below 1.
    StoreError
        If there is no run at the URL, or its data are not completely written.
    """
    if images < 1:
        raise SpecError(f"images={images} is too few to evaluate a network. Use 1 or more.")
    run = RunStore.open(url)
    attributes = run.attributes()
    if not attributes.get("data_complete"):
        raise StoreError(
            f"The data of the run at {run} are not completely written, so there is nothing to "
            "report yet. Wait until it trains, or remove it and train again."
        )
    description = describe_run(url)
    description["source"] = mask_secrets(description["source"]) if description["source"] else None
    view = RunView.of(description)
    classes = [plain_text(label) for label in classes_from_json(attributes["classes"]).tolist()]
    held_out = len(RunData.of(run).find_rows(False))
    specs = (
        NetworkSpec.from_stored(description["network"]),
        RunSpec.from_stored(description["run"]),
        AugmentSpec.from_stored(description["augment"]),
    )
    plan = Plan.from_dict(description["plan"])
    command, notes = reproduce_command(
        description["source"],
        *specs,
        plan,
        held_out=held_out > 0,
        has_weights=bool({"sample_weight", "class_weight"} & attributes.keys()),
    )
    depth = view.depth or len(view.layers)
    if depth < specs[0].first_head:
        depth = 0
    metrics, drawn, problem = None, Pictures(), "there is no finished layer yet"
    if depth:
        # the depth of the view, as a run in progress may have more layers by now
        dims = specs[0].head.arrays
        layers = StoredLayers(run.location, depth, dims, specs[0].first_head)
        network = replace(Network.load(url), layers=layers)
        evaluation, problem = _evaluate(run, network, images, test)
        if evaluation:
            metrics = _summarize_evaluation(evaluation, classes, is_test=test is not None)
        if pictures:
            drawn = _draw_pictures(network, evaluation, classes)
    return Report(
        title=f"Run {view.name}",
        outcome=_describe_outcome(view, description, metrics),
        url=str(run),
        state=view.state,
        reason=view.reason,
        depth=depth,
        data=_describe_data(description, held_out, classes),
        spec={type(spec).table: spec.rows() for spec in specs},
        planned=_compare_with_plan(view, description),
        memory=_describe_memory(view),
        layers=description["layers"],
        leave_one_out=description["leave_one_out"],
        evaluation=metrics,
        evaluation_problem=None if metrics else problem,
        environment=_describe_environment(description),
        command=command,
        notes=notes,
        pictures=drawn,
    )


def _evaluate(
    run: RunStore, network: Network, images: int, test: str | None
) -> tuple[Evaluation | None, str]:
    """Evaluate the network on a sample.

    Returns None and the reason if the images of the run cannot be read, as they may be stored
    elsewhere and be gone.
    """
    if test:
        return Evaluation.of(network, sample_from_data(test, None, network, images)), ""
    try:
        return Evaluation.of(network, sample_from_run(run, images)), ""
    except StoreReadError as error:
        return None, f"the images of the run cannot be read ({error})"


def _describe_outcome(
    view: RunView, description: dict[str, Any], metrics: dict[str, Any] | None
) -> str:
    """Return the outcome of a run in a few sentences."""
    grown, layers = len(view.layers), pluralize(len(view.layers), "layer")
    if not grown:
        state = "is being trained" if view.state == "running" else "was stopped"
        return f"The run {state} and has no finished layer yet."
    if view.state == "done":
        text = f"The network has {pluralize(view.depth or grown, 'layer')}"
        text += f" of {grown} grown ({view.reason})." if view.reason else "."
    else:
        state = "in progress" if view.state == "running" else "unfinished"
        text = f"The run is {state}, with {layers} of at most {view.max_layers} finished."
    chosen = next((layer for layer in view.layers if layer.layer == view.depth), None)
    if chosen and chosen.train is not None:
        copies = ", copies included," if description["copies"] else ""
        kind = "leave-one-out accuracy" if description["leave_one_out"] else "accuracy"
        text += f" After layer {chosen.layer}, the {kind} is {100 * chosen.train:.2f} % on the "
        text += f"training images{copies}"
        if chosen.validation is not None:
            other = " the accuracy is" if description["leave_one_out"] else ""
            text += f" and{other} {100 * chosen.validation:.2f} % on the held-out images"
        text = f"{text.rstrip(',')}."
    if metrics and metrics["test"]:
        text += f" On {metrics['which']}, it is {100 * metrics['accuracy']:.2f} %."
    elif test := description["test"]:
        count = pluralize(test["images"], "test image")
        text += f" On {count} of {test['data']}, it is {100 * test['accuracy']:.2f} %."
    return text


def _describe_data(
    description: dict[str, Any], held_out: int, classes: list[str]
) -> dict[str, Any]:
    """Return the source, sizes and classes of the data."""
    return {
        "source": description["source"],
        "images": description["images"],
        "train": description["images"] - held_out,
        "held_out": held_out,
        "copies": description["copies"],
        "rows": description["rows"],
        "image_shape": description["image_shape"],
        "classes": classes,
        "features": description["features"],
    }


def _compare_with_plan(view: RunView, description: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows of planned and observed values; kind is the unit of the values."""
    expected = description["expected"] or {}
    traffic = expected.get("traffic", {})
    observed = [layer["observed"] for layer in description["layers"] if layer["observed"]]

    def largest(name: str) -> int | None:
        return max((entry[name] for entry in observed), default=None)

    memory = [size for entry in observed for size in entry["memory"].values()]
    seconds = [layer.seconds for layer in view.layers]
    redone = sum(entry["redone"] for entry in observed) if observed else None
    store_bytes = sum(description["bytes"].values())
    rows = (
        ("memory of a worker, at most", "bytes", view.planned_memory, max(memory, default=None)),
        ("read per layer, at most", "bytes", traffic.get("read"), largest("read")),
        ("written per layer, at most", "bytes", traffic.get("written"), largest("written")),
        ("size of the store", "bytes", traffic.get("store"), store_bytes),
        ("chunks done more than once", "count", 0 if observed else None, redone),
        (
            *("time of a layer, median", "seconds", None),
            statistics.median(seconds) if seconds else None,
        ),
    )
    keys = ("what", "kind", "planned", "observed")
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _describe_memory(view: RunView) -> dict[str, Any]:
    """Return the peak resident bytes of each worker by layer, the planned bytes and the limit."""
    workers = list(dict.fromkeys(name for layer in view.layers for name in layer.memory))
    return {
        "planned": view.planned_memory,
        "allowed": view.memory_limit,
        "workers": {
            f"worker {number}": [layer.memory.get(name) for layer in view.layers]
            for number, name in enumerate(workers, start=1)
        },
    }


def _describe_environment(description: dict[str, Any]) -> dict[str, Any]:
    """Return the times, cluster, plan, sizes and versions of a run."""
    provenance, expected = description["provenance"], description["expected"] or {}
    finished = [layer["finished"] for layer in description["layers"] if layer["finished"]]
    return {
        "began": provenance.get("created"),
        "last_layer": _format_timestamp(finished[-1]) if finished else None,
        "seconds": sum(layer["seconds"] for layer in description["layers"]),
        "versions": provenance.get("versions", {}),
        "workers": expected.get("workers"),
        "plan": description["plan"],
        "bytes": description["bytes"],
        "reported": _format_timestamp(datetime.now(UTC).timestamp()),
        "reported_by": version("rescnet-dist"),
    }


def _format_timestamp(seconds: float) -> str:
    """Return a time in seconds since 1970 in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _summarize_evaluation(
    evaluation: Evaluation, classes: list[str], *, is_test: bool
) -> dict[str, Any]:
    """Return accuracy, confusion, worst errors and calibration as plain values."""
    sample, found = evaluation.sample, evaluation.metrics
    return {
        "which": sample.description,
        "kind": sample.kind,
        "test": is_test,
        "images": len(sample.codes),
        "of": sample.total,
        "accuracy": found.accuracy,
        "log_loss": found.log_loss,
        "confusion": found.confusion.tolist() if len(classes) <= MAX_MATRIX_CLASSES else None,
        "pairs": [
            {"true": classes[i], "predicted": classes[j], "images": count}
            for i, j, count in most_confused_pairs(found.confusion, MAX_REPORTED_PAIRS)
        ],
        "errors": [
            {
                "image": int(sample.rows[index]),
                "true": classes[sample.codes[index]],
                "predicted": classes[evaluation.predicted[index]],
                "margin": margin,
            }
            for index, margin in evaluation.worst_errors(MAX_REPORTED_ERRORS)
        ],
        "calibration": found.calibration(),
        "calibration_error": found.calibration_error,
    }


def _draw_pictures(network: Network, evaluation: Evaluation | None, classes: list[str]) -> Pictures:
    """Draw filter banks and, if there is an evaluation, samples with maps, and the worst errors."""
    banks = [
        (layer, [(tile.name, data_uri(tile.pixels)) for tile in draw_filters(network, layer)])
        for layer in spaced_integers(1, network.depth, MAX_FILTER_LAYERS)
    ]
    if evaluation is None:
        return Pictures(banks)
    sample = evaluation.sample
    worst = evaluation.worst_errors(MAX_REPORTED_ERRORS)
    errors = [data_uri(draw_image(sample.images[index])) for index, _ in worst]
    return Pictures(banks, _draw_samples(network, sample, classes), errors)


def _draw_samples(network: Network, sample: Sample, classes: list[str]) -> list[dict[str, Any]]:
    """Draw the first image of a few classes, each with its maps in a few layers."""
    _, first = np.unique(sample.codes, return_index=True)
    chosen = [int(first[n]) for n in spaced_integers(0, len(first) - 1, MAX_MAP_SAMPLES)]
    layers = spaced_integers(1, network.depth, MAX_MAP_LAYERS)
    maps = draw_maps(network, sample.images[chosen], layers, REPORT_MAPS_PER_LAYER)
    numbers = {layer: select_filters(network, layer, REPORT_MAPS_PER_LAYER) for layer in layers}

    def encode_tiles(layer: int, row: int) -> list[tuple[int, str]]:
        pairs = zip(numbers[layer], maps[layer][row], strict=True)
        return [(number + 1, data_uri(pixels)) for number, pixels in pairs]

    return [
        {
            "label": classes[sample.codes[index]],
            "image": data_uri(draw_image(sample.images[index])),
            "maps": [(layer, encode_tiles(layer, row)) for layer in layers],
        }
        for row, index in enumerate(chosen)
    ]
