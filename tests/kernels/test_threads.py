"""The number of BLAS threads of tasks, also of a BLAS that is loaded late."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from threadpoolctl import threadpool_info

from rescnet_dist.kernels.cpu import threads as module
from rescnet_dist.kernels.cpu.threads import blas_threads, count_blas_threads, one_blas_thread

# How many threads the BLAS libraries have in the block, if SciPy is first used there.
SCRIPT = """
import sys
import numpy, scipy
from threadpoolctl import threadpool_info
from rescnet_dist.kernels.cpu.threads import blas_threads
assert "scipy.linalg" not in sys.modules
with blas_threads(3, numpy_only={numpy_only}):
    loaded = "scipy.linalg" in sys.modules
    scipy.linalg.cholesky(numpy.eye(3))
    libraries = [part for part in threadpool_info() if part["user_api"] == "blas"]
print(loaded, *(part["num_threads"] == 3 for part in libraries))
"""


@pytest.mark.parametrize(("numpy_only", "loaded"), [(False, "True"), (True, "False")])
def test_scipy_is_loaded_before_its_threads_are_limited(numpy_only: bool, loaded: str) -> None:
    """Unless the caller says that it does not use SciPy's BLAS."""
    command = [sys.executable, "-c", SCRIPT.format(numpy_only=numpy_only)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert found[0] == loaded
    assert numpy_only or (len(found) > 1 and set(found[1:]) == {"True"}), found


# How many threads SciPy's BLAS has after tasks, if the second task loads it during the first.
SHARED_SCRIPT = """
import threading
import numpy, scipy
from threadpoolctl import threadpool_info
from rescnet_dist.kernels.cpu.threads import blas_threads

def count_threads():
    return {part["num_threads"] for part in threadpool_info() if part["user_api"] == "blas"}

def run_task():
    with blas_threads(3):
        print(*count_threads())

before = count_threads()
with blas_threads(3, numpy_only=True):
    task = threading.Thread(target=run_task)
    task.start()
    task.join()
print(count_threads() == before)
"""


def test_threads_of_a_blas_loaded_by_another_task_are_restored() -> None:
    """Tasks that share a limit leave no library with it, whichever task has loaded the library."""
    command = [sys.executable, "-c", SHARED_SCRIPT]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}  # that of libraries loaded later, too
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["3", "True"]


def test_threads_of_blas_are_replaced_by_one() -> None:
    """In the body of a task, in a body of its own, and without any; they are restored."""
    before = count_blas_threads()
    with one_blas_thread() as threads:
        assert (threads, count_blas_threads()) == (before, 1)
    assert count_blas_threads() == before
    for count in (1, 3):
        with blas_threads(count):
            assert count_blas_threads() == count
            with one_blas_thread() as threads, one_blas_thread() as inner:
                assert (threads, inner, find_threads()) == (count, 1, {1})
            assert count_blas_threads() == count
            assert find_threads() == {count}
    assert count_blas_threads() == before


def find_threads() -> set[int]:
    """Return the numbers of threads that the BLAS libraries have."""
    return {part["num_threads"] for part in threadpool_info() if part["user_api"] == "blas"}


def test_tasks_that_replace_their_threads_wait_for_each_other() -> None:
    """None of them sees another number of threads than its own."""
    together = threading.Barrier(4)

    def run(count: int) -> list[set[int]]:
        found = list[set[int]]()
        together.wait(10)
        for _ in range(20):
            with blas_threads(count):
                found.append(find_threads())
                with one_blas_thread():
                    found.append(find_threads())
                found.append(find_threads())
        return found

    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(run, (2, 2, 3, 1), timeout=60)]
    for count, found in zip((2, 2, 3, 1), results, strict=True):
        assert found == [{count}, {1}, {count}] * 20


def test_other_tasks_wait_until_the_first_has_its_threads_again() -> None:
    """A task with one thread does not begin while another has replaced its threads by one."""
    order, waits = list[str](), threading.Event()

    def run_other() -> None:
        waits.set()
        with blas_threads(1):
            order.append("other")

    other = threading.Thread(target=run_other)
    with blas_threads(2):
        with one_blas_thread():
            other.start()
            waits.wait(10)
            other.join(0.2)
            order.append("replaced")
        order.append("restored")
    other.join(10)
    assert order == ["replaced", "restored", "other"]


def test_tasks_in_their_bodies_come_first() -> None:
    """A task that waits to replace its threads is not overtaken when the other one ends."""
    order, ends, waits = list[str](), threading.Event(), threading.Event()

    def share() -> None:
        with blas_threads(2):
            waits.set()
            ends.wait(10)

    def run_other() -> None:
        with blas_threads(1):
            order.append("other")

    sharing, other = (threading.Thread(target=function) for function in (share, run_other))
    sharing.start()
    waits.wait(10)
    with blas_threads(2):
        other.start()
        threading.Timer(0.3, ends.set).start()
        with one_blas_thread():
            order.append("replaced")
    for thread in (sharing, other):
        thread.join(10)
        assert not thread.is_alive()
    assert order == ["replaced", "other"]


def test_bodies_within_bodies() -> None:
    """The same number is there already; for another one, a thread would wait for itself."""
    with blas_threads(2), blas_threads(2), one_blas_thread() as threads, blas_threads(1):
        assert (threads, find_threads()) == (2, {1})
    with blas_threads(2):
        with (
            pytest.raises(RuntimeError, match="has 2 BLAS threads already, not 3"),
            blas_threads(3),
        ):
            pass
        assert find_threads() == {2}


def test_threads_of_a_body_do_not_wait_for_it() -> None:
    """They replace nothing, as the body may wait for them."""
    with blas_threads(2), ThreadPoolExecutor(1) as pool:

        def count() -> tuple[int, set[int]]:
            with one_blas_thread() as threads:
                return threads, find_threads()

        assert pool.submit(count).result(10) == (1, {2})


def test_failures_to_set_threads_leave_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if interrupted: neither while a task begins, nor while it replaces its threads."""
    before, set_limit = find_threads(), module._LimitInForce._set
    failing = {3, 1}

    def fail(limits: Any, limit: Any) -> None:
        if limit.threads in failing:
            raise KeyboardInterrupt
        set_limit(limits, limit)

    monkeypatch.setattr(module._LimitInForce, "_set", fail)
    with pytest.raises(KeyboardInterrupt), blas_threads(3):
        pass
    with pytest.raises(KeyboardInterrupt), blas_threads(2), one_blas_thread():
        pass
    assert find_threads() == before
    failing.clear()
    with blas_threads(3):
        assert find_threads() == {3}
    assert find_threads() == before
