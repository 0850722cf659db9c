"""The backend of a URL: what reads and writes its objects, and the rule that chooses it.

| URL | backend |
| --- | --- |
| a path | `LocalBackend` |
| s3://, gs://, az:// and their other spellings, if obstore is installed | `ObstoreBackend` |
| any other fsspec URL | `FsspecBackend` |

Backends make single attempts and raise OSError; `Location` retries, and translates what is left.
"""

from __future__ import annotations

import copyreg
import logging
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

from zarr.abc.store import Store

from rescnet_dist.errors import StoreError, mask_secrets
from rescnet_dist.store.filesystem import file_system
from rescnet_dist.store.fsspec_backend import FsspecBackend, LocalBackend
from rescnet_dist.store.object_options import PROTOCOLS, UnsupportedSettingError
from rescnet_dist.store.obstore_backend import ObjectZarrStore, open_obstore

OBJECT_STORE_SETTING = "rescnet.object-store"  # of Dask's configuration
OBJECT_STORES = ("auto", "fsspec", "obstore")

logger = logging.getLogger(__name__)


class Backend(Protocol):
    """Objects by their paths: all of one is read or written in one request, or none of it.

    Methods raise FileNotFoundError if there is nothing at a path, unless they say otherwise.
    """

    is_local: bool
    name: str  # of the client

    def read(self, path: str) -> bytes:
        """Read a whole object."""

    def write(self, path: str, content: bytes) -> None:
        """Create or replace an object; readers see all of it or nothing."""

    def create(self, path: str, content: bytes) -> bool:
        """Create an object; return False if there is one that has other content.

        A repeated request whose first answer was lost finds its own content.
        """

    def exists(self, path: str) -> bool:
        """Return whether anything is stored at a path or below it."""

    def names(self, path: str) -> list[str]:
        """Return the paths directly below a path; may be empty if there are none."""

    def entries(self, path: str) -> dict[str, bool] | None:
        """Return the names directly below a path, and whether each is a folder.

        It is None if an object is at the path.
        """

    def size(self, path: str) -> int:
        """Return the number of bytes at a path and below it; 0 if there is nothing."""

    def remove(self, path: str) -> None:
        """Remove everything at a path and below it, if there is anything."""

    def upload(self, file: str, path: str) -> None:
        """Copy a local file to a path; readers see all of it, or nothing if that fails."""

    def zarr_store(self, url: str, path: str, *, read_only: bool) -> Store:
        """Open the Zarr store at a path, whose URL is given, too."""


def open_backend(url: str) -> tuple[Backend, str]:
    """Return the backend of a URL, and the path there.

    The setting `rescnet.object-store` of Dask's configuration chooses that of object stores. With
    "auto", it is obstore if that is installed and supports all settings, else fsspec.
    """
    protocol = url.partition("://")[0] if "://" in url else ""
    if protocol in PROTOCOLS and (choice := _chosen_object_store()) != "fsspec":
        try:
            return open_obstore(url)
        except UnsupportedSettingError as error:
            problem = str(error)
        if choice == "obstore":
            raise StoreError(
                f"{mask_secrets(url)} cannot be opened: {problem}, or set {OBJECT_STORE_SETTING} "
                "to fsspec."
            )
        _log_fallback(protocol, problem)
    fs, path = file_system(url)
    return LocalBackend(fs) if is_local(fs) else FsspecBackend(fs), path


def open_zarr_store(url: str, *, read_only: bool = False) -> Store:
    """Open the Zarr store at a URL."""
    backend, path = open_backend(url)
    return backend.zarr_store(url, path, read_only=read_only)


def _reduce_zarr_store(store: ObjectZarrStore) -> tuple[Any, ...]:
    """Pickle a Zarr store as its URL: no secret leaves a process.

    The worker that opens it may have other settings, or not have obstore.
    """
    return _reopen_zarr_store, (store.url, store.read_only)


def _reopen_zarr_store(url: str, read_only: bool) -> Store:
    """Open a Zarr store that was pickled, with the client and the settings of this process."""
    return open_zarr_store(url, read_only=read_only)


copyreg.pickle(ObjectZarrStore, _reduce_zarr_store)


def is_local(fs: Any) -> bool:
    """Return whether a file system is that of this machine."""
    return LocalBackend.accepts(fs)


def _chosen_object_store() -> str:
    """Return "obstore" or "fsspec", or "auto" if both may be used."""
    import dask.config  # slow to import, and paths need no setting

    choice = dask.config.get(OBJECT_STORE_SETTING, "auto")
    if choice not in OBJECT_STORES:
        raise StoreError(
            f"{OBJECT_STORE_SETTING}={choice!r} is not one of {', '.join(OBJECT_STORES)}. Correct "
            "the configuration of Dask."
        )
    if _is_obstore_installed():
        return str(choice)
    if choice == "obstore":
        raise StoreError(
            f"{OBJECT_STORE_SETTING} is obstore, which is not installed. Run pip install "
            '"rescnet-dist[obstore]", or set it to auto.'
        )
    return "fsspec"


@cache
def _is_obstore_installed() -> bool:
    """Return whether obstore can be imported."""
    return find_spec("obstore") is not None


@cache
def _log_fallback(protocol: str, problem: str) -> None:
    """Log once why fsspec is used though obstore is installed."""
    logger.info("%s:// is opened with fsspec: %s.", protocol, problem)
