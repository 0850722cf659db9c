"""What passes over the wires, counted there: bytes to and from the driver, and of the store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec
from rescnet_dist.store import RunStore
from rescnet_dist.train import PassDone, PassStarted


class Wire:
    """A port of loopback that passes everything on to another and counts the bytes."""

    def __init__(self, host: str, port: int) -> None:
        self.target, self.sent, self.received = (host, port), 0, 0
        self.ready, self.port = threading.Event(), 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def bytes(self) -> int:
        """In both directions."""
        return self.sent + self.received

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(
            asyncio.start_server(self._connected, "127.0.0.1", 0, limit=2**22)
        )
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    async def _connected(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection(*self.target, limit=2**22)
        await asyncio.gather(
            self._pass_on(near, forth, "sent"),
            self._pass_on(far, back, "received"),
            return_exceptions=True,
        )

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, counter: str
    ) -> None:
        try:
            while data := await source.read(2**20):
                setattr(self, counter, getattr(self, counter) + len(data))
                target.write(data)
                await target.drain()
        finally:
            target.close()


@contextmanager
def wire_to(address: str) -> Iterator[Wire]:
    """A counting wire to an address such as tcp://127.0.0.1:8786."""
    parts = urlsplit(address)
    assert parts.hostname
    assert parts.port
    wire = Wire(parts.hostname, parts.port)
    wire.thread.start()
    assert wire.ready.wait(10)
    try:
        yield wire
    finally:
        wire.loop.call_soon_threadsafe(wire.loop.stop)
        wire.thread.join(10)


class PerPass:
    """A listener that notes how many bytes a wire has passed on in each pass."""

    def __init__(self, *wires: Wire) -> None:
        self.wires, self.before, self.counts = wires, (0, 0), {}

    def total(self) -> tuple[int, int]:
        """Bytes sent and received over all wires."""
        return sum(wire.sent for wire in self.wires), sum(wire.received for wire in self.wires)

    def __call__(self, event: object) -> None:
        """Note the bytes between the start and the end of a pass."""
        if isinstance(event, PassStarted):
            self.before = self.total()
        elif isinstance(event, PassDone):
            sent, received = self.total()
            key = event.phase, event.layer
            self.counts[key] = sent - self.before[0], received - self.before[1]


def noise_at(url: str, n: int, shape: tuple[int, int, int]) -> str:
    """Noise images of 10 classes, which no codec makes smaller, at a Zarr URL."""
    group = zarr.open_group(url, mode="w")
    images = np.random.default_rng(0).integers(0, 255, (n, *shape)).astype("uint8")
    group.create_array("images", data=images, chunks=(100, *shape))
    group.create_array("labels", data=np.arange(n) % 10, chunks=(100,))
    return url


def driver_traffic(folder: Path, spec: NetworkSpec, n: int, run: RunSpec) -> dict:
    """Bytes (sent, received) by the driver per pass, counted between it and the scheduler."""
    url = noise_at(str(folder / f"{n}.zarr"), n, (32, 32, 3))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        wire_to(cluster.scheduler_address) as wire,
        Client(f"tcp://127.0.0.1:{wire.port}") as client,
    ):
        assert client.scheduler.address.endswith(str(wire.port))
        counted = PerPass(wire)
        clf = ResCNetClassifier(spec, store=folder / f"run-{n}", run=run, listeners=[counted])
        clf.fit(url)
    print({key: f"{(sent + got) / 1e6:.3f} MB" for key, (sent, got) in counted.counts.items()})
    return counted.counts


@pytest.mark.slow
def test_what_the_driver_moves_does_not_grow_with_the_images(tmp_path: Path) -> None:
    """Under a megabyte per pass, a few hundred bytes of it for each chunk, though the scatter
    matrix alone has 11."""
    spec = NetworkSpec(filters=16, max_layers=1, filter_size=1)  # 1,680 features
    for n in (100, 800):
        run = RunSpec(chunk_images=n // 4, accumulators=2)
        for sent, received in driver_traffic(tmp_path, spec, n, run).values():
            assert sent + received < 1e6


@pytest.mark.slow
def test_what_the_driver_moves_at_the_papers_size(tmp_path: Path) -> None:
    """At most 16 MB per layer at 17,850 features and 10 classes."""
    spec = NetworkSpec(max_layers=2, zscore="block", lda_fraction=0.2)
    run = RunSpec(chunk_images=50, accumulators=1)
    counts = driver_traffic(tmp_path, spec, 200, run)
    layer = RunStore.open(tmp_path / "run-200").location.open_array("layers/0001/weights")
    assert layer.shape[-1] == 17_850
    assert max(sent + received for sent, received in counts.values()) <= 16e6


@pytest.mark.slow
def test_a_layer_reads_and_writes_little_more_than_it_must(
    endpoint: str, s3: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted at a real S3 server: at most 1.15 × (one read of the maps before and the images and
    one write of the new maps) in the pass of a layer."""
    n, shape = 600, (32, 32, 3)
    spec = NetworkSpec(filters=8, max_layers=3, stop_at_zero_error=False, stride=8)
    with wire_to(endpoint) as wire:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{wire.port}")
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        url = noise_at("s3://runs/traffic-data.zarr", n, shape)
        counted = PerPass(wire)
        with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
            ) as cluster,
            Client(cluster),
        ):
            run = RunSpec(chunk_images=100, accumulators=2, solve_threads=1, maps="store")
            clf = ResCNetClassifier(spec, store="s3://runs/traffic", run=run, listeners=[counted])
            clf.fit(url)
    images, maps = n * 32 * 32 * 3, n * 32 * 32 * 8 * 4
    for layer in (2, 3):
        written, read = counted.counts["grow", layer]
        print(f"layer {layer}: read {read / (images + maps):.3f}, written {written / maps:.3f}")
        assert images + maps < read
        assert maps < written
        assert read + written <= 1.15 * (images + maps + maps)
