"""Files written at any fsspec URL, which appear whole under their names or not at all."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO

from rescnet_dist.errors import StoreError, mask_secrets
from rescnet_dist.store.backend import Backend, open_backend
from rescnet_dist.store.location import Location
from rescnet_dist.store.retry import with_retries


@contextmanager
def open_output(location: Location) -> Iterator[IO[bytes]]:
    """Yield a binary file that appears at a location when the body ends; nothing if it fails.

    An existing file is replaced. What goes to another file system is first written to a temporary
    file of this machine.
    """
    backend, path = open_backend(location.url)
    writing = (
        _create_local_file(path) if backend.is_local else _upload_file(backend, path, location)
    )
    with writing as file:
        yield file


@contextmanager
def _create_local_file(path: str) -> Iterator[IO[bytes]]:
    """Yield a temporary file next to `path`, which then replaces it."""
    partial_path = f"{path}.{uuid.uuid4().hex}.partial"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(partial_path, "wb") as file:
            yield file
        os.replace(partial_path, path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreError(
            f"{path} cannot be written: {reason}. Check the path, your permissions and the free "
            "space."
        ) from error
    finally:
        with suppress(OSError):
            os.remove(partial_path)


@contextmanager
def _upload_file(backend: Backend, path: str, location: Location) -> Iterator[IO[bytes]]:
    """Yield a temporary file, which is then copied to `path` of another backend."""
    with tempfile.NamedTemporaryFile(prefix="rescnet-") as file:
        yield file
        file.flush()
        with_retries(partial(backend.upload, file.name, path), mask_secrets(location.url))
