"""Atomic writes of output files: a file appears whole under its name, or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from rescnet_dist.errors import RescnetError


def check_folder(path: str) -> None:
    """Raise RescnetError if the folder of an output file does not exist."""
    folder = os.path.dirname(path)
    if folder and not os.path.isdir(folder):
        problem = "is not a folder" if os.path.exists(folder) else "does not exist"
        raise RescnetError(f"{path} cannot be written: {folder} {problem}. Create that folder.")


@contextmanager
def open_atomic(path: str, *, binary: bool = False) -> Iterator[IO[Any]]:
    """Open a file that appears under its name only once it is complete; "-" is standard output."""
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
            reason = error.strerror or error
            raise RescnetError(f"{path} cannot be written: {reason}. Check the path.") from error
        raise
