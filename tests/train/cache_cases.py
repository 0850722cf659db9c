"""A small run with maps in memory, and helpers to compare such runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.events import Event, Listener, PassDone
from rescnet_dist.model.heads.linear import LinearHead
from rescnet_dist.store import RunStore, read_layer

X, Y = (array[:240] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(
    filters=4,
    first_filter_size=3,
    block=5,
    stride=2,
    learning_rate=0.5,
    max_layers=7,
    head="regress",
    ridge=0.3,
    stop_at_zero_error=False,
)
RUN = RunSpec(chunk_images=50, accumulators=3, validation=0.2, solve_threads=1, checkpoint_every=3)


class Stopped(KeyboardInterrupt):
    """Raised by a listener to stop a run."""


def fit(
    store: Any, spec: NetworkSpec = SPEC, run: RunSpec = RUN, **options: Any
) -> ResCNetClassifier:
    """Train on small digits."""
    return ResCNetClassifier(spec, store=store, run=run, **options).fit(X, Y)


def stop_after(layer: int) -> Any:
    """Return a listener that stops a run once a layer is committed."""

    def listen(event: Event) -> None:
        if isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", layer):
            raise Stopped

    return listen


def collect(kind: type[Event], events: list[Any]) -> Listener:
    """Return a listener that appends the events of a kind to a list."""

    def listen(event: Event) -> None:
        if isinstance(event, kind):
            events.append(event)

    return listen


def read_weights(url: Any) -> list[np.ndarray[Any, Any]]:
    """Read the filters and weights of all layers of a run."""
    run = RunStore.open(url)
    layers = [read_layer(run.location, n, LinearHead.arrays) for n in range(1, len(run.commits()))]
    return [a for la in layers for a in (la.bank.filters, la.bank.bias, la.head.arrays["weights"])]


def list_stored_layers(url: Any) -> list[int]:
    """Return the layers whose maps were committed to the store."""
    commits = RunStore.open(url).commits()
    return [n for n, record in enumerate(commits) if f"maps/{n:04d}" in record["checksums"]]


def is_same(one: list[Any], other: list[Any]) -> bool:
    """Return whether all arrays are equal in every bit."""
    return len(one) == len(other) and all(
        np.array_equal(a, b) for a, b in zip(one, other, strict=True)
    )
