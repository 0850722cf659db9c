"""A file by which `rescnet retry` learns that the command it runs has finished a layer."""

from __future__ import annotations

from pathlib import Path

from rescnet_dist.events import Event, PassDone


class ProgressFile:
    """A listener that creates a file once a pass is done and committed."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def __call__(self, event: Event) -> None:
        """Create the file after a pass."""
        if isinstance(event, PassDone):
            self.path.touch()
