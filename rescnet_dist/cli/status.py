"""A status line or progress bar on the terminal while a command works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def show_status(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Show a spinner and a text on a terminal during the body, unless `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # slow to import, and only terminals need it

    with Console(stderr=True).status(text):
        yield


@contextmanager
def show_progress(title: str, unit: str) -> Iterator[Any]:
    """Show a progress bar with rate and remaining time on a terminal; nothing elsewhere.

    Yield a function that updates it from the amount done and the total.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console  # slow to import, and only terminals need it
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        *(SpinnerColumn(), TextColumn(title), BarColumn(), MofNCompleteColumn()),
        *(TextColumn(unit), TextColumn("{task.fields[rate]}"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=None, rate="")

        def update(done: int, total: int | None) -> None:
            speed = progress.tasks[0].speed
            rate = f"{speed:,.0f} {unit}/s" if speed else ""
            progress.update(task, completed=done, total=total, rate=rate)

        yield update
