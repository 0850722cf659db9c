"""File systems of URLs, and files of the local one that are written atomically."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from rescnet_dist.errors import StoreError, StoreReadError, mask_secrets
from rescnet_dist.store.retry import with_retries

PROTOCOL = re.compile(r"(\w+)://")
MISSING_BUCKET = re.compile(r"(?i)\b(bucket|container) does not exist")  # in server messages
PROTOCOL_EXTRAS = {"s3": "s3", "s3a": "s3", "http": "http", "https": "http"}  # of this package


def file_system(url: str, *, client_retries: bool = False) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path there.

    Requests are single attempts, which callers repeat by `retry`. With `client_retries`, the client
    repeats them, as for a file whose reader is not ours.
    """
    options = {} if client_retries else client_options(url)
    try:
        fs, path = fsspec.url_to_fs(url, **options)
    except ValueError as error:
        remedy = "Check the URL."
        if unknown := set(PROTOCOL.findall(url)).difference(fsspec.available_protocols()):
            remedy = (
                "Use a path, or a URL such as s3://, gs://, abfs:// or https://, or install the "
                f"package that adds {', '.join(sorted(unknown))} to fsspec."
            )
        raise StoreError(f"{url} cannot be opened: {error}. {remedy}") from error
    except ImportError as error:
        extra = next(
            (PROTOCOL_EXTRAS[name] for name in PROTOCOL.findall(url) if name in PROTOCOL_EXTRAS),
            None,
        )
        if extra is None:
            raise StoreError(f"{url} cannot be opened: {error}.") from error
        raise StoreError(
            f'{url} cannot be opened ({error}). Run pip install "rescnet-dist[{extra}]".'
        ) from error
    if options:
        leave_retries_to_us(fs)
    return fs, path


def is_s3(protocol: str | tuple[str, ...]) -> bool:
    """Return whether the protocol of a URL, or those of a file system, are those of s3fs.

    >>> is_s3("s3"), is_s3(("s3", "s3a")), is_s3("memory")
    (True, True, False)
    """
    return not {"s3", "s3a"}.isdisjoint([protocol] if isinstance(protocol, str) else protocol)


def client_options(url: str) -> dict[str, Any]:
    """Return the options of the client of a URL with which it makes a single attempt.

    botocore makes five, and s3fs five of these: 25 requests to a server that asks for fewer, before
    the first wait of `retry`. What users have set themselves is left as it is.
    """
    is_set = "AWS_MAX_ATTEMPTS" in os.environ or "config_kwargs" in fsspec.config.conf.get("s3", {})
    if is_set or not is_s3(url.partition("://")[0]):
        return {}
    return {"config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": 1}}}


def leave_retries_to_us(fs: Any) -> None:
    """Let a file system of s3fs make a single attempt, as `client_options` of its client do."""
    fs.retries = 1


def read_bytes(
    fs: Any, path: str, start: int | None = None, stop: int | None = None, *, url: str = ""
) -> bytes:
    """Read a file, or bytes start to stop of it; `url` names it in errors instead of `path`."""
    read = partial(fs.cat_file, path, start=start, end=stop)
    return bytes(with_retries(read, mask_secrets(url or path), StoreReadError))


def describe_missing_bucket(error: FileNotFoundError, url: str) -> str | None:
    """Return the message for a bucket that does not exist; None if that is not the problem.

    >>> describe_missing_bucket(FileNotFoundError("The specified bucket does not exist"), "s3://a/b")
    'There is no bucket for s3://a/b. Check the URL and the endpoint, or create the bucket first.'
    """
    if not MISSING_BUCKET.search(str(error)):
        return None
    return (
        f"There is no bucket for {url}. Check the URL and the endpoint, or create the bucket first."
    )


def create_file(path: str, text: bytes) -> bool:
    """Create a file with this text atomically; return False if it exists already."""
    with _partial_file(path, text) as partial_path:
        try:
            os.link(partial_path, path)
        except FileExistsError:
            return False
    return True


def replace_file(path: str, text: bytes) -> None:
    """Create or replace a file with this text atomically."""
    with _partial_file(path, text) as partial_path:
        os.replace(partial_path, path)


@contextmanager
def _partial_file(path: str, text: bytes) -> Iterator[str]:
    """Create a temporary file with this text next to `path`; yield its path and remove it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial_path = f"{path}.{uuid.uuid4().hex}.partial"
    try:
        LocalFileSystem().pipe_file(partial_path, text)
        yield partial_path
    finally:
        with suppress(FileNotFoundError):
            os.remove(partial_path)
