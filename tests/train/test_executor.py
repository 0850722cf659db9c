"""Waiting for the result of a pass, on machines where all takes longer than one waits at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, wait

from rescnet_dist.train.events import EventBus
from rescnet_dist.train.executor import _wait_for


class Late:
    """A future that is done, but only just, so that one has waited in vain a few times."""

    def __init__(self, client: Client, function: Any, times: int) -> None:
        self.future, self.left = client.submit(function, pure=False), times
        wait(self.future)

    @property
    def status(self) -> str:
        """Of the future."""
        return str(self.future.status)

    def exception(self, timeout: float) -> Any:
        """What went wrong, if anything did."""
        return self.future.exception(timeout)

    def result(self, timeout: float | None = None) -> Any:
        """The result, unless it is too early for it."""
        self.left -= 1
        if self.left >= 0:
            raise TimeoutError(f"timed out after {timeout} s")
        return self.future.result(timeout)


def failing(error: Exception) -> Any:
    """A task that fails."""

    def fail() -> None:
        raise error

    return fail


WATCH: Any = SimpleNamespace(tell=EventBus([]))


def test_a_result_is_waited_for_until_it_is_fetched(client: Client) -> None:
    """A pass that has just ended, or whose result takes long to fetch, has not failed."""
    late: Any = Late(client, lambda: 7, times=3)
    assert _wait_for(late, WATCH, client) == 7


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("a task's own")])
def test_what_a_task_has_raised_is_raised(client: Client, error: Exception) -> None:
    """Not that one has waited, and a task's own TimeoutError is not waited out."""
    late: Any = Late(client, failing(error), times=1)
    with pytest.raises(type(error), match=str(error)):
        _wait_for(late, WATCH, client)
