"""How a worker's malloc behaves: freed chunks go back to the system, small arrays are kept."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

# options of glibc's mallopt, and what they are set to
SETTINGS = {
    -3: 6 * 2**20,  # M_MMAP_THRESHOLD: larger arrays are given back as soon as they are freed
    -1: 64 * 2**20,  # M_TRIM_THRESHOLD: of smaller ones so much is kept, as mapping anew costs
    -8: 4,  # M_ARENA_MAX: pools that freed memory can lie in, unused by other threads
}


def trim_memory() -> None:
    """Give memory that is free back to the system; a few milliseconds.

    Chunks are read, computed and written by different threads, and glibc would keep what each of
    them has freed for that thread: a worker's memory would grow chunk by chunk. Does nothing where
    there is no glibc.
    """
    library = _tuned_glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _tuned_glibc() -> Any:
    """glibc, with malloc set for arrays of many megabytes, or None; once per process."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        for option, value in SETTINGS.items():
            library.mallopt(option, value)
        library.malloc_trim(0)
    except (OSError, AttributeError):  # another C library, such as musl
        return None
    return library
