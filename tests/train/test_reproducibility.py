"""Training gives the same bits on any cluster, and the same model with any plan."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from models import assert_same_bits, read_model
from training_cases import (
    CASES,
    PLAN,
    REGRESS,
    RUN,
    SPEC,
    X_OTHER,
    Array,
    N,
    fit,
    fit_case,
)

from rescnet_dist import (
    ResCNetClassifier,
    RunSpec,
)
from rescnet_dist.cluster import Workers
from rescnet_dist.events import ChunkDone, Event
from rescnet_dist.planning import Problem, make_plan
from rescnet_dist.store import RunStore


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.slow), 2])
def processes(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Provide clusters of single-threaded worker processes."""
    with LocalCluster(
        n_workers=request.param,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        yield cluster


@pytest.mark.parametrize("case", CASES)
def test_same_plan_gives_same_bits_on_any_cluster(
    case: str,
    processes: LocalCluster,
    reference_models: dict[str, dict[str, Array]],
    tmp_path: Path,
) -> None:
    """The clusters are one worker process, two, and threads in this process."""
    with Client(processes):
        found = fit_case(tmp_path / "run", case)
    assert len(found) > 18
    assert_same_bits(found, reference_models[case])


def test_other_seed_gives_other_model(
    client: Client, tmp_path: Path, reference_models: dict[str, dict[str, Array]]
) -> None:
    """Draws and split depend on the seed, so the comparison of bits can fail."""
    fit(tmp_path / "run", SPEC.replace(max_layers=1), PLAN, random_state=1)
    found, reference = read_model(tmp_path / "run"), reference_models["classify"]
    assert not np.array_equal(found["layer 1 filters"], reference["layer 1 filters"])


@pytest.mark.parametrize("processes", [2], indirect=True)
def test_killed_worker_changes_no_bit(
    processes: LocalCluster, tmp_path: Path, reference_models: dict[str, dict[str, Array]]
) -> None:
    """The tasks of a worker that dies during a pass are run again by others."""
    killed: list[int] = []

    def kill_once(event: Event) -> None:
        if isinstance(event, ChunkDone) and event.layer == 2 and not killed:
            killed.append(victims[0])
            os.kill(victims[0], signal.SIGKILL)

    with Client(processes) as client:
        victims = list(client.run(os.getpid).values())
        spec = SPEC.replace(head="regress")
        fit(tmp_path / "run", spec, PLAN, listeners=[kill_once])
    assert killed
    assert_same_bits(read_model(tmp_path / "run"), reference_models["regress"])


@pytest.fixture(scope="module")
def unchunked(
    tmp_path_factory: pytest.TempPathFactory, threads_cluster: LocalCluster
) -> ResCNetClassifier:
    """Return a run with one chunk and one accumulator."""
    store = tmp_path_factory.mktemp("unchunked") / "run"
    with Client(threads_cluster):
        run = RUN.replace(chunk_images=N, accumulators=1, validation=0.2)
        return fit(store, REGRESS.replace(max_layers=2), run)


@pytest.mark.parametrize(
    ("chunk", "accumulators", "fan_in"),
    [
        (37, 100, 2),
        (17, 3, 3),
        pytest.param(1000, 4, 2, marks=pytest.mark.slow),
        pytest.param(37, 5, 9, marks=pytest.mark.slow),
    ],
)
def test_other_plan_gives_same_model_up_to_rounding(
    unchunked: ResCNetClassifier,
    client: Client,
    tmp_path: Path,
    chunk: int,
    accumulators: int,
    fan_in: int,
) -> None:
    """Cover chunks that do not divide N, one larger than N, and more accumulators than chunks."""
    run = RUN.replace(
        chunk_images=chunk, accumulators=accumulators, split_every=fan_in, validation=0.2
    )
    clf = fit(tmp_path / "run", REGRESS.replace(max_layers=2), run)
    np.testing.assert_array_equal(
        RunStore.open(tmp_path / "run").data_array("train")[...],
        RunStore.open(unchunked.run_url_).data_array("train")[...],
    )
    one, other = read_model(tmp_path / "run"), read_model(unchunked.run_url_)
    np.testing.assert_allclose(
        one["layer 1 filters"], other["layer 1 filters"], rtol=1e-4, atol=1e-5
    )
    scores, expected = clf.decision_function(X_OTHER), unchunked.decision_function(X_OTHER)
    np.testing.assert_allclose(scores, expected, atol=2e-3)
    for name in ("train accuracy", "validation accuracy"):
        np.testing.assert_allclose(one[name], other[name], atol=1.5 / 48)  # at most one image


def test_groups_contain_each_chunk_once_in_order() -> None:
    """No group is empty, whatever the numbers are."""
    for images in (1, 7, 100, 101):
        for chunk in (1, 3, 50, 500):
            for accumulators in (1, 2, 9, 1000):
                run = RunSpec(validation=0, chunk_images=chunk, accumulators=accumulators)
                workers = Workers(count=2, slots=4, threads=2, machine_threads=2, memory=None)
                plan = make_plan(Problem(images, (14, 14, 1), 10), SPEC, run, workers)
                groups = plan.groups()
                chunks = [span for group in groups for span in group.chunks()]
                assert [start for start, _ in chunks] == list(range(0, images, chunk))
                assert [stop for _, stop in chunks] == [
                    *(start for start, _ in chunks[1:]),
                    images,
                ]
                assert [group.index for group in groups] == list(range(len(groups)))
                assert all(list(group.chunks()) for group in groups)
                assert len(groups) == min(accumulators, len(chunks))
