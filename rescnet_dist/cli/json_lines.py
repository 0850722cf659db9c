"""Events as JSON lines on standard output, written without blocking the run."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Self, TextIO

import click

from rescnet_dist.events import Event, event_to_dict

FLUSH_TIMEOUT_SECONDS = 5.0  # for pending lines to be read after an interrupted run


class JsonLines:
    """A listener that writes each event as one line, immediately and whole.

    A separate thread writes: events come from several threads, one of which belongs to the Dask
    client and must not wait for a slow reader. Once the reader is gone (`rescnet train --json-lines
    | head -1`), lines are dropped and the run continues.
    """

    def __init__(self, file: TextIO) -> None:
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._file = file
        self._descriptor: int | None = None
        with suppress(OSError, ValueError):  # a file in memory has no descriptor
            file.flush()
            self._descriptor = file.fileno()
        self._thread = threading.Thread(target=self._write_all, name="json-lines", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._lines.put(None)
        self._thread.join(None if kind is None else FLUSH_TIMEOUT_SECONDS)

    def __call__(self, event: Event) -> None:
        """Write an event."""
        self.write(event_to_dict(event))

    def write(self, record: dict[str, Any]) -> None:
        """Write a record after all previous ones."""
        self._lines.put((json.dumps(record) + "\n").encode())

    def _write_all(self) -> None:
        """Write the queued lines until None is queued; runs in the thread."""
        try:
            while (line := self._lines.get()) is not None:
                self._write(line)
        except BrokenPipeError:
            pass  # the reader has closed the pipe on purpose
        except OSError as error:
            click.echo(
                f"warning: Events are no longer written ({error}). The run continues.", err=True
            )

    def _write(self, line: bytes) -> None:
        """Write a whole line, without Python's buffers if the file has a descriptor.

        A blocked write would hold the locks of the buffers even while the program exits.
        """
        if self._descriptor is None:
            self._file.write(line.decode())
            self._file.flush()
            return
        while line:
            line = line[os.write(self._descriptor, line) :]
