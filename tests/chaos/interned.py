"""Has Python's table of interned strings resized before the memory of a process is sampled.

Loaded into Dask's processes by `--preload`, and run as a script in place of `rescnet`. Messages and
pickles intern strings and drop them again. Some hundred layers fill the table, which then doubles,
once: by 1.9 MB with the imports of this package. A regression over a few hundred layers would
take that for growth.
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from typing import Any

INTERNED = 200_000  # more than the table has room for
MODULES = (
    "rescnet_dist.cli.actions.training",
    "rescnet_dist.train",
    "rescnet_dist.dashboard.scheduler",
    "rescnet_dist.dashboard.page",
    "rescnet_dist.dashboard.plots",
)


def resize_interned() -> None:
    """Intern and drop strings until the table of this process is resized.

    What a run will import there is imported first: it has strings in the table.
    """
    for name in MODULES:
        import_module(name)
    for number in range(INTERNED):
        sys.intern(f"resize_interned {number}")


def dask_setup(_server: Any) -> None:
    """Dask calls this after preloading the module."""
    resize_interned()


if __name__ == "__main__":
    resize_interned()
    runpy.run_module("rescnet_dist", run_name="__main__", alter_sys=True)
