"""The live progress of a run in a terminal, and one line per pass where there is none."""

from __future__ import annotations

import threading
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rescnet_dist.dashboard.scheduler import SchedulerPage
from rescnet_dist.train import (
    Accuracy,
    ChunkDone,
    ChunkRebuilt,
    Event,
    MapsPlaced,
    PassDone,
    PassRetried,
    PassStarted,
    RunDone,
    RunStarted,
)

STILL_STARTING = 8.0  # seconds after which it is told what takes so long


class TerminalProgress:
    """A listener that shows layer, accuracies, images per second and all workers' memory, and where
    the page of the run is; a quiet one shows what went wrong alone."""

    def __init__(
        self, console: Console, page: SchedulerPage | None = None, *, quiet: bool = False
    ) -> None:
        self.console, self.page, self.quiet = console, page, quiet
        self.memory: dict[str, int] = {}
        self.live = console.is_terminal and not quiet
        narrow = console.width < 100
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=8 if narrow else 24),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[accuracy]}"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[memory]}"),
            *([] if narrow else [TimeElapsedColumn()]),
            console=console,
            disable=not self.live,
        )
        self.task = self.bar.add_task("starting", total=None, accuracy="", rate="", memory="")
        self.images = self.max_layers = self.done = self.copies = 0
        self.chunks: dict[int, int] = {}
        self.rebuilt: int | None = None  # the layer that it was told of last
        self.in_memory = False  # where maps are
        self.began = time.perf_counter()
        self.waiting = threading.Timer(STILL_STARTING, self._still_starting)
        self.waiting.daemon = True

    def __enter__(self) -> Self:
        self.bar.start()
        if not self.quiet:
            self.waiting.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.waiting.cancel()
        self.bar.stop()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        match event:
            case RunStarted():
                self.waiting.cancel()
                self.images, self.max_layers = event.images, event.max_layers
                self.copies = event.copies
                if self.page and self.page.link and not self.quiet:
                    self.console.print(f"watch it at {self.page.link}", soft_wrap=True)
                if 0 < event.layers < event.max_layers and not self.quiet:
                    self.console.print(f"going on after layer {event.layers}")
            case MapsPlaced():
                if self.in_memory and not event.in_memory:
                    self._note(f"layer {event.layer}: maps go {event.reason}, from now on")
                elif not self.quiet:
                    self.console.print(
                        f"{'maps':<14} {event.reason}", highlight=False, soft_wrap=True
                    )
                self.in_memory = event.in_memory
            case PassStarted():
                self.began, self.done, self.chunks = time.perf_counter(), 0, {}
                fields = self.bar.tasks[0].fields | {"rate": ""}
                self.bar.reset(  # the elapsed time, too
                    self.task, description=self._title(event.phase, event.layer),
                    total=self.images, **fields,
                )  # fmt: skip
            case ChunkDone():
                self.chunks[event.start] = event.images  # a chunk that is redone counts once
                self.done = sum(self.chunks.values())
                self.memory[event.worker] = event.memory
                self.bar.update(
                    self.task, completed=self.done, rate=self._rate(time.perf_counter()),
                    memory=f"{sum(self.memory.values()) / 2**30:.1f} GiB",
                )  # fmt: skip
            case ChunkRebuilt():
                if event.layer != self.rebuilt:  # once, as there may be many
                    lost = f"maps and scores of images {event.start} to {event.stop}"
                    self._note(f"layer {event.layer}: {lost}, and maybe others, are rebuilt: "
                               f"{event.reason}")  # fmt: skip
                self.rebuilt = event.layer
            case PassRetried():
                self._note(f"{self._title(event.phase, event.layer)} goes on: {event.reason}")
            case PassDone():
                if event.accuracy:
                    self.bar.update(
                        self.task, accuracy=describe_accuracy(event.accuracy, short=True)
                    )
                if not self.quiet:
                    self._line(event)
            case RunDone():
                self.bar.update(self.task, visible=False)

    def _still_starting(self) -> None:
        text = "still starting: the first run on a machine compiles its kernels, for about a minute"
        self.console.print(text, highlight=False, soft_wrap=True)

    def _note(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, style="yellow")

    def _line(self, event: PassDone) -> None:
        """One line per finished pass, above the bar or on its own."""
        text = f"{self._title(event.phase, event.layer):<14} {event.seconds:6.1f} s"
        text += f" {self.images / max(event.seconds, 1e-9):8,.0f} images/s"
        if event.accuracy:
            found = describe_accuracy(event.accuracy, copies=self.copies)
            text += f"   after layer {event.accuracy.layer}: {found}"
        self.console.print(text, highlight=False, soft_wrap=True)

    def _title(self, phase: str, layer: int) -> str:
        titles = {"survey": "survey", "score": "final scores", "save": "storing maps"}
        return titles.get(phase, f"layer {layer}/{self.max_layers}")

    def _rate(self, now: float) -> str:
        return f"{self.done / max(now - self.began, 1e-9):,.0f} images/s"


def describe_accuracy(accuracy: Accuracy, *, short: bool = False, copies: int = 0) -> str:
    """As "train 99.12 %, validation 98.23 %", or in short as "train 99.1 val 98.2 %"; the first
    counts copies, and says so."""
    if short:
        held_out = accuracy.validation
        validation = "" if held_out is None else f" val {100 * held_out:.1f}"
        return f"train {100 * accuracy.train:.1f}{validation} %"
    text = f"train {100 * accuracy.train:.2f} %{with_copies(copies)}"
    if accuracy.validation is not None:
        text += f", validation {100 * accuracy.validation:.2f} %"
    return text


def with_copies(copies: int) -> str:
    """What to say behind an accuracy that counts copies."""
    return " (with copies)" if copies else ""
