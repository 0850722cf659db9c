"""The errors that users meet: each message names the value, the limit and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import numpy as np


class RescnetError(ValueError):
    """Something the user gave cannot be used; the message says what, why and what to do."""


class SpecError(RescnetError):
    """A field of a spec is out of range, unknown, or does not fit the images."""


class DataError(RescnetError):
    """Images or labels cannot be trained on or predicted from."""


class StoreError(RescnetError):
    """A run store or a stored network is missing, foreign, newer or damaged."""


class ClusterError(RescnetError):
    """The Dask cluster cannot be used."""


class SingularError(RescnetError, np.linalg.LinAlgError):
    """A covariance has no inverse at the ridge that was asked for."""


def nearest_name(name: str, known: Iterable[str]) -> str:
    """A clause for error messages: the nearest known name and the list of all of them.

    >>> nearest_name("cifar", ["mnist", "cifar10"])
    "did you mean 'cifar10'? Known: cifar10, mnist"
    """
    names = sorted(known)
    listing = "Known: " + ", ".join(names)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}? {listing}" if close else listing
