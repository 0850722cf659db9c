"""A small run and helpers for the tests of faults."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from rescnet_dist import (
    NetworkSpec,
    ResCNetClassifier,
    RunSpec,
    load_digits,
)
from rescnet_dist.cli import main
from rescnet_dist.events import Event, PassRetried

Model = dict[str, np.ndarray[Any, Any]]

X, Y = (array[:60] for array in load_digits())
X = X[:, ::2, ::2]
LAYERS = 3
SPEC = NetworkSpec(
    filters=3,
    first_filter_size=3,
    block=7,
    stride=7,
    head="regress",
    max_layers=LAYERS,
    stop_at_zero_error=False,
)
# 6 chunks in 3 groups; maps go through the store, so that its faults have an effect
RUN = RunSpec(validation=0, chunk_images=10, accumulators=3, solve_threads=1, maps="store")
SHORT_TIMEOUT = {"distributed.comm.timeouts.connect": "2s"}
ONE_GROUP = RUN.replace(accumulators=1)  # one task, so that the failure is always its own
RESCNET = Path(sys.executable).parent / "rescnet"


def fit(store: Any, images: Any = X, spec: NetworkSpec = SPEC, **options: Any) -> ResCNetClassifier:
    """Train in a store."""
    options = {"run": RUN, **options}
    labels = None if isinstance(images, str) else Y
    return ResCNetClassifier(spec, store=store, **options).fit(images, labels)


def run_command(*arguments: Any) -> Any:
    """Run `rescnet` in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def act_on(
    kind: type[Event], layer: int, action: Callable[[], Any], times: int = 1
) -> Callable[[Event], None]:
    """Return a listener that acts on the first events of a kind in a layer."""
    remaining = iter(range(times))

    def listen(event: Event) -> None:
        if isinstance(event, kind) and event.layer == layer and next(remaining, None) is not None:
            action()

    return listen


def get_retry_reasons(events: list[Event]) -> list[str]:
    """Return why passes were retried."""
    return [event.reason for event in events if isinstance(event, PassRetried)]
