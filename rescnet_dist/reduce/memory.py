"""Settings of malloc in workers: large freed arrays return to the system, small ones are reused."""

from __future__ import annotations

from functools import cache
from typing import Any

from rescnet_dist._compat import load_glibc

# options of glibc's mallopt and their values
MALLOC_OPTIONS = {
    -3: 6
    * 2**20,  # M_MMAP_THRESHOLD in bytes: larger arrays are returned as soon as they are freed
    -1: 64 * 2**20,  # M_TRIM_THRESHOLD in bytes: of smaller ones this much is kept, to avoid mmap
    -8: 4,  # M_ARENA_MAX: pools whose freed memory other threads cannot use
}


def trim_memory() -> None:
    """Return free memory to the system; takes a few milliseconds.

    Chunks are read, computed and written by different threads, and glibc keeps what each of them
    has freed for that thread: a worker's memory would grow chunk by chunk. Does nothing without
    glibc.
    """
    library = _configure_glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _configure_glibc() -> Any:
    """Set malloc up for arrays of many megabytes, once per process; return glibc, or None."""
    library = load_glibc()
    if library is not None:
        for option, value in MALLOC_OPTIONS.items():
            library.mallopt(option, value)
    return library
