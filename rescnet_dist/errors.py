"""Exceptions and parts of their messages: each names the value, the limit and the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import numpy as np

SECRET_PATTERNS = (
    re.compile(r"(?<=://)[^/\s]+(?=@)"),  # user:password@
    re.compile(
        r"(?i)(?<=[?&;])([\w-]*(?:sig|signature|token|sas|key|secret|password|credential)=)"
        r"[^&;\s'\"]+"
    ),
)

MAX_VALUE_LENGTH = 200  # of a value in a message


def mask_secrets(text: str) -> str:
    """Replace the secrets of URLs in a text by asterisks.

    >>> mask_secrets("https://me:word@host/a.zarr?sig=abc&x=1")
    'https://***@host/a.zarr?sig=***&x=1'

    A password is also replaced where a library repeats a part of the URL:

    >>> mask_secrets('s3://me:word@host/a cannot be reached: Invalid bucket name "me:word@host"')
    's3://***@host/a cannot be reached: Invalid bucket name "***@host"'
    """
    for secret in SECRET_PATTERNS[0].findall(text):
        text = text.replace(secret, "***") if ":" in secret else text
    text = SECRET_PATTERNS[0].sub("***", text)
    return SECRET_PATTERNS[1].sub(r"\g<1>***", text)


class RescnetError(ValueError):
    """Base class of all errors of this package.

    Raised itself for input that has no class of its own, such as an unknown command argument. The
    message says what was found, what was expected and what to do. Secrets of URLs are masked.

    Parameters
    ----------
    message : str, default ""
        What went wrong and what to do.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(mask_secrets(message))


class SpecError(RescnetError):
    """An option is unknown, out of range, or does not fit the others or the images.

    Raised when a spec is created, and before a run starts. Change the option that the message
    names.
    """


class BackendError(RescnetError):
    """A library or a device of the array backend is missing.

    Raised for `array_backend="cupy"` on a machine or worker without CuPy or a GPU. Install the
    library that the message names, or use `array_backend="numpy"`.
    """


class DataError(RescnetError):
    """Images or labels cannot be used for training or prediction.

    Raised for arrays of a wrong shape or type, values that are not finite, and files that cannot be
    decoded. Change the data as the message says.
    """


class StoreError(RescnetError):
    """A run store or a stored network cannot be used.

    Raised if the URL is already taken, if the store cannot be written, and as one of the classes
    below if it cannot be read. Check the URL, or choose another.
    """


class ClaimLostError(StoreError):
    """Another driver has taken over the run.

    Raised in the driver that lost it, which stops without writing more. Let the other driver
    finish, or resume the run once it has stopped.
    """


class StoreReadError(StoreError):
    """A store answers, but what was asked for cannot be read.

    Raised if there is nothing at the URL, if it is damaged, or of another format or version. Trying
    again gives the same result. Check the URL.
    """


class CorruptDataError(StoreReadError):
    """A stored array or record is incomplete, altered or stale.

    Raised if stored data do not match their checksum or their commit record. List all damaged
    chunks with `rescnet check`.
    """


class StoreUnreachableError(StoreError):
    """A store does not answer, in most operations after two minutes of retries.

    The cause may be temporary. Resume the run once the store can be reached.
    """


class StoreFullError(StoreError):
    """There is too little space to write a store.

    Raised before a run starts if its first layers do not fit, and once a disk is full. Free some
    space, then run again or resume the run.
    """


class StorePermissionError(StoreReadError):
    """A store may not be read, because of missing credentials or permissions.

    Check the credentials and the permissions of the store.
    """


class ClusterError(RescnetError):
    """The Dask cluster cannot be used.

    Raised if no scheduler or no worker answers, if versions differ, or if workers are too small for
    the run, in part as one of the classes below. Fix the cluster as the message says, then run
    again.
    """


class ClusterUnreachableError(ClusterError):
    """No Dask scheduler listens at the address, or no worker joins the cluster.

    Start them, or wait longer for them (`--wait`), then run again.
    """


class ClusterLostError(ClusterError):
    """The connection to the Dask cluster was lost during a run.

    Finished layers are kept. Resume the run on a running cluster.
    """


class WorkersTooSmallError(ClusterError):
    """No plan of the run fits the memory of the workers or of their GPUs.

    Larger workers may join later. Start them, or change the option that the message names, then run
    again.
    """


class PassError(RescnetError):
    """A pass over the data failed repeatedly without finishing a chunk.

    The message has the cause of the last failure. Fix that, then resume the run.
    """


class SingularError(RescnetError, np.linalg.LinAlgError):
    """A covariance matrix cannot be inverted with the given ridge.

    Increase the ridge that the message names.
    """


def pluralize(number: int, noun: str) -> str:
    """Return a count and its noun, for nouns whose plural ends in s or es.

    >>> pluralize(1, "layer"), pluralize(1200, "class")
    ('1 layer', '1,200 classes')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def shorten_repr(value: object) -> str:
    """Return the representation of a value for a message, without its middle if it is long.

    >>> shorten_repr([1, "a"])
    "[1, 'a']"
    >>> len(shorten_repr(list(range(1000))))
    200
    """
    text, half = repr(value), (MAX_VALUE_LENGTH - 3) // 2
    if len(text) <= MAX_VALUE_LENGTH:
        return text
    return f"{text[: MAX_VALUE_LENGTH - 3 - half]} … {text[-half:]}"


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return sentences for error messages: the closest known name, if any, and all known names.

    >>> suggest_name("cifar", ["mnist", "cifar10"])
    "Did you mean 'cifar10'? Known: cifar10, mnist."
    """
    names = sorted(known)
    if not names:
        return "There are none."
    listing = f"Known: {', '.join(names)}."
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}? {listing}" if close else listing
