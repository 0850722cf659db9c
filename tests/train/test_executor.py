"""Waiting for the result of a pass when it takes longer than one timeout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, wait

from rescnet_dist.events.bus import EventBus
from rescnet_dist.train.executor import _wait_for_result


class LateFuture:
    """A finished future whose result times out a few times."""

    def __init__(self, client: Client, function: Any, timeouts: int) -> None:
        self.future, self.timeouts = client.submit(function, pure=False), timeouts
        wait(self.future)

    @property
    def status(self) -> str:
        """Status of the future."""
        return str(self.future.status)

    def exception(self, timeout: float) -> Any:
        """Return the exception of the future, if it has failed."""
        return self.future.exception(timeout)

    def result(self, timeout: float | None = None) -> Any:
        """Return the result, after some timeouts."""
        self.timeouts -= 1
        if self.timeouts >= 0:
            raise TimeoutError(f"timed out after {timeout} s")
        return self.future.result(timeout)


def make_failing_task(error: Exception) -> Any:
    """Return a task that raises this error."""

    def fail() -> None:
        raise error

    return fail


MONITOR: Any = SimpleNamespace(bus=EventBus([]))


def test_slow_result_is_waited_for(client: Client) -> None:
    """A pass that has just ended, or whose result takes long to fetch, has not failed."""
    future: Any = LateFuture(client, lambda: 7, timeouts=3)
    assert _wait_for_result(future, MONITOR, client) == 7


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("a task's own")])
def test_error_of_task_is_raised(client: Client, error: Exception) -> None:
    """A TimeoutError of the task itself is raised too, and not mistaken for the wait's."""
    future: Any = LateFuture(client, make_failing_task(error), timeouts=1)
    with pytest.raises(type(error), match=str(error)):
        _wait_for_result(future, MONITOR, client)
