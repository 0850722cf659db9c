"""Logs as lines of JSON, for pods, whose logs are collected by machines.

This module imports nothing of the package: Dask's own processes load the formatter, by name, while
they import Dask (see `rescnet_dist.deploy.pods`).
"""

from __future__ import annotations

import io
import json
import logging
import logging.config
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

# Levels of loggers are those of Dask. Other loggers log warnings and errors.
LEVELS = {
    "rescnet_dist": "INFO",
    "distributed": "INFO",
    "distributed.client": "WARNING",
    "distributed.gc": "WARNING",
    "bokeh": "ERROR",
    "tornado": "CRITICAL",
    "tornado.application": "ERROR",
}
# For `logging.config.dictConfig`, and for Dask's configuration. The name of the formatter is in the
# error of an image without this module.
FORMATTER = "rescnet_dist.logs.JsonFormatter"
JSON_LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {FORMATTER: {"()": FORMATTER}},
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": FORMATTER,
            "stream": "ext://sys.stderr",
        }
    },
    "loggers": {name: {"level": level, "propagate": True} for name, level in LEVELS.items()},
    "root": {"level": "WARNING", "handlers": ["stderr"]},
}
PREFIX_LEVELS = {"warning: ": "WARNING", "error: ": "ERROR"}  # of printed lines

context: dict[str, Any] = {}  # fields of all lines of this process, such as the run


def format_line(level: str, logger: str, message: str, **fields: Any) -> str:
    """Return a line: time (UTC), level, logger, message, the context, and other fields."""
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    record = {"time": when, "level": level, "logger": logger, "message": message}
    return json.dumps({**record, **context, **fields}, default=str)


class JsonFormatter(logging.Formatter):
    """Formats a record as a line; the fields are those of `extra={"fields": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return format_line(record.levelname, record.name, record.getMessage(), **fields)


class JsonStream(io.TextIOBase):
    """A text stream that writes each printed line to `stream` as a line of JSON."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._rest = stream, ""

    def write(self, text: str) -> int:
        """Write the lines that are complete, and keep the rest."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            prefix = next((p for p in PREFIX_LEVELS if line.startswith(p)), "")
            level = PREFIX_LEVELS.get(prefix, "INFO")
            self._stream.write(format_line(level, "rescnet", line.removeprefix(prefix)) + "\n")
        self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """Write a line that has no end yet."""
        if self._rest:
            self.write("\n")

    def fileno(self) -> int:
        """Return the descriptor of the stream below, for faulthandler and child processes."""
        return self._stream.fileno()


def use_json_logs() -> None:
    """Write log records, printed lines and uncaught exceptions of this process as JSON."""
    if isinstance(sys.stderr, JsonStream):
        return
    context.update(run=None, layer=None)
    logging.config.dictConfig(JSON_LOGGING)
    # The scheduler of an embedded cluster is in this process, and logs each of its calls.
    logging.getLogger("distributed").setLevel(logging.WARNING)
    sys.stderr = JsonStream(sys.stderr)
    sys.excepthook = _log_exception


def _log_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Log an uncaught exception as one line."""
    exc_info = (kind, error, trace)
    logging.getLogger("rescnet_dist").critical("%s: %s", kind.__name__, error, exc_info=exc_info)
