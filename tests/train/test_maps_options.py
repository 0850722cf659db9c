"""Options for the place and lifetime of maps, and what of them can change on resume."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cache_cases import (
    RUN,
    SPEC,
    Stopped,
    X,
    Y,
    fit,
    is_same,
    list_stored_layers,
    read_weights,
    stop_after,
)
from click.testing import CliRunner
from distributed import Client, LocalCluster

from rescnet_dist import ResCNetClassifier
from rescnet_dist.cli import main
from rescnet_dist.cluster import Workers, workers
from rescnet_dist.errors import BackendError, SpecError
from rescnet_dist.events import ChunkRebuilt, Event, MapsPlaced, PassDone
from rescnet_dist.kernels import Backend
from rescnet_dist.planning import choose_tier
from rescnet_dist.runs import describe_run, find_runs
from rescnet_dist.store import RunStore
from rescnet_dist.train import loop, verify_run


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("maps", "layers"),
    [pytest.param("memory", 5, marks=pytest.mark.slow), ("memory", 6), ("store", 5)],
    ids=str,
)  # a checkpoint would be due at 6
def test_keep_maps_none_removes_maps_and_recomputes_them_on_resume(
    client: Client, tmp_path: Path, reference_weights: list[Any], maps: Any, layers: int
) -> None:
    """Resuming also works if the recomputed scores have other last digits, as on another
    processor."""
    run = RUN.replace(maps=maps, keep_maps="none")
    events: list[Event] = []
    fit(tmp_path / "run", SPEC.replace(max_layers=layers), run, listeners=[events.append])
    assert not any(isinstance(e, PassDone) and e.phase == "save" for e in events)
    last = next(e for e in events if isinstance(e, PassDone) and e.layer == layers)
    assert (last.observed.written == 0) == (maps == "memory")
    stored = RunStore.open(tmp_path / "run")
    assert not any(stored.has_maps(n) for n in range(8))
    assert verify_run(tmp_path / "run") == []
    record = stored.commits()[layers]
    for path, sums in record["checksums"].items():
        record["checksums"][path] = [sums[0] ^ 1, *sums[1:]] if "scores" in path else sums
    stored.commit(layers, record)
    resumed: list[Event] = []
    ResCNetClassifier.resume(tmp_path / "run", max_layers=7, listeners=[resumed.append])
    assert is_same(read_weights(tmp_path / "run"), reference_weights)
    rebuilt = [e for e in resumed if isinstance(e, ChunkRebuilt)]
    reasons = [e.reason for e in rebuilt]
    assert any("in the last digits" in reason for reason in reasons)
    assert all(e.unexpected == ("in the last digits" in e.reason) for e in rebuilt)
    assert not all(e.unexpected for e in rebuilt)
    missing = 'they are neither in memory nor in the store, as keep_maps="none" removes them'
    assert any(reason.startswith(missing) for reason in reasons)
    assert not any(stored.has_maps(n) for n in range(8))


def test_keep_maps_cannot_change_to_removed_maps(
    client: Client, tmp_path: Path, reference_weights: list[Any]
) -> None:
    """It can change from none to those of the last layer."""
    fit(tmp_path / "run", SPEC.replace(max_layers=4), RUN.replace(keep_maps="none"))
    with pytest.raises(
        SpecError, match=r'keep_maps="all".*earlier layers.*were removed. Use "last"'
    ):
        ResCNetClassifier.resume(tmp_path / "run", keep_maps="all")
    done = CliRunner().invoke(
        main, ["resume", str(tmp_path / "run"), "--max-layers", "7", "--keep-maps", "last"]
    )
    assert done.exit_code == 0, done.output
    assert is_same(read_weights(tmp_path / "run"), reference_weights)
    assert RunStore.open(tmp_path / "run").has_maps(7)


def test_damaged_maps_of_resumed_run_without_kept_maps_are_found(
    client: Client, tmp_path: Path
) -> None:
    """The run was done once, and resumed, so that it has maps again."""
    run = RUN.replace(maps="store", keep_maps="none")
    fit(tmp_path / "run", SPEC.replace(max_layers=3), run)
    with pytest.raises(Stopped):
        ResCNetClassifier.resume(tmp_path / "run", max_layers=7, listeners=[stop_after(5)])
    assert verify_run(tmp_path / "run") == []
    chunk = next(path for path in (tmp_path / "run/maps/0005/c").rglob("*") if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    assert verify_run(tmp_path / "run")


def test_run_with_further_layers_is_not_done(client: Client, tmp_path: Path) -> None:
    """Neither a command nor a script takes it for the run that was done before."""
    fit(tmp_path / "run", SPEC.replace(max_layers=2))
    assert describe_run(tmp_path / "run")["state"] == "done"
    with pytest.raises(Stopped):
        ResCNetClassifier.resume(tmp_path / "run", max_layers=4, listeners=[stop_after(3)])
    found = describe_run(tmp_path / "run")
    assert (found["state"], found["reason"], len(found["layers"])) == ("unfinished", None, 3)
    (listed,) = find_runs(tmp_path)
    assert (listed["state"], listed["layers"]) == ("unfinished", 3)
    ResCNetClassifier.resume(tmp_path / "run")
    assert describe_run(tmp_path / "run")["reason"] == "max_layers=4 reached"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("maps", ["store", "memory"])
def test_maps_option_can_change_on_resume(
    client: Client, tmp_path: Path, reference_weights: list[Any], maps: str
) -> None:
    """It can change or stay the same; what is learned is the same."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", listeners=[stop_after(2)])
    result = CliRunner().invoke(
        main, ["resume", str(tmp_path / "run"), "--maps", maps, "--checkpoint-every", "2"]
    )
    assert result.exit_code == 0, result.output
    expected = [3, 4, 5, 6, 7] if maps == "store" else [4, 6, 7]
    assert list_stored_layers(tmp_path / "run") == expected
    assert is_same(read_weights(tmp_path / "run"), reference_weights)
    run_spec = RunStore.open(tmp_path / "run").attributes()["run"]
    assert (run_spec["maps"], run_spec["checkpoint_every"]) == (maps, 2)


def test_change_to_maps_in_memory_that_do_not_fit_is_rejected(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names a sufficient size, and the run stays unchanged."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", listeners=[stop_after(2)])
    before = RunStore.open(tmp_path / "run").attributes()
    small = Workers(count=1, slots=2, threads=2, machine_threads=2, memory=2**29)
    monkeypatch.setattr(Workers, "from_client", lambda *_: small)
    result = CliRunner().invoke(main, ["resume", str(tmp_path / "run"), "--maps", "memory"])
    assert result.exit_code == 2
    assert re.search(
        r"do not fit in memory.*larger workers \(with at least \d+ MiB\)", result.output
    )
    assert RunStore.open(tmp_path / "run").attributes() == before


def test_resume_of_complete_run_says_so(client: Client, tmp_path: Path) -> None:
    """Only more layers could be added."""
    fit(tmp_path / "run", SPEC.replace(max_layers=2))
    result = CliRunner().invoke(main, ["resume", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert "All 2 layers are finished. Add --max-layers 3 or more" in result.stderr


def test_maps_placed_is_published_on_changes(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the reason of the plan, for the first layer and for those with less free memory; the
    terminal shows it."""
    placements = {3: (True, False), 4: (True, False), 5: (False, False)}
    grown: list[int] = [0]
    placed: list[MapsPlaced] = []

    def choose(*args: Any) -> Any:
        tier = choose_tier(*args)
        in_memory, features = placements.get(grown[-1] + 1, (True, True))
        return replace(tier, in_memory=in_memory, features=features)

    monkeypatch.setattr(loop, "choose_tier", choose)
    fit(
        tmp_path / "run",
        SPEC.replace(max_layers=6),
        listeners=[
            lambda e: isinstance(e, MapsPlaced) and placed.append(e),
            lambda e: isinstance(e, PassDone) and grown.append(e.layer),
        ],
    )
    expected = [(1, True, True), (3, True, False), (5, False, False), (6, True, True)]
    assert [(e.layer, e.in_memory, e.features) for e in placed] == expected
    assert placed[0].reason.startswith("in workers' memory, with their features: ")
    assert placed[0].placement.cause == "fits"
    monkeypatch.setattr(loop, "choose_tier", choose_tier)
    result = CliRunner().invoke(
        main, ["resume", str(tmp_path / "run"), "--max-layers", "7", "--maps", "store"]
    )
    lines = [line for line in result.output.splitlines() if line.startswith("maps ")]
    (text,) = (line.split(None, 1)[1] for line in lines)
    assert text.startswith('in the store because maps="store"; features stay in workers\' memory: ')


def test_maps_go_to_store_if_layer_starts_without_workers(tmp_path: Path) -> None:
    """On a cluster that scales from zero, the plan cannot know the workers."""
    placed: list[MapsPlaced] = []
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        fit(tmp_path / "run", SPEC.replace(max_layers=1))
        cluster.scale(0)
        while client.nthreads():
            time.sleep(0.05)
        threading.Timer(1.0, cluster.scale, [1]).start()
        ResCNetClassifier.resume(
            tmp_path / "run",
            max_layers=3,
            listeners=[lambda e: isinstance(e, MapsPlaced) and placed.append(e)],
        )
    assert [(e.layer, e.in_memory) for e in placed] == [(2, False), (3, True)]
    assert placed[0].reason == "in the store because no worker has joined yet"
    assert [e.placement.cause for e in placed] == ["no_workers", "fits"]


def test_change_that_contradicts_run_is_rejected(client: Client, tmp_path: Path) -> None:
    """The run stays unchanged."""
    with pytest.raises(Stopped):
        fit(tmp_path / "run", run=RUN.replace(keep_maps="all"), listeners=[stop_after(2)])
    before = RunStore.open(tmp_path / "run").attributes()
    with pytest.raises(SpecError, match="Leave one of them out"):
        ResCNetClassifier.resume(tmp_path / "run", maps="memory")
    assert RunStore.open(tmp_path / "run").attributes() == before


def test_matmul_precision_without_gpu_is_rejected_for_new_runs_only(
    client: Client, tmp_path: Path
) -> None:
    """Earlier releases accepted it, without effect."""
    run = RUN.replace(matmul_precision="half")
    with pytest.raises(
        SpecError, match=r'matmul_precision="half" is how a GPU.*array_backend="cupy"'
    ):
        fit(tmp_path / "new", SPEC.replace(max_layers=2), run)
    assert not (tmp_path / "new").exists()
    fit(tmp_path / "old", SPEC.replace(max_layers=2))
    location = RunStore.open(tmp_path / "old").location
    location.update_attributes({"run": location.attributes()["run"] | {"matmul_precision": "half"}})
    assert verify_run(tmp_path / "old") == []
    assert ResCNetClassifier.resume(tmp_path / "old", max_layers=3).network_.depth


def test_versions_of_workers_are_checked_when_they_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not checked for every layer, as all workers would wait for it."""
    checks: list[tuple[int, int]] = []  # number of commits and of workers

    def check(client: Client, _known: Any = ()) -> None:
        commits = (tmp_path / "run/commits").glob("*.json")
        checks.append((len(list(commits)), len(client.nthreads())))

    def scale(event: Event) -> None:
        if isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", 3):
            cluster.scale(2)
            client.wait_for_workers(2, timeout=60)
        elif isinstance(event, PassDone) and (event.phase, event.layer) == ("grow", 5):
            client.retire_workers(sorted(client.nthreads())[:1])  # no new worker joins

    for module in (workers, loop):
        monkeypatch.setattr(module, "check_versions", check)
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        fit(tmp_path / "run", listeners=[scale])
    assert checks == [(0, 1), (4, 2)]


# without a GPU ----------------------------------------------------------------------------------

no_gpu = pytest.mark.skipif(Backend("cupy").available(), reason="there is a GPU")


@no_gpu
def test_cupy_without_gpu_is_rejected(client: Client, tmp_path: Path) -> None:
    """The error of the worker says what to install; no store is left behind."""
    with pytest.raises(BackendError, match=r'array_backend="cupy" needs .*rescnet-dist\[gpu\]'):
        fit(tmp_path / "run", run=RUN.replace(array_backend="cupy"))
    assert not (tmp_path / "run").exists()


@no_gpu
def test_run_of_gpu_can_be_verified_without_gpu(client: Client, tmp_path: Path) -> None:
    """The chunks are only read."""
    fit(tmp_path / "run", SPEC.replace(max_layers=1))
    run = RunStore.open(tmp_path / "run")
    run.update_attributes(run=run.attributes()["run"] | {"array_backend": "cupy"})
    assert verify_run(tmp_path / "run") == []


@no_gpu
def test_prediction_with_cupy_without_gpu_is_rejected(client: Client, tmp_path: Path) -> None:
    """It is rejected on the command line and in Python; the network stays usable."""
    fit(tmp_path / "run", SPEC.replace(max_layers=1))
    clf = ResCNetClassifier.load(tmp_path / "run", array_backend="cupy")
    with pytest.raises(BackendError, match="leave array_backend out"):
        clf.predict(X)
    result = CliRunner().invoke(
        main, ["evaluate", str(tmp_path / "run"), "digits", "--array-backend", "cupy"]
    )
    assert result.exit_code == 2
    assert ResCNetClassifier.load(tmp_path / "run").score(X, Y) > 0.5
