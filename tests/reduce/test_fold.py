"""Fold graphs: equal to a plain fold, in a fixed order, and lazy; and BLAS thread limits."""

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

from rescnet_dist.kernels.cpu.threads import blas_threads
from rescnet_dist.reduce import fold, fold_graph, split_graph

TIMEOUT_SECONDS = 10.0  # no wait takes that long unless something hangs


def fold_letters(shared: str, group: str) -> str:
    """Return a string that contains the arguments."""
    return f"<{shared}{group}>"


def finish_letters(shared: str, merged: str) -> tuple[str, str]:
    """Return the arguments."""
    return shared, merged


def build_letters_graph(groups: list[str], split_every: int) -> Delayed:
    """Build the graph of a fold whose merge is associative and not commutative."""
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
def test_fold_graph_equals_plain_fold_in_order(groups: list[str], split_every: int) -> None:
    """Any number of groups and any fan-in merge every group once, in the order of the groups."""
    result = build_letters_graph(groups, split_every).compute(scheduler="threads")
    assert result == ("s", reduce(add, [fold_letters("s", group) for group in groups]))


@settings(max_examples=100, deadline=None)
@given(folds=st.integers(1, 60), split_every=st.integers(2, 5), limit=st.integers(1, 30))
def test_parts_of_a_graph_are_the_whole_graph(folds: int, split_every: int, limit: int) -> None:
    """Each task is in one part. A part has at most the limit of folds, or one merge's if that is
    less, and its output keys are those of its tasks that later parts need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "MAX_FOLDS_PER_LAYER", limit)
        graph = build_letters_graph(["x"] * folds, split_every)
    first, last = split_graph(graph)
    assert last.key == graph.key
    parts = [dict(part) for part in (*first, last.dask)]
    assert sum(map(len, parts)) == len(dict(graph.dask))
    assert {key for part in parts for key in part} == set(graph.dask)
    sizes = [sum("-fold-" in key[0] for key in part) for part in parts]
    assert sum(sizes) == folds
    assert max(sizes) <= max(limit, split_every)
    for index, part in enumerate(first):
        needed = {
            key for later in parts[index + 1 :] for t in later.values() for key in t.dependencies
        }
        (layer,) = part.layers.values()
        assert layer.get_output_keys() == needed & set(part)
        inside = {key for task in parts[index].values() for key in task.dependencies}
        assert inside <= {key for earlier in parts[: index + 1] for key in earlier}


def test_graph_of_few_folds_has_one_part() -> None:
    """Sending it in parts would not be worth the messages."""
    first, last = split_graph(build_letters_graph(["x"] * 200, 2))
    assert first == []
    assert len(dict(last.dask)) == 400


@settings(max_examples=20, deadline=None)
@given(groups=st.integers(1, 40), split_every=st.integers(2, 6), seed=st.integers(0, 99))
def test_float_sum_has_same_bits_every_time(groups: int, split_every: int, seed: int) -> None:
    """The tree, not the order of completion, fixes the order of a sum that rounds."""
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


def test_merge_takes_at_most_split_every_parts() -> None:
    """A merge task with many accumulators at a time would break the memory bound."""
    widths = []

    def bracket(left: str, right: str) -> str:
        widths.append((left + right).count("x"))
        return left + right

    graph = fold_graph(
        lambda: "x",
        [()] * 30,
        bracket,
        lambda _, all_: all_,
        "x",
        split_every=3,
        name="width",
    )
    fan_in = [len(task.dependencies) for task in dict(graph.__dask_graph__()).values()]
    assert max(fan_in) == 3
    assert graph.compute(scheduler="sync") == "x" * 30
    assert len(widths) == 29


def test_building_the_graph_calls_nothing() -> None:
    """Neither fold nor merge nor finish runs before the graph is computed."""
    calls: list[str] = []

    def record(name: str, result: Any) -> Any:
        calls.append(name)
        return result

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("computed while a graph is built")

    with dask.config.set(scheduler=fail):
        graph = fold_graph(
            lambda factor, group: record("fold", factor * group),
            [(10, 1), (10, 2), (10, 3)],
            lambda a, b: record("merge", a + b),
            lambda factor, merged: record("finish", merged),
            10,
            split_every=2,
            name="lazy",
        )
    assert calls == []
    assert graph.compute(scheduler="sync") == 60
    assert sorted(calls) == ["finish", "fold", "fold", "fold", "merge", "merge"]


def fold_to_unique(shared: str, group: str) -> str:
    """Return another string on each call."""
    return uuid.uuid4().hex


def test_equal_fold_is_computed_again(client: Client) -> None:
    """The cluster still has the result of an equal one, but its input may have changed."""
    graphs = [
        fold_graph(
            fold_to_unique,
            [("s", "a"), ("s", "b")],
            add,
            finish_letters,
            "s",
            split_every=2,
            name="letters",
        )
        for _ in range(2)
    ]
    future = client.compute(graphs[0])
    first = future.result()
    assert client.compute(graphs[1]).result() != first


def get_blas_threads() -> set[int]:
    """Return the current thread limits of all loaded BLAS libraries."""
    return {
        lib["num_threads"] for lib in ThreadpoolController().info() if lib["user_api"] == "blas"
    }


@pytest.mark.parametrize("count", [1, 2])
def test_blas_threads_sets_and_restores_limit(count: int) -> None:
    """The limit holds in the body; the previous one is restored after it."""
    before = get_blas_threads()
    assert before, "threadpoolctl finds no BLAS, so that equal bits cannot be guaranteed"
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        with blas_threads(count):
            assert get_blas_threads() == {count}
        assert get_blas_threads() == {2}
    assert get_blas_threads() == before


def test_blas_threads_are_restored_after_an_error() -> None:
    """A failing task leaves the limit as it was."""
    before = get_blas_threads()
    with pytest.raises(RuntimeError, match="inside"), blas_threads(1):
        raise RuntimeError("inside")
    assert get_blas_threads() == before
    with blas_threads(2):  # and no task waits for the one that failed
        assert get_blas_threads() == {2}


def test_tasks_with_equal_counts_run_together() -> None:
    """The second does not wait for the first, and keeps the limit when the first has left."""
    before = get_blas_threads()
    first_in, second_in, first_left = (threading.Event() for _ in range(3))

    def first() -> set[int]:
        with blas_threads(1):
            first_in.set()
            assert second_in.wait(TIMEOUT_SECONDS)
            counts = get_blas_threads()
        first_left.set()
        return counts

    def second() -> set[int]:
        assert first_in.wait(TIMEOUT_SECONDS)
        with blas_threads(1):
            second_in.set()
            assert first_left.wait(TIMEOUT_SECONDS)
            return get_blas_threads()

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(task) for task in (first, second)]
        assert [result.result(TIMEOUT_SECONDS) for result in results] == [{1}, {1}]
        assert get_blas_threads() == before  # though not by the thread that set the limit


def test_every_thread_of_worker_gets_its_limit() -> None:
    """By default, threadpoolctl obeys only the first thread that sets a limit."""
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:

        def counts_within(count: int) -> set[int]:
            with blas_threads(count):
                return get_blas_threads()

        for pool in (one, two, one):
            for count in (1, 2):
                assert pool.submit(counts_within, count).result(TIMEOUT_SECONDS) == {count}


def test_blas_can_be_limited_after_tasks() -> None:
    """scikit-learn does so in the main thread, while the worker's threads are still alive."""
    with ThreadPoolExecutor(1) as pool:

        def task() -> None:
            with blas_threads(1):
                pass

        pool.submit(task).result(TIMEOUT_SECONDS)
        with ThreadpoolController().limit(limits=1, user_api="blas"):
            assert get_blas_threads() == {1}


def test_task_with_other_count_waits() -> None:
    """It enters once the last task with the first count has left, and has its own count."""
    inside, leave, entered = threading.Event(), threading.Event(), threading.Event()

    def hold() -> set[int]:
        with blas_threads(1):
            inside.set()
            assert leave.wait(TIMEOUT_SECONDS)
            return get_blas_threads()

    def other() -> set[int]:
        assert inside.wait(TIMEOUT_SECONDS)
        with blas_threads(2):
            entered.set()
            return get_blas_threads()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(hold), pool.submit(other)
        assert inside.wait(TIMEOUT_SECONDS)
        time.sleep(0.1)
        assert not entered.is_set()
        leave.set()
        assert first.result(TIMEOUT_SECONDS) == {1}
        assert second.result(TIMEOUT_SECONDS) == {2}
