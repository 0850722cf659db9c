"""The errors that users meet: each message names the value, the limit and the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import numpy as np

SECRETS = (
    re.compile(r"(?<=://)[^/\s]+(?=@)"),  # user:password@
    re.compile(
        r"(?i)(?<=[?&;])([\w-]*(?:sig|signature|token|sas|key|secret|password|credential)=)"
        r"[^&;\s'\"]+"
    ),
)


def mask_secrets(text: str) -> str:
    """The text without the secrets that URLs in it may carry.

    >>> masked("https://me:word@host/a.zarr?sig=abc&x=1")
    'https://***@host/a.zarr?sig=***&x=1'
    """
    text = SECRETS[0].sub("***", text)
    return SECRETS[1].sub(r"\g<1>***", text)


class RescnetError(ValueError):
    """Something the user gave cannot be used; the message says what, why and what to do."""

    def __init__(self, message: str = "") -> None:
        super().__init__(mask_secrets(message))


class SpecError(RescnetError):
    """A field of a spec is out of range, unknown, or does not fit the images."""


class BackendError(RescnetError):
    """A library or a device that arrays are to be worked on with is not there."""


class DataError(RescnetError):
    """Images or labels cannot be trained on or predicted from."""


class StoreError(RescnetError):
    """A run store or a stored network is missing, foreign, newer or damaged."""


class ClaimLostError(StoreError):
    """Another driver has taken the run over."""


class CorruptDataError(StoreError):
    """Something stored is missing in part, altered or stale."""


class StoreUnreachableError(StoreError):
    """A store does not answer, which may pass."""


class StoreClosedError(StoreError):
    """A store, or a part of one, is there, and not for this user to read."""


class ClusterError(RescnetError):
    """The Dask cluster cannot be used."""


class ClusterLostError(ClusterError):
    """The Dask cluster went away in the middle of a run, which can be resumed."""


class PassError(RescnetError):
    """A pass over the data failed again and again on the same chunk."""


class SingularError(RescnetError, np.linalg.LinAlgError):
    """A covariance has no inverse at the ridge that was asked for."""


def pluralize(number: int, what: str) -> str:
    """A number of things in words; for those whose plural is made by s or es.

    >>> counted(1, "layer"), counted(1200, "class")
    ('1 layer', '1,200 classes')
    """
    ending = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{ending}"


def suggest_name(name: str, known: Iterable[str]) -> str:
    """A clause for error messages: the nearest known name and the list of all of them.

    >>> suggest_name("cifar", ["mnist", "cifar10"])
    "did you mean 'cifar10'? Known: cifar10, mnist"
    """
    names = sorted(known)
    listing = "Known: " + ", ".join(names)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}? {listing}" if close else listing
