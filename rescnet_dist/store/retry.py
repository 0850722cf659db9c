"""Patience with stores: what fails in passing is tried again, ever more slowly."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from typing import TypeVar

from rescnet_dist.errors import StoreError, StoreUnreachableError

PATIENCE = 120.0  # seconds after which a store that fails is given up
FIRST_WAIT, LONGEST_WAIT = 0.1, 10.0  # seconds between two tries

LASTING = (
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError),
)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (errno.EROFS, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG)
BUSY = (408, 425, 429)  # of the refusals of an HTTP server those that may pass
CLIENT_LIBRARIES = {"aiohttp", "aiobotocore", "azure", "botocore", "gcsfs", "google", "requests"}

Result = TypeVar("Result")


def is_transient(error: BaseException) -> bool:
    """Whether an error of a store may be gone at the next try.

    >>> is_transient(ConnectionResetError()), is_transient(FileNotFoundError()), is_transient(KeyError())
    (True, False, False)
    """
    if isinstance(error, OSError):
        return not isinstance(error, LASTING) and error.errno not in (*NO_ROOM, *REFUSED)
    if isinstance(error, StoreUnreachableError):
        return True
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500 and status not in BUSY:
        return False
    return type(error).__module__.split(".")[0] in CLIENT_LIBRARIES


def with_retries(action: Callable[[], Result], what: str, *, patience: float = PATIENCE) -> Result:
    """The result of an action on a store that can be repeated; `what` names it in errors.

    Errors that may pass are waited out, up to `patience` seconds. Errors of the store, then and
    else, become a `StoreError`; others are raised as they are.
    """
    began, wait = time.monotonic(), FIRST_WAIT
    while True:
        try:
            return action()
        except Exception as error:
            elapsed = time.monotonic() - began
            if not is_transient(error) or elapsed + wait > patience:
                if isinstance(error, StoreError) or not (
                    isinstance(error, OSError) or is_transient(error)
                ):
                    raise
                problem = _problem(error, what, elapsed)
            else:
                problem = None
        if problem:  # not inside `except`: a library's own error may not survive its way back
            raise StoreError(problem)
        time.sleep(wait * random.uniform(0.5, 1))
        wait = min(2 * wait, LONGEST_WAIT)


def is_out_of_space(error: BaseException) -> bool:
    """Whether an error says that there is no room to write."""
    return isinstance(error, OSError) and error.errno in NO_ROOM


def _problem(error: Exception, what: str, elapsed: float) -> str:
    """What to say of an error of a store."""
    reason = str(error) or type(error).__name__
    if is_out_of_space(error):
        return f"{what} cannot be written: {reason}; make room, then resume the run"
    if is_transient(error):
        return f"{what} has failed for {elapsed:.0f} s: {reason}; check the store, then resume"
    return f"{what} failed: {reason}; check the URL and your rights"
