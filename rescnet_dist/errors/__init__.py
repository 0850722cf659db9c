"""Exceptions and parts of their messages: each names the value, the limit and the remedy."""

from typing import TYPE_CHECKING

from rescnet_dist._lazy import attach
from rescnet_dist.errors.classes import (
    BackendError,
    ClaimLostError,
    ClusterError,
    ClusterLostError,
    ClusterUnreachableError,
    CorruptDataError,
    DataError,
    PassError,
    RescnetError,
    SpecError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreReadError,
    StoreUnreachableError,
    WorkersTooSmallError,
)
from rescnet_dist.errors.messages import (
    is_path,
    mask_secrets,
    pluralize,
    shorten_repr,
    suggest_closest,
    suggest_name,
    url_word,
)

if TYPE_CHECKING:
    from rescnet_dist.errors.singular import SingularError

__all__ = [
    "BackendError",
    "ClaimLostError",
    "ClusterError",
    "ClusterLostError",
    "ClusterUnreachableError",
    "CorruptDataError",
    "DataError",
    "PassError",
    "RescnetError",
    "SingularError",
    "SpecError",
    "StoreError",
    "StoreFullError",
    "StorePermissionError",
    "StoreReadError",
    "StoreUnreachableError",
    "WorkersTooSmallError",
    "is_path",
    "mask_secrets",
    "pluralize",
    "shorten_repr",
    "suggest_closest",
    "suggest_name",
    "url_word",
]

# It needs NumPy, whose import takes most of the time that `--help` has.
__getattr__, __dir__ = attach(__name__, {"singular": ("SingularError",)})
