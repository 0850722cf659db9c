"""A status line or progress bar on the terminal while a command works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)


@contextmanager
def show_status(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Show a spinner and a text on a terminal during the body, unless `quiet`."""
    console = Console(stderr=True)
    if console.is_terminal and not quiet:
        with console.status(text):
            yield
    else:
        yield


@contextmanager
def show_progress(title: str, unit: str) -> Iterator[Any]:
    """Show a progress bar with rate and remaining time on a terminal; nothing elsewhere.

    Yield a function that updates it from the amount done and the total.
    """
    console = Console(stderr=True)
    columns = (
        *(SpinnerColumn(), TextColumn(title), BarColumn(), MofNCompleteColumn()),
        *(TextColumn(unit), TextColumn("{task.fields[rate]}"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None, rate="")

        def update(done: int, total: int | None) -> None:
            speed = progress.tasks[0].speed
            rate = f"{speed:,.0f} {unit}/s" if speed else ""
            progress.update(task, completed=done, total=total, rate=rate)

        yield update
