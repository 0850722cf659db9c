"""Events as lines of JSON on standard output, which nobody who reads them can hold up."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Self, TextIO

import click

from rescnet_dist.train import Event, event_to_dict

PATIENCE = 5.0  # seconds that a run that was cut short waits for its lines to be read


class JsonLines:
    """A listener that writes each event as one line, at once and whole.

    A thread of its own writes them: events come from several threads, one of which is the Dask
    client's, which must not wait for a reader that does not read. Once nobody can read any more
    (`rescnet train --json-lines | head -1`), lines are dropped, and the run goes on.
    """

    def __init__(self, file: TextIO) -> None:
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._file = file
        self._number: int | None = None
        with suppress(OSError, ValueError):  # which a file in memory raises
            file.flush()
            self._number = file.fileno()
        self._thread = threading.Thread(target=self._write_all, name="json-lines", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._lines.put(None)
        self._thread.join(None if kind is None else PATIENCE)

    def __call__(self, event: Event) -> None:
        """Write an event."""
        self.write(event_to_dict(event))

    def write(self, record: dict[str, Any]) -> None:
        """Write a record behind all those before it."""
        self._lines.put((json.dumps(record) + "\n").encode())

    def _write_all(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                self._write(line)
        except BrokenPipeError:
            pass  # nobody reads: that is theirs to decide
        except OSError as error:
            problem = f"warning: no more events are written ({error}), and the run goes on"
            click.echo(problem, err=True)

    def _write(self, line: bytes) -> None:
        """Write all of a line, past Python's buffers, whose locks a blocked write would hold even
        while the program ends; into a file that is none of the system's, as it is."""
        if self._number is None:
            self._file.write(line.decode())
            self._file.flush()
            return
        while line:
            line = line[os.write(self._number, line) :]
