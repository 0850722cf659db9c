"""Lost schedulers and terminated drivers: the run can be resumed and ends in the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import psutil
import pytest
import zarr
from dask import delayed
from dask.graph_manipulation import bind
from distributed import Client, LocalCluster
from fault_cases import (
    LAYERS,
    RESCNET,
    RUN,
    SHORT_TIMEOUT,
    SPEC,
    Model,
    X,
    Y,
    act_on,
    fit,
    run_command,
)
from models import assert_same_bits, read_model

from rescnet_dist import (
    ResCNetClassifier,
)
from rescnet_dist.errors import ClusterLostError
from rescnet_dist.events import ChunkDone, Event, PassDone, PassStarted
from rescnet_dist.store import RunStore
from rescnet_dist.train import verify_run

pytestmark = pytest.mark.slow  # starts and kills processes for minutes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a Zarr store with the images and labels."""
    url = str(tmp_path_factory.mktemp("data") / "digits.zarr")
    group = zarr.open_group(url, mode="w")
    group.create_array("images", data=X, chunks=(30, *X.shape[1:]))
    group.create_array("labels", data=Y, chunks=(30,))
    return url


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a configuration file of the network and the run."""
    path = tmp_path_factory.mktemp("config") / "network.toml"
    path.write_text(SPEC.to_toml() + RUN.to_toml())
    return path


# dying schedulers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moment",
    [PassStarted, *(pytest.param(m, marks=pytest.mark.slow) for m in (ChunkDone, PassDone))],
)
def test_resume_on_other_cluster_after_lost_scheduler(
    started: Any,
    threads_cluster: LocalCluster,
    tmp_path: Path,
    moment: type[Event],
    fault_free_model: Model,
) -> None:
    """The scheduler dies before a pass, during it and after it."""
    store = tmp_path / "run"
    scheduler, file = started.scheduler()
    started.worker(file)
    with dask.config.set(SHORT_TIMEOUT), Client(scheduler_file=str(file)):
        listener = act_on(moment, 2, lambda: started.kill(scheduler))
        with pytest.raises(ClusterLostError) as caught:
            fit(store, listeners=[listener])
    for words in ("he connection to the Dask scheduler was lost", "kept", "esume the run"):
        assert words in str(caught.value)
    assert verify_run(store) == []
    assert len(RunStore.open(store).commits()) in (2, 3)
    with Client(threads_cluster):
        ResCNetClassifier.resume(store)
    assert_same_bits(read_model(store), fault_free_model)


def test_scheduler_lost_while_copying_data_leaves_no_store(started: Any, tmp_path: Path) -> None:
    """There is nothing to resume yet, and the same store can be used again."""
    store = tmp_path / "run"
    scheduler, file = started.scheduler()
    started.worker(file)

    def kill_while_copying() -> None:
        started.wait_until((store / "data/images/zarr.json").exists)
        time.sleep(0.5)
        started.kill(scheduler)

    images = da.from_array(X, chunks=(30, *X.shape[1:]))
    slow = bind(images, delayed(time.sleep)(20))
    killer = threading.Thread(target=kill_while_copying)
    with dask.config.set(SHORT_TIMEOUT), Client(scheduler_file=str(file)):
        killer.start()
        with pytest.raises(ClusterLostError, match="connection to the Dask scheduler was lost"):
            fit(store, slow)
    killer.join()
    assert not store.exists()


def test_exit_code_of_command_after_lost_cluster(
    started: Any,
    threads_cluster: LocalCluster,
    tmp_path: Path,
    data: str,
    config: Path,
    fault_free_model: Model,
) -> None:
    """The exit code is 75, for failures that can be retried; resuming works."""
    store = tmp_path / "run"
    scheduler, file = started.scheduler()
    started.worker(file)

    def kill_within_layer_2() -> None:
        started.wait_until((store / "maps/0002/c").exists)
        started.kill(scheduler)

    killer = threading.Thread(target=kill_within_layer_2)
    killer.start()
    lost = run_command(
        "train", data, "--store", store, "--scheduler-file", file, "--config", config
    )
    killer.join()
    assert lost.exit_code == 75, lost.output
    assert "error: The connection to the Dask scheduler was lost during the pass" in lost.output
    assert "Traceback" not in lost.output
    assert run_command("check", store).exit_code == 0
    with Client(threads_cluster):
        assert run_command("resume", store).exit_code == 0
    assert_same_bits(read_model(store), fault_free_model)


# terminated drivers -----------------------------------------------------------------------


def test_terminated_command_leaves_run_that_can_be_resumed(
    threads_cluster: LocalCluster, tmp_path: Path, data: str, config: Path, fault_free_model: Model
) -> None:
    """SIGTERM, as from a preempted machine: exit code 75, and no process stays alive."""
    store = tmp_path / "run"
    command = [RESCNET, "train", data, "--store", store, "--config", config]
    with subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as driver:
        try:
            deadline = time.monotonic() + 60
            while not (store / "commits/0001.json").exists():
                assert driver.poll() is None, driver.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            children = psutil.Process(driver.pid).children(recursive=True)
            driver.send_signal(signal.SIGTERM)
            _, output = driver.communicate(timeout=60)
        finally:
            driver.kill()
    assert driver.returncode == 75, output
    assert output.splitlines()[-1].startswith("terminated; resume with: ")
    assert output.splitlines()[-1].endswith(f"resume {store}")
    assert children
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    commits = len(RunStore.open(store).commits())
    assert 2 <= commits <= LAYERS
    assert run_command("check", store).exit_code == 0
    with Client(threads_cluster):
        assert run_command("resume", store).exit_code == 0
    assert_same_bits(read_model(store), fault_free_model)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_command_stopped_before_run_exists_does_not_mention_resume(
    client: Client,
    tmp_path: Path,
    data: str,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: signal.Signals,
) -> None:
    """It is stopped while the data are copied, so nothing is left to resume."""

    def stop_process(*_: Any) -> None:
        os.kill(os.getpid(), stop)
        time.sleep(10)

    monkeypatch.setattr("rescnet_dist.lifecycle.begin._write_parts", stop_process)
    result = run_command("train", data, "--store", tmp_path / "run", "--config", config)
    assert result.exit_code == (75 if stop == signal.SIGTERM else 130)
    assert "resume" not in result.output
    assert "nothing was kept: run the same command again" in result.output
    assert not (tmp_path / "run").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
