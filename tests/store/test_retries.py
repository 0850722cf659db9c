"""Retries inside the store layer: its objects survive transient errors; no caller retries."""

from __future__ import annotations

import ast
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, TypeVar

import dask
import dask.array as da
import numpy as np
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from fsspec.implementations.memory import MemoryFileSystem
from s3_proxy import S3Proxy
from s3fs.errors import translate_boto_error

import rescnet_dist
from rescnet_dist import StoreError, load, open_dataset
from rescnet_dist.cli.actions.check import find_format
from rescnet_dist.errors import CorruptDataError, StoreReadError, StoreUnreachableError
from rescnet_dist.model import ImageScale
from rescnet_dist.store import (
    Claim,
    Location,
    RunStore,
    chunk_problem,
    is_claimed,
    limit_retries,
    read_block,
    read_image_scale,
    read_region,
    retry,
    write_image_scale,
    write_region,
)

ROOT = Path(rescnet_dist.__file__).parent
SCALE = ImageScale(np.array([0.5]), np.array([2.0]))
REQUESTS = ("cat_file", "pipe_file", "rm", "rm_file", "info", "ls", "exists", "isdir", "du")


class FailingStore:
    """A store in memory whose requests fail in turns, as those of a server that is overloaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = f"memory://{uuid.uuid4().hex}/store"
        self.failing, self.requests, self.errors, self.seconds = 0, 0, 0, 0.0
        self.lock = threading.Lock()
        self.error: Exception = EndpointConnectionError(endpoint_url="http://127.0.0.1:1")
        for name in REQUESTS:
            monkeypatch.setattr(MemoryFileSystem, name, self._wrap(getattr(MemoryFileSystem, name)))

    def _wrap(self, request: Callable[..., Any]) -> Callable[..., Any]:
        """Return a request that fails while `failing` is positive."""

        def fail_or_request(fs: Any, *arguments: Any, **options: Any) -> Any:
            with self.lock:
                self.requests += 1
                if self.failing > 0:
                    self.failing -= 1
                    self.errors += 1
                    raise self.error
            return request(fs, *arguments, **options)

        return fail_or_request

    def monotonic(self) -> float:
        """Return the seconds that retries have waited, as their clock."""
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Wait without taking time."""
        self.seconds += seconds


class FailingServer:
    """An S3 server whose requests fail in turns; see `FailingStore`."""

    def __init__(self, proxy: S3Proxy) -> None:
        self.url, self.proxy, self.seconds = f"s3://runs/{uuid.uuid4().hex}", proxy, 0.0

    @property
    def failing(self) -> int:
        """The number of requests that are going to fail."""
        return self.proxy.failing

    @failing.setter
    def failing(self, count: int) -> None:
        self.proxy.failing = count

    @property
    def errors(self) -> int:
        """The number of requests that have failed."""
        return self.proxy.failed

    monotonic, sleep = FailingStore.monotonic, FailingStore.sleep


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingStore]:
    """Yield a failing store with a run that has labels, maps, one commit and a claim."""
    yield from run_in(FailingStore(monkeypatch), monkeypatch)


@pytest.fixture(params=["memory", "fsspec", "obstore"])
def any_store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FailingStore | FailingServer]:
    """Yield a failing store in memory, or at a server that is reached with each client."""
    if request.param == "memory":
        yield from run_in(FailingStore(monkeypatch), monkeypatch)
        return
    pytest.importorskip(request.param)
    server = FailingServer(request.getfixturevalue("s3_proxy"))
    with dask.config.set({"rescnet.object-store": request.param}):
        yield from run_in(server, monkeypatch)


@pytest.fixture(scope="module")
def server_urls() -> dict[str, str]:
    """Return the URLs of the runs of `failed_store` at the server, by client."""
    return {}


@pytest.fixture(params=["memory", "fsspec", "obstore"])
def failed_store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, server_urls: dict[str, str]
) -> Iterator[FailingStore | FailingServer]:
    """Yield a store as `any_store` does, of which all requests fail.

    The tests share the run at the server, as they cannot change it.
    """
    if request.param == "memory":
        for store in run_in(FailingStore(monkeypatch), monkeypatch):
            store.failing = 10**9
            yield store
        return
    pytest.importorskip(request.param)
    server = FailingServer(request.getfixturevalue("s3_proxy"))
    monkeypatch.setattr(retry, "time", server)
    with dask.config.set({"rescnet.object-store": request.param}):
        if request.param not in server_urls:
            make_run(server.url)
            server_urls[request.param] = server.url
        server.url, server.failing = server_urls[request.param], 10**9
        yield server


Failing = TypeVar("Failing", FailingStore, FailingServer)


def run_in(store: Failing, monkeypatch: pytest.MonkeyPatch) -> Iterator[Failing]:
    """Yield a store with a run in it; retries do not take time."""
    monkeypatch.setattr(retry, "time", store)
    run = make_run(store.url)
    yield store
    store.failing = 0
    run.location.remove()


def make_run(url: str) -> RunStore:
    """Create a run with labels, maps of a layer, a commit, a result and small arrays."""
    run = RunStore.create(url, {"data_complete": True})
    run.create_labels(6, 4)
    write_region(run.data_array("labels", write=True), 0, np.arange(6))
    run.create_layer(1, (4, 2, 2, 3), (4, 5), 2)
    run.commit(0, {"checksums": {"data/labels": [1, 2]}, "counts": []})
    run.write_result({"depth": 1, "accuracies": []})
    write_image_scale(run.location, SCALE)
    return run


def write_and_read(run: RunStore) -> list[int]:
    """Write rows with an open array, and read them with another."""
    write_region(run.data_array("labels", write=True), 4, np.array([7, 8]))
    return read_region(run.data_array("labels"), 4, 6).tolist()


def store_with_dask(run: RunStore) -> list[int]:
    """Write and read all rows by tasks of Dask."""
    target = run.data_array("labels", write=True)
    da.store(da.arange(6, chunks=4, dtype="int32") + 1, target, lock=False)
    return da.from_zarr(pickle.loads(pickle.dumps(run.data_array("labels")))).compute().tolist()


OPERATIONS: dict[str, tuple[Callable[[RunStore], Any], Any]] = {
    "exists": (lambda run: run.location.exists(), True),
    "names": (lambda run: (run.location / "commits").names(), ["0000.json"]),
    "entries": (lambda run: (run.location / "commits").list_entries(), {"0000.json": False}),
    "size": (lambda run: (run.location / "commits").size() > 0, True),
    "remove": (lambda run: (run.location / "maps").remove(), None),
    "read record": (lambda run: run.checksums(0), {"data/labels": [1, 2]}),
    "write record": (lambda run: run.commit(1, {"checksums": {}}), None),
    "create record": (lambda run: (run.location / "new.json").create_json([1]), True),
    "attributes": (lambda run: run.attributes()["data_complete"], True),
    "update attributes": (lambda run: run.update_attributes(data_complete=False), None),
    "commits": (lambda run: len(run.commits()), 1),
    "last commit": (lambda run: run.last_commit()["step"], 0),  # type: ignore[index]
    "result": (lambda run: run.result(), {"depth": 1, "accuracies": []}),
    "create array": (lambda run: run.create_layer(2, (4, 2, 2, 3), (4, 5), 2), None),
    "has maps": (lambda run: run.has_maps(1), True),
    "remove maps": (lambda run: run.remove_maps_except(2), None),
    "rows": (write_and_read, [7, 8]),
    "some rows": (lambda run: run.data_array("labels").oindex[[1, 5]].tolist(), [1, 5]),
    "whole array": (lambda run: run.data_array("labels")[...].tolist(), [0, 1, 2, 3, 4, 5]),
    "stored chunks": (lambda run: run.data_array("labels").nchunks_initialized, 2),
    "resize": (lambda run: run.data_array("labels", write=True).resize((5,)), None),
    "Dask": (store_with_dask, [1, 2, 3, 4, 5, 6]),
    "write small": (
        lambda run: write_image_scale(run.location, ImageScale(SCALE.scale, SCALE.low)),
        None,
    ),
    "read small": (lambda run: read_image_scale(run.location).low.tolist(), [0.5]),
    "chunk": (lambda run: chunk_problem(run.location, "data/labels", 1), ""),
    "claim": (lambda run: Claim.take(run.location).check(), None),
    "no claim": (lambda run: is_claimed(run.location), False),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("action", "expected"), OPERATIONS.values(), ids=OPERATIONS.keys())
def test_operations_survive_transient_errors(
    any_store: FailingStore | FailingServer, action: Callable[[RunStore], Any], expected: Any
) -> None:
    """Each gives its result though the first three requests fail, and none is made in vain."""
    any_store.failing = 3
    assert action(RunStore(Location(any_store.url))) == expected
    assert any_store.errors == 3


@pytest.mark.parametrize(
    "failed_store",
    ["memory", "obstore", pytest.param("fsspec", marks=pytest.mark.slow)],  # as that in memory is
    indirect=True,
)
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_operations_end_after_one_time_limit(
    failed_store: FailingStore | FailingServer, name: str
) -> None:
    """The error has the URL and is not one of damage; retries are not made of retries."""
    with pytest.raises(StoreUnreachableError) as caught:
        OPERATIONS[name][0](RunStore(Location(failed_store.url)))
    assert failed_store.url in str(caught.value)
    assert 100 < failed_store.seconds <= retry.RETRY_SECONDS


def test_errors_of_arrays_name_the_operation(store: FailingStore) -> None:
    """Reading and writing, with the path of the array and the URL of the run."""
    labels = RunStore(Location(store.url)).data_array("labels", write=True)
    array = (
        rf"data/labels of {store.url} has failed for 1\d\d s: Could not connect.* resume the run"
    )
    store.failing = 10**9
    for read in (lambda: read_block(labels, (slice(0, 4),)), lambda: labels.oindex[[1, 2]]):
        with pytest.raises(StoreUnreachableError, match=f"^reading {array}"):
            read()
    with pytest.raises(StoreUnreachableError, match=f"^{array}"):
        write_region(labels, 0, np.arange(4))


def test_damage_is_no_transient_error(store: FailingStore) -> None:
    """It is reported at once, as CorruptDataError, also by a plain read."""
    run = RunStore(Location(store.url))
    MemoryFileSystem().pipe_file(f"{store.url}/data/labels/c/0".removeprefix("memory:/"), b"x")
    labels, before = run.data_array("labels"), store.requests
    with pytest.raises(CorruptDataError, match="Rows 0 to 4 of data/labels are missing or altered"):
        read_region(labels, 0, 4)
    assert store.requests == before + 1
    with pytest.raises(CorruptDataError, match=r"Values of data/labels .* cannot be decoded"):
        labels[...]


def test_permanent_errors_are_not_those_of_unreachable_stores(store: FailingStore) -> None:
    """A read that is not allowed is a StoreReadError, and is not repeated."""
    labels = RunStore(Location(store.url)).data_array("labels")
    store.failing, store.error = 10**9, PermissionError("Access denied")
    with pytest.raises(StoreReadError, match=r"reading data/labels .* failed: Access denied"):
        read_region(labels, 0, 4)
    assert store.errors == 1


def make_client_error(code: str, message: str, date: datetime) -> ClientError:
    """Return an error of botocore, with the time of the server in the headers of the answer."""
    headers = {"date": format_datetime(date, usegmt=True)}
    answer: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPHeaders": headers},
    }
    return ClientError(answer, "HeadObject")


@pytest.mark.parametrize(
    ("code", "minutes", "expected"),
    [
        ("RequestTimeTooSkewed", 0, True),  # the server says so
        ("403", 16, True),  # the answer to HEAD
        ("403", -16, True),
        ("403", 14, False),
        ("AccessDenied", 0, False),
    ],
)
def test_wrong_clock_differs_from_missing_permissions(
    code: str, minutes: float, expected: bool
) -> None:
    """By the code of the error, or by the time of the server."""
    date = datetime.now(UTC) + timedelta(minutes=minutes)
    error = translate_boto_error(make_client_error(code, "Forbidden", date))
    assert isinstance(error, PermissionError)

    def fail() -> None:
        raise error

    with pytest.raises(StoreError) as caught:
        retry.with_retries(fail, "reading data/labels")
    remedy = retry.CLOCK_REMEDY if expected else "Check the URL and your permissions."
    assert str(caught.value) == f"reading data/labels failed: Forbidden. {remedy}"


def test_clock_is_not_blamed_without_the_time_of_the_server() -> None:
    """Stores other than S3 have no such headers, or none that can be read."""
    without = translate_boto_error(ClientError({"Error": {"Code": "403"}}, "HeadObject"))
    damaged = make_client_error("403", "Forbidden", datetime.now(UTC))
    damaged.response["ResponseMetadata"]["HTTPHeaders"]["date"] = "yesterday"
    for error in (without, translate_boto_error(damaged), PermissionError(), OSError()):
        assert not retry.is_clock_wrong(error)


@pytest.mark.parametrize(
    "open_store",
    [
        RunStore.open,
        lambda url: RunStore.create(url, {}),
        load,
        open_dataset,
        find_format,
        lambda url: Claim(Location(url), 1, "me").renew(),
        lambda url: Claim(Location(url), 1, "me").release(),
    ],
)
def test_opening_a_store_is_tried_once(
    failed_store: FailingStore | FailingServer, open_store: Callable[..., Any]
) -> None:
    """A wrong URL is reported at once; claims are renewed again soon."""
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        open_store(failed_store.url)
    assert isinstance(caught.value, StoreUnreachableError)
    assert failed_store.errors == 1


def test_limit_of_retries_does_not_outlive_its_body(store: FailingStore) -> None:
    """After it, also after an error, operations are retried again."""
    location = Location(store.url)
    store.failing = 1
    with pytest.raises(StoreUnreachableError), limit_retries(0):
        location.names()
    store.failing = 3
    assert "commits" in location.names()


RETRY_IMPORTS = {"data/fetch.py": {"is_retriable_status"}}  # downloads, which are no store


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(ROOT.rglob("*.py")) if ROOT / "store" not in path.parents],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_callers_of_the_store_do_not_retry(path: Path) -> None:
    """No module outside the store layer imports its retries."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("store.retry"):
            imported |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("store"):
            imported |= {alias.name for alias in node.names} & {"retry", "with_retries"}
        if isinstance(node, ast.Import):
            imported |= {a.name for a in node.names if a.name.endswith("store.retry")}
    assert imported == RETRY_IMPORTS.get(path.relative_to(ROOT).as_posix(), set())
