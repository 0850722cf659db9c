"""Errors of obstore as those of Python: each status of a server has one kind of OSError."""

from __future__ import annotations

import errno
import re
from html import unescape

STATUS = re.compile(r"status code: (\d{3})\b ?([A-Za-z ]*)")
CODE = re.compile(r"<Code>([^<]*)</Code>")
MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
DEBUG_OUTPUT = re.compile(r"\s*Debug source:.*", re.DOTALL)  # repeats the message at length
REQUEST = re.compile(r"in [\d.]+[µnm]?s(, after \d+ retries, .*?)? +- ")  # ends its description
SERVER = re.compile(r"(https?://)(?:[^/@\s]*@)?([^/?\s]+)")
# Where a client looks for credentials if it was given none: on AWS, Google Cloud and Azure
CREDENTIAL_REQUEST = re.compile(
    r"/latest/(api/token|meta-data/)|/metadata/identity/|/computeMetadata/"
)

THROTTLED_STATUS = (429, 503)
DENIED_STATUS = (401, 403)
DENIED_CODE = "ExpiredToken"  # of S3, with status 400
TIMEOUT_CODE = "RequestTimeout"  # of S3, with status 400: a body did not arrive in time
REDIRECT_MESSAGE = "redirect without LOCATION"  # by S3, if a bucket is in another region
RETRIABLE_CLIENT_STATUS = (408, 425, 429)  # HTTP client errors that may succeed later
DENIED_CLASSES = {"PermissionDeniedError", "UnauthenticatedError"}
PERMANENT_CLASSES = {"InvalidPathError", "NotSupportedError", "UnknownConfigurationKeyError"}


class MissingCredentialsError(PermissionError):
    """No credentials are set, and the machine has none of its own."""


def translate_error(error: Exception) -> Exception:
    """Return the OSError for an error of obstore; other errors are returned as they are.

    obstore has one class for most answers of a server, and tells them apart in its message.
    """
    is_own = type(error).__module__.split(".")[0] == "obstore"
    text = str(error)
    if not is_own:
        has_debug_output = isinstance(error, FileNotFoundError) and "Debug source:" in text
        return FileNotFoundError(_shorten(text)) if has_debug_output else error
    name, reason = type(error).__name__, _shorten(text)
    if CREDENTIAL_REQUEST.search(text):
        return MissingCredentialsError(f"there are no credentials ({reason})")
    found, code = STATUS.search(text), CODE.search(text)
    status = int(found[1]) if found else None
    if status == 409:  # Another request is changing the same object.
        return OSError(errno.EBUSY, reason)
    if name == "AlreadyExistsError":
        return FileExistsError(reason)
    if name in DENIED_CLASSES or status in DENIED_STATUS or (code and code[1] == DENIED_CODE):
        return PermissionError(reason)
    if code and code[1] == TIMEOUT_CODE:
        return TimeoutError(errno.ETIMEDOUT, reason)
    if status == 404:
        return FileNotFoundError(reason)
    if status in THROTTLED_STATUS:
        return OSError(errno.EBUSY, reason)
    if name in PERMANENT_CLASSES or _is_refused(status) or REDIRECT_MESSAGE in text:
        return OSError(errno.EINVAL, reason)
    if status == 507:
        return OSError(errno.ENOSPC, reason)
    return OSError(errno.EIO, reason)


def _is_refused(status: int | None) -> bool:
    """Return whether a status says that the same request will fail again."""
    return status is not None and 400 <= status < 500 and status not in RETRIABLE_CLIENT_STATUS


def _shorten(text: str) -> str:
    """Return what the server has answered, or the message of obstore without its debug output.

    The latter is followed by the server, without the path and what may be secret.

    >>> _shorten("Generic S3 error: Error performing GET http://host in 1.2ms - HTTP error: closed")
    'HTTP error: closed (http://host)'
    >>> _shorten("Error performing GET http://a/b?c in 2s, after 1 retries, max_retries: 1  - lost")
    'lost (http://a)'
    >>> _shorten("status code: 503 Unavailable: <Code>SlowDown</Code><Message>Wait</Message>")
    '503 Unavailable, SlowDown: Wait'
    """
    text = DEBUG_OUTPUT.sub("", text)
    if status := STATUS.search(text):
        answer = f"{status[1]} {status[2]}".strip()
        parts = [
            unescape(found[1]) for pattern in (CODE, MESSAGE) if (found := pattern.search(text))
        ]
        return f"{answer}, {': '.join(parts)}" if parts else answer
    request, *message = REQUEST.split(text, maxsplit=1)
    server = SERVER.search(request) if message else None
    reason = (message or [request])[-1].strip()
    return f"{reason} ({server[1]}{server[2]})" if server else reason
