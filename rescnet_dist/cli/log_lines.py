"""Progress of a run as log records with fields, for `--log-format json`."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from rescnet_dist import logs
from rescnet_dist.errors import mask_secrets
from rescnet_dist.events import (
    AccuracyCollapsed,
    Callback,
    ChunkRebuilt,
    MapsPlaced,
    PassDone,
    PassRetried,
    PassStarted,
    RunDone,
    RunStarted,
    RunStopped,
)

logger = logging.getLogger("rescnet_dist.run")


class LogLines(Callback):
    """A listener that logs a run: a line for each pass and each problem.

    It sets the run and the layer in all lines of this process. With `quiet`, it logs problems only.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._level = logging.DEBUG if quiet else logging.INFO
        self._images = 0
        self._rebuilt: set[tuple[int, bool]] = set()  # layers with a line on rebuilt chunks

    def on_run_start(self, event: RunStarted) -> None:
        """Log how many layers there are and may be."""
        self._images = event.images
        logs.context.update(run=mask_secrets(event.url), layer=event.layers)
        fields = {"layers": event.layers, "max_layers": event.max_layers, "images": event.images}
        self._log("run started" if event.layers == 0 else "run resumed", **fields)

    def on_maps_placed(self, event: MapsPlaced) -> None:
        """Log where maps are kept."""
        self._log(f"maps {event.reason}", in_memory=event.in_memory)

    def on_pass_start(self, event: PassStarted) -> None:
        """Set the layer."""
        logs.context["layer"] = event.layer

    def on_pass_end(self, event: PassDone) -> None:
        """Log the time, speed, traffic and accuracy of a pass."""
        observed = event.observed
        fields: dict[str, Any] = {
            "pass": event.phase,
            "seconds": round(event.seconds, 3),
            "images_per_second": round(self._images / max(event.seconds, 1e-9), 1),
            "read_bytes": observed.read,
            "written_bytes": observed.written,
            "redone_chunks": observed.redone,
        }
        if event.accuracy:
            fields["accuracy"] = asdict(event.accuracy)
        self._log("pass done", **fields)

    def on_pass_retried(self, event: PassRetried) -> None:
        """Log why a pass is retried."""
        logger.warning("pass retried: %s", event.reason, extra={"fields": {"pass": event.phase}})

    def on_chunk_rebuilt(self, event: ChunkRebuilt) -> None:
        """Log the first rebuilt chunk of a layer, as there may be many."""
        if (kind := (event.layer, event.unexpected)) not in self._rebuilt:
            fields = {"layer": event.layer, "start": event.start, "stop": event.stop}
            text = "maps and scores of a chunk, and maybe of others, are computed again: %s"
            level = logging.WARNING if event.unexpected else self._level
            logger.log(level, text, event.reason, extra={"fields": fields})
        self._rebuilt.add(kind)

    def on_accuracy_collapsed(self, event: AccuracyCollapsed) -> None:
        """Log what to change."""
        logger.warning("%s", event.reason, extra={"fields": {"train": event.train}})

    def on_run_end(self, event: RunDone) -> None:
        """Log the chosen depth."""
        self._log(f"run done: {event.reason}", depth=event.depth)

    def on_run_stopped(self, event: RunStopped) -> None:
        """Log why the run stopped."""
        logger.warning("run stopped: %s", event.reason)

    def _log(self, message: str, **fields: Any) -> None:
        """Log a line with fields."""
        logger.log(self._level, "%s", message, extra={"fields": fields})
