"""Timing: the best of some tries, on all cores, and the rate of the machine's matrix product."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from rescnet_dist.cluster import available_cores
from rescnet_dist.reduce import blas_threads

Item = TypeVar("Item")
Value = TypeVar("Value")

SIDE = 3072  # of the matrices whose product is timed
MISSING = "not installed"


@dataclass(frozen=True, slots=True)
class Result:
    """What a case has shown: seconds of ours, of each peer (None where it is not installed) and of
    the floor, and what must hold of the ratio.

    bar: of the slowest ratio peer/ours that is good enough, or, where `at_most`, of the largest
    ours/floor, or of a ratio of two of our own times.
    """

    name: str
    ours: float
    peers: dict[str, float | None] = field(default_factory=dict)
    floor: float | None = None
    bar: float | None = None
    at_most: bool = False

    @property
    def ratio(self) -> float | None:
        """The ratio that the bar is about."""
        if self.at_most:
            return None if self.floor is None else self.ours / self.floor
        times = [seconds for seconds in self.peers.values() if seconds is not None]
        return min(times) / self.ours if times else None

    @property
    def passes(self) -> bool | None:
        """Whether the bar is reached; None where that is not known."""
        if self.ratio is None or self.bar is None:
            return None
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self) | {"ratio": self.ratio, "passes": self.passes}


def keep_memory() -> None:
    """Have what this process frees stay with it, where there is glibc: a try that counts then takes
    the memory of the one before, and what the system needs to hand out memory, which on virtual
    machines is up to a second per gigabyte, is not timed."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        for option, value in ((-4, 0), (-1, -1)):  # M_MMAP_MAX: none; M_TRIM_THRESHOLD: never
            library.mallopt(option, value)


def best_seconds(action: Callable[[], Any], tries: int = 3) -> float:
    """Seconds of the fastest of some tries, after one that does not count."""
    action()
    best = float("inf")
    for _ in range(tries):
        began = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - began)
    return best


def on_all_cores(function: Callable[[Item], Value], parts: Sequence[Item]) -> list[Value]:
    """Results of a function that runs without the GIL, on one thread for each core, as tasks of a
    worker do; BLAS has one thread in each."""
    with blas_threads(1), ThreadPoolExecutor(available_cores()) as pool:
        return list(pool.map(function, parts))


def halves(count: int) -> list[slice]:
    """A number of things shared out over all cores."""
    edges = np.linspace(0, count, available_cores() + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]


@cache
def product_rate() -> float:
    """Operations per second of a matrix product in single precision on all cores."""
    matrix = np.random.default_rng(0).normal(size=(SIDE, SIDE)).astype(np.float32)
    with blas_threads(available_cores()):
        return 2 * SIDE**3 / best_seconds(lambda: matrix @ matrix)


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": available_cores(),
        "sgemm_gflops": product_rate() / 1e9,
    }
