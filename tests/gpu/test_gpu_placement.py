"""Test that resuming and offloaded maps change no bit, and that memory stays within the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from gpu_cases import GPU_RUN, SPEC, fit

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec
from rescnet_dist.events import Event, PassDone
from rescnet_dist.kernels import Backend
from rescnet_dist.model.heads.linear import LinearHead
from rescnet_dist.planning.placement import Placement, PlacementCause
from rescnet_dist.planning.requirements import device_memory
from rescnet_dist.planning.tier import cached_bytes
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import RunStore, read_layer
from rescnet_dist.train import loop

pytestmark = pytest.mark.gpu

CHANGES: list[dict[str, Any]] = [
    {},
    {"store_dtype": "float16", "local_contrast": True, "pairs": "tower", "rectify": True},
    {"bank": "pca:0.5@zca,pca:0.5@gcn"},
    {"feature_dtype": "float16"},
]
NAMES = ["plain", "half maps, towers", "learned views", "half features"]


def read_weights(url: Path) -> list[Any]:
    """Read filters and classifier weights of all layers of a run."""
    run = RunStore.open(url)
    layers = [read_layer(run.location, n, LinearHead.arrays) for n in range(1, len(run.commits()))]
    return [
        array for layer in layers for array in (layer.bank.filters, layer.head.arrays["weights"])
    ]


class Stopped(KeyboardInterrupt):
    """Raised by a listener to stop a run."""


@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
@pytest.mark.parametrize("maps", ["memory", "store"])
def test_resumed_run_equals_uninterrupted_run(
    client: Client, backend: Backend, tmp_path: Path, maps: str, change: dict[str, Any]
) -> None:
    """All weights are equal bit for bit, with maps on the GPU or in the store."""
    spec = SPEC.replace(**change)
    fit(tmp_path / "whole", GPU_RUN.replace(keep_maps="none"), spec)

    def stop(event: Event) -> None:
        if isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", 3):
            raise Stopped

    with pytest.raises(Stopped):
        fit(tmp_path / "run", GPU_RUN.replace(maps=maps), spec, listeners=[stop])
    ResCNetClassifier.resume(tmp_path / "run")
    found, expected = read_weights(tmp_path / "run"), read_weights(tmp_path / "whole")
    assert len(found) == len(expected) == 10
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_maps_in_main_memory_change_no_bit(
    client: Client, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the chunks have no room on the GPU; their maps are copied there and back."""
    spec = SPEC.replace(local_contrast=True, rectify=True, store_dtype="float16")
    run = GPU_RUN.replace(chunk_images=100)
    fit(tmp_path / "gpu", run, spec)
    choose, offload, offloaded = loop.choose_tier, Backend.offload, list[int]()
    retain, retained = Backend.retain, list[int]()

    def choose_host(*arguments: Any) -> Any:
        tier = choose(*arguments)
        assert tier.in_memory
        placement = Placement(
            PlacementCause.FITS_WITH_HOST,
            True,
            tier.cached_bytes,
            tier.cached_bytes // 2,
            host_free_bytes=tier.cached_bytes,
        )
        return replace(tier, features=False, placement=placement)

    def count(self: Backend, array: Any) -> Any:
        offloaded.append(array.nbytes)
        return offload(self, array)

    monkeypatch.setattr(loop, "choose_tier", choose_host)

    def count_retained(self: Backend, array: Any) -> Any:
        retained.append(array.nbytes)
        return retain(self, array)

    monkeypatch.setattr(Backend, "offload", count)
    monkeypatch.setattr(Backend, "retain", count_retained)
    fit(tmp_path / "host", run, spec)
    chunks = RunState.of(RunStore.open(tmp_path / "host")).plan.chunks
    assert chunks / 4 < len(offloaded) / spec.max_layers < chunks
    assert retained.count(max(offloaded)) >= spec.max_layers  # maps of those that stay
    found, expected = read_weights(tmp_path / "host"), read_weights(tmp_path / "gpu")
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("change", "features"),
    [(CHANGES[0], True), (CHANGES[1], True), (CHANGES[0], False)],
    ids=["plain", "half maps, towers", "without features"],
)
def test_device_memory_stays_within_the_plan(
    client: Client,
    backend: Backend,
    tmp_path: Path,
    change: dict[str, Any],
    features: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peak memory of CuPy's pool is compared with the plan.

    The data have the shapes of CIFAR-10 with mirror images, N = 100,000, some of them held out.
    """
    if not features:
        tier = loop.choose_tier
        monkeypatch.setattr(loop, "choose_tier", lambda *a: replace(tier(*a), features=False))
    pool = backend.xp.get_default_memory_pool()
    pool.free_all_blocks()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (100_000, 32, 32, 3), dtype=np.uint8)
    spec = NetworkSpec.preset("cifar10").replace(
        stride=4, head="regress", max_layers=2, stop_at_zero_error=False, **change
    )
    run = RunSpec(array_backend="cupy", keep_maps="none", validation=0.04)
    clf = ResCNetClassifier(spec, store=tmp_path / "run", run=run)
    clf.fit(images, rng.integers(0, 10, 100_000))
    store = RunStore.open(tmp_path / "run")
    state = RunState.of(store)
    problem = state.problem(1)
    planned = device_memory(problem, spec, state.plan)
    planned += cached_bytes(problem, spec, 100_000, features=features)
    print(f"used {pool.total_bytes() / 2**30:.1f} GiB, planned {planned / 2**30:.1f} GiB")
    assert 0.4 * planned < pool.total_bytes() < planned


def test_retained_arrays_do_not_divide_the_memory(backend: Backend) -> None:
    """What remains of the block that an array was taken from can be returned to the GPU."""
    xp, size = backend.xp, 2**28
    pool = xp.get_default_memory_pool()
    if pool.get_limit():
        pytest.skip("with CUPY_GPU_MEMORY_LIMIT arrays stay where they are")
    backend.get(backend.retain(xp.arange(8, dtype=np.float32)))  # loads the kernels
    backend.free()
    before = pool.total_bytes()

    block = xp.zeros(4 * size, np.uint8)
    del block  # the pool has one large block now, which the next array divides
    array = xp.arange(size // 4, dtype=np.float32)
    retained = backend.retain(array)
    backend.free()
    assert pool.total_bytes() >= before + 4 * size
    del array
    backend.free()
    assert pool.total_bytes() == before
    np.testing.assert_array_equal(backend.get(retained[-8:]), np.arange(size // 4)[-8:])

    used, (_, total, _) = backend.used_memory_fraction(), backend.memory()
    del retained
    backend.free()
    freed = (used - backend.used_memory_fraction()) * total
    assert freed == pytest.approx(size, rel=0.1)
