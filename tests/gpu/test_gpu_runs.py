"""Test whole runs on a GPU against those on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from gpu_cases import GPU_RUN, SPEC, fit, relative_error

from rescnet_dist import AugmentSpec, NetworkSpec, ResCNetClassifier, load_digits
from rescnet_dist.kernels import Backend
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import RunStore
from rescnet_dist.train import verify_run

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cpu_classifier(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train the same run on the CPU."""
    return fit(tmp_path_factory.mktemp("cpu") / "run", GPU_RUN.replace(array_backend="numpy"))


@pytest.mark.parametrize("matmul_precision", ["float32", "split", "half"])
def test_run_equals_run_on_the_cpu(
    client: Client, backend: Backend, cpu_classifier: Any, tmp_path: Path, matmul_precision: str
) -> None:
    """Depth is equal, scores within 1e-3; "half" has fewer digits."""
    images, _ = load_digits()
    clf = fit(tmp_path / "run", GPU_RUN.replace(matmul_precision=matmul_precision))
    assert clf.depth_ == cpu_classifier.depth_
    expected = cpu_classifier.decision_function(images)
    assert (clf.network_.backend.on_gpu, clf.network_.backend.matmul_precision) == (
        True,
        matmul_precision,
    )
    error = relative_error(clf.decision_function(images), expected)
    print(f"{matmul_precision}: relative error {error:.1e}")
    allowed = 2e-2 if matmul_precision == "half" else 1e-3
    assert error < allowed
    host_cache_bytes = ResCNetClassifier.load(tmp_path / "run").decision_function(images)
    assert relative_error(clf.decision_function(images), host_cache_bytes) < allowed


@pytest.mark.parametrize(
    ("features", "dtype"),
    [("second-order", "float32"), ("second-order", "float16"), ("binary-hash", "float32")],
)
def test_run_with_conjugate_gradients_equals_that_of_the_cpu(
    client: Client, backend: Backend, tmp_path: Path, features: str, dtype: str
) -> None:
    """Features in single and half precision, and in 8 bits."""
    spec = SPEC.replace(features=features, feature_dtype=dtype)
    spec = spec.replace(solver="cg", cg_iterations=3, max_layers=2)
    images, _ = load_digits()
    scores = [
        fit(tmp_path / name, GPU_RUN.replace(array_backend=name), spec).decision_function(images)
        for name in ("cupy", "numpy")
    ]
    allowed = 1e-3 if dtype == "float32" else 1e-2  # features may be rounded to other numbers
    assert relative_error(*scores) < allowed


@pytest.mark.parametrize(
    ("name", "filters"),
    [
        ("pcanet", [4, 4]),
        ("pcanet+", 8),
        ("ldanet", [4, 4]),
        ("dctnet", [4, 4]),
        ("randnet", [4, 4]),
        ("ccanet", [4, 8]),
        ("multilayer-pcanet", 8),
    ],
)
def test_presets_of_the_family_predict_as_on_the_cpu(
    client: Client, backend: Backend, tmp_path: Path, name: str, filters: Any
) -> None:
    """Rounding changes the sign of a few pixels, and so a few counts."""
    changes: dict[str, Any] = {"filters": filters, "max_layers": 2}
    if name != "multilayer-pcanet":
        changes |= {"hash_bits": 4, "hash_block": 7, "cg_tolerance": 1e-5}
    spec = NetworkSpec.preset(name).replace(**changes)
    images, labels = load_digits()
    scores = [
        fit(tmp_path / own, GPU_RUN.replace(array_backend=own), spec).decision_function(images)
        for own in ("cupy", "numpy")
    ]
    found, expected = (values.argmax(axis=1) for values in scores)
    assert np.mean(found == expected) > 0.99
    assert np.mean(expected[900:] == labels[900:]) > 0.8


def test_two_towers_equal_those_of_the_cpu(
    client: Client, backend: Backend, tmp_path: Path
) -> None:
    """Maps are rectified, and there are three feature extractors."""
    spec = SPEC.replace(
        local_contrast=True,
        rectify=True,
        max_layers=3,
        features="second-order,first-order,covariance-root",
        root_block=7,
    )
    images, _ = load_digits()
    runs = {"cpu": GPU_RUN.replace(array_backend="numpy"), "gpu": GPU_RUN}
    one, other = (fit(tmp_path / name, run, spec) for name, run in runs.items())
    assert relative_error(other.decision_function(images), one.decision_function(images)) < 1e-3


@pytest.mark.parametrize("head", ["leave-one-out", "classify-leave-one-out"])
def test_leave_one_out_run_equals_that_of_the_cpu(
    client: Client, backend: Backend, tmp_path: Path, head: str
) -> None:
    """The random signs are those of the CPU."""
    spec = SPEC.replace(head=head, max_layers=3)
    images, _ = load_digits()
    runs = {"cpu": GPU_RUN.replace(array_backend="numpy"), "gpu": GPU_RUN}
    one, other = (fit(tmp_path / name, run, spec) for name, run in runs.items())
    assert relative_error(other.decision_function(images), one.decision_function(images)) < 1e-3


def test_weighted_run_equals_that_of_the_cpu(
    client: Client, backend: Backend, tmp_path: Path
) -> None:
    """Weights of images and balanced classes are multiplied."""
    images, labels = load_digits()
    weights = np.random.default_rng(0).uniform(0.1, 5, 900)
    runs = {"cpu": GPU_RUN.replace(array_backend="numpy"), "gpu": GPU_RUN}
    one, other = (
        ResCNetClassifier(
            SPEC.replace(max_layers=3), store=tmp_path / name, run=run, class_weight="balanced"
        ).fit(images[:900], labels[:900], sample_weight=weights)
        for name, run in runs.items()
    )
    assert relative_error(other.decision_function(images), one.decision_function(images)) < 1e-3


def test_run_makes_the_copies_of_the_cpu(client: Client, backend: Backend, tmp_path: Path) -> None:
    """Checksums of the images are equal, and scores that are averaged over copies nearly so."""
    copies = AugmentSpec(copies=2, flip=True, shift=2, rotate=10.0, contrast=0.2, noise=0.02)
    run, spec = GPU_RUN.replace(matmul_precision="float32"), SPEC.replace(max_layers=2)
    run = run.replace(chunk_images=500)  # checksums are those of chunks
    clf = fit(tmp_path / "gpu", run, spec, augment=copies)
    on_cpu = run.replace(array_backend="numpy", matmul_precision="split")
    cpu = fit(tmp_path / "cpu", on_cpu, spec, augment=copies)
    found, expected = (
        RunStore.open(tmp_path / name).checksums(0)["data/images"] for name in ("gpu", "cpu")
    )
    assert len(found) > 2
    assert found == expected
    assert verify_run(tmp_path / "gpu") == []
    images, _ = load_digits()
    scores = clf.decision_function(images[900:1000], augment=copies)
    on_host = cpu.decision_function(images[900:1000], augment=copies)
    assert relative_error(scores, on_host) < 1e-3


def test_two_workers_merge_their_accumulators(
    backend: Backend, cpu_classifier: Any, tmp_path: Path
) -> None:
    """Accumulators are sent between workers; each worker uses half of the GPU."""
    images, _ = load_digits()
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        clf = fit(tmp_path / "run", GPU_RUN)
        state = RunState.of(RunStore.open(tmp_path / "run"))
        assert state.plan.accumulators == 2
    assert clf.depth_ == cpu_classifier.depth_
    expected = cpu_classifier.decision_function(images)
    assert relative_error(clf.decision_function(images), expected) < 1e-3
