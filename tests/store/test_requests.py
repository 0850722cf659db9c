"""Requests to an S3 server, counted and throttled by a proxy in front of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from distributed import Client
from s3_proxy import S3Proxy

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.data.sources.files import File
from rescnet_dist.errors import StoreUnreachableError
from rescnet_dist.events import PassDone
from rescnet_dist.planning import Plan
from rescnet_dist.planning.requests import count_requests
from rescnet_dist.store import Location, claim, retry
from rescnet_dist.store.retry import limit_retries

X, Y = (array[:120] for array in load_digits())
X = X[:, ::2, ::2]
CHUNKS, TASKS = 6, 3
SPEC = NetworkSpec.preset("digits").replace(
    filters=4, max_layers=3, first_filter_size=3, block=5, stride=3, stop_at_zero_error=False
)
RUN = RunSpec(
    chunk_images=len(X) // CHUNKS,
    accumulators=TASKS,
    solve_threads=1,
    validation=0.2,
    maps="store",
)
PLAN = Plan(len(X), RUN.chunk_images, TASKS, RUN.split_every, 1)


def count_layers(
    proxy: S3Proxy, url: str, spec: NetworkSpec, run: RunSpec
) -> dict[int, Counter[str]]:
    """Train a network in a bucket; return the requests of each layer by kind."""
    counts: dict[int, Counter[str]] = {}
    before = Counter[str]()

    def count(event: object) -> None:
        nonlocal before
        if isinstance(event, PassDone):
            if event.phase == "grow":
                counts[event.layer] = proxy.requests - before
            before = Counter(proxy.requests)

    ResCNetClassifier(spec, store=url, run=run, listeners=[count]).fit(X, Y)
    return counts


@pytest.mark.sampled(2)
def test_layer_makes_few_requests(
    s3_proxy: S3Proxy, object_store: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk is read and written once, each task opens its arrays, and nobody looks around."""
    monkeypatch.setattr(claim, "RENEW_INTERVAL_SECONDS", 600)  # whose requests are not counted
    counts = count_layers(s3_proxy, f"s3://runs/few-{object_store}", SPEC, RUN)
    found = counts[2]
    print(dict(found))
    # images, maps and scores; by task: two commits, labels and mask, four arrays of maps and scores
    expected = count_requests(PLAN, 126, in_memory=False)
    # (one less if the first of two threads has read the commit record when the second one needs it)
    assert expected.gets - 1 <= found["GET"] <= expected.gets + 4
    # maps and scores; the arrays of a layer, and records
    assert expected.puts <= found["PUT"] <= expected.puts + 2
    assert found["HEAD"] <= 4
    assert found["LIST"] <= 4
    # a later layer makes no more of them, though the server keeps the empty folders of all layers
    for kind in ("LIST", "POST"):
        assert counts[3][kind] == found[kind]


CG = SPEC.replace(solver="cg", cg_iterations=3, cg_tolerance=1e-300)  # does all iterations


@pytest.mark.parametrize(
    ("spec", "options", "expected"),
    [
        (SPEC, {"maps": "memory", "checkpoint_every": 1}, {"in_memory": True}),
        (SPEC, {"maps": "memory"}, {"in_memory": True, "is_stored": False}),
        pytest.param(
            CG,
            {},
            {"in_memory": False, "iterations": 3, "feature_reads": 0},
            marks=pytest.mark.slow,
            id="cg",
        ),
        pytest.param(
            SPEC, {"tile_features": 64}, {"in_memory": False}, marks=pytest.mark.slow, id="tiles"
        ),
    ],
    ids=["stored", "memory", None, None],
)
def test_requests_are_those_estimated(
    s3_proxy: S3Proxy,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    spec: NetworkSpec,
    options: dict[str, Any],
    expected: dict[str, Any],
    request: pytest.FixtureRequest,
) -> None:
    """By the client that is used by default, with maps in memory and other solves too."""
    monkeypatch.setattr(claim, "RENEW_INTERVAL_SECONDS", 600)
    url = f"s3://runs/estimated-{request.node.callspec.id}"
    found = count_layers(s3_proxy, url, spec, RUN.replace(**options))[2]
    plan = replace(PLAN, tile_features=options.get("tile_features", 0))
    estimated = count_requests(plan, 126, **expected)
    assert abs(found["GET"] - estimated.gets) <= 3  # two threads may read a record once or twice
    assert found["PUT"] == estimated.puts


@pytest.mark.slow
def test_run_continues_while_store_throttles(
    s3_proxy: S3Proxy, object_store: str, client: Client, tmp_path: Path
) -> None:
    """A sixth of all requests are answered with 503 or 429; the network is the same."""
    spec = SPEC.replace(max_layers=2)
    on_disk = ResCNetClassifier(spec, store=tmp_path / "run", run=RUN).fit(X, Y)
    s3_proxy.throttle(1 / 6, seed=1)
    on_s3 = ResCNetClassifier(spec, store=f"s3://runs/throttled-{object_store}", run=RUN).fit(X, Y)
    np.testing.assert_array_equal(on_s3.decision_function(X), on_disk.decision_function(X))
    assert min(s3_proxy.throttled[kind] for kind in ("GET", "PUT")) >= 5


@pytest.mark.parametrize("operation", ["read", "write"])
def test_throttled_requests_do_not_multiply(
    s3_proxy: S3Proxy, object_store: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is one attempt: waits of 0.1 s and more, doubled each time, come in between."""
    location = Location.of("s3://runs/record.json")
    location.write_json({})
    s3_proxy.throttle(1)
    act = location.read_json if operation == "read" else lambda: location.write_json({})
    monkeypatch.setattr(retry, "RETRY_SECONDS", 2)
    with limit_retries(0), pytest.raises(StoreUnreachableError, match=r"record\.json"):
        act()
    assert 2 <= s3_proxy.throttled.total() <= 5


def test_files_are_read_while_store_throttles(s3_proxy: S3Proxy) -> None:
    """Readers of archives do not repeat requests, so the client does."""
    content = bytes(range(256))
    with fsspec.open("s3://runs/archive.tar", "wb") as output:
        output.write(content)
    s3_proxy.throttle(1 / 2, seed=2)
    with File.at("s3://runs/archive.tar").open() as file:
        assert file.read() == content
    assert s3_proxy.throttled.total()
