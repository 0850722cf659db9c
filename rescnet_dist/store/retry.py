"""Retries with exponential backoff for transient errors of stores.

Only the primitive operations of this layer retry: those of `Location`, and reads and writes of
`StoredArray`. Everything else is built of them. When retries end, the error becomes a
`StoreUnreachableError`, which is never retried, so retries cannot multiply.

tenacity has been considered. It would replace the loop of `retry` and its waits. The rest, which
errors are transient and what is raised for them, would stay here, and each worker would need one
more package.
"""

from __future__ import annotations

import errno
import logging
import math
import random
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TypeVar

from rescnet_dist.errors import StoreError, StoreFullError, StoreUnreachableError, mask_secrets
from rescnet_dist.store.object_errors import (
    RETRIABLE_CLIENT_STATUS,
    THROTTLED_STATUS,
    MissingCredentialsError,
    translate_error,
)

RETRY_SECONDS = 120.0  # time limit for all attempts
THROTTLED_SECONDS = 30.0  # the same under `limit_retries` if the server asks for fewer requests
REPORT_SECONDS = 3.0  # for which an operation fails before its retries are reported
FIRST_RETRY_WAIT_SECONDS, MAX_RETRY_WAIT_SECONDS = 0.1, 10.0  # between two attempts

PERMANENT_ERRORS = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
OUT_OF_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PERMANENT_ERRNOS = (errno.EROFS, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG)
THROTTLED_MESSAGE = re.compile(r"(?i)slow ?down|too ?many ?requests|throttl|\b429\b|\b503\b")
CLOCK_CODE = "RequestTimeTooSkewed"  # of S3
CLOCK_TOLERANCE_SECONDS = 900  # of S3
CLOCK_REMEDY = (
    "The clock of the machine that sent the request differs too much from that of the store. Set "
    "it, then repeat the command."
)
# Errors of client libraries that are the same at every attempt: missing credentials and bad names.
CREDENTIAL_ERRORS = {
    "ClientAuthenticationError",
    "DefaultCredentialsError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
}
PERMANENT_CLIENT_ERRORS = {"ParamValidationError", *CREDENTIAL_ERRORS}
CLIENT_LIBRARIES = {"aiohttp", "aiobotocore", "azure", "botocore", "gcsfs", "google", "requests"}

MAX_REASON_LENGTH = 300  # characters of an error of a library in a message

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

Reporter = Callable[[str], None]

_reporter: ContextVar[Reporter | None] = ContextVar("retry_reporter", default=None)
_limit_seconds: ContextVar[float] = ContextVar("retry_limit_seconds", default=math.inf)


@contextmanager
def limit_retries(seconds: float) -> Iterator[None]:
    """Limit the retries of each store operation of the body, or of a decorated function.

    With 0, each operation has a single attempt, as when a user has just named the store: its URL
    may be wrong, and is reported at once. A server that asks for fewer requests is asked again for
    `THROTTLED_SECONDS`, as it is the right one. Operations of other threads are not limited.
    """
    token = _limit_seconds.set(min(seconds, _limit_seconds.get()))
    try:
        yield
    finally:
        _limit_seconds.reset(token)


@contextmanager
def report_retries(report: Reporter) -> Iterator[None]:
    """Call `report` with a sentence for each operation of the body that fails for a few seconds.

    Without it, the sentence is logged as a warning. Operations of other threads are not reported,
    unless `set_reporter` is called there.
    """
    token = _reporter.set(report)
    try:
        yield
    finally:
        _reporter.reset(token)


def get_reporter() -> Reporter | None:
    """Return what reports the retries of this thread."""
    return _reporter.get()


def set_reporter(report: Reporter | None) -> None:
    """Report the retries of this thread, which a task has started, by `report`."""
    _reporter.set(report)


def _report(error: BaseException, seconds: float) -> None:
    """Report that an operation fails and is retried for some more seconds."""
    problem = "asks for fewer requests" if is_throttled(error) else "does not answer"
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    sentence = (
        f"The store {problem}: {describe_failure(error)}. Requests are repeated for "
        f"{seconds:.0f} s, until {until:%H:%M:%S} UTC."
    )
    with suppress(Exception):  # as if the scheduler is lost, too
        (_reporter.get() or logger.warning)(mask_secrets(sentence))


def retry(action: Callable[[], Result]) -> Result:
    """Return the result of an idempotent action on a store; retry transient errors.

    Retries end after `RETRY_SECONDS`, or earlier under `limit_retries`. Then the last error is
    raised as it is, or as an OSError if it is one of obstore. An operation that fails for longer
    than `REPORT_SECONDS` is reported, once; see `report_retries`.
    """
    started, wait, is_reported = time.monotonic(), FIRST_RETRY_WAIT_SECONDS, False
    while True:
        try:
            return action()
        except Exception as raised:
            error = translate_error(raised)
            limit = max(_limit_seconds.get(), THROTTLED_SECONDS if is_throttled(error) else 0)
            limit, elapsed = min(RETRY_SECONDS, limit), time.monotonic() - started
            if not is_transient(error) or elapsed + wait > limit:
                if error is raised:
                    raise
                raise error from None
            if not is_reported and elapsed + wait > REPORT_SECONDS:
                _report(error, limit - elapsed)
                is_reported = True
        time.sleep(wait * random.uniform(0.5, 1))
        wait = min(2 * wait, MAX_RETRY_WAIT_SECONDS)


def with_retries(
    action: Callable[[], Result], description: str, failure: type[StoreError] = StoreError
) -> Result:
    """Return the result of an idempotent action on a store; `description` names it in errors.

    Transient errors are retried, then become a `StoreUnreachableError`. Permanent errors of the
    store become a `failure`; other errors are raised as they are.
    """
    started = time.monotonic()
    try:
        return retry(action)
    except Exception as error:
        if not is_store_failure(error):
            raise
        problem = _translate_error(error, description, time.monotonic() - started, failure)
    raise problem  # Not inside `except`: an error of a client library may fail to unpickle.


def is_transient(error: BaseException) -> bool:
    """Return whether an error of a store may be gone at the next attempt.

    >>> is_transient(ConnectionResetError()), is_transient(FileNotFoundError())
    (True, False)
    >>> is_transient(KeyError()), is_transient(StoreUnreachableError())
    (False, False)
    """
    if isinstance(error, OSError):
        return not isinstance(error, PERMANENT_ERRORS) and error.errno not in (
            *OUT_OF_SPACE_ERRNOS,
            *PERMANENT_ERRNOS,
        )
    status = getattr(error, "status", None)
    if isinstance(status, int) and status >= 400 and not is_retriable_status(status):
        return False
    return _is_of_client(error) and not _is_named(error, PERMANENT_CLIENT_ERRORS)


def is_throttled(error: BaseException) -> bool:
    """Return whether an error is the answer of a server that asks for fewer requests.

    >>> is_throttled(OSError(errno.EBUSY, "Please reduce your request rate"))
    True
    >>> is_throttled(OSError(errno.EIO, "An error occurred (TooManyRequests)"))
    True
    >>> is_throttled(ConnectionRefusedError())
    False
    """
    if getattr(error, "status", None) in THROTTLED_STATUS:
        return True
    is_busy = isinstance(error, OSError) and error.errno == errno.EBUSY  # for 503
    return is_busy or (is_transient(error) and THROTTLED_MESSAGE.search(str(error)) is not None)


def lacks_credentials(error: BaseException) -> bool:
    """Return whether an error of a client library says that there are no usable credentials."""
    if isinstance(error, MissingCredentialsError):
        return True
    return _is_of_client(error) and _is_named(error, CREDENTIAL_ERRORS)


def is_clock_wrong(error: BaseException) -> bool:
    """Return whether a request was refused because of the clock of this machine.

    The server says so, or its own time in the answer does: an answer to HEAD has no text.
    """
    if any(CLOCK_CODE in str(e) for e in (error, error.__cause__)):
        return True
    response = getattr(error.__cause__, "response", None)
    if not isinstance(error, PermissionError) or not isinstance(response, dict):
        return False
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        server_seconds = parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return False
    return abs(time.time() - server_seconds) > CLOCK_TOLERANCE_SECONDS


def _is_of_client(error: BaseException) -> bool:
    """Return whether an error is of a library that talks to stores."""
    return type(error).__module__.split(".")[0] in CLIENT_LIBRARIES


def _is_named(error: BaseException, names: Set[str]) -> bool:
    """Return whether the class of an error, or a base of it, has one of the names.

    The libraries need not be installed.
    """
    return any(kind.__name__ in names for kind in type(error).__mro__)


def is_retriable_status(status: int) -> bool:
    """Return whether a request that failed with this HTTP status may succeed later.

    >>> is_retriable_status(503), is_retriable_status(429), is_retriable_status(404)
    (True, True, False)
    """
    return status >= 500 or status in RETRIABLE_CLIENT_STATUS


def is_out_of_space(error: BaseException) -> bool:
    """Return whether an error says that there is no space left to write."""
    return isinstance(error, OSError) and error.errno in OUT_OF_SPACE_ERRNOS


def is_store_failure(error: BaseException) -> bool:
    """Return whether an error comes from a file system or a client library, and is translated."""
    if isinstance(error, OSError) or is_transient(error):
        return True
    return _is_of_client(error) and _is_named(error, PERMANENT_CLIENT_ERRORS)


def describe_failure(error: BaseException) -> str:
    """Return the message of an error on one line, cut if it is long; or the name of its class."""
    message = textwrap.shorten(str(error), MAX_REASON_LENGTH, placeholder=" …").rstrip(".")
    return message or type(error).__name__


def _translate_error(
    error: Exception, description: str, elapsed: float, failure: type[StoreError]
) -> StoreError:
    """Return the StoreError for an error of a store, with a remedy."""
    reason = describe_failure(error)
    if is_out_of_space(error):
        return StoreFullError(
            f"{description} cannot be written: {reason}. Free some space, then resume the run."
        )
    if is_transient(error):
        return StoreUnreachableError(
            f"{description} has failed for {elapsed:.0f} s: {reason}. "
            "Check the store, then resume the run."
        )
    remedy = CLOCK_REMEDY if is_clock_wrong(error) else "Check the URL and your permissions."
    return failure(f"{description} failed: {reason}. {remedy}")
