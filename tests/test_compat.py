"""Private APIs of other packages: each wrapper with the installed release, and without the API."""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import ctypes
import multiprocessing
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType, SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numba
import numpy as np
import pandas as pd
import pytest
import scipy.linalg
import threadpoolctl
import zarr
from distributed import Client, LocalCluster, rpc, stealing, utils
from distributed.scheduler import Scheduler
from fsspec.implementations.local import LocalFileSystem
from numba.core import compiler_lock
from sklearn.preprocessing import StandardScaler
from tornado.httpclient import AsyncHTTPClient

import rescnet_dist
from rescnet_dist import _compat
from rescnet_dist.errors import BackendError, ClusterError, RescnetError
from rescnet_dist.kernels.cpu import blas
from rescnet_dist.kernels.cpu.cholesky import cholesky, solve_factored

PACKAGE = Path(rescnet_dist.__file__).parent
ROOT = PACKAGE.parent
MODULES = [
    path
    for path in sorted([*PACKAGE.rglob("*.py"), *(ROOT / "deploy").rglob("*.py")])
    if path.name != "_compat.py"
]
# Modules and attributes of other packages that are private in spite of their names.
PRIVATE_MODULES = (
    *("cupy_backends", "numba.core", "scipy.linalg.cython_blas", "scipy.linalg.cython_lapack"),
    *("distributed.dashboard", "distributed.stealing", "distributed.scheduler.Scheduler"),
    *("tensorboard.compat", "tensorboard.plugins", "tensorboard.summary"),
)
PRIVATE_ATTRIBUTES = {
    *("__pyx_capi__", "CDLL", "clear_controlling_thread", "encode_chunk_key", "fast_tasks"),
    *("get_cublas_handle", "get_cusolver_handle", "get_process_memory", "http_application"),
    *("memory_manager", "periodic_callbacks", "profile_history", "profile_keys_history"),
    *("pythonapi", "targetctx"),
}
SCHEDULER_ATTRIBUTES = {"address"}  # of Client.scheduler; all others call its operations
JUPYTER_METHOD = re.compile(r"_repr_\w+_")  # a public protocol, in spite of the underscore


def run_in_thread(action: Callable[[], Any]) -> Any:
    """Return the result of an action in a thread of its own.

    The browser of other tests leaves an event loop in the main thread, and switches stacks there.
    """
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(action).result()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a cluster with one worker in this process and without a dashboard."""
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",  # of the HTTP server
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def scheduler(client: Client) -> Scheduler:
    """The scheduler of `client`, in this process."""
    found = client.cluster.scheduler
    assert isinstance(found, Scheduler)
    return found


def hide_modules(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make the import of these modules fail."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


# dask and distributed ---------------------------------------------------------------------------


def test_array_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallback is the meta of an array of NumPy chunks."""
    array = da.zeros((4, 3), chunks=2, dtype="f4")
    assert _compat.array_meta(array) is array._meta
    found = _compat.array_meta(SimpleNamespace(ndim=2, dtype=array.dtype))
    assert (type(found), found.shape, found.dtype) == (np.ndarray, (0, 0), array.dtype)


def test_fetch_workers(
    client: Client, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the operation, the client's own knowledge is returned."""
    expected = {worker.address for worker in client.cluster.workers.values()}
    assert set(_compat.fetch_workers(client)) == expected
    monkeypatch.delitem(scheduler.handlers, "identity")
    monkeypatch.setattr(client, "scheduler_info", lambda: {"workers": {"tcp://a": {}}})
    assert _compat.fetch_workers(client) == {"tcp://a": {}}


def test_client_sends_promptly(client: Client) -> None:
    """In the body only; anything else than a client is left alone."""
    before = client.scheduler_comm.interval
    with _compat.sending_promptly(client):
        assert client.scheduler_comm.interval == _compat.SEND_SECONDS < before
    assert client.scheduler_comm.interval == before
    with _compat.sending_promptly(SimpleNamespace()):
        pass


def test_client_sends_promptly_until_the_last_body_ends(client: Client) -> None:
    """Bodies of several runs overlap in any order, and may fail."""
    stream = client.scheduler_comm
    before = stream.interval
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    for run in (first, second):
        run.enter_context(_compat.sending_promptly(client))
    first.close()
    assert stream.interval == _compat.SEND_SECONDS
    with pytest.raises(ZeroDivisionError), second:
        raise ZeroDivisionError
    assert stream.interval == before
    assert stream not in _compat._PROMPT_STREAMS


def test_subscribe_client(client: Client, scheduler: Scheduler) -> None:
    """A client is subscribed once; without the method, nothing happens."""
    events: list[Any] = []
    client.subscribe_topic("numbers", events.append)
    _compat.subscribe_client(scheduler, "numbers", client.id)
    _compat.subscribe_client(SimpleNamespace(), "numbers", client.id)
    client.log_event("numbers", 1)
    deadline = time.monotonic() + 10
    while not events:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [message for _, message in events] == [1]


def test_identify_workers(scheduler: Scheduler) -> None:
    """Without the method, an error says which release has it."""
    found = _compat.identify_workers(scheduler)
    assert [worker["nthreads"] for worker in found.values()] == [1]
    with pytest.raises(ClusterError, match=r"2026\.8\.0"):
        _compat.identify_workers(object())


def test_ask_versions(client: Client, scheduler: Scheduler) -> None:
    """Only the given workers are asked; without the method, nobody is."""
    (address,) = scheduler.workers

    async def ask(owner: Any, addresses: list[str], dask_scheduler: Any) -> dict[str, Any]:
        return await _compat.ask_versions(owner or dask_scheduler, ["numpy"], addresses)

    found = client.run_on_scheduler(ask, None, [address])
    assert found[address]["packages"]["numpy"] == np.__version__
    assert client.run_on_scheduler(ask, None, []) == {}
    assert client.run_on_scheduler(ask, "a scheduler without it", [address]) == {}


def test_remove_restrictions(client: Client, scheduler: Scheduler) -> None:
    """Tasks that the scheduler does not have are reported; without the method, nothing happens."""
    (worker,) = client.nthreads()
    future = client.submit(pow, 2, 3, workers=[worker], key="restricted")
    assert future.result() == 8
    task = scheduler.tasks[future.key]
    assert _compat.remove_restrictions(SimpleNamespace(tasks=scheduler.tasks), [future.key])
    assert task.worker_restrictions
    assert not _compat.remove_restrictions(scheduler, [future.key, "unknown"])
    assert not task.worker_restrictions
    assert _compat.remove_restrictions(scheduler, [future.key])


def test_tasks_that_wait_for_a_lost_worker_start_without_restrictions(
    client: Client, scheduler: Scheduler
) -> None:
    """Dask itself starts them only when another worker joins."""
    future = client.submit(pow, 2, 4, workers=["tcp://192.0.2.1:1"], key="waiting")
    while not _compat.lack_workers(scheduler, [future.key]):
        time.sleep(0.01)
    assert not _compat.lack_workers(SimpleNamespace(), [future.key])
    assert not _compat.lack_workers(scheduler, [future.key, "of a part that comes later"])

    def unbind(dask_scheduler: Scheduler) -> bool:
        return _compat.remove_restrictions(dask_scheduler, [future.key])

    assert client.run_on_scheduler(unbind)
    assert future.result(timeout=10) == 16
    assert not _compat.lack_workers(scheduler, [future.key])


def test_are_in_memory(client: Client, scheduler: Scheduler) -> None:
    """Without the tasks of the scheduler, all are taken to be."""
    future = client.submit(pow, 2, 3, key="result in memory")
    assert future.result() == 8
    assert _compat.are_in_memory(scheduler, [future.key])
    assert not _compat.are_in_memory(scheduler, [future.key, "unknown"])
    assert _compat.are_in_memory(SimpleNamespace(), ["unknown"])


class FailsOnce:
    """A task that fails at its first call."""

    calls = 0

    def __call__(self) -> int:
        """Raise OSError in the first call."""
        FailsOnce.calls += 1
        if FailsOnce.calls == 1:
            raise OSError("first call")
        return FailsOnce.calls


@pytest.mark.parametrize("has_states", [True, False])
def test_retry_future(client: Client, monkeypatch: pytest.MonkeyPatch, has_states: bool) -> None:
    """A failed future is computed again, also by `Future.retry`."""
    monkeypatch.setattr(FailsOnce, "calls", 0)
    future = client.submit(FailsOnce(), pure=False)
    assert isinstance(future.exception(), OSError)
    if has_states:
        _compat.retry_future(client, future)
    else:
        _compat.retry_future(SimpleNamespace(scheduler=client.scheduler), future)
    assert future.result() == 2


def test_retry_future_without_the_operation(
    client: Client, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what is missing; the future would never end."""
    monkeypatch.setattr(FailsOnce, "calls", 0)
    future = client.submit(FailsOnce(), pure=False)
    assert isinstance(future.exception(), OSError)
    monkeypatch.delitem(scheduler.handlers, "retry")
    with pytest.raises(ClusterError, match=r"no operation 'retry'. Use a release of distributed"):
        _compat.retry_future(client, future)


def test_disable_stealing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are added; without the API, nothing happens."""
    monkeypatch.setattr(stealing, "fast_tasks", {"split-shuffle"})
    _compat.disable_stealing(["a"])
    assert stealing.fast_tasks == {"split-shuffle", "a"}
    monkeypatch.delattr(stealing, "fast_tasks")
    _compat.disable_stealing(["a"])


def test_skip_unwanted_reports(client: Client, scheduler: Scheduler) -> None:
    """A client gets reports of results with the prefix only if it has a future of them."""
    reported: list[str] = []
    own = scheduler.report_on_key
    target = SimpleNamespace(report_on_key=lambda *_, ts, client: reported.append(ts.key))
    for _ in range(2):  # the second call changes nothing
        _compat.skip_unwanted_reports(target, "skipped-")
    first, other = (client.submit(pow, 2, 3, key=key) for key in ("skipped-1", "other-1"))
    assert [first.result(), other.result()] == [8, 8]
    for future in (first, other):
        task = scheduler.tasks[future.key]
        target.report_on_key(ts=task, client="a")
        target.report_on_key(
            ts=SimpleNamespace(key=task.key, state=task.state, who_wants=None), client="a"
        )
    assert reported == ["skipped-1", "other-1", "other-1"]
    _compat.skip_unwanted_reports(scheduler, "skipped-")
    try:  # the scheduler calls it with such arguments
        assert client.submit(pow, 3, 2, key="skipped-2").result() == 9
        assert client.submit(sum, [first, other]).result() == 16
        assert client.submit(pow, 2, 3, key="skipped-1").result() == 8
    finally:
        scheduler.report_on_key = own
    _compat.skip_unwanted_reports(SimpleNamespace(), "skipped-")


def test_skip_unwanted_reports_with_other_arguments() -> None:
    """A release of Dask that passes others, or other tasks, gets its own method."""
    calls: list[Any] = []

    def own(*args: Any, **kwargs: Any) -> str:
        calls.append((args, kwargs))
        return "done"

    target = SimpleNamespace(report_on_key=own)
    _compat.skip_unwanted_reports(target, "skipped-")
    other = SimpleNamespace(key="skipped-1")  # without who_wants
    assert target.report_on_key("skipped-1", client="a") == "done"
    assert target.report_on_key(task=other, reason="new") == "done"
    assert target.report_on_key(ts=other) == "done"
    assert calls == [
        (("skipped-1",), {"client": "a"}),
        ((), {"task": other, "reason": "new"}),
        ((), {"ts": other}),
    ]


def test_forget_events(client: Client, scheduler: Scheduler) -> None:
    """None of a topic are left, its subscribers are; without the API, nothing happens."""
    received: SimpleQueue[Any] = SimpleQueue()
    client.subscribe_topic("first", received.put)
    client.log_event("second", 2)
    while received.empty():  # until the scheduler has the subscription
        client.log_event("first", 1)
    assert client.get_events("first")
    _compat.forget_events(scheduler, "first")
    _compat.forget_events(scheduler, "unknown")
    assert [len(client.get_events(topic)) for topic in ("first", "second")] == [0, 1]
    client.log_event("first", 3)
    while received.get(timeout=10)[1] != 3:
        pass
    client.unsubscribe_topic("first")
    _compat.forget_events(SimpleNamespace(), "second")
    assert len(client.get_events("second")) == 1


def test_profiler(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history of a worker is cut and its profiler stopped, if there are any."""
    (worker,) = client.cluster.workers.values()
    monkeypatch.setattr(worker, "profile_history", deque(range(9), maxlen=100))
    _compat.limit_profile_history(worker, 5)
    assert worker.profile_history == deque(range(4, 9))
    assert worker.profile_history.maxlen == worker.profile_keys_history.maxlen == 5
    profiler, stopped = worker.periodic_callbacks["profile"], threading.Event()
    monkeypatch.setattr(profiler, "is_running", lambda: True)
    monkeypatch.setattr(profiler, "stop", stopped.set)
    _compat.stop_profiler(worker)
    assert stopped.wait(10)
    other = SimpleNamespace()
    _compat.limit_profile_history(other, 5)
    _compat.stop_profiler(other)
    assert vars(other) == {}


def test_modules_of_the_fork_server_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask sets its own only for the first context that it makes."""
    preloaded: list[list[str]] = []
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(context, "set_forkserver_preload", preloaded.append)
    monkeypatch.setattr(utils, "_forkserver_preload_set", False)
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        _compat.keep_fork_server_modules()
        utils.get_mp_context()
    assert not preloaded
    monkeypatch.delattr(utils, "_forkserver_preload_set")
    _compat.keep_fork_server_modules()  # changes nothing
    assert not hasattr(utils, "_forkserver_preload_set")


def test_fork_server_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the API there is none."""
    from multiprocessing import forkserver

    monkeypatch.setattr(forkserver, "_forkserver", SimpleNamespace(_forkserver_pid=7))
    assert _compat.fork_server_pid() == 7
    monkeypatch.delattr(forkserver, "_forkserver")
    assert _compat.fork_server_pid() is None


def test_is_importing_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the API, processes are taken to have started."""
    import multiprocessing

    assert not _compat.is_importing_script()
    process = SimpleNamespace(_inheriting=True)
    monkeypatch.setattr(multiprocessing, "current_process", lambda: process)
    assert _compat.is_importing_script()
    del process._inheriting
    assert not _compat.is_importing_script()


def test_worker_memory_limit(client: Client) -> None:
    """Without the API there is no limit."""
    (worker,) = client.cluster.workers.values()
    limits = [info["memory_limit"] for info in _compat.fetch_workers(client).values()]
    assert [_compat.worker_memory_limit(worker)] == limits
    assert limits[0] > 0
    assert _compat.worker_memory_limit(SimpleNamespace()) is None


# the dashboard of distributed -------------------------------------------------------------------


def test_find_scheduler_plugin(scheduler: Scheduler) -> None:
    """By name; None if there is none."""
    name, plugin = next(iter(scheduler.plugins.items()))
    assert _compat.find_scheduler_plugin(scheduler, name) is plugin
    assert _compat.find_scheduler_plugin(scheduler, "missing") is None
    assert _compat.find_scheduler_plugin(SimpleNamespace(), name) is None


def add_page(scheduler: Scheduler) -> bool:
    """Add a page that is a plot as well."""
    pages = {"/own": lambda *_: None}
    return _compat.add_dashboard_pages(scheduler, pages, "own", {"/own": "Own"})


@pytest.mark.parametrize(
    "missing",
    [
        "distributed.dashboard.components.scheduler",
        "distributed.dashboard.core",
        "bokeh.server.tornado",
        "http_application",
        "_applications",
    ],
)
def test_add_dashboard_pages(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is listed with Dask's own; without an API, Dask's pages stay as they are."""
    from bokeh.server.tornado import BokehTornado
    from distributed.dashboard.scheduler import template_variables

    async def run() -> None:
        async with Scheduler(dashboard_address="127.0.0.1:0", port=0) as scheduler:
            apps = scheduler.http_application.applications
            (dask_app,) = [app for app in apps if isinstance(app, BokehTornado)]
            variables = template_variables(scheduler)
            before, n_apps = [*variables["pages"]], len(apps)
            with monkeypatch.context() as patch:
                if "." in missing:
                    hide_modules(patch, missing)
                elif missing == "http_application":
                    patch.delattr(scheduler, missing)
                else:
                    patch.setattr(
                        "distributed.dashboard.core.BokehApplication",
                        lambda *_: SimpleNamespace(),
                    )
                assert not add_page(scheduler)
            assert (variables["pages"], len(apps)) == (before, n_apps)
            assert add_page(scheduler)
            assert variables["pages"] == [*before[:3], "own", *before[3:]]
            assert {"url": "own", "name": "Own"} in variables["plots"]
            assert "/own" in dask_app.app_paths

    run_in_thread(lambda: asyncio.run(run()))


def test_replace_adaptive_target() -> None:
    """In the method and in the operation; a scheduler without them is left as it is."""

    async def run() -> None:
        async with Scheduler(dashboard_address="127.0.0.1:0", port=0) as scheduler:
            assert scheduler.adaptive_target() == 0
            _compat.replace_adaptive_target(scheduler, lambda own: own() + 3)
            assert scheduler.adaptive_target() == 3
            async with rpc(scheduler.address) as client:
                assert await client.adaptive_target(target_duration="5s") == 3

    run_in_thread(lambda: asyncio.run(run()))
    other = SimpleNamespace()
    _compat.replace_adaptive_target(other, lambda own: own())
    assert vars(other) == {}


@pytest.mark.parametrize("has_pages", [True, False])
def test_deferred_dashboard(has_pages: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are imported, and others added, with the first request that is not of a probe."""
    added = list[str]()

    async def run() -> None:
        options: Any = {"dashboard": False, "dashboard_address": "127.0.0.1:0", "port": 0}
        async with Scheduler(**options) as scheduler:
            apps = scheduler.http_application.applications
            assert _compat.defer_dashboard(scheduler, "scheduler")
            assert _compat.add_to_dashboard(scheduler, lambda: bool(added.append("late")) or True)
            address = f"http://127.0.0.1:{scheduler.http_server.port}"
            fetch = AsyncHTTPClient().fetch
            assert (await fetch(f"{address}/health")).code == 200
            assert (apps, added) == ([], [])
            if not has_pages:
                hide_modules(monkeypatch, "distributed.dashboard.scheduler")
            for _ in range(2):
                code = (await fetch(f"{address}/status", raise_error=False)).code
                assert code == (200 if has_pages else 404)
                assert (len(apps), added) == (has_pages, ["late"])
            assert _compat.add_to_dashboard(scheduler, lambda: bool(added.append("now")) or True)
            assert added == ["late", "now"]

    run_in_thread(lambda: asyncio.run(run()))
    other = SimpleNamespace()
    assert not _compat.defer_dashboard(other, "worker")
    assert not _compat.add_to_dashboard(other, lambda: False)
    assert vars(other) == {}


def test_no_dashboard(scheduler: Scheduler) -> None:
    """A scheduler without a dashboard gets no pages."""
    assert not add_page(scheduler)


def test_dashboard_template() -> None:
    """It extends templates of Dask's dashboard."""
    template = _compat.make_dashboard_template('{% extends "base.html" %}')
    assert "base.html" in template.environment.list_templates()


# numba ------------------------------------------------------------------------------------------


def test_parse_numba_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both results compile the same function."""
    signature = "void(int64, float32[::1])"
    types = _compat.parse_numba_signature(signature)
    assert types == (numba.int64, numba.float32[::1])
    hide_modules(monkeypatch, "numba.core.sigutils")
    assert _compat.parse_numba_signature(signature) == signature
    kernel = numba.njit(lambda count, values: None)
    kernel.compile(signature)
    assert kernel.signatures == [types]


def test_numba_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is missing until it is compiled, then loaded; without a cache or API, no one is."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    types = [(numba.int64,)]
    kernel: Any = numba.njit(cache=True)(increase)
    assert not _compat.load_from_numba_cache(kernel, types)
    kernel.compile(types[0])
    loaded: Any = numba.njit(cache=True)(increase)
    for _ in range(2):
        assert _compat.load_from_numba_cache(loaded, types)
        assert loaded.signatures == types
        assert loaded(1) == 2
        assert (dict(loaded.stats.cache_hits), dict(loaded.stats.cache_misses)) == (
            {types[0]: 1},
            {},
        )
    assert not _compat.load_from_numba_cache(loaded, [*types, (numba.float64,)])
    assert _compat.load_from_numba_cache(numba.njit(increase), types)
    assert _compat.load_from_numba_cache(SimpleNamespace(), types)
    hide_modules(monkeypatch, "numba.core.runtime.nrt")
    unloaded: Any = numba.njit(cache=True)(increase)
    assert _compat.load_from_numba_cache(unloaded, types)
    assert unloaded.signatures == []


def test_numba_source_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is cached for one stamp; without the API, the answer is no."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def is_missing(stamp: str) -> bool:
        kernel: Any = numba.njit(cache=True)(increase)
        assert _compat.add_to_numba_source_stamp(kernel, stamp)
        missing = not _compat.load_from_numba_cache(kernel, [(numba.int64,)])
        kernel.compile((numba.int64,))
        return missing

    assert [is_missing(stamp) for stamp in ("a", "a", "b", "b")] == [True, False, True, False]
    assert not _compat.add_to_numba_source_stamp(numba.njit(increase), "a")
    assert not _compat.add_to_numba_source_stamp(SimpleNamespace(), "a")


def increase(number: int) -> int:
    """Return the next number; it is compiled."""
    return number + 1


def test_numba_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is Numba's own, or else the same lock at each call."""
    _compat.numba_lock.cache_clear()
    assert _compat.numba_lock() is compiler_lock.global_compiler_lock
    _compat.numba_lock.cache_clear()
    with monkeypatch.context() as patch:
        hide_modules(patch, "numba.core.compiler_lock")
        own = _compat.numba_lock()
        with own, _compat.numba_lock() as is_locked:
            assert is_locked
    _compat.numba_lock.cache_clear()


# scipy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_blas_routines(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SciPy's wrappers, without the API, compute the same bits in place."""
    rows = np.random.default_rng(0).normal(size=(40, 12)).astype(dtype)
    results, solutions = [], []
    for is_there in (True, False):
        blas.load_routine.cache_clear()
        with monkeypatch.context() as patch:
            if not is_there:
                for module in (scipy.linalg.cython_blas, scipy.linalg.cython_lapack):
                    patch.delattr(module, "__pyx_capi__")
            assert (_compat.load_blas_routine("dsyrk", 10) is not None) == is_there
            total = np.asfortranarray(np.triu(np.full((12, 12), 7, dtype)))
            blas.add_scatter(total, rows)
            blas.add_scatter(total, rows[:0])
            cholesky(total)
            cholesky(total[:0, :0])
            with pytest.raises(np.linalg.LinAlgError, match="order 1 is not positive"):
                cholesky(-np.asfortranarray(np.eye(3, dtype=dtype)))
            results.append(total)
            solutions.append(solve_factored(total, rows[:5].T))
        blas.load_routine.cache_clear()
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(*solutions, rtol=1e-4)
    expected = np.linalg.cholesky(rows.T @ rows + np.diag(np.full(12, 7)))
    np.testing.assert_allclose(np.tril(results[0]), expected, rtol=1e-4, atol=1e-4)
    assert (results[0][np.triu_indices(12, 1)] == 7).all()
    assert _compat.load_blas_routine("missing", 1) is None


# cupy -------------------------------------------------------------------------------------------


def make_cupy(*without: str) -> dict[str, Any]:
    """Return the modules of a CuPy, by name, that lacks some names."""
    modules: dict[str, Any] = {
        name: ModuleType(name)
        for name in ("cupy", "cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.libs")
    }
    libraries = modules["cupy_backends.cuda.libs"]
    for library, names in _compat.CUDA_LIBRARY_NAMES.items():
        module = SimpleNamespace(**{name: name for name in names if name not in without})
        setattr(libraries, library, module)
    handles = {"get_cublas_handle": lambda: 1, "get_cusolver_handle": lambda: 2}
    kept = {name: value for name, value in handles.items() if name not in without}
    modules["cupy"].cuda = SimpleNamespace(device=SimpleNamespace(**kept))
    modules["cupy"].__version__ = "99.1"
    if "cupy_backends" in without:
        modules = dict.fromkeys(modules) | {"cupy": modules["cupy"]}
    return modules


@pytest.mark.parametrize("missing", ["", "cupy_backends", "gemmEx", "get_cublas_handle"])
def test_load_cuda_library(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the release and what it lacks."""
    _compat.load_cuda_library.cache_clear()
    for name, module in make_cupy(missing).items():
        monkeypatch.setitem(sys.modules, name, module)
    if missing:
        with pytest.raises(BackendError, match=rf"CuPy 99\.1 .*{missing}.*array_backend='numpy'"):
            _compat.load_cuda_library("cublas")
    else:
        cublas, get_handle = _compat.load_cuda_library("cublas")
        assert (cublas.gemmEx, get_handle()) == ("gemmEx", 1)
        cusolver, get_handle = _compat.load_cuda_library("cusolver")
        assert (cusolver.spotrf, get_handle()) == ("spotrf", 2)
    _compat.load_cuda_library.cache_clear()


def test_gpu_kernels_use_only_checked_names() -> None:
    """`CUDA_LIBRARY_NAMES` has all that the kernels use of the libraries."""
    used: dict[str, set[str]] = {"cublas": set(), "cusolver": set()}
    for path in PACKAGE.rglob("gpu/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.get(node.value.id, set()).add(node.attr)
    assert {name: tuple(sorted(names)) for name, names in used.items()} == {
        name: tuple(sorted(names)) for name, names in _compat.CUDA_LIBRARY_NAMES.items()
    }


# other packages ---------------------------------------------------------------------------------


def test_release_openblas_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is forced; without the method, nothing happens."""
    calls: list[bool] = []
    controller = SimpleNamespace(clear_controlling_thread=lambda *, force: calls.append(force))
    _compat.release_openblas_control()
    monkeypatch.setattr(threadpoolctl, "OpenBLASController", controller)
    _compat.release_openblas_control()
    monkeypatch.setattr(threadpoolctl, "OpenBLASController", SimpleNamespace())
    _compat.release_openblas_control()
    assert calls == [True]


def test_strip_protocol() -> None:
    """Both ways return the same path."""
    for fs in (LocalFileSystem, LocalFileSystem(), SimpleNamespace()):
        assert _compat.strip_protocol(fs, "file:///a/b c.png") == "/a/b c.png"


def test_copy_output_config() -> None:
    """It copies what was chosen, and nothing else."""
    source, target = StandardScaler(), StandardScaler()
    _compat.copy_output_config(source, target)
    assert isinstance(target.fit_transform(np.eye(3)), np.ndarray)
    _compat.copy_output_config(source.set_output(transform="pandas"), target)
    assert isinstance(target.fit_transform(np.eye(3)), pd.DataFrame)
    _compat.copy_output_config(SimpleNamespace(), target)
    assert isinstance(target.fit_transform(np.eye(3)), pd.DataFrame)


def test_encode_chunk_key() -> None:
    """The fallback is the key of our own arrays."""
    array = zarr.create_array({}, shape=(4, 3), chunks=(2, 3), dtype="u1")
    expected = array.metadata.encode_chunk_key((1, 0))
    assert _compat.encode_chunk_key(array, (1, 0)) == expected == "c/1/0"
    assert _compat.encode_chunk_key(SimpleNamespace(metadata=None), (1, 0)) == expected


def test_load_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to install it."""
    events, files, hparams, text = _compat.load_tensorboard()
    assert events.Event(step=3).step == 3
    assert all([files.EventFileWriter, hparams.hparams_pb, text.text_pb])
    hide_modules(monkeypatch, "tensorboard.compat.proto")
    with pytest.raises(RescnetError, match=r"pip install 'rescnet-dist\[tensorboard\]'"):
        _compat.load_tensorboard()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is the C library of Linux")
def test_load_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other platforms and other C libraries have none."""
    assert _compat.load_glibc().malloc_trim(0) in (0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert _compat.load_glibc() is None
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=print))
    assert _compat.load_glibc() is None


# all --------------------------------------------------------------------------------------------


def test_all_wrappers_say_what_happens_without_the_api() -> None:
    """And on which release they were tried."""
    functions = [
        node
        for node in ast.parse((PACKAGE / "_compat.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
    ]
    assert len(functions) > 15
    for function in functions:
        docstring = ast.get_docstring(function) or ""
        assert re.search(r"Tried on [\w ]+\d", docstring), function.name
        assert "Without" in docstring, function.name


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


def iter_private_uses(path: Path, own: set[str]) -> Iterator[str]:
    """Yield the uses of private APIs of other packages in a file.

    `own` are all private names that this package defines.
    """
    tree = parse(path)
    here = set(iter_private_definitions(tree))
    for node in ast.walk(tree):
        found = ""
        if isinstance(node, ast.Import):
            found = next(filter(is_private_import, (alias.name for alias in node.names)), "")
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found = next(filter(is_private_import, names), "")
        elif (attribute := get_attribute(node)) is not None:
            target, name = attribute
            is_self = isinstance(target, ast.Name) and target.id in ("self", "cls")
            is_scheduler = isinstance(target, ast.Attribute) and target.attr == "scheduler"
            if (
                (is_private(name) and name not in (own if is_self else here))
                or name in PRIVATE_ATTRIBUTES
                or (is_scheduler and name not in SCHEDULER_ATTRIBUTES)
            ):
                found = name
        if found:
            yield f"{path.name}:{getattr(node, 'lineno', 0)}: {found}"


def get_attribute(node: ast.AST) -> tuple[ast.expr, str] | None:
    """Return the object and the name of an attribute, also of one that getattr gets."""
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("delattr", "getattr", "hasattr", "setattr")
        and isinstance(node.args[1], ast.Constant)
    ):
        return node.args[0], str(node.args[1].value)
    return None


def iter_private_definitions(tree: ast.AST) -> Iterator[str]:
    """Yield the names of functions, classes, variables and attributes that a file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            is_own = isinstance(node, ast.Name) or (
                isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            )
            yield from [node.id if isinstance(node, ast.Name) else node.attr] * is_own


def is_private(name: str) -> bool:
    """Return whether a name starts with one underscore, and is not a method for Jupyter."""
    return name[:1] == "_" and name[:2] != "__" and not JUPYTER_METHOD.fullmatch(name)


def is_private_import(name: str) -> bool:
    """Return whether a full name, of another package, is private."""
    parts = name.split(".")
    if parts[0] == PACKAGE.name:
        return False
    if parts[0] in sys.stdlib_module_names:
        return any(map(is_private, parts[1:]))
    return any(map(is_private, parts)) or any(
        f"{name}.".startswith(f"{private}.") for private in PRIVATE_MODULES
    )


def test_no_other_module_uses_private_apis() -> None:
    """Of any other package, nor of the standard library."""

    def find_uses() -> list[str]:
        own = {n for path in MODULES for n in iter_private_definitions(parse(path))}
        return [use for path in MODULES for use in iter_private_uses(path, own)]

    assert run_in_thread(find_uses) == []


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("import numba.core.sigutils", True),
        ("from cupy_backends.cuda.libs import cublas", True),
        ("from distributed import stealing", True),
        ("from scipy.linalg import cython_blas", True),
        ("from scipy._lib import _util", True),
        ("from scipy.linalg import eigh", False),
        ("array._meta", True),
        ("getattr(array, '_meta')", True),
        ("client.scheduler.identity()", True),
        ("client.scheduler.address", False),
        ("worker.memory_manager.memory_limit", True),
        ("figure._repr_png_ = None", False),
        ("self._meta", True),
        ("self._own", False),
        ("other._own", True),
        ("def _here(): other._here", False),
        ("from rescnet_dist._compat import array_meta", False),
    ],
)
def test_private_uses_are_found(line: str, is_found: bool, tmp_path: Path) -> None:
    """Also those inside functions and by getattr."""
    path = tmp_path / "module.py"
    path.write_text(line)
    assert bool(list(iter_private_uses(path, {"_own"}))) == is_found


def test_compat_is_imported_without_other_packages() -> None:
    """Packages that a process does not need, such as CuPy, are not imported."""
    imported: list[str] = []
    original: Callable[..., Any] = builtins.__import__
    source = (PACKAGE / "_compat.py").read_text()

    def record(name: str, *arguments: Any, **options: Any) -> Any:
        imported.append(name.partition(".")[0])
        return original(name, *arguments, **options)

    names = {"__name__": "compat", "__builtins__": {**vars(builtins), "__import__": record}}
    exec(compile(source, "_compat.py", "exec"), names)
    assert set(imported) <= sys.stdlib_module_names | {"rescnet_dist"}
