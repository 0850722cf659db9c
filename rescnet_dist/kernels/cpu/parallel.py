"""Parts of an array in threads, with functions that release the GIL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_info


def count_blas_threads() -> int:
    """Return the threads that BLAS may use, which take a few milliseconds to find."""
    libraries = (info for info in threadpool_info() if info["user_api"] == "blas")
    return max((info["num_threads"] for info in libraries), default=1)


@contextmanager
def parts_in_threads(threads: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """Yield a function like `map`, which calls functions in so many threads, or in this one."""
    if threads == 1:
        yield map
        return
    with ThreadPoolExecutor(threads, "rescnet-parts") as pool:
        yield pool.map
