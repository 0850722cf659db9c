"""What workers import before their first task, imported once by the server that forks them."""

from __future__ import annotations

import contextlib
import gc

from rescnet_dist.cli.garbage import pause_gc

with pause_gc():
    import click
    import distributed.nanny
    import scipy.linalg

    import rescnet_dist.cluster.pages
    import rescnet_dist.lifecycle
    import rescnet_dist.network.network  # for the test accuracy
    from rescnet_dist.kernels.cpu.loading import load_cached
    from rescnet_dist.model.registry import FEATURES, FILTERS, HEADS, VIEWS

    # An exception would end the server, and with it the command. If a kernel of Numba's cache
    # cannot be read, or a component not be imported, the workers raise that themselves, and the
    # command reports it.
    with contextlib.suppress(Exception):
        load_cached()
    for registry in (FEATURES, FILTERS, HEADS, VIEWS):
        with contextlib.suppress(Exception):
            registry.classes(load=False)
gc.freeze()  # what is imported stays, and its memory shared by the workers

__all__ = ["click", "distributed", "rescnet_dist", "scipy"]
