"""Folds over groups: the same as a plain fold, in a fixed order, and lazy; BLAS thread limits."""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import add
from typing import Any

import dask
import numpy as np
import pytest
from dask.delayed import Delayed
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import ThreadpoolController

from rescnet_dist.reduce import blas_threads, fold_graph

LONG = 10.0  # seconds that no wait in here takes unless something hangs


def fold_letters(shared: str, group: str) -> str:
    """A fold whose result shows what it was given."""
    return f"<{shared}{group}>"


def finish_letters(shared: str, merged: str) -> tuple[str, str]:
    """A finish that shows what it was given."""
    return shared, merged


def letters_graph(groups: list[str], split_every: int) -> Delayed:
    """A fold under a merge that is associative and not commutative."""
    return fold_graph(
        fold_letters,
        [("s", group) for group in groups],
        add,
        finish_letters,
        "s",
        split_every=split_every,
        name="letters",
    )


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.text("abcdef", max_size=3), min_size=1, max_size=40),
    split_every=st.integers(2, 9),
)
def test_a_fold_graph_equals_a_plain_fold_in_order(groups: list[str], split_every: int) -> None:
    """Any number of groups and any fan-in merge every group once, in the order of the groups."""
    got = letters_graph(groups, split_every).compute(scheduler="threads")
    assert got == ("s", reduce(add, [fold_letters("s", group) for group in groups]))


@settings(max_examples=20, deadline=None)
@given(groups=st.integers(1, 40), split_every=st.integers(2, 6), seed=st.integers(0, 99))
def test_a_sum_in_floats_has_the_same_bits_every_time(
    groups: int, split_every: int, seed: int
) -> None:
    """The tree, not who finishes first, fixes the order of a sum that rounds."""
    values = list(np.random.default_rng(seed).normal(size=groups) * 10.0 ** np.arange(groups))

    def total(scheduler: str) -> float:
        graph = fold_graph(
            lambda x: x,
            [(value,) for value in values],
            add,
            lambda _, x: x,
            None,
            split_every=split_every,
            name="sum",
        )
        return graph.compute(scheduler=scheduler)

    assert total("threads") == total("sync") == total("threads")


def test_no_merge_takes_more_than_split_every_parts() -> None:
    """A merge task that held many accumulators at a time would break the memory bound."""
    widths = []

    def bracket(left: str, right: str) -> str:
        widths.append((left + right).count("x"))
        return left + right

    graph = fold_graph(
        lambda: "x", [()] * 30, bracket, lambda _, all_: all_, "x",
        split_every=3, name="width",
    )  # fmt: skip
    fan_in = [len(task.dependencies) for task in dict(graph.__dask_graph__()).values()]
    assert max(fan_in) == 3
    assert graph.compute(scheduler="sync") == "x" * 30
    assert len(widths) == 29


def test_building_the_graph_calls_nothing() -> None:
    """Neither fold nor merge nor finish runs before the graph is computed."""
    calls: list[str] = []

    def note(name: str, result: Any) -> Any:
        calls.append(name)
        return result

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("computed while a graph is built")

    with dask.config.set(scheduler=refuse):
        graph = fold_graph(
            lambda factor, group: note("fold", factor * group),
            [(10, 1), (10, 2), (10, 3)],
            lambda a, b: note("merge", a + b),
            lambda factor, merged: note("finish", merged),
            10,
            split_every=2,
            name="lazy",
        )
    assert calls == []
    assert graph.compute(scheduler="sync") == 60
    assert sorted(calls) == ["finish", "fold", "fold", "fold", "merge", "merge"]


def fold_freshly(shared: str, group: str) -> str:
    """A fold that shows whether it has run again."""
    return uuid.uuid4().hex


def test_a_fold_made_again_runs_again(client: Client) -> None:
    """Though the cluster still holds an equal one: what it reads may have changed meanwhile."""
    graphs = [
        fold_graph(
            fold_freshly,
            [("s", "a"), ("s", "b")],
            add,
            finish_letters,
            "s",
            split_every=2,
            name="letters",
        )
        for _ in range(2)
    ]
    held = client.compute(graphs[0])
    first = held.result()
    assert client.compute(graphs[1]).result() != first


def blas_thread_counts() -> set[int]:
    """The thread limits of all BLAS libraries loaded, now."""
    return {
        lib["num_threads"] for lib in ThreadpoolController().info() if lib["user_api"] == "blas"
    }


@pytest.mark.parametrize("count", [1, 2])
def test_blas_has_exactly_the_threads_asked_for_and_gets_its_own_back(count: int) -> None:
    """Within the body and after it."""
    before = blas_thread_counts()
    assert before, "no BLAS that threadpoolctl knows: the promise of same bits has no ground"
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        with blas_threads(count):
            assert blas_thread_counts() == {count}
        assert blas_thread_counts() == {2}
    assert blas_thread_counts() == before


def test_blas_threads_are_restored_after_an_error() -> None:
    """A failing task leaves the limit as it was."""
    before = blas_thread_counts()
    with pytest.raises(RuntimeError, match="inside"), blas_threads(1):
        raise RuntimeError("inside")
    assert blas_thread_counts() == before
    with blas_threads(2):  # and nobody waits for the one that failed
        assert blas_thread_counts() == {2}


def test_tasks_that_ask_for_equal_counts_run_together() -> None:
    """The second does not wait for the first, and keeps the limit when the first has left."""
    before = blas_thread_counts()
    first_in, second_in, first_left = (threading.Event() for _ in range(3))

    def first() -> set[int]:
        with blas_threads(1):
            first_in.set()
            assert second_in.wait(LONG)
            counts = blas_thread_counts()
        first_left.set()
        return counts

    def second() -> set[int]:
        assert first_in.wait(LONG)
        with blas_threads(1):
            second_in.set()
            assert first_left.wait(LONG)
            return blas_thread_counts()

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(task) for task in (first, second)]
        assert [result.result(LONG) for result in results] == [{1}, {1}]
        assert blas_thread_counts() == before  # though not by the thread that set the limit


def test_every_thread_of_a_worker_gets_its_limit() -> None:
    """Not only the first that ever asked for one, as threadpoolctl has it by default."""
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:

        def counts_within(count: int) -> set[int]:
            with blas_threads(count):
                return blas_thread_counts()

        for pool in (one, two, one):
            for count in (1, 2):
                assert pool.submit(counts_within, count).result(LONG) == {count}


def test_others_can_limit_blas_once_the_tasks_are_done() -> None:
    """As scikit-learn does in the main thread, while the worker's threads are still alive."""
    with ThreadPoolExecutor(1) as pool:

        def task() -> None:
            with blas_threads(1):
                pass

        pool.submit(task).result(LONG)
        with ThreadpoolController().limit(limits=1, user_api="blas"):
            assert blas_thread_counts() == {1}


def test_a_task_that_asks_for_another_count_waits() -> None:
    """It enters once the last with the first count has left, and then has its own count."""
    inside, leave, entered = threading.Event(), threading.Event(), threading.Event()

    def hold() -> set[int]:
        with blas_threads(1):
            inside.set()
            assert leave.wait(LONG)
            return blas_thread_counts()

    def other() -> set[int]:
        assert inside.wait(LONG)
        with blas_threads(2):
            entered.set()
            return blas_thread_counts()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(hold), pool.submit(other)
        assert inside.wait(LONG)
        time.sleep(0.1)
        assert not entered.is_set()
        leave.set()
        assert first.result(LONG) == {1}
        assert second.result(LONG) == {2}
