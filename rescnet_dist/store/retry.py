"""Retries with exponential backoff for transient errors of stores."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from typing import TypeVar

from rescnet_dist.errors import StoreError, StoreUnreachableError

RETRY_SECONDS = 120.0  # time limit for all attempts
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
RETRIABLE_STATUS = (408, 425, 429)  # HTTP client errors that may succeed later
CLIENT_LIBRARIES = {"aiohttp", "aiobotocore", "azure", "botocore", "gcsfs", "google", "requests"}

Result = TypeVar("Result")


def is_transient(error: BaseException) -> bool:
    """Return whether an error of a store may be gone at the next attempt.

    >>> is_transient(ConnectionResetError()), is_transient(FileNotFoundError())
    (True, False)
    >>> is_transient(KeyError())
    False
    """
    if isinstance(error, OSError):
        return not isinstance(error, PERMANENT_ERRORS) and error.errno not in (
            *OUT_OF_SPACE_ERRNOS,
            *PERMANENT_ERRNOS,
        )
    if isinstance(error, StoreUnreachableError):
        return not error.retried
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500 and status not in RETRIABLE_STATUS:
        return False
    return type(error).__module__.split(".")[0] in CLIENT_LIBRARIES


def with_retries(
    action: Callable[[], Result], description: str, *, timeout: float = RETRY_SECONDS
) -> Result:
    """Return the result of an idempotent action on a store; `description` names it in errors.

    Transient errors are retried for up to `timeout` seconds, then become a
    `StoreUnreachableError`. Permanent errors of the store become a `StoreError`; other errors are
    raised as they are.
    """
    started, wait = time.monotonic(), FIRST_RETRY_WAIT_SECONDS
    while True:
        try:
            return action()
        except Exception as error:
            elapsed = time.monotonic() - started
            if not is_transient(error) or elapsed + wait > timeout:
                if isinstance(error, StoreError) or not (
                    isinstance(error, OSError) or is_transient(error)
                ):
                    raise
                failure = _translate_error(error, description, elapsed)
            else:
                failure = None
        if failure:  # Not inside `except`: an error of a client library may fail to unpickle.
            raise failure
        time.sleep(wait * random.uniform(0.5, 1))
        wait = min(2 * wait, MAX_RETRY_WAIT_SECONDS)


def is_out_of_space(error: BaseException) -> bool:
    """Return whether an error says that there is no space left to write."""
    return isinstance(error, OSError) and error.errno in OUT_OF_SPACE_ERRNOS


def _translate_error(error: Exception, description: str, elapsed: float) -> StoreError:
    """Return the StoreError for an error of a store, with a remedy."""
    reason = str(error) or type(error).__name__
    if is_out_of_space(error):
        return StoreError(
            f"{description} cannot be written: {reason}. Free some space, then resume the run."
        )
    if is_transient(error):
        failure = StoreUnreachableError(
            f"{description} has failed for {elapsed:.0f} s: {reason}. "
            "Check the store, then resume the run."
        )
        failure.retried = True
        return failure
    return StoreError(f"{description} failed: {reason}. Check the URL and your permissions.")
