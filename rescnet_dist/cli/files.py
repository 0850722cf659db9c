"""Files that a command writes: whole under their name, or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from rescnet_dist.errors import RescnetError


def check_folder(path: str) -> None:
    """Refuse a file to be written for which there is no folder."""
    folder = os.path.dirname(path)
    if folder and not os.path.isdir(folder):
        problem = "is no folder" if os.path.exists(folder) else "does not exist"
        raise RescnetError(f"{path} cannot be written: {folder} {problem}; create that folder")


@contextmanager
def finished_file(path: str, *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file that appears under its name only once it is whole; "-" is standard output."""
    if path == "-":
        yield sys.stdout.buffer if binary else sys.stdout
        return
    check_folder(path)
    partial = f"{path}.partial"
    try:
        with open(partial, "wb") if binary else open(partial, "w", newline="") as file:
            yield file
        os.replace(partial, path)
    except BaseException as error:
        if os.path.exists(partial):
            os.remove(partial)
        if isinstance(error, OSError):
            raise RescnetError(f"{path} cannot be written: {error.strerror or error}") from error
        raise
