"""Private and undocumented APIs of other packages, and what happens without each of them.

No other module uses such an API; a test holds that. A new release may remove one without notice:
each function says which release it was tried on, and either works without the API, usually at a
cost that it names, or raises an error that says what to install. Packages are imported inside the
functions, as most processes need few of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from rescnet_dist.errors import BackendError, ClusterError, RescnetError

logger = logging.getLogger(__name__)


# dask and distributed ---------------------------------------------------------------------------


def array_meta(array: Any) -> Any:
    """Return the empty array that tells the type of a dask array's chunks.

    Tried on dask 2026.8.0: `Array._meta`. Without it, chunks are taken for NumPy arrays.
    """
    import numpy as np

    meta = getattr(array, "_meta", None)
    return np.empty((0,) * array.ndim, array.dtype) if meta is None else meta


def fetch_workers(client: Any) -> dict[str, Any]:
    """Return what the scheduler knows of each worker, by address.

    Tried on distributed 2026.8.0: the scheduler's operation `identity`. Without it, the client's
    `scheduler_info` is used. That is refreshed in the background, at times by an answer without
    workers.
    """
    operation = getattr(client.scheduler, "identity", None)
    identity = client.sync(operation, n_workers=-1) if operation else None
    return dict((identity or client.scheduler_info())["workers"])


def identify_workers(scheduler: Any) -> dict[str, Any]:
    """Return what a scheduler knows of each worker, by address; runs on a scheduler.

    Tried on distributed 2026.8.0: `Scheduler.identity`. Without it, there is no other way, and it
    raises ClusterError.
    """
    identity = getattr(scheduler, "identity", None)
    if identity is None:
        raise ClusterError(
            "The Dask scheduler cannot list its workers: it has no method 'identity'. Use a "
            "release of distributed that has one, such as 2026.8.0."
        )
    return dict(identity()["workers"])


async def ask_versions(
    scheduler: Any, packages: Sequence[str], addresses: Sequence[str]
) -> dict[str, Any]:
    """Ask workers for the versions of packages; runs on a scheduler.

    Tried on distributed 2026.8.0: `Scheduler.broadcast`. Without it, nobody is asked: workers that
    join later are not checked.
    """
    broadcast = getattr(scheduler, "broadcast", None)
    if broadcast is None:
        return {}
    message = {"op": "versions", "packages": [*packages]}
    return dict(await broadcast(msg=message, workers=[*addresses], on_error="ignore"))


def are_in_memory(scheduler: Any, keys: Iterable[Any]) -> bool:
    """Return whether the results of all tasks, given by key, are in memory; runs on a scheduler.

    Tried on distributed 2026.8.0: `Scheduler.tasks`. Without it, they are taken to be.
    """
    tasks = getattr(scheduler, "tasks", None)
    return tasks is None or all(key in tasks and tasks[key].state == "memory" for key in keys)


def lack_workers(scheduler: Any, keys: Sequence[Any]) -> bool:
    """Return whether all tasks, given by key, are known, and one of them waits for a worker.

    It runs on a scheduler, which may not have all parts of a graph yet.

    Tried on distributed 2026.8.0: `Scheduler.tasks`. Without it, none is taken to.
    """
    tasks = getattr(scheduler, "tasks", None) or {}
    if not all(key in tasks for key in keys):
        return False
    return any(tasks[key].state == "no-worker" for key in keys)


def remove_restrictions(scheduler: Any, keys: Iterable[Any]) -> bool:
    """Let tasks, given by key, run on any worker, and return whether the scheduler has them all.

    Tasks that were waiting for their worker are started. It runs on a scheduler.

    Tried on distributed 2026.8.0: `Scheduler.tasks`, `Scheduler.set_restrictions` and
    `Scheduler.transitions`. Without them, tasks stay restricted, and wait for their worker if all
    workers are gone for a moment.
    """
    names = ("tasks", "set_restrictions", "transitions")
    tasks, restrict, transition = (getattr(scheduler, name, None) for name in names)
    if tasks is None or restrict is None or transition is None:
        return True
    known = [key for key in keys if key in tasks]
    restrict(worker={key: [] for key in known})
    # Dask looks at them again only when another worker joins.
    waiting = {key: "processing" for key in known if tasks[key].state == "no-worker"}
    transition(waiting, stimulus_id="rescnet-remove-restrictions")
    return len(known) == len([*keys])


def retry_future(client: Any, future: Any) -> None:
    """Compute a failed future again; `Future.retry` raises KeyError unless all failed tasks are
    futures.

    Tried on distributed 2026.8.0: `Client.futures` and the scheduler's operation `retry`. Without
    the first, this is `Future.retry`. Without the second, it raises ClusterError.
    """
    states = getattr(client, "futures", None)
    if states is None:
        future.retry()
        return

    async def retry() -> Any:
        states[future.key].retry()
        return await client.scheduler.retry(keys=[future.key], client=client.id)

    if client.sync(retry) is None:  # the answer to an unknown operation
        raise ClusterError(
            f"The Dask scheduler at {client.scheduler.address} cannot retry a failed task: it has "
            "no operation 'retry'. Use a release of distributed that has one, such as 2026.8.0."
        )


@contextlib.contextmanager
def sending_promptly(client: Any) -> Iterator[None]:
    """Let a client send messages 1 ms after one another in the body, rather than 10 ms.

    Bodies in several threads may overlap. A client that connects again in the body has a new
    stream, which is as slow as before.

    Tried on distributed 2026.8.0: the attribute `interval` of `Client.scheduler_comm`, a
    `BatchedSend`. Without it, the graph of a pass is sent up to 10 ms late.
    """
    stream = getattr(client, "scheduler_comm", None)
    interval = getattr(stream, "interval", None)
    if stream is None or not isinstance(interval, float):
        yield
        return
    with _PROMPT_LOCK:
        bodies, usual = _PROMPT_STREAMS.get(stream, (0, interval))
        _PROMPT_STREAMS[stream] = bodies + 1, usual
        stream.interval = min(usual, SEND_SECONDS)
    try:
        yield
    finally:
        with _PROMPT_LOCK:
            bodies, usual = _PROMPT_STREAMS.pop(stream)
            if bodies > 1:
                _PROMPT_STREAMS[stream] = bodies - 1, usual
            else:
                stream.interval = usual


SEND_SECONDS = 0.001
_PROMPT_LOCK = threading.Lock()
# The bodies that use a stream, and its interval without them
_PROMPT_STREAMS: WeakKeyDictionary[Any, tuple[int, float]] = WeakKeyDictionary()


def subscribe_client(scheduler: Any, topic: str, client: str) -> None:
    """Let a client that has a handler for a topic receive its messages; runs on a scheduler.

    Tried on distributed 2026.8.0: `Scheduler.subscribe_topic`, which knows a subscriber once.
    Without it, clients get no messages of a scheduler that was started again.
    """
    subscribe = getattr(scheduler, "subscribe_topic", None)
    if subscribe is not None:
        subscribe(topic, client)


def disable_stealing(names: Sequence[str]) -> None:
    """Keep idle workers from stealing tasks with these names; runs on a scheduler.

    Tried on distributed 2026.8.0: `distributed.stealing.fast_tasks`. Without it, tasks may be
    stolen, which costs time only.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from distributed import stealing

        stealing.fast_tasks.update(names)


def skip_unwanted_reports(scheduler: Any, prefix: str) -> None:
    """Do not tell clients that results whose keys have a prefix are in memory; runs on a scheduler.

    A scheduler sends the client of a graph a message for each result in memory that the graph
    needs. The client ignores it, unless it has a future of that key; it is still told then.

    Tried on distributed 2026.8.0: the method `Scheduler.report_on_key` with the argument `ts`, and
    `TaskState.key` and `who_wants`. Without them, or if Dask passes other arguments, a client gets
    about 60 bytes for each of these results with each graph.
    """
    own = getattr(scheduler, "report_on_key", None)
    if own is None or hasattr(own, "skipped_prefix"):  # which an earlier call has set
        return

    def report_on_key(*args: Any, **kwargs: Any) -> Any:
        task = kwargs.get("ts")
        name = getattr(task, "key", None)
        is_skipped = isinstance(name, str) and name.startswith(prefix)
        if is_skipped and not getattr(task, "who_wants", True):
            return None
        return own(*args, **kwargs)

    report_on_key.skipped_prefix = prefix  # type: ignore[attr-defined]
    scheduler.report_on_key = report_on_key


def forget_events(scheduler: Any, topic: str) -> None:
    """Forget the events of a topic of Dask's event log, not its subscribers; runs on a scheduler.

    Tried on distributed 2026.8.0: `Scheduler._broker` and `Broker.truncate`. Without them, a
    scheduler keeps the last events of each topic, 1,000 by default, as long as it lives.
    """
    truncate = getattr(getattr(scheduler, "_broker", None), "truncate", None)
    if truncate is not None:
        truncate(topic)


def keep_fork_server_modules() -> None:
    """Let Dask not replace the modules that the fork server of `multiprocessing` imports.

    Tried on distributed 2026.8.0: `distributed.utils._forkserver_preload_set`. Without it, Dask
    imports pandas and others, which takes half a second, and sets them for a server to come.
    """
    from distributed import utils

    if hasattr(utils, "_forkserver_preload_set"):
        utils._forkserver_preload_set = True


def is_importing_script() -> bool:
    """Return whether this process is starting, and imports the script of its parent process.

    Tried on Python 3.11.7: `multiprocessing.current_process()._inheriting`. Without it, False:
    processes that it starts raise errors of their own.
    """
    import multiprocessing

    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def fork_server_pid() -> int | None:
    """Return the process of the fork server of `multiprocessing`, None if there is none.

    Tried on Python 3.11: `forkserver._forkserver` and its `_forkserver_pid`. Without them,
    the server of a command that fails early ends some seconds after it.
    """
    from multiprocessing import forkserver

    server = getattr(forkserver, "_forkserver", None)
    return getattr(server, "_forkserver_pid", None)


def limit_profile_history(worker: Any, limit: int) -> None:
    """Have a Dask worker keep at most `limit` profiles of each kind.

    Tried on distributed 2026.8.0: `Worker.profile_history` and `profile_keys_history`. Without
    them, the history keeps its length, and a worker grows by 200 MB in its first hour.
    """
    for name in ("profile_history", "profile_keys_history"):
        history = getattr(worker, name, None)
        if isinstance(history, deque) and (history.maxlen is None or history.maxlen > limit):
            setattr(worker, name, deque(list(history)[-limit:], maxlen=limit))


def stop_profiler(worker: Any) -> None:
    """Stop the profiler of a Dask worker.

    Tried on distributed 2026.8.0: `Worker.periodic_callbacks["profile"]`. Without it, the profiler
    keeps running.
    """
    profiler = getattr(worker, "periodic_callbacks", {}).get("profile")
    if profiler is not None and profiler.is_running():
        worker.loop.add_callback(profiler.stop)


def worker_memory_limit(worker: Any) -> int | None:
    """Return the memory limit of a Dask worker in bytes; None without a limit.

    Tried on distributed 2026.8.0: `Worker.memory_manager`. Without it, the limit is taken to be
    none.
    """
    return getattr(getattr(worker, "memory_manager", None), "memory_limit", None)


def replace_adaptive_target(scheduler: Any, target: Callable[[Callable[[], int]], int]) -> None:
    """Let a function choose the number of workers that a scheduler tells autoscalers.

    The function gets what returns the number of Dask itself.

    Tried on distributed 2026.8.0: the method `Scheduler.adaptive_target`, which the HTTP API and
    Dask gateways call, and the operation of that name, which `cluster.adapt` calls. Without them,
    autoscalers follow Dask's number.
    """
    own = getattr(scheduler, "adaptive_target", None)
    if own is None:
        return

    def adaptive_target(target_duration: Any = None) -> int:
        return target(lambda: int(own(target_duration)))

    scheduler.adaptive_target = adaptive_target
    getattr(scheduler, "handlers", {})["adaptive_target"] = adaptive_target


def forget_task_groups(scheduler: Any, span_name: str, keep: int) -> None:
    """Remove finished task groups from the spans of a name, except the last ones.

    They are also removed from the computations of the scheduler: graphs that come in while anything
    runs, as caches do all the time, are all of one computation, which keeps their groups.

    Tried on distributed 2026.8.0: the extension "spans" of a scheduler with
    `spans_search_by_name`, of a span `groups` and `metadata`, and `groups` of each of
    `Scheduler.computations`. Without them, the scheduler keeps 4 kB for each layer.
    """
    extension = getattr(scheduler, "extensions", {}).get("spans")
    for span in getattr(extension, "spans_search_by_name", {}).get((span_name,), ()):
        if len(span.groups) > keep:
            finished = [g for g in span.groups if scheduler.task_groups.get(g.name) is not g]
            finished.sort(key=lambda group: group.stop)
            span.groups.difference_update(finished[:-keep])
            for computation in getattr(scheduler, "computations", ()):
                computation.groups.difference_update(finished[:-keep])
        if collections := (span.metadata or {}).get("collections"):
            del collections[:-keep]


# the dashboard of distributed -------------------------------------------------------------------


def find_scheduler_plugin(scheduler: Any, name: str) -> Any:
    """Return a plugin of a scheduler by its name; None if it has none.

    Tried on distributed 2026.8.0: `Scheduler.plugins`. Without it, None.
    """
    return getattr(scheduler, "plugins", {}).get(name)


def defer_dashboard(server: Any, kind: str) -> bool:
    """Have a server without a dashboard import its pages when one is first requested.

    `server` is a scheduler or a worker, and `kind` "scheduler" or "worker". Bokeh takes half a
    second to import. Requests for metrics, and whether the server is healthy, need no pages.

    Tried on distributed 2026.8.0 and Tornado 6.6.1: `http_application`, which HTTP servers ask for
    the handler of each request by `find_handler`, `http_server`, and the modules of
    `distributed.dashboard` with a function `connect`. Without the first, False: there are no pages.
    Without others, it is logged when a page is requested, and there are none either.
    """
    application = getattr(server, "http_application", None)
    find_own = getattr(application, "find_handler", None)
    if application is None or find_own is None:
        return False
    waiting: list[Callable[[], bool]] = []

    def find_handler(request: Any, **options: Any) -> Any:
        if not request.path.endswith(("/health", "/metrics")):
            del application.find_handler, application.rescnet_waiting
            try:
                if kind == "worker":
                    from distributed.dashboard.worker import connect
                else:
                    from distributed.dashboard.scheduler import connect
                connect(application, server.http_server, server, prefix="/")
            except (ImportError, AttributeError) as error:
                logger.info("The %s has no pages: %s", kind, error)
            for add_pages in waiting:
                add_pages()
        return find_own(request, **options)

    application.find_handler = find_handler
    application.rescnet_waiting = waiting
    return True


def add_to_dashboard(scheduler: Any, add_pages: Callable[[], bool]) -> bool:
    """Add pages to a scheduler's dashboard, if it is deferred, when it is imported.

    `add_pages` returns whether it has added them. Return that, or True if it is called later.

    Tried on distributed 2026.8.0: `Scheduler.http_application`, with what `defer_dashboard` sets.
    Without it, the pages are added at once.
    """
    application = getattr(scheduler, "http_application", None)
    waiting = getattr(application, "rescnet_waiting", None)
    if waiting is None:
        return add_pages()
    waiting.append(add_pages)
    return True


def add_dashboard_pages(
    scheduler: Any,
    pages: Mapping[str, Callable[..., None]],
    link: str,
    plots: Mapping[str, str],
) -> bool:
    """Serve pages next to those of Dask's dashboard; return whether there is one.

    `pages` are functions by path, which fill a document of Bokeh. `link` is the page that the
    navigation bar lists, and `plots` are titles by path, of pages that are a single plot.

    Tried on distributed 2026.8.0 and Bokeh 3.9.2: `Scheduler.http_application`, the modules of
    `distributed.dashboard`, and `BokehTornado._applications`. Without one of them, no page is
    served.
    """
    try:
        from bokeh.server.tornado import BokehTornado
        from distributed.dashboard.components.scheduler import env  # noqa: F401
        from distributed.dashboard.core import BokehApplication
        from distributed.dashboard.scheduler import template_variables
        from tornado.ioloop import IOLoop

        server = scheduler.http_application
        dask_pages = [app for app in server.applications if isinstance(app, BokehTornado)]
        if not dask_pages:
            return False
        variables = template_variables(scheduler)  # the object that Dask's own pages use
        ours = BokehApplication(dict(pages), scheduler, dask_pages[0].prefix, variables)
        listed, added = dask_pages[0]._applications, ours._applications
        links, titles = variables["pages"], variables["plots"]
    except (ImportError, AttributeError, KeyError) as error:
        logger.info("Dask's dashboard cannot be extended: %s", error)
        return False
    server.add_application(ours)
    ours.initialize(IOLoop.current())
    ours.start()
    # Dask, and therefore JupyterLab's extension, lists the pages of its first application only
    listed.update(added)
    links.insert(min(3, len(links)), link)
    titles += [{"url": path.strip("/"), "name": title} for path, title in plots.items()]
    titles.sort(key=lambda plot: plot["name"])
    return True


def make_dashboard_template(source: str) -> Any:
    """Return a Jinja template that can extend those of Dask's dashboard.

    Tried on distributed 2026.8.0: `distributed.dashboard.components.scheduler.env`. Without it,
    `add_dashboard_pages` serves no page that would need a template.
    """
    from distributed.dashboard.components.scheduler import env

    return env.from_string(source)


# numba ------------------------------------------------------------------------------------------


def parse_numba_signature(signature: str) -> Any:
    """Return the argument types of a signature such as "void(int64)".

    Tried on Numba 0.68.1: `numba.core.sigutils`. Without it, the signature itself, which
    `Dispatcher.compile` accepts too, under another key of Numba's cache.
    """
    try:
        from numba.core.sigutils import normalize_signature
    except ImportError:
        return signature
    return normalize_signature(signature)[0]


def load_from_numba_cache(kernel: Any, types: Sequence[Any]) -> bool:
    """Load a kernel for some argument types from its cache on disk; return if it lacks none.

    Numba's own way, `Dispatcher.compile`, first imports all that it could compile, with SciPy,
    which takes 0.4 s; machine code needs no more than the runtime for memory.
    Tried on Numba 0.68.1: `Dispatcher._cache`, `targetctx`, `add_overload` and
    `numba.core.runtime.nrt`. Without them, or without a cache, True: the kernel is loaded or
    compiled by `compile`, in this process, which keeps 100 MB more.
    """
    try:
        from numba.core.runtime.nrt import rtsys

        cached, context = kernel._cache, kernel.targetctx
        if cached.cache_path is None:
            return True
        rtsys.initialize(context)
        for kind in types:
            if kind in kernel.overloads:
                continue
            result = cached._load_overload(kind, context)
            if result is None:
                return False
            kernel._cache_hits[kind] += 1
            context.insert_user_function(result.entry_point, result.fndesc, [result.library])
            kernel.add_overload(result)
    except (AttributeError, ImportError):
        pass
    return True


def add_to_numba_source_stamp(kernel: Any, stamp: str) -> bool:
    """Make a kernel's cache on disk invalid if `stamp` changes; return whether that worked.

    Numba compares the source file of the kernel alone, not those of the functions that it calls.
    Tried on Numba 0.68.1: `Dispatcher._cache._cache_file._source_stamp`. Without it, nothing
    changes: callers must not use the cache.
    """
    try:
        file = kernel._cache._cache_file
        file._source_stamp = (file._source_stamp, stamp)
    except AttributeError:
        return False
    return True


@cache
def numba_lock() -> Any:
    """Return the lock that Numba holds while it compiles.

    Tried on Numba 0.68.1: `numba.core.compiler_lock`. Without it, a lock of our own: kernels are
    loaded by one thread at a time, while other code may compile.
    """
    try:
        from numba.core.compiler_lock import global_compiler_lock
    except ImportError:
        return threading.RLock()
    return global_compiler_lock


# scipy ------------------------------------------------------------------------------------------


def load_blas_routine(name: str, n_arguments: int) -> Callable[..., None] | None:
    """Return a routine of SciPy's BLAS or LAPACK; all its arguments are pointers.

    It releases the GIL. Tried on SciPy 1.17.1: `__pyx_capi__` of `scipy.linalg.cython_blas` and
    `cython_lapack`. Without it, None: callers use SciPy's own wrappers, which hold the GIL.
    """
    try:
        from scipy.linalg import cython_blas, cython_lapack

        capsule = {**cython_lapack.__pyx_capi__, **cython_blas.__pyx_capi__}[name]
    except (ImportError, AttributeError, KeyError):
        return None
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)  # releases the GIL
    return prototype(get_pointer(capsule, get_name(capsule)))


# cupy -------------------------------------------------------------------------------------------

# What the GPU kernels use of the libraries.
CUDA_LIBRARY_NAMES = {
    "cublas": (
        *("CUBLAS_DIAG_NON_UNIT", "CUBLAS_FILL_MODE_LOWER", "CUBLAS_OP_N", "CUBLAS_OP_T"),
        *("CUBLAS_SIDE_LEFT", "CUBLAS_SIDE_RIGHT", "dsyrk", "gemmEx", "gemmStridedBatchedEx"),
        *("sgemm", "ssyrk", "strsm", "strsmBatched"),
    ),
    "cusolver": ("dpotrf", "dpotrf_bufferSize", "dpotrs", "spotrf", "spotrf_bufferSize"),
}


@cache
def load_cuda_library(name: str) -> tuple[Any, Callable[[], int]]:
    """Return the module of a CUDA library, "cublas" or "cusolver", and what returns its handle.

    Tried on CuPy 14.2.0: `cupy_backends.cuda.libs` and `cupy.cuda.device`. Without one of the
    routines that are used, BackendError. There is no fallback: other routines round differently.
    """
    import cupy

    missing: object
    try:
        if name == "cublas":
            from cupy_backends.cuda.libs import cublas as library
        else:
            from cupy_backends.cuda.libs import cusolver as library
        get_handle = getattr(cupy.cuda.device, f"get_{name}_handle")
        missing = ", ".join(n for n in CUDA_LIBRARY_NAMES[name] if not hasattr(library, n))
    except (ImportError, AttributeError) as error:
        missing = error
    if missing:
        raise BackendError(
            f"CuPy {cupy.__version__} does not give access to {name} as its release 14.2.0 does "
            f"({missing}). Install that release, or use array_backend='numpy'."
        )
    return library, get_handle


# other packages ---------------------------------------------------------------------------------


def release_openblas_control() -> None:
    """Let any thread set OpenBLAS's number of threads.

    Tried on threadpoolctl 3.8.0: `OpenBLASController.clear_controlling_thread`. From 3.8 on,
    threadpoolctl ignores all threads but the first that set a limit, to keep them from fighting.
    Without the method, as in earlier releases, there is nothing to release.
    """
    import threadpoolctl

    release = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)


def strip_protocol(fs: Any, url: str) -> str:
    """Return the path of a URL on an fsspec file system, or on a class of them.

    Tried on fsspec 2026.9.0: `AbstractFileSystem._strip_protocol`. Without it, fsspec parses the
    whole URL, ten times slower.
    """
    strip = getattr(fs, "_strip_protocol", None)
    if strip is not None:
        return str(strip(url))
    import fsspec

    return str(fsspec.url_to_fs(url)[1])


def read_zarr_arrays(store: Any, paths: Sequence[str]) -> list[tuple[Any, Mapping[str, Any]]]:
    """Read whole arrays of Zarr format 3 at the same time: the values and attributes of each.

    Tried on zarr 3.1.6: `zarr.core.sync.sync`, which runs a coroutine in Zarr's own thread, as all
    its synchronous functions do. Without it, arrays are read one after the other: a small one takes
    a millisecond on a disk, most of which is the switch of threads, and two requests of an object
    store.
    """
    import asyncio

    import zarr
    from zarr.storage import StorePath

    try:
        from zarr.core.sync import sync
    except ImportError:
        arrays = [zarr.open_array(store, path=p, mode="r", zarr_format=3) for p in paths]
        return [(array[...], dict(array.attrs)) for array in arrays]

    root = store if isinstance(store, StorePath) else StorePath(store)

    async def read(path: str) -> tuple[Any, Mapping[str, Any]]:
        array = await zarr.AsyncArray.open(root / path, zarr_format=3)
        return await array.getitem(...), array.metadata.attributes

    async def read_all() -> list[tuple[Any, Mapping[str, Any]]]:
        return await asyncio.gather(*map(read, paths))

    result: list[tuple[Any, Mapping[str, Any]]] = sync(read_all())
    return result


def copy_output_config(source: Any, target: Any) -> None:
    """Let a scikit-learn transformer return the container that `set_output` of another has chosen.

    Tried on sklearn 1.9.1: `_sklearn_output_config`. Without it, the container is that of
    `sklearn.set_config`.
    """
    config = getattr(source, "_sklearn_output_config", None)
    if config:
        target.set_output(**config)


def encode_chunk_key(array: Any, index: tuple[int, ...]) -> str:
    """Return the key of a chunk of a Zarr array, below that of the array.

    Tried on zarr 3.1.6: `encode_chunk_key` of the array's metadata. Without it, the key is that of
    Zarr format 3 with its default encoding, which the arrays of this package have.
    """
    encode = getattr(array.metadata, "encode_chunk_key", None)
    return str(encode(index)) if encode is not None else "/".join(["c", *map(str, index)])


def load_tensorboard() -> tuple[Any, Any, Any, Any]:
    """Return the modules of TensorBoard that write event files; PyTorch's writer uses them too.

    They are those of events, files, hyperparameters and texts. Tried on TensorBoard 2.21.0. Without
    one of them, RescnetError.
    """
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.hparams import summary_v2 as hparams
        from tensorboard.plugins.text import summary_v2 as text
        from tensorboard.summary.writer import event_file_writer
    except ImportError as error:
        raise RescnetError(
            f"TensorBoard is not installed ({error}). Run pip install 'rescnet-dist[tensorboard]'."
        ) from None
    return event_pb2, event_file_writer, hparams, text


def load_glibc() -> Any:
    """Return the C library, for `mallopt` and `malloc_trim`; None if it is not glibc.

    Tried on glibc 2.36. Without it, as with musl and outside of Linux, malloc keeps its settings.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        has_options = bool(library.mallopt and library.malloc_trim)
    except (OSError, AttributeError):
        return None
    return library if has_options else None
