"""Progress of a run: a live bar on a terminal, and one line per finished pass."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rescnet_dist.dashboard.notebook import NotebookProgress
from rescnet_dist.dashboard.scheduler import SchedulerPage
from rescnet_dist.events import (
    Accuracy,
    ChunkDone,
    ChunkRebuilt,
    Event,
    Listener,
    MapsPlaced,
    PassDone,
    PassRetried,
    PassStarted,
    RunDone,
    RunStarted,
    SolverIteration,
)
from rescnet_dist.formatting import train_suffix

PRINTED_ITERATIONS = 10  # iterations of a solver per line
STARTUP_NOTICE_SECONDS = 8.0  # after which the reason for a slow start is printed


def open_progress(page: SchedulerPage, note: str | None = None) -> AbstractContextManager[Listener]:
    """Return a listener that shows a run: in the current cell of a notebook, or on a terminal.

    It is a context manager, to be entered before the run. `note` is shown first.
    """
    console = Console(stderr=True)
    if console.is_jupyter:
        return NotebookProgress(note)
    if note:
        console.print(note, highlight=False, soft_wrap=True)
    return TerminalProgress(console, page)


class TerminalProgress:
    """A listener that prints the progress of a run.

    It shows the layer, accuracies, images per second, the memory of all workers and the address of
    the dashboard page. With `quiet`, it prints only problems.
    """

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
        self.images = self.max_layers = self.done = 0
        self.train_suffix = ""
        self.chunks: dict[int, int] = {}
        self.rebuilt: set[tuple[int, bool]] = set()  # layers with a note on rebuilt chunks
        self.in_memory = False  # whether maps are kept in memory
        self.started = time.perf_counter()
        self.notice = threading.Timer(STARTUP_NOTICE_SECONDS, self._print_startup_notice)
        self.notice.daemon = True

    def __enter__(self) -> Self:
        self.bar.start()
        if not self.quiet:
            self.notice.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.notice.cancel()
        self.bar.stop()

    def __call__(self, event: Event) -> None:
        """Print an event or update the bar."""
        match event:
            case RunStarted():
                self.notice.cancel()
                self.images, self.max_layers = event.images, event.max_layers
                self.train_suffix = train_suffix(event.copies, event.leave_one_out)
                if self.page and self.page.link and not self.quiet:
                    self.console.print(f"dashboard: {self.page.link}", soft_wrap=True)
                if 0 < event.layers < event.max_layers and not self.quiet:
                    self.console.print(f"resuming after layer {event.layers}")
            case MapsPlaced():
                if self.in_memory and not event.in_memory:
                    self._note(f"layer {event.layer}: maps are now kept {event.reason}")
                elif not self.quiet:
                    self.console.print(
                        f"{'maps':<14} {event.reason}", highlight=False, soft_wrap=True
                    )
                self.in_memory = event.in_memory
            case PassStarted():
                self.started, self.done, self.chunks = time.perf_counter(), 0, {}
                fields = self.bar.tasks[0].fields | {"rate": ""}
                self.bar.reset(  # the elapsed time, too
                    self.task,
                    description=self._title(event.phase, event.layer),
                    total=self.images,
                    **fields,
                )
            case ChunkDone():
                self.chunks[event.start] = event.images  # a retried chunk counts once
                self.done = sum(self.chunks.values())
                self.memory[event.worker] = event.memory
                self.bar.update(
                    self.task,
                    completed=self.done,
                    rate=self._format_rate(time.perf_counter()),
                    memory=f"{sum(self.memory.values()) / 2**30:.1f} GiB",
                )
            case ChunkRebuilt():
                kind = event.layer, event.unexpected
                if kind not in self.rebuilt:  # one note per layer, as there may be many
                    what = f"layer {event.layer}: maps and scores"
                    if event.unexpected:
                        rows = f"images {event.start} to {event.stop}, and maybe others"
                        self._note(
                            f"warning: {what} of {rows}, are computed again from what is left: "
                            f"{event.reason}"
                        )
                    elif not self.quiet:
                        text = f"{what} are computed again, to the same result: {event.reason}"
                        self.console.print(text, highlight=False, soft_wrap=True)
                self.rebuilt.add(kind)
            case PassRetried():
                self._note(f"{self._title(event.phase, event.layer)} is retried: {event.reason}")
            case SolverIteration():
                self._show_solver(event)
            case PassDone():
                if event.accuracy:
                    self.bar.update(self.task, accuracy=describe_short_accuracy(event.accuracy))
                if not self.quiet:
                    self._print_pass(event)
            case RunDone():
                self.bar.update(self.task, visible=False)

    def _show_solver(self, event: SolverIteration) -> None:
        """Show how far the solver is on the bar; print every tenth iteration."""
        number, limit = event.iteration, event.max_iterations
        title = f"{self._title('grow', event.layer)}, solving"
        self.bar.update(self.task, description=title, completed=number, total=limit, rate="")
        if number % PRINTED_ITERATIONS == 0 and not self.quiet:
            text = f"iteration {number} of at most {limit}: weights within {event.error:.1e}"
            self.console.print(f"{'solving':<14} {text}", highlight=False, soft_wrap=True)

    def _print_startup_notice(self) -> None:
        """Say why the start takes long."""
        text = (
            "still starting: workers start, and images are counted; a run that is the first on "
            "its machine also compiles kernels, for about a minute"
        )
        self.console.print(text, highlight=False, soft_wrap=True)

    def _note(self, text: str) -> None:
        """Print a note on a problem."""
        self.console.print(text, highlight=False, soft_wrap=True, style="yellow")

    def _print_pass(self, event: PassDone) -> None:
        """Print one line for a finished pass, above the bar if there is one."""
        text = f"{self._title(event.phase, event.layer):<14} {event.seconds:6.1f} s"
        text += f" {self.images / max(event.seconds, 1e-9):8,.0f} images/s"
        if event.accuracy:
            accuracy = describe_accuracy(event.accuracy, self.train_suffix)
            text += f"   after layer {event.accuracy.layer}: {accuracy}"
        self.console.print(text, highlight=False, soft_wrap=True)

    def _title(self, phase: str, layer: int) -> str:
        """Return the name of a pass."""
        titles = {
            "views": "views",
            "survey": "survey",
            "score": "final scores",
            "save": "storing maps",
        }
        return titles.get(phase, f"layer {layer}/{self.max_layers}")

    def _format_rate(self, now: float) -> str:
        """Return the images per second of the current pass."""
        return f"{self.done / max(now - self.started, 1e-9):,.0f} images/s"


def describe_short_accuracy(accuracy: Accuracy) -> str:
    """Return "train 99.1 val 98.2 %"."""
    value = accuracy.validation
    validation = "" if value is None else f" val {100 * value:.1f}"
    return f"train {100 * accuracy.train:.1f}{validation} %"


def describe_accuracy(accuracy: Accuracy, suffix: str) -> str:
    """Return "train 99.12 %, validation 98.23 %", with a `train_suffix` where there is one."""
    text = f"train {100 * accuracy.train:.2f} %{suffix}"
    if accuracy.validation is not None:
        text += f", validation {100 * accuracy.validation:.2f} %"
    return text
