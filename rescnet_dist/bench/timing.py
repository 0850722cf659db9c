"""Timing: the best of several runs, on all cores, and the speed of matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from rescnet_dist._compat import load_glibc
from rescnet_dist.cluster import available_cores
from rescnet_dist.cluster.load import MAX_OTHER_SHARE
from rescnet_dist.kernels.cpu.threads import blas_threads

Item = TypeVar("Item")
Value = TypeVar("Value")

TIMED_MATRIX_SIDE = 3072  # rows and columns of the matrices whose product is timed
PRODUCT_OPERATIONS = 2 * TIMED_MATRIX_SIDE**3
TURNS = 9  # of short actions that are timed in turns
LONG_TURNS = 3  # of those that take many seconds
PAUSE_SECONDS = 0.1  # threads of BLAS and PyTorch wait actively for a part of it
NOT_INSTALLED = "not installed"
SECONDS_SUFFIX = " (bar in seconds)"  # of the names of results whose bar is a time


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a benchmark case.

    Attributes
    ----------
    name : str
        A description of the case.
    ours : float
        The seconds of this package.
    peers : dict of str to float or None
        The seconds of other libraries, None for those that are not installed.
    floor : float or None
        The seconds that `ours` is compared with: those that the hardware allows, or another time of
        this package.
    bar : float or None
        The smallest accepted ratio peer/ours of the fastest peer, or, if `at_most`, the largest
        accepted ratio ours/floor.
    at_most : bool
        Whether `bar` is an upper limit of ours/floor.
    other_share : float
        The share of the machine's CPU time that others used meanwhile, from 0 to 1.
    """

    name: str
    ours: float
    peers: dict[str, float | None] = field(default_factory=dict)
    floor: float | None = None
    bar: float | None = None
    at_most: bool = False
    other_share: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        """Whether others used too much of the machine for a verdict."""
        return self.other_share > MAX_OTHER_SHARE

    @property
    def ratio(self) -> float | None:
        """The ratio that is compared with the bar, None if it is not known."""
        if self.at_most:
            return None if self.floor is None else self.ours / self.floor
        times = [seconds for seconds in self.peers.values() if seconds is not None]
        return min(times) / self.ours if times else None

    @property
    def passes(self) -> bool | None:
        """Whether the bar is reached, None if that is not known, as on a busy machine."""
        if self.ratio is None or self.bar is None or self.is_disturbed:
            return None
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar

    @property
    def verdict(self) -> str:
        """Whether the bar is reached, as text; empty if that is not known."""
        if self.is_disturbed:
            return "machine was busy"
        return {True: "reached", False: "missed", None: ""}[self.passes]

    @property
    def bar_text(self) -> str:
        """The bar as text; empty without one."""
        unit = "s" if self.has_time_bar else "×"
        return "" if self.bar is None else f"{'≤' if self.at_most else '≥'} {self.bar:g} {unit}"

    @property
    def has_time_bar(self) -> bool:
        """Whether the bar is a time in seconds, and not a ratio."""
        return self.name.endswith(SECONDS_SUFFIX)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-serializable values."""
        return asdict(self) | {"ratio": self.ratio, "passes": self.passes}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Return the result that `to_dict` has described."""
        return cls(**{own.name: values[own.name] for own in fields(cls) if own.name in values})


def keep_memory() -> None:
    """Keep memory that this process frees, instead of returning it to the system, with glibc.

    A timed run then reuses the memory of the run before. Otherwise the system's allocation of
    memory, which takes up to a second per gigabyte on virtual machines, would be timed.
    """
    library = load_glibc()
    if library is not None:
        for option, value in ((-4, 0), (-1, -1)):  # M_MMAP_MAX: none; M_TRIM_THRESHOLD: never
            library.mallopt(option, value)


def best_seconds(action: Callable[[], Any], tries: int = 3) -> float:
    """Return the seconds of the fastest of several runs, after one that does not count."""
    action()
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return best


def seconds_in_turns(actions: Sequence[Callable[[], Any]], turns: int = TURNS) -> list[float]:
    """Time one or two actions in turns, and return the seconds of the turn with the median ratio.

    Of a single action, they are the median. The speed of a shared machine changes by a factor of
    two within seconds. The two times of a turn are close to each other, so that most ratios are
    those of one speed; the fastest time of each action may be of different ones.
    """
    for action in actions:
        action()
    found = list[list[float]]()
    for _ in range(turns):
        times = list[float]()
        for action in actions:
            time.sleep(PAUSE_SECONDS)
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
        found.append(times)
    return sorted(found, key=lambda times: (times[0] / times[-1], times))[len(found) // 2]


def run_on_all_cores(function: Callable[[Item], Value], parts: Sequence[Item]) -> list[Value]:
    """Call a function that releases the GIL on all parts, in one thread per core, like a worker.

    BLAS uses one thread in each.
    """
    with blas_threads(1), ThreadPoolExecutor(available_cores()) as pool:
        return list(pool.map(function, parts))


def split_evenly(count: int) -> list[slice]:
    """Divide `count` items evenly over all cores."""
    edges = np.linspace(0, count, available_cores() + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]


@cache
def _timed_matrix() -> Any:
    """Return the matrix whose product with itself is timed."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(TIMED_MATRIX_SIDE, TIMED_MATRIX_SIDE)).astype(np.float32)


def multiply_matrices() -> None:
    """Compute a matrix product in single precision, of PRODUCT_OPERATIONS, on all cores."""
    matrix = _timed_matrix()
    run_on_all_cores(lambda rows: matrix[rows] @ matrix, split_evenly(len(matrix)))


@cache
def product_rate() -> float:
    """Return the operations per second of a matrix product in single precision on all cores."""
    return PRODUCT_OPERATIONS / best_seconds(multiply_matrices)


def compare_with_products(
    name: str,
    action: Callable[[], Any],
    operations: float,
    bar: float,
    *,
    items: int = 1,
    turns: int = TURNS,
) -> Result:
    """Compare the time of an action with that of its operations at the rate of matrix products.

    Parameters
    ----------
    name : str
        A description of the case.
    action : callable
        What is timed.
    operations : float
        Its operations for each item; their time is the floor of the result.
    bar : float
        The largest accepted ratio.
    items : int
        The number of items, such as images; the result has the times of one.
    turns : int
        How often the action and a matrix product are timed, in turns.

    Returns
    -------
    Result
        The result, with the times of the turn with the median ratio.
    """
    ours, product = seconds_in_turns((action, multiply_matrices), turns)
    floor = product * operations / PRODUCT_OPERATIONS
    return Result(name, ours / items, floor=floor, bar=bar, at_most=True)
