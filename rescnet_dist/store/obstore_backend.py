"""Objects of S3, Google Cloud and Azure through obstore, which makes requests without Python.

Clients are cached, as each has connections of its own. They are found by the settings too, so a
change of the environment is seen.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zarr.abc.buffer import Buffer
from zarr.storage import ObjectStore

from rescnet_dist.errors import mask_secrets
from rescnet_dist.store.object_errors import translate_error
from rescnet_dist.store.object_options import (
    PROTOCOLS,
    UPLOAD_TIMEOUT,
    UnsupportedSettingError,
    read_settings,
    translate_settings,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Client

S3_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
MAX_CLIENTS = 32  # of a process: up to two for each bucket, and for each Zarr store
MAX_SMALL_BYTES = 2**20  # of an object that any link can take within the read timeout
MAX_SINGLE_PUT_BYTES = 2**32  # Servers take up to 5 GB in one request.
LIST_PAGE_OBJECTS = 1000


class ObstoreBackend:
    """Objects of a bucket; see `Backend`."""

    is_local = False
    name = "obstore"

    def __init__(self, client: Client, open_upload_client: Callable[[], Client]) -> None:
        self.client, self.open_upload_client = client, open_upload_client

    def read(self, path: str) -> bytes:
        """Read a whole object."""
        import obstore

        return obstore.get(self.client, path).bytes().to_bytes()

    def write(self, path: str, content: bytes) -> None:
        """Create or replace an object."""
        import obstore

        client = self.client if len(content) <= MAX_SMALL_BYTES else self.open_upload_client()
        obstore.put(client, path, content, use_multipart=len(content) > MAX_SINGLE_PUT_BYTES)

    def create(self, path: str, content: bytes) -> bool:
        """Create an object; return False if there is one that has other content."""
        import obstore

        try:
            obstore.put(self.client, path, content, mode="create", use_multipart=False)
        except obstore.exceptions.AlreadyExistsError:
            with suppress(FileNotFoundError):
                return self.read(path) == content
        else:
            return True
        # S3 answers so while another request creates or removes the object: it may be ours yet.
        raise OSError(errno.EBUSY, f"another request is changing {path}")

    def exists(self, path: str) -> bool:
        """Return whether anything is stored at a path or below it.

        Names are listed first: an answer to HEAD, which would come first otherwise, does not say
        why a request was refused.
        """
        import obstore

        try:
            if next(self._list(path), None):
                return True
            if path:  # An empty bucket exists, too, but nothing is stored there.
                obstore.head(self.client, path)
        except FileNotFoundError:
            return False
        return bool(path)

    def _list(self, path: str) -> Iterator[ObjectMeta]:
        """Yield all objects below a path, page by page.

        Raise FileNotFoundError if there is no such bucket.
        """
        import obstore

        try:
            for page in obstore.list(self.client, path or None, chunk_size=LIST_PAGE_OBJECTS):
                yield from page
        except obstore.exceptions.BaseError as error:
            raise translate_error(error) from None

    def entries(self, path: str) -> dict[str, bool] | None:
        """Return the names directly below a path, and whether each is a folder.

        It is None if there are none, except in an empty bucket.
        """
        import obstore

        found = obstore.list_with_delimiter(self.client, path or None)
        paths = dict.fromkeys(found["common_prefixes"], True)
        paths |= {entry["path"]: False for entry in found["objects"]}
        paths.pop(path, None)  # the marker of a folder
        if path and not paths:  # a listing of a bucket that does not exist raises
            return None
        return {p.rsplit("/", 1)[-1]: is_folder for p, is_folder in paths.items()}

    def names(self, path: str) -> list[str]:
        """Return the names directly below a path."""
        return list(self.entries(path) or ())

    def size(self, path: str) -> int:
        """Return the number of bytes at a path and below it."""
        import obstore

        try:
            if sizes := [entry["size"] for entry in self._list(path)]:
                return sum(sizes)
            return int(obstore.head(self.client, path)["size"]) if path else 0
        except FileNotFoundError:
            return 0

    def remove(self, path: str) -> None:
        """Remove everything at a path and below it, if there is anything."""
        import obstore

        with suppress(FileNotFoundError):  # There is no such bucket, or object.
            if paths := [entry["path"] for entry in self._list(path)]:
                self._remove_objects(paths)
            elif path:
                obstore.delete(self.client, path)

    def _remove_objects(self, paths: list[str]) -> None:
        """Remove objects together; one by one if another process has removed some of them."""
        import obstore

        try:
            obstore.delete(self.client, paths)
        except FileNotFoundError:  # on Google Cloud and Azure
            for path in paths:
                with suppress(FileNotFoundError):
                    obstore.delete(self.client, path)

    def upload(self, file: str, path: str) -> None:
        """Copy a local file to a path, in parts if it is large."""
        import obstore

        obstore.put(self.open_upload_client(), path, Path(file))

    def zarr_store(self, url: str, path: str, *, read_only: bool) -> ObjectZarrStore:
        """Open the Zarr store at a URL."""
        return ObjectZarrStore.at(url, read_only=read_only)


class ObjectZarrStore(ObjectStore["Client"]):
    """The Zarr store at a URL, which writes whole objects in one request.

    `backend` pickles it as its URL.
    """

    def __init__(
        self,
        store: Client,
        *,
        read_only: bool = False,
        url: str,
        open_upload_client: Callable[[], Client],
    ) -> None:
        super().__init__(store, read_only=read_only)
        self.url, self.open_upload_client = url, open_upload_client

    @classmethod
    def at(cls, url: str, *, read_only: bool) -> Self:
        """Open the Zarr store at a URL with the settings of this process."""
        protocol, bucket, path = _split_url(url)
        client, open_upload_client = _open_clients(protocol, bucket, path)
        return cls(client, read_only=read_only, url=url, open_upload_client=open_upload_client)

    def with_read_only(self, read_only: bool = False) -> Self:
        """Return the same store for reading only, or for writing too."""
        return type(self)(
            self.store,
            read_only=read_only,
            url=self.url,
            open_upload_client=self.open_upload_client,
        )

    def __str__(self) -> str:
        return mask_secrets(self.url)

    async def set(self, key: str, value: Buffer) -> None:
        """Write an object; Zarr's own method writes more than 5 MB in parts."""
        import obstore

        if self.read_only:
            raise ValueError(f"{self} was opened for reading only. Open it for writing.")
        client = self.store if len(value) <= MAX_SMALL_BYTES else self.open_upload_client()
        in_parts = len(value) > MAX_SINGLE_PUT_BYTES
        await obstore.put_async(client, key, value.as_buffer_like(), use_multipart=in_parts)


def open_obstore(url: str) -> tuple[ObstoreBackend, str]:
    """Return the backend of a URL of an object store, and the path there.

    Raise UnsupportedSettingError if a setting or the URL has no counterpart in obstore.
    """
    protocol, bucket, path = _split_url(url)
    return ObstoreBackend(*_open_clients(protocol, bucket, "")), path


def _open_clients(protocol: str, bucket: str, prefix: str) -> tuple[Client, Callable[[], Client]]:
    """Return a client with the settings as they are now, and a function that opens another.

    The other one is for large uploads, and opened for the first of them.
    """
    arguments = protocol, bucket, prefix, read_settings(protocol)
    # (not `partial`, whose repr would show secrets)
    return _open_client(*arguments), lambda: _open_client(*arguments, for_uploads=True)


def _split_url(url: str) -> tuple[str, str, str]:
    """Return protocol, bucket and path of a URL.

    >>> _split_url("s3://bucket/runs/1/")
    ('s3', 'bucket', 'runs/1')
    """
    protocol, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    path = path.rstrip("/")
    if not bucket or ("@" in bucket and PROTOCOLS[protocol][0] != "abfs"):
        raise UnsupportedSettingError("obstore needs a URL with a bucket. Set it")
    if PROTOCOLS[protocol][0] == "s3" and not S3_BUCKET.fullmatch(bucket):
        raise UnsupportedSettingError(f"obstore does not check the bucket {bucket!r}. Rename it")
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise UnsupportedSettingError("obstore does not support empty parts of a path. Rename them")
    return protocol, bucket, path


@lru_cache(MAX_CLIENTS)
def _open_client(
    protocol: str,
    bucket: str,
    prefix: str,
    settings: tuple[tuple[str, str], ...],
    *,
    for_uploads: bool = False,
) -> Client:
    """Return the client for a bucket, or for a prefix in it, with the settings as they are now.

    It makes single attempts, which callers repeat by `retry`, unless users have set another number.
    """
    from obstore.store import AzureStore, GCSStore, S3Store

    kinds: dict[str, Any] = {"s3": S3Store, "gcs": GCSStore, "abfs": AzureStore}
    kind = PROTOCOLS[protocol][0]
    found = translate_settings(protocol)
    if for_uploads:
        found.client["read_timeout"] = UPLOAD_TIMEOUT
    if kind == "abfs" and "@" in bucket:  # container@account.dfs.core.windows.net
        bucket, _, host = bucket.partition("@")
        found.config["account_name"] = host.split(".")[0]
    try:
        return kinds[kind](
            bucket,
            prefix=prefix or None,
            config=found.config or None,
            client_options=found.client,
            retry_config={"max_retries": found.max_retries, "retry_timeout": timedelta(minutes=2)},
        )
    except Exception as error:  # Its message may contain the value of a setting.
        kind_of_error = type(error).__name__
    raise UnsupportedSettingError(f"obstore rejects the settings ({kind_of_error}). Check them")
