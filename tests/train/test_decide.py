"""The next action of a run and its final depth: pure functions, tested by a table of cases."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescnet_dist import NetworkSpec
from rescnet_dist.events.metrics import Accuracy
from rescnet_dist.runs.history import History, chosen_depth
from rescnet_dist.train.decide import (
    Done,
    Grow,
    Score,
    Survey,
    describe_collapse,
    find_collapse,
    next_action,
)


def history(layers: int, train: list[float], validation: list[float] | None = None) -> History:
    """Return a surveyed run of `layers` layers, with the accuracies of the first ones."""
    held_out = validation or [None] * len(train)
    pairs = zip(train, held_out, strict=True)
    return History(True, layers, tuple(Accuracy(i, t, v) for i, (t, v) in enumerate(pairs, 1)))


def spec(**changes: Any) -> NetworkSpec:
    """Return a spec of at most three layers."""
    return NetworkSpec(**{"max_layers": 3, **changes})


REACHED = "max_layers=3 reached"
CASES = {
    "a new run surveys its data": (History(), spec(), Survey()),
    "then grows the first layer": (history(0, []), spec(), Grow(1)),
    "the first accuracy is not known before the second layer": (history(1, []), spec(), Grow(2)),
    "continues layer by layer": (history(2, [0.5]), spec(), Grow(3)),
    "the last layer needs a pass of its own": (history(3, [0.5, 0.6]), spec(), Score(3)),
    "then it is done": (history(3, [0.5, 0.6, 0.7]), spec(), Done(3, REACHED)),
    "the only layer is scored": (history(1, []), spec(max_layers=1), Score(1)),
    "without validation the last depth is chosen, whatever the training accuracy": (
        history(3, [0.9, 0.6, 0.7]),
        spec(),
        Done(3, REACHED),
    ),
    "with validation the best one on it": (
        history(3, [0.5, 0.6, 0.7], [0.4, 0.6, 0.5]),
        spec(),
        Done(2, REACHED),
    ),
    "the first best on ties": (
        history(3, [0.5, 0.6, 0.7], [0.4, 0.5, 0.5]),
        spec(),
        Done(2, REACHED),
    ),
    "a validation accuracy of 0 counts": (
        history(3, [0.5, 0.6, 0.7], [0.0, 0.0, 0.0]),
        spec(),
        Done(1, REACHED),
    ),
    "training error 0 stops": (
        history(2, [1.0]),
        spec(),
        Done(1, "training error 0 after layer 1"),
    ),
    "training error 0 stops after the last layer, too": (
        history(3, [0.5, 0.6, 1.0]),
        spec(),
        Done(3, "training error 0 after layer 3"),
    ),
    "and the depth is still that of validation": (
        history(3, [0.9, 1.0], [0.8, 0.7]),
        spec(),
        Done(1, "training error 0 after layer 2"),
    ),
    "training error 0 does not stop without stop_at_zero_error": (
        history(2, [1.0]),
        spec(stop_at_zero_error=False),
        Grow(3),
    ),
    "an almost perfect one does not stop": (history(2, [0.99999]), spec(), Grow(3)),
    "patience is not exhausted before as many layers": (
        history(4, [0.1, 0.2, 0.3], [0.5, 0.6, 0.5]),
        spec(max_layers=9, patience=2),
        Grow(5),
    ),
    "exhausted patience stops": (
        history(5, [0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.5, 0.55]),
        spec(max_layers=9, patience=2),
        Done(2, "no better validation accuracy in 2 layers"),
    ),
    "an equal accuracy is not a better one": (
        history(3, [0.1, 0.2], [0.6, 0.6]),
        spec(max_layers=9, patience=1),
        Done(1, "no better validation accuracy in 1 layers"),
    ),
    "a better one resets patience": (
        history(5, [0.1, 0.2, 0.3, 0.4], [0.5, 0.4, 0.6, 0.5]),
        spec(max_layers=9, patience=2),
        Grow(6),
    ),
    "without patience it never stops early": (
        history(5, [0.1, 0.2, 0.3, 0.4], [0.5, 0.4, 0.3, 0.2]),
        spec(max_layers=9),
        Grow(6),
    ),
    "patience without validation never stops": (
        history(5, [0.5, 0.4, 0.3, 0.2]),
        spec(max_layers=9, patience=1),
        Grow(6),
    ),
    "max_layers raised after the end continues": (
        history(3, [0.5, 0.6, 0.7]),
        spec(max_layers=5),
        Grow(4),
    ),
    "raised after an interruption continues": (history(3, [0.5, 0.6]), spec(max_layers=5), Grow(4)),
    "raised after a stop at training error 0 stays": (
        history(2, [1.0]),
        spec(max_layers=50),
        Done(1, "training error 0 after layer 1"),
    ),
    "max_layers lowered ends at that layer": (
        history(4, [0.5, 0.6, 0.7], [0.5, 0.6, 0.7]),
        spec(max_layers=2),
        Done(2, "max_layers=2 reached"),
    ),
    "lowered, deeper layers choose nothing": (
        history(4, [0.5, 0.6, 1.0], [0.6, 0.5, 0.9]),
        spec(max_layers=2),
        Done(1, "max_layers=2 reached"),
    ),
    "lowered to the layer grown last, it is scored": (
        history(2, [0.5]),
        spec(max_layers=2),
        Score(2),
    ),
}


@pytest.mark.parametrize(("before", "network", "expected"), CASES.values(), ids=CASES.keys())
def test_next_action(before: History, network: NetworkSpec, expected: Any) -> None:
    """Each row of the table gives its action, repeatedly."""
    assert next_action(before, network) == expected
    assert next_action(before, network) == expected


def test_depth_without_accuracies_is_zero() -> None:
    """No layer has been evaluated."""
    assert chosen_depth(()) == 0


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0.2, 0.4, 0.6, 0.8]), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(1, 12),
)
def test_simulated_run_ends_with_best_evaluated_layer(
    validation: list[float], patience: int, max_layers: int
) -> None:
    """No action is repeated, and the depth is that of the best validation accuracy."""
    network = NetworkSpec(max_layers=max_layers, patience=patience)

    def accuracy(layer: int) -> Accuracy:
        return Accuracy(layer, 0.5, validation[layer % len(validation)])

    run, actions = History(), []
    while not actions or not isinstance(actions[-1], Done):
        actions.append(next_action(run, network))
        match actions[-1]:
            case Survey():
                run = History(surveyed=True)
            case Grow(layer):
                new = (accuracy(layer - 1),) if layer > 1 else ()
                run = History(True, layer, run.accuracies + new)
            case Score(layer):
                run = History(True, run.layers, (*run.accuracies, accuracy(layer)))
    assert len(set(actions)) == len(actions)
    assert run.layers <= max_layers
    best = max(a.validation or 0 for a in run.accuracies)
    assert actions[-1].depth == next(a.layer for a in run.accuracies if a.validation == best)
    layers_since = len(run.accuracies) - actions[-1].depth
    exhausted = layers_since == patience
    assert exhausted or (layers_since < patience and len(run.accuracies) == max_layers)


# the history from the records ------------------------------------------------------------------


def record(layer: int, validation: float | None = None) -> dict[str, Any]:
    """Return an accuracy as it is stored."""
    return {"layer": layer, "train": layer / 10, "validation": validation}


def test_history_from_commits() -> None:
    """The record of step i + 1 has the accuracy after layer i."""
    commits = [
        {"step": 0, "counts": []},
        {"step": 1, "accuracy": None},
        {"step": 2, "accuracy": record(1, 0.3)},
        {"step": 3, "accuracy": record(2, 0.4)},
    ]
    assert History.of([], None) == History()
    assert History.of(commits[:1], None) == History(surveyed=True)
    assert History.of(commits[:2], None) == History(True, 1)
    expected = (Accuracy(1, 0.1, 0.3), Accuracy(2, 0.2, 0.4))
    assert History.of(commits, None) == History(True, 3, expected)


def test_result_adds_accuracy_of_last_layer_only() -> None:
    """An older result, from before the run was resumed, adds nothing."""
    commits = [{"step": 0}, {"step": 1, "accuracy": None}, {"step": 2, "accuracy": record(1)}]
    newest = {"accuracies": [record(1), record(2)]}
    assert len(History.of(commits, newest).accuracies) == 2
    older = {"accuracies": [record(1)]}
    assert [a.layer for a in History.of(commits, older).accuracies] == [1]
    assert History.of(commits, {"accuracies": []}).layers == 2


def test_result_of_longer_run_is_ignored_after_lost_commit() -> None:
    """Without a commit record, the accuracies of later layers do not count."""
    commits = [{"step": 0}, {"step": 1, "accuracy": None}]
    result = {"accuracies": [record(1), record(2)]}
    assert History.of(commits, result) == History(True, 1)


@pytest.mark.parametrize(
    ("train", "layer"),
    [([0.9, 0.95, 0.94], None), ([0.5, 0.1, 0.6], 2), ([0.2, 0.9, 0.8, 0.7], 4), ([], None)],
)
def test_collapse_is_a_fall_far_below_the_best(train: list[float], layer: int | None) -> None:
    """The first layer at which it happens; small falls do not count."""
    accuracies = tuple(Accuracy(i, value, None) for i, value in enumerate(train, 1))
    found = find_collapse(accuracies, spec())
    assert (found[0].layer if found else None) == layer
    if found:
        assert found[1].train == max(train[: found[0].layer - 1])


@pytest.mark.parametrize("head", ["leave-one-out", "classify-leave-one-out", "kernel-ridge"])
@pytest.mark.parametrize(
    ("validation", "layer"),
    [(None, None), ([0.90, 0.91, 0.92], None), ([0.9, 0.5, 0.7], 2), ([0.9, 0.9, 0.6], 3)],
)
def test_leave_one_out_accuracy_falls_without_a_collapse(
    head: str, validation: list[float] | None, layer: int | None
) -> None:
    """Unless the validation accuracy falls as far, or images are not left out."""
    accuracies = history(3, [0.9, 0.6, 0.5], validation).accuracies
    found = find_collapse(accuracies, spec(head=head))
    assert (found[0].layer if found else None) == layer
    fitted = find_collapse(accuracies, spec(head=head, leverage_share=0))
    assert fitted == (accuracies[1], accuracies[0])


@pytest.mark.parametrize(
    ("head", "remedy"),
    [
        ("classify", "--head regress"),
        ("classify-leave-one-out", "--head leave-one-out"),
        ("regress", "below 2"),
    ],
)
def test_collapse_is_described_with_a_remedy(head: str, remedy: str) -> None:
    """The other head, or smaller steps."""
    network = NetworkSpec(head=head, learning_rate=2.0)
    text = describe_collapse(Accuracy(2, 0.1, None), Accuracy(1, 0.53, None), network)
    assert text.startswith("The training accuracy has fallen from 53.0 % to 10.0 % after layer 2.")
    assert remedy in text
