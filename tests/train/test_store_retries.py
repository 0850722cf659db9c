"""Retries of store operations: transient errors are retried, permanent ones raised at once."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from aiohttp import ServerDisconnectedError
from botocore.exceptions import EndpointConnectionError
from distributed import Client
from fault_cases import (
    Model,
    fit,
    get_retry_reasons,
)
from models import assert_same_bits, read_model

from rescnet_dist import (
    DataError,
    StoreError,
)
from rescnet_dist.cli.group import exit_codes
from rescnet_dist.errors import StoreUnreachableError
from rescnet_dist.events import Event
from rescnet_dist.store import arrays, limit_retries, retry
from rescnet_dist.store.retry import with_retries
from rescnet_dist.train import verify_run


class Clock:
    """A fake clock, whose sleep returns at once."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    def monotonic(self) -> float:
        """Return the fake time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the fake time."""
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock of the retries."""
    clock = Clock()
    monkeypatch.setattr(retry, "time", clock)
    return clock


class Failing:
    """An action that fails with the given errors in turn before it succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.attempts = errors, 0

    def __call__(self) -> str:
        """Fail with the next error, or succeed."""
        self.attempts += 1
        if self.attempts <= len(self.errors):
            raise self.errors[self.attempts - 1]
        return "done"


TRANSIENT_ERRORS = {
    "reset": ConnectionResetError(errno.ECONNRESET, "reset by peer"),
    "timeout": TimeoutError("timed out"),
    "input/output": OSError(errno.EIO, "input/output error"),
    "unnamed": OSError("SlowDown: please reduce your request rate"),
    "botocore": EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
    "aiohttp": ServerDisconnectedError(),
}


@pytest.mark.parametrize("error", TRANSIENT_ERRORS.values(), ids=TRANSIENT_ERRORS.keys())
def test_transient_errors_are_retried_with_backoff(clock: Clock, error: Exception) -> None:
    """Each wait is up to twice as long as the one before, up to a limit."""
    action = Failing(*[error] * 10)
    assert with_retries(action, "writing") == "done"
    assert action.attempts == 11
    for number, wait in enumerate(clock.waits):
        limit = min(retry.FIRST_RETRY_WAIT_SECONDS * 2**number, retry.MAX_RETRY_WAIT_SECONDS)
        assert limit / 2 <= wait <= limit
    assert len(set(clock.waits)) == 10, "many workers must not retry at the same moment"


def test_retries_end(clock: Clock) -> None:
    """They end after about the given time; the error says how long, and what to do."""
    action = Failing(*[ConnectionResetError("gone")] * 1000)
    message = r"^maps/0001 .* has failed for \d+ s: gone"
    with limit_retries(50), pytest.raises(StoreUnreachableError, match=message):
        with_retries(action, "maps/0001 of s3://runs/x")
    assert 35 <= clock.now <= 50
    assert action.attempts == len(clock.waits) + 1 > 5
    action = Failing(*[ConnectionResetError("gone")] * 1000)
    with pytest.raises(StoreUnreachableError, match="Check the store, then resume the run"):
        with_retries(action, "maps/0001")
    assert action.attempts < 40


def test_long_retries_are_reported_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Within seconds, with the server and when they end; without a reporter as a warning."""
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "connection to http://host:1 refused")
    reports: list[tuple[float, str]] = []
    with retry.report_retries(lambda reason: reports.append((clock.now, reason))):
        with_retries(Failing(*[refused] * 4), "writing")  # for less than a second
        assert reports == []
        clock.now = 0
        with pytest.raises(StoreUnreachableError):
            with_retries(Failing(*[refused] * 1000), "writing")
    ((moment, reason),) = reports
    assert moment < retry.REPORT_SECONDS
    assert re.fullmatch(
        r"The store does not answer: .*http://host:1 refused\. Requests are repeated for 11\d s, "
        r"until \d\d:\d\d:\d\d UTC\.",
        reason,
    )
    assert not caplog.records
    with_retries(Failing(*[OSError(errno.EBUSY, "SlowDown")] * 8), "writing")
    (record,) = caplog.records
    assert "The store asks for fewer requests" in record.getMessage()


def test_failing_reporter_does_not_end_retries(clock: Clock) -> None:
    """As when the scheduler is lost, too."""
    with retry.report_retries(lambda _: 1 / 0):
        assert with_retries(Failing(*[TimeoutError("timed out")] * 10), "writing") == "done"


def test_nested_retries_do_not_start_over(clock: Clock) -> None:
    """An action that has retries itself fails after one timeout, not after two."""
    action = Failing(*[ConnectionResetError("gone")] * 1000)
    with limit_retries(50), pytest.raises(StoreUnreachableError, match=r"^inner has failed"):
        with_retries(lambda: with_retries(action, "inner"), "outer")
    assert clock.now <= 50


def test_limits_of_retries_are_nested(clock: Clock) -> None:
    """The smallest counts, and the limit of the module again after them; 0 is one attempt."""
    with limit_retries(20):
        for seconds in (0, 5, 1000):
            action, started = Failing(*[ConnectionResetError("gone")] * 1000), clock.now
            with limit_retries(seconds), pytest.raises(StoreUnreachableError):
                with_retries(action, "reading")
            assert clock.now - started <= min(seconds, 20)
            assert (action.attempts == 1) == (seconds == 0)
    started = clock.now
    with pytest.raises(StoreUnreachableError):
        with_retries(Failing(*[ConnectionResetError("gone")] * 1000), "reading")
    assert clock.now - started > 100


def test_unreachable_store_ends_a_command_with_code_75() -> None:
    """The command can be repeated, as for a lost cluster."""
    with pytest.raises(SystemExit) as stop, exit_codes():
        raise StoreUnreachableError("s3://runs/x has failed for 120 s")
    assert stop.value.code == 75


PERMANENT_ERRORS: dict[str, tuple[Exception, type[Exception], str]] = {
    "missing": (FileNotFoundError("no such"), StoreError, "maps failed: no such. Check the URL"),
    "forbidden": (PermissionError("403"), StoreError, "maps failed: 403. .* your permissions"),
    "a folder": (IsADirectoryError("a folder"), StoreError, "maps failed: a folder"),
    "full": (
        OSError(errno.ENOSPC, "No space left on device"),
        StoreError,
        "maps cannot be written: .*No space left on device. Free some space, then resume the run",
    ),
    "quota": (OSError(errno.EDQUOT, "Quota exceeded"), StoreError, "Free some space, then resume"),
    "read-only": (OSError(errno.EROFS, "Read-only"), StoreError, "Read-only. .*your permissions"),
    "RescnetError": (StoreError("as it is"), StoreError, "^as it is$"),
    "RescnetError, unreachable": (
        StoreUnreachableError("s3://runs/x cannot be reached"),
        StoreUnreachableError,
        "^s3://runs/x cannot be reached$",
    ),
    "RescnetError, data": (DataError("as it is"), DataError, "^as it is$"),
    "bug": (KeyError("x"), KeyError, "^'x'$"),
}


@pytest.mark.parametrize(
    ("error", "kind", "words"), PERMANENT_ERRORS.values(), ids=PERMANENT_ERRORS.keys()
)
def test_permanent_errors_are_raised_at_once(
    clock: Clock, error: Exception, kind: type[Exception], words: str
) -> None:
    """They are not retried; those of a store become a StoreError that says what to do."""
    action = Failing(error)
    with pytest.raises(kind, match=words):
        with_retries(action, "maps")
    assert (action.attempts, clock.waits) == (1, [])


@pytest.mark.slow
def test_transient_store_failures_change_no_bit(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault_free_model: Model
) -> None:
    """Every third write of a chunk fails once, after wrong values were written."""
    calls = iter(range(10_000))

    def make_failing(write: Callable[..., None]) -> Callable[..., None]:
        def fail(array: Any, selection: Any, values: Any, **options: Any) -> None:
            if isinstance(array, arrays.StoredArray) and next(calls) % 3 == 1:
                write(array, selection, np.zeros_like(values), **options)
                raise ConnectionResetError("gone")
            write(array, selection, values, **options)

        return fail

    for name in ("set_basic_selection", "set_orthogonal_selection"):
        monkeypatch.setattr(zarr.Array, name, make_failing(getattr(zarr.Array, name)))
    monkeypatch.setattr(retry, "FIRST_RETRY_WAIT_SECONDS", 0.01)
    events: list[Event] = []
    fit(tmp_path / "run", listeners=[events.append])
    assert next(calls) > 50
    assert get_retry_reasons(events) == []
    assert_same_bits(read_model(tmp_path / "run"), fault_free_model)
    assert verify_run(tmp_path / "run") == []
