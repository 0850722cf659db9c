"""Test kernel ridge regression on a GPU against the CPU, and its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from gpu_cases import GPU_RUN, SPEC, TOLERANCE, fit, relative_error

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, load_digits
from rescnet_dist.kernels import Backend
from rescnet_dist.kernels.samples import FeatureSamples
from rescnet_dist.model.heads.kernel_ridge import KernelRidge
from rescnet_dist.planning.requirements import Problem, diagonal_bytes, pair_bytes

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
@pytest.mark.parametrize("count", [500, 2500])  # with refinement from 2048 on
def test_kernel_ridge_equals_that_of_the_cpu(
    backend: Backend, matmul_precision: str, count: int, rng: np.random.Generator
) -> None:
    """Weights, corrections of training and of validation images, and comparisons."""
    features = rng.normal(size=(count, 300)).astype(np.float32)
    targets = np.concatenate([features[:, :3] > 1, np.sign(features[:, 3:67])], axis=1)
    train, head = np.arange(count) % 10 > 0, KernelRidge()

    def fit_head(xp: Any) -> list[Any]:
        samples = FeatureSamples.empty(300, "float32", xp)
        for part in np.array_split(np.arange(count), 3):
            own = xp.asarray(features[part]), xp.asarray(targets[part].astype(np.float32))
            samples = samples.fold(int(part[0]), *own, train[part])
        arrays = head.fit_samples(samples, 3)
        rows = xp.asarray(features)
        trained = rows[xp.asarray(np.flatnonzero(train))]
        blocks = [(slice(0, 100), trained[:100]), (slice(100, None), trained[100:])]
        compared = sum(head.compare(arrays, rows[:50], blocks))
        bound = xp.asarray(head.bound(arrays))
        return [backend.get(values) for values in (*arrays.values(), compared, bound)]

    with Backend("cupy", matmul_precision).working():
        for found, expected in zip(fit_head(backend.xp), fit_head(np), strict=True):
            assert relative_error(found, expected) < 10 * TOLERANCE[matmul_precision]


@pytest.mark.parametrize("matmul_precision", TOLERANCE)
def test_memory_of_kernel_ridge_stays_within_the_plan(
    backend: Backend, matmul_precision: str, rng: np.random.Generator
) -> None:
    """The matrix of all pairs and its factor are in the same memory."""
    xp, count, features = backend.xp, 20_000, 5000
    pool = xp.get_default_memory_pool()
    spec = SPEC.replace(head="kernel-ridge")
    problem = Problem(count, (32, 32, 3), 10)
    head, targets = spec.head, problem.architecture(spec).targets
    assert isinstance(head, KernelRidge)
    generator = xp.random.default_rng(0)
    samples = FeatureSamples.empty(features, "float16", xp)
    for start in range(0, count, 1000):
        own = generator.standard_normal((1000, features), np.float32)
        signs = xp.sign(generator.standard_normal((1000, targets), np.float32))
        samples = samples.fold(start, own, signs, np.ones(1000, bool))
    del own, signs
    pool.free_all_blocks()
    before = pool.total_bytes()
    with Backend("cupy", matmul_precision).working():
        head.fit_samples(samples, 10)
    used = pool.total_bytes() - before
    planned = pair_bytes(problem, spec, 1) + diagonal_bytes(count)
    print(f"used {used / 2**30:.2f} GiB, planned {planned / 2**30:.2f} GiB")
    assert 4 * count**2 < used < planned < 8 * count**2


def test_kernel_ridge_run_equals_that_of_the_cpu(
    client: Client, backend: Backend, tmp_path: Path
) -> None:
    """Training and prediction, which runs the training images forward on the GPU."""
    spec = SPEC.replace(head="kernel-ridge", max_layers=3)
    images, _ = load_digits()
    runs = {"cpu": GPU_RUN.replace(array_backend="numpy"), "gpu": GPU_RUN}
    one, other = (fit(tmp_path / name, run, spec) for name, run in runs.items())
    expected = one.decision_function(images[:500])
    assert relative_error(other.decision_function(images[:500]), expected) < 1e-3
    on_gpu = other.network_.on("cupy")
    assert relative_error(on_gpu.scores(images[:500]), expected) < 1e-3


def test_comparisons_stay_within_the_memory(
    client: Client, backend: Backend, tmp_path: Path
) -> None:
    """A task has as many images, and a group as many training images, as memory allows.

    CuPy raises an error beyond its limit. The data have the shapes of CIFAR-10.
    """
    rng, pool = np.random.default_rng(0), backend.xp.get_default_memory_pool()
    images = rng.integers(0, 255, (32_000, 32, 32, 3), dtype=np.uint8)
    spec = NetworkSpec(
        filters=64,
        features="covariance-root",
        head="kernel-ridge",
        max_layers=2,
        store_dtype="float16",
        stop_at_zero_error=False,
    )
    run = RunSpec(array_backend="cupy", keep_maps="none", validation=0.04)
    clf = ResCNetClassifier(spec, store=tmp_path / "run", run=run)
    network = clf.fit(images, rng.integers(0, 10, len(images))).network_.on("cupy")
    expected = network.scores(images[:100])
    limit = 12 * 2**30
    pool.free_all_blocks()
    pool.set_limit(limit)
    try:
        count = network.predictor.task_images
        assert 5000 < count < 10_000
        scores = network.scores(images[:count])
        print(f"used {pool.total_bytes() / 2**30:.1f} GiB of {limit / 2**30:.0f}")
        assert pool.total_bytes() > 0.5 * limit
    finally:
        pool.set_limit(0)
    assert relative_error(scores[:100], expected) < 1e-3
