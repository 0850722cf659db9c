"""Network traffic, counted by proxies: bytes of the driver and of the store."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pytest
import zarr
from counting_proxy import CountingProxy, open_proxy
from distributed import Client, LocalCluster

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec
from rescnet_dist.events import PassDone, PassStarted
from rescnet_dist.store import RunStore


class PassTraffic:
    """A listener that records the bytes that proxies have forwarded in each pass."""

    def __init__(self, *proxies: CountingProxy) -> None:
        self.proxies, self.before, self.counts = proxies, (0, 0), {}

    def total(self) -> tuple[int, int]:
        """Return the bytes sent and received by all proxies."""
        sent = sum(proxy.sent for proxy in self.proxies)
        return sent, sum(proxy.received for proxy in self.proxies)

    def __call__(self, event: object) -> None:
        """Record the bytes between the start and the end of a pass."""
        if isinstance(event, PassStarted):
            self.before = self.total()
        elif isinstance(event, PassDone):
            sent, received = self.total()
            key = event.phase, event.layer
            self.counts[key] = sent - self.before[0], received - self.before[1]


def write_noise(url: str, n: int, shape: tuple[int, int, int]) -> str:
    """Write noise images of 10 classes, which no codec can compress; return their URL."""
    group = zarr.open_group(url, mode="w")
    images = np.random.default_rng(0).integers(0, 255, (n, *shape)).astype("uint8")
    group.create_array("images", data=images, chunks=(100, *shape))
    group.create_array("labels", data=np.arange(n) % 10, chunks=(100,))
    return url


def measure_driver_traffic(folder: Path, spec: NetworkSpec, n: int, run: RunSpec) -> dict:
    """Return the bytes (sent, received) per pass between the driver and the scheduler."""
    url = write_noise(str(folder / f"{n}.zarr"), n, (32, 32, 3))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        open_proxy(cluster.scheduler_address) as proxy,
        Client(f"tcp://127.0.0.1:{proxy.port}") as client,
    ):
        assert client.scheduler.address.endswith(str(proxy.port))
        traffic = PassTraffic(proxy)
        clf = ResCNetClassifier(spec, store=folder / f"run-{n}", run=run, listeners=[traffic])
        clf.fit(url)
    print({key: f"{sum(pair) / 1e6:.3f} MB" for key, pair in traffic.counts.items()})
    return traffic.counts


@pytest.mark.slow
def test_driver_traffic_does_not_grow_with_number_of_images(tmp_path: Path) -> None:
    """It is under 1 MB per pass, a few hundred bytes per chunk, while the scatter matrix alone has
    11 MB."""
    spec = NetworkSpec(filters=16, max_layers=1, filter_size=1)  # 1,680 features
    for n in (100, 800):
        run = RunSpec(validation=0, chunk_images=n // 4, accumulators=2)
        for sent, received in measure_driver_traffic(tmp_path, spec, n, run).values():
            assert sent + received < 1e6


@pytest.mark.slow
def test_driver_traffic_at_size_of_paper(tmp_path: Path) -> None:
    """It is at most 16 MB per layer with 17,850 features and 10 classes."""
    spec = NetworkSpec(max_layers=2, zscore="block", lda_fraction=0.2)
    run = RunSpec(validation=0, chunk_images=50, accumulators=1)
    counts = measure_driver_traffic(tmp_path, spec, 200, run)
    layer = RunStore.open(tmp_path / "run-200").location.open_array("layers/0001/weights")
    assert layer.shape[-1] == 17_850
    assert max(sent + received for sent, received in counts.values()) <= 16e6


@pytest.mark.slow
def test_store_traffic_of_layer_is_near_minimum(
    endpoint: str, s3: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a real S3 server, the pass of a layer moves at most 1.15 × (one read of the previous maps
    and the images, and one write of the new maps)."""
    n, shape = 600, (32, 32, 3)
    spec = NetworkSpec(filters=8, max_layers=3, stop_at_zero_error=False, stride=8)
    with open_proxy(endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        url = write_noise("s3://runs/traffic-data.zarr", n, shape)
        traffic = PassTraffic(proxy)
        with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
            ) as cluster,
            Client(cluster),
        ):
            run = RunSpec(
                validation=0, chunk_images=100, accumulators=2, solve_threads=1, maps="store"
            )
            clf = ResCNetClassifier(spec, store="s3://runs/traffic", run=run, listeners=[traffic])
            clf.fit(url)
    images, maps = n * 32 * 32 * 3, n * 32 * 32 * 8 * 4
    for layer in (2, 3):
        written, read = traffic.counts["grow", layer]
        print(f"layer {layer}: read {read / (images + maps):.3f}, written {written / maps:.3f}")
        assert images + maps < read
        assert maps < written
        assert read + written <= 1.15 * (images + maps + maps)
