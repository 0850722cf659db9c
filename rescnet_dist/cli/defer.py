"""What a command does, imported when it is called: its imports take seconds, `--help` none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast


def defer(action: str) -> Callable[[Any], Any]:
    """Return a decorator that makes a function of `cli.actions` what a command does.

    It is imported when the command is called. "data.preview" is the function `preview` of the
    module `data`, and "fuse" the function `fuse` of `fuse`.
    """
    module, _, name = action.rpartition(".")

    def load() -> Callable[..., None]:
        found = import_module(f"rescnet_dist.cli.actions.{module or name}")
        return cast(Callable[..., None], getattr(found, name))

    def decorate(declaration: Callable[[], None]) -> Callable[..., None]:
        @functools.wraps(declaration)
        def call(**options: Any) -> None:
            load()(**options)

        call.action = load  # type: ignore[attr-defined]
        return call

    return decorate
