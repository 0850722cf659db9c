"""Runs on a real S3 server: the same bits as on disk, and errors if it cannot be reached."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import botocore.auth
import dask
import fsspec
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from s3_proxy import S3Proxy

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, StoreError, load, load_digits
from rescnet_dist.store import Location, retry
from rescnet_dist.train import verify_run

X, Y = (array[:120] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec.preset("digits").replace(
    filters=4, max_layers=2, first_filter_size=3, block=5, stride=3
)
RUN = RunSpec(chunk_images=40, accumulators=2, solve_threads=1, validation=0.2)


@pytest.mark.sampled(2, first=1)
def test_run_on_s3_equals_run_on_disk(
    s3: None, object_store: str, client: Client, tmp_path: Path
) -> None:
    """Train, check, resume, save and load; the secret is nowhere in the store."""
    on_disk = ResCNetClassifier(SPEC, store=tmp_path / "run", run=RUN).fit(X, Y)
    root = f"s3://runs/{object_store}"
    on_s3 = ResCNetClassifier(SPEC, store=f"{root}/same", run=RUN).fit(X, Y)
    np.testing.assert_array_equal(on_s3.decision_function(X), on_disk.decision_function(X))
    assert on_s3.accuracies_ == on_disk.accuracies_
    assert verify_run(f"{root}/same") == []
    more = ResCNetClassifier.resume(f"{root}/same", max_layers=3)
    assert len(more.accuracies_) == 3
    for url in (f"{root}/network", f"{root}/network.zip"):
        more.save(url)
        np.testing.assert_array_equal(load(url).predict(X), more.predict(X))
    fs = fsspec.filesystem("s3")
    secret = os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    for name in fs.find(f"{root}/same"):
        assert secret not in fs.cat_file(name), name
    with pytest.raises(StoreError, match=f"{root}/same already holds another run"):
        ResCNetClassifier(SPEC, store=f"{root}/same", run=RUN).fit(X, Y)


@pytest.mark.parametrize("hours", [-1, 1])
def test_wrong_clock_is_named(s3: None, hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An S3 server refuses requests whose time differs by more than 15 minutes."""
    monkeypatch.setitem(dask.config.config, "rescnet", {"object-store": "fsspec"})
    record = Location.of("s3://runs/clock/record.json")
    record.write_json({})
    now, offset = botocore.auth.get_current_datetime, timedelta(hours=hours)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: now() + offset)
    # Only in this module: if the clock of all threads was set back, the worker of the session's
    # cluster would send no heartbeat for an hour, and the scheduler would remove it.
    clock = SimpleNamespace(**vars(time))
    clock.time = lambda: time.time() + offset.total_seconds()
    monkeypatch.setattr(retry, "time", clock)
    actions = {
        "GET": record.read_json,
        "PUT": lambda: record.write_json({}),
        "HEAD": record.exists,  # whose answer has no text
    }
    for action in actions.values():
        with pytest.raises(StoreError, match=r"record\.json cannot be .* The clock of the machine"):
            action()


@pytest.mark.parametrize("hours", [-1, 1])
def test_wrong_clock_is_named_with_obstore(s3_proxy: S3Proxy, hours: int) -> None:
    """Its signatures cannot be made at another time, so the proxy changes that of requests."""
    pytest.importorskip("obstore")
    record = Location.of("s3://runs/clock/obstore.json")
    with dask.config.set({"rescnet.object-store": "obstore"}):
        record.write_json({})
        s3_proxy.clock_offset = timedelta(hours=hours)
        for action in (record.read_json, lambda: record.write_json({}), record.exists):
            with pytest.raises(StoreError, match=r"obstore\.json cannot be .* The clock of the"):
                action()


@pytest.mark.slow
def test_worker_processes_read_data_from_s3(s3: None, object_store: str) -> None:
    """A run refers to images at an S3 URL, which the workers read."""
    store = f"s3://runs/processes-{object_store}"
    group = zarr.open_group("s3://runs/data.zarr", mode="w")
    group.create_array("images", data=X, chunks=(50, 14, 14, 1))
    group.create_array("labels", data=Y, chunks=(50,))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        clf = ResCNetClassifier(SPEC, store=store, run=RUN)
        clf.fit("s3://runs/data.zarr")
        predicted = clf.predict("s3://runs/data.zarr").compute()
    assert (predicted == Y).mean() > 0.8
    assert not fsspec.filesystem("s3").exists(f"{store}/data/images")


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("AWS_SECRET_ACCESS_KEY", "a-wrong-secret"),
        pytest.param(  # s3fs retries for a minute
            "AWS_ENDPOINT_URL", "http://127.0.0.1:1", marks=pytest.mark.slow
        ),
    ],
)
def test_unreachable_store(
    s3: None, object_store: str, monkeypatch: pytest.MonkeyPatch, change: str, value: str
) -> None:
    """With a wrong secret or a wrong endpoint, the error has the URL and not the secret."""
    monkeypatch.setenv(change, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # which has credentials
    for action in (
        lambda: ResCNetClassifier(SPEC, store="s3://runs/closed", run=RUN).fit(X, Y),
        lambda: load("s3://runs/closed"),
        lambda: ResCNetClassifier(SPEC).fit("s3://runs/closed"),
    ):
        with pytest.raises(StoreError, match="s3://runs/closed cannot be reached") as caught:
            action()
        assert "secret" not in str(caught.value)
