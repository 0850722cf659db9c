"""Backends of stores: one contract for all, the rule that chooses one, and translated settings."""

from __future__ import annotations

import math
import os
import pickle
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
import zarr
from s3_proxy import S3Proxy
from zarr.storage import FsspecStore

from rescnet_dist.errors import (
    CorruptDataError,
    StoreError,
    StorePermissionError,
    StoreReadError,
    StoreUnreachableError,
)
from rescnet_dist.store import (
    Location,
    RunStore,
    limit_retries,
    open_output,
    read_region,
    retry,
    write_region,
)
from rescnet_dist.store import backend as backend_module
from rescnet_dist.store.backend import Backend, open_backend, open_zarr_store
from rescnet_dist.store.fsspec_backend import FsspecBackend, LocalBackend
from rescnet_dist.store.object_errors import MissingCredentialsError, translate_error
from rescnet_dist.store.object_options import (
    UnsupportedSettingError,
    read_settings,
    translate_settings,
)
from rescnet_dist.store.obstore_backend import ObjectZarrStore, ObstoreBackend, open_obstore
from rescnet_dist.store.retry import is_out_of_space, is_throttled, is_transient

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))
from processes import ProcessGroup, SeaweedServer

pytest.importorskip("obstore")

# the contract ------------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "memory", "fsspec", "obstore"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Backend, str]]:
    """A backend of each kind, and a path there at which nothing is stored."""
    if request.param == "folder":
        yield open_backend(str(tmp_path / "new"))
    elif request.param == "memory":
        backend, path = open_backend(f"memory://{uuid.uuid4().hex}")
        yield backend, path
        backend.remove(path)
    else:
        request.getfixturevalue("s3")
        with dask.config.set({"rescnet.object-store": request.param}):
            yield open_backend(f"s3://runs/{uuid.uuid4().hex}")


NAMES = ["plain", "two words", "ünïcödé", "a#b", "a%20b", "a+b", "a=b&c", "a~b"]


def test_backends_store_objects(place: tuple[Backend, str]) -> None:
    """What was written is read, under any name, and replaced as a whole."""
    backend, path = place
    for name in NAMES:
        backend.write(f"{path}/{name}/x", b"first")
        backend.write(f"{path}/{name}/x", name.encode())
    assert [backend.read(f"{path}/{name}/x") for name in NAMES] == [n.encode() for n in NAMES]
    assert backend.entries(path) == dict.fromkeys(NAMES, True)
    assert sorted(name.rsplit("/", 1)[-1] for name in backend.names(path)) == sorted(NAMES)
    assert backend.entries(f"{path}/plain") == {"x": False}
    assert backend.size(path) == sum(len(name.encode()) for name in NAMES)
    assert backend.size(f"{path}/plain/x") == 5


def test_backends_know_what_exists(place: tuple[Backend, str]) -> None:
    """A name that starts with that of another is another; nothing is there before and after."""
    backend, path = place
    assert not backend.exists(path)
    assert backend.size(path) == 0
    backend.write(f"{path}/folder/x", b"1")
    backend.write(f"{path}/folder.json", b"2")
    for name in ("", "/folder", "/folder/x", "/folder.json"):
        assert backend.exists(path + name), name
    for name in ("/fold", "/folder/y", "/folder.json/x"):
        assert not backend.exists(path + name), name
    backend.remove(f"{path}/folder")
    assert not backend.exists(f"{path}/folder/x")
    assert backend.read(f"{path}/folder.json") == b"2"
    backend.remove(f"{path}/folder.json")
    backend.remove(f"{path}/folder.json")  # which is gone
    assert backend.size(path) == 0  # SeaweedFS keeps empty folders, and s3fs lists them
    with pytest.raises(FileNotFoundError):
        backend.read(f"{path}/folder.json")


def test_backends_create_objects_once(place: tuple[Backend, str]) -> None:
    """Only one of several writers creates an object."""
    backend, path = place
    assert backend.create(f"{path}/record", b"mine")
    assert not backend.create(f"{path}/record", b"yours")
    assert backend.read(f"{path}/record") == b"mine"
    results: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda i=i: results.append(backend.create(f"{path}/race", b"%d" % i))
        )
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 7 + [True]


@pytest.mark.slow
def test_backends_list_and_remove_many_objects(place: tuple[Backend, str]) -> None:
    """More than the 1,000 that a server returns or removes at a time."""
    backend, path = place
    names = [f"{i:05d}" for i in range(1005)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: backend.write(f"{path}/{name}", b"x"), names))
    assert sorted(backend.entries(path) or ()) == names
    assert backend.size(path) == len(names)
    backend.remove(path)
    assert backend.size(path) == 0


def test_uploaded_files_are_whole(place: tuple[Backend, str], tmp_path: Path) -> None:
    """Also in several parts."""
    backend, path = place
    content = os.urandom(2**20) * 12
    (tmp_path / "file").write_bytes(content)
    if not backend.is_local:
        backend.upload(str(tmp_path / "file"), f"{path}/copy")
        assert backend.read(f"{path}/copy") == content


# faults of a server ------------------------------------------------------------------------------


def make_run(url: str) -> RunStore:
    """Create a run with labels."""
    run = RunStore.create(url, {})
    run.create_labels(6, 4)
    write_region(run.data_array("labels", write=True), 0, np.arange(6))
    return run


def test_each_client_reads_what_the_other_has_written(s3: None) -> None:
    """Records and arrays are the same objects."""
    for writer, reader in (("fsspec", "obstore"), ("obstore", "fsspec")):
        url = f"s3://runs/{uuid.uuid4().hex} #1"
        with dask.config.set({"rescnet.object-store": writer}):
            make_run(url).commit(0, {"checksums": {}, "counts": []})
        with dask.config.set({"rescnet.object-store": reader}):
            run = RunStore.open(url)
            assert read_region(run.data_array("labels"), 0, 6).tolist() == [0, 1, 2, 3, 4, 5]
            assert len(run.commits()) == 1
            run.location.remove()
            assert run.location.size() == 0


def test_damaged_chunk_is_reported(s3: None, object_store: str) -> None:
    """A truncated chunk, one with other values, and one that is missing."""
    url = f"s3://runs/{uuid.uuid4().hex}"
    labels, fs = make_run(url).data_array("labels"), fsspec.filesystem("s3")
    path = f"{url}/data/labels/c/0"
    content = fs.cat_file(path)
    fs.pipe_file(path, content[:-3])
    with pytest.raises(CorruptDataError, match=r"Rows 0 to 4 of data/labels .* cannot be decoded"):
        read_region(labels, 0, 4)
    other = fs.cat_file(f"{url}/data/labels/c/1")
    for change in (lambda: fs.pipe_file(path, other), lambda: fs.rm(path)):
        change()
        with pytest.raises(CorruptDataError, match="Rows 0 to 4 of data/labels are missing or alt"):
            read_region(labels, 0, 4, expected=1)


def wait_for_bucket(url: str) -> None:
    """Wait until a server that has just started has its bucket."""
    deadline = time.monotonic() + 60
    while True:
        try:
            Location(url).check_bucket()
            return
        except StoreError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.sampled(2, first=1)
def test_killed_server_is_waited_for(
    object_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads and writes that started while it was down succeed."""
    with ProcessGroup() as group:
        server = SeaweedServer(group, tmp_path)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        with server.run():
            wait_for_bucket("s3://runs")
            run = make_run("s3://runs/killed")
            labels = run.data_array("labels", write=True)
            assert server.kill(1)
            started = time.monotonic()
            write_region(labels, 0, np.arange(4) + 1)
            run.commit(0, {"checksums": {}, "counts": []})
            assert time.monotonic() - started > 0.5
            assert read_region(run.data_array("labels"), 0, 4).tolist() == [1, 2, 3, 4]
            assert len(run.commits()) == 1
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_missing_bucket_is_named(s3: None, object_store: str) -> None:
    """A server may create it at a write, so it is looked for before."""
    with pytest.raises(StoreError, match="There is no bucket for s3://no-such-bucket/run"):
        RunStore.create("s3://no-such-bucket/run", {})


def test_missing_credentials_are_named(s3: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore then asks the machine for its own, which has none."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    with (
        dask.config.set({"rescnet.object-store": "obstore"}),
        pytest.raises(StorePermissionError, match=r"no credentials .* by AWS_ACCESS_KEY_ID"),
        limit_retries(0),
    ):
        Location.of("s3://runs/a.json").read_json()


FAULTS: dict[str, tuple[int, str, type[StoreError]]] = {
    "no permission": (403, "AccessDenied", StorePermissionError),
    "wrong key": (403, "InvalidAccessKeyId", StorePermissionError),
    "expired token": (400, "ExpiredToken", StorePermissionError),
    "lost body": (400, "RequestTimeout", StoreUnreachableError),
    "conflict": (409, "OperationAborted", StoreUnreachableError),
    "server error": (500, "InternalError", StoreUnreachableError),
    "bad request": (400, "InvalidArgument", StoreReadError),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_have_one_class_of_error(
    fault: str, s3_proxy: S3Proxy, object_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with each client, on which the exit code depends; it says nothing of the request."""
    monkeypatch.setattr(retry, "THROTTLED_SECONDS", 0.2)
    labels = make_run(url := f"s3://runs/{uuid.uuid4().hex}").data_array("labels", write=True)
    status, code, kind = FAULTS[fault]
    s3_proxy.failure = status, code
    s3_proxy.failing = 10**6
    record = Location.of(f"{url}/a.json")
    is_transient = kind is StoreUnreachableError
    actions: list[tuple[Callable[[], Any], type[StoreError]]] = [
        (record.read_json, kind),
        (record.names, kind),
        (lambda: record.create_json(1), kind),
        (lambda: labels[0], kind if is_transient else StoreReadError),
        (lambda: record.write_json(1), kind if is_transient else StoreError),
        (lambda: write_region(labels, 0, np.arange(4)), kind if is_transient else StoreError),
    ]
    for action, expected in actions:
        with limit_retries(0), pytest.raises(StoreError) as caught:
            action()
        assert type(caught.value) is expected
        assert "Debug source" not in str(caught.value)
        assert s3_proxy.url not in str(caught.value)


def test_late_answer_is_a_timeout(s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store cannot be reached; a later attempt may succeed.

    It is the same with s3fs, which repeats such requests for 10 s.
    """
    options = {"read_timeout": 0.2, "retries": {"total_max_attempts": 1}}
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": options})
    s3_proxy.delay_seconds = 2
    record = Location.of("s3://runs/late.json")
    for action in (record.read_json, lambda: record.write_json(1)):
        with (
            dask.config.set({"rescnet.object-store": "obstore"}),
            limit_retries(0),
            pytest.raises(StoreUnreachableError),
        ):
            action()


def test_retries_of_client_leave_no_url_in_message(
    s3: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path and query could contain a signature; the server is named."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with (
        dask.config.set({"rescnet.object-store": "obstore"}),
        limit_retries(0),
        pytest.raises(StoreUnreachableError) as caught,
    ):
        Location.of("s3://runs/a.json").read_json()
    assert "(http://127.0.0.1:1)" in str(caught.value)
    assert str(caught.value).count("127.0.0.1") == 1


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted"])
def test_conflicting_requests_are_repeated(code: str, s3_proxy: S3Proxy, object_store: str) -> None:
    """S3 answers so while another request creates or removes the same object."""
    s3_proxy.failing_kind, s3_proxy.failure = "PUT", (409, code)
    record = Location.of(f"s3://runs/{uuid.uuid4().hex}.json")
    s3_proxy.failing = 1
    assert record.create_json("mine")
    s3_proxy.failing = 1
    assert not record.create_json("yours")
    s3_proxy.failing = 1
    record.write_json("new")
    assert record.read_json() == "new"
    assert s3_proxy.failed == 3


def test_failed_upload_removes_nothing(s3_proxy: S3Proxy, object_store: str) -> None:
    """Neither the file that was there, nor objects whose names start with its name."""
    url = f"s3://runs/{uuid.uuid4().hex}"
    backend, path = open_backend(url)
    backend.write(f"{path}/other", b"1")
    backend.write(f"{path}.zip", b"old")
    s3_proxy.failing_kind, s3_proxy.failure, s3_proxy.failing = "PUT", (403, "AccessDenied"), 10**6
    for name in ("", ".zip"):
        with pytest.raises(StoreError), open_output(Location(url + name)) as file:
            file.write(b"new")
    assert backend.read(f"{path}/other") == b"1"
    assert backend.read(f"{path}.zip") == b"old"


def test_slow_upload_is_no_timeout(s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore counts it as waiting for the answer, for which records have a shorter limit."""
    options = {"read_timeout": 1, "retries": {"total_max_attempts": 1}}
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": options})
    content, url = os.urandom(2**24), f"s3://runs/{uuid.uuid4().hex}"
    s3_proxy.upload_bytes_per_second = 2**23
    with dask.config.set({"rescnet.object-store": "obstore"}):
        backend, path = open_backend(url)
        started = time.monotonic()
        backend.write(f"{path}/x", content)
        assert time.monotonic() - started > 1.5
        zarr.create_array(open_zarr_store(f"{url}/y"), data=np.frombuffer(content, np.uint8))
    s3_proxy.upload_bytes_per_second = math.inf
    monkeypatch.delitem(fsspec.config.conf, "s3")
    assert Location(f"{url}/x")._read_object() == content
    assert Location(f"{url}/y").open_array()[...].tobytes() == content


def test_empty_bucket_holds_nothing(s3: None, object_store: str) -> None:
    """A run can be at the top of a bucket."""
    url = f"s3://{object_store}-{uuid.uuid4().hex}"
    fsspec.filesystem("s3").mkdir(url)
    assert not Location(url).exists()
    assert Location(url).size() == 0
    make_run(url)
    assert Location(url).exists()
    assert RunStore.open(url).data_array("labels")[3] == 3


def test_objects_that_vanish_are_removed() -> None:
    """Google Cloud and Azure report those that another process has removed before."""
    from obstore.store import LocalStore

    with tempfile.TemporaryDirectory() as folder:
        backend = ObstoreBackend(client := LocalStore(folder), lambda: client)
        backend.write("a", b"1")
        backend.write("b", b"2")
        backend._remove_objects(["gone", "a", "gone, too", "b"])
        assert os.listdir(folder) == []


def make_error(name: str, message: str) -> Exception:
    """Return an error like those of obstore."""
    import obstore.exceptions

    error: Exception = getattr(obstore.exceptions, name)(message)
    return error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("400 Bad Request", OSError),
        ("401 Unauthorized", PermissionError),
        ("403 Forbidden", PermissionError),
        ("404 Not Found", FileNotFoundError),
        ("408 Request Timeout", OSError),
        ("429 Too Many Requests", OSError),
        ("500 Internal Server Error", OSError),
        ("503 Service Unavailable", OSError),
        ("507 Insufficient Storage", OSError),
    ],
)
def test_errors_of_obstore_are_translated(status: str, kind: type[OSError]) -> None:
    """The answer of the server stays, without the debug output of obstore."""
    text = (
        f"Generic S3 error: Error performing PUT http://host/b/x in 1ms - Server returned non-2xx "
        f"status code: {status}: <Error><Code>Code</Code><Message>It&#39;s so</Message></Error>"
        "\n\nDebug source:\nGeneric { store: 1 }"
    )
    error = translate_error(make_error("GenericError", text))
    number = int(status[:3])
    assert type(error) is kind
    assert str(error).endswith(f"{status}, Code: It's so")
    assert is_transient(error) == (number in (408, 429, 500, 503))
    assert is_throttled(error) == (number in (429, 503))
    assert is_out_of_space(error) == (number == 507)


def test_other_errors_are_left_as_they_are() -> None:
    """Those of Python and of other libraries; errors of obstore without a status are transient."""
    for own in (KeyError("x"), FileNotFoundError("x"), ValueError()):
        assert translate_error(own) is own
    lost = translate_error(make_error("GenericError", "Generic S3 error: connection closed"))
    assert isinstance(lost, OSError)
    exists = translate_error(make_error("AlreadyExistsError", "Object at location x exists"))
    assert isinstance(exists, FileExistsError)
    url = "http://169.254.169.254/latest/api/token"
    region = make_error("GenericError", "in 1ms - Received redirect without LOCATION, a region")
    assert not is_transient(translate_error(region))
    alone = make_error("GenericError", f"Error performing PUT {url} in 1ms - HTTP error: timeout")
    assert isinstance(translate_error(alone), MissingCredentialsError)


def test_lost_connection_names_the_server() -> None:
    """Without its path, and without a password in its URL."""
    url = "http://user:password@localhost:8333/bucket/run?signature=secret"
    error = make_error("GenericError", f"Error performing GET {url} in 1ms - HTTP error: closed")
    expected = "[Errno 5] HTTP error: closed (http://localhost:8333)"
    assert str(translate_error(error)) == expected


# which backend -----------------------------------------------------------------------------------


@pytest.fixture
def without_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove settings of AWS: environment variables, and files of the user."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(fsspec.config, "conf", {})


def test_backend_follows_from_url_and_setting(without_files: None, tmp_path: Path) -> None:
    """obstore opens object stores only, and fsspec too if it should."""
    kinds = {
        str(tmp_path): LocalBackend,
        f"file://{tmp_path}": LocalBackend,
        "memory://x": FsspecBackend,
        "s3://bucket/x": ObstoreBackend,
        "s3a://bucket/x": ObstoreBackend,
        "gs://bucket/x": ObstoreBackend,
        "abfs://container@account.dfs.core.windows.net/x": ObstoreBackend,
    }
    for url, kind in kinds.items():
        assert type(open_backend(url)[0]) is kind, url
    with dask.config.set({"rescnet.object-store": "fsspec"}):
        assert type(open_backend("s3://bucket/x")[0]) is FsspecBackend
        assert type(open_backend(str(tmp_path))[0]) is LocalBackend


def test_without_obstore_fsspec_is_used(
    without_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that asks for it is an error that names the extra."""
    monkeypatch.setattr(backend_module, "_is_obstore_installed", lambda: False)
    assert type(open_backend("s3://bucket/x")[0]) is FsspecBackend
    with (
        dask.config.set({"rescnet.object-store": "obstore"}),
        pytest.raises(StoreError, match=r"not installed. Run pip install .rescnet-dist\[obstore\]"),
    ):
        open_backend("s3://bucket/x")


def test_unknown_setting_is_rejected(tmp_path: Path) -> None:
    """For object stores only."""
    with dask.config.set({"rescnet.object-store": "boto"}):
        with pytest.raises(StoreError, match="'boto' is not one of auto, fsspec, obstore"):
            open_backend("s3://bucket/x")
        open_backend(str(tmp_path))


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "profile": {"profile": "mine"},
    "s3_additional_kwargs": {"s3_additional_kwargs": {"ACL": "private"}},
    "client_kwargs.api_version": {"client_kwargs": {"api_version": "2006"}},
    "config_kwargs.user_agent": {"config_kwargs": {"user_agent": "me"}},
    "config_kwargs.s3": {"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}},
    "use_ssl": {"use_ssl": False},
}


@pytest.mark.parametrize(("name", "options"), UNSUPPORTED.items(), ids=UNSUPPORTED)
def test_unsupported_option_is_refused_or_left_to_fsspec(
    name: str, options: dict[str, Any], without_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a message that names it and a remedy, without its secrets; "auto" uses s3fs."""
    secret = "a-secret-option"
    conf = {"s3": {"key": "a-key", "secret": secret, **options}}
    monkeypatch.setattr(fsspec.config, "conf", conf)
    with (
        dask.config.set({"rescnet.object-store": "obstore"}),
        pytest.raises(StoreError) as caught,
    ):
        open_backend("s3://bucket/x")
    message = str(caught.value)
    assert f"obstore does not support {name}. " in message
    assert message.endswith("or set rescnet.object-store to fsspec.")
    assert secret not in message
    with pytest.raises(UnsupportedSettingError, match=name):
        open_obstore("s3://bucket/x")
    with dask.config.set({"rescnet.object-store": "auto"}):
        monkeypatch.setattr(backend_module, "file_system", lambda url: (FakeS3(), url))
        assert type(open_backend("s3://bucket/x")[0]) is FsspecBackend


class FakeS3:
    """A file system that is not opened, as its options are made up."""

    protocol = "s3"


@pytest.mark.parametrize("name", ["AWS_PROFILE", "~/.aws/config", "~/.aws/credentials"])
def test_profiles_are_left_to_fsspec(
    name: str, without_files: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """obstore does not read the files of AWS."""
    if name == "AWS_PROFILE":
        monkeypatch.setenv(name, "mine")
    else:
        file = Path(os.path.expanduser(name))
        file.parent.mkdir()
        file.write_text("[default]")
    with pytest.raises(UnsupportedSettingError, match=r"Set (environment|AWS_ACCESS_KEY_ID)"):
        translate_settings("s3")


def test_unknown_region_is_left_to_fsspec(
    without_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore looks for the region of a bucket; obstore would assume one."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(
        UnsupportedSettingError, match=r"region of a bucket\. Set AWS_DEFAULT_REGION"
    ):
        translate_settings("s3")
    assert type(open_backend("s3://bucket/x")[0]) is FsspecBackend
    for options in (
        {"client_kwargs": {"region_name": "eu-west-1"}},
        {"config_kwargs": {"region_name": "eu-west-1"}},
        {"endpoint_url": "https://host"},
    ):
        monkeypatch.setattr(fsspec.config, "conf", {"s3": options})
        assert translate_settings("s3").config
    monkeypatch.setattr(fsspec.config, "conf", {})
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert type(open_backend("s3://bucket/x")[0]) is ObstoreBackend


def test_paths_that_obstore_cannot_name_are_left_to_fsspec(without_files: None) -> None:
    """Parts of a path are not empty there."""
    assert type(open_backend("s3://bucket/a//b")[0]) is FsspecBackend
    with (
        dask.config.set({"rescnet.object-store": "obstore"}),
        pytest.raises(StoreError, match="empty parts of a path"),
    ):
        open_backend("s3://bucket/a//b")


def test_options_of_s3fs_are_translated(
    without_files: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Options of fsspec's configuration win over the environment."""
    (tmp_path / "ca.pem").write_text("certificate")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://host:1")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "4")
    found = translate_settings("s3")
    assert found.config == {"endpoint": "http://host:1"}
    assert found.client["allow_http"]
    assert found.client["root_certificate"] == b"certificate"
    assert found.max_retries == 3
    conf = {
        "key": "k",
        "secret": "s",
        "token": "t",
        "anon": False,
        "endpoint_url": "https://host:2",
        "default_block_size": 2**20,
        "client_kwargs": {"region_name": "eu-west-1", "verify": False},
        "config_kwargs": {
            "read_timeout": 1.5,
            "retries": {"max_attempts": 2},
            "s3": {"addressing_style": "path"},
        },
    }
    monkeypatch.setattr(fsspec.config, "conf", {"s3": conf})
    found = translate_settings("s3")
    assert found.config == {
        "endpoint": "https://host:2",
        "access_key_id": "k",
        "secret_access_key": "s",
        "session_token": "t",
        "skip_signature": False,
        "region": "eu-west-1",
    }
    assert "allow_http" not in found.client
    assert found.client["allow_invalid_certificates"]
    assert found.client["read_timeout"] == "1500ms"
    assert found.max_retries == 2
    assert "'s'" not in repr(found)


def test_options_of_s3fs_reach_the_server(
    s3_proxy: S3Proxy, object_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With none in the environment."""
    options = {
        "key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret": os.environ["AWS_SECRET_ACCESS_KEY"],
        "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
        "client_kwargs": {"region_name": "us-east-1"},
    }
    for name in list(os.environ):
        if name.startswith("AWS_") and "METADATA" not in name:
            monkeypatch.delenv(name)
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    record = Location.of(f"s3://runs/{uuid.uuid4().hex}.json")
    record.write_json([1])
    assert record.read_json() == [1]
    assert s3_proxy.requests["GET"] == s3_proxy.requests["PUT"] == 1


def test_options_of_gcsfs_and_adlfs_are_translated(
    without_files: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that have a counterpart; there is no such server in the tests."""
    (tmp_path / "token.json").write_text("{}")
    azure = {"account_name": "a", "account_key": "YQ==", "anon": False}
    conf: dict[str, Any] = {"gcs": {"token": str(tmp_path / "token.json")}, "abfs": azure}
    monkeypatch.setattr(fsspec.config, "conf", conf)
    assert translate_settings("gs").config == {"service_account": str(tmp_path / "token.json")}
    found = translate_settings("az").config
    assert found == {"account_name": "a", "account_key": "YQ==", "skip_signature": False}
    conf["gcs"]["token"] = {"secret": 1}
    conf["abfs"]["connection_string"] = "AccountKey=1"
    with pytest.raises(UnsupportedSettingError, match=r"token\. Set GOOGLE_APPLICATION_CRED"):
        translate_settings("gs")
    with pytest.raises(UnsupportedSettingError, match=r"connection_string\. Set account_name"):
        translate_settings("az")


def test_pickled_arrays_carry_no_settings(s3: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker opens the URL with its own client, whose connections are shared."""
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": "key", "secret": secret})
    with dask.config.set({"rescnet.object-store": "obstore"}):
        array = make_run(f"s3://runs/{uuid.uuid4().hex}").data_array("labels")
        pickled = pickle.dumps(array)
        assert secret.encode() not in pickled
        loaded = pickle.loads(pickled)
    assert loaded[...].tolist() == [0, 1, 2, 3, 4, 5]
    assert isinstance(loaded.store, ObjectZarrStore)
    assert loaded.store.store is array.store.store  # type: ignore[attr-defined]
    assert secret not in repr(loaded.store) + repr(vars(loaded.store))
    monkeypatch.setattr(backend_module, "_is_obstore_installed", lambda: False)
    loaded = pickle.loads(pickled)
    assert isinstance(loaded.store, FsspecStore)
    assert loaded[...].tolist() == [0, 1, 2, 3, 4, 5]


def test_change_of_settings_is_seen(without_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is found by its settings."""
    before, _ = open_obstore("s3://bucket/x")
    assert open_obstore("s3://bucket/y")[0].client is before.client
    settings = read_settings("s3")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert read_settings("s3") != settings
    assert open_obstore("s3://bucket/x")[0].client is not before.client
