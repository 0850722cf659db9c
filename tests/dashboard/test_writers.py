"""Writers for TensorBoard and MLflow: each scalar of the store once, also for resumed runs."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr
from click.testing import CliRunner
from distributed import Client
from mlflow.tracking import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

import rescnet_dist as rd
from rescnet_dist.cli import main
from rescnet_dist.events import RunStarted
from rescnet_dist.events.bus import EventBus
from rescnet_dist.runs import describe_run
from rescnet_dist.store import RunStore

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"  # from MLflow, SQLAlchemy and protobuf
)

X, Y = (array[:120] for array in rd.load_digits())
X = X[:, ::2, ::2]
SPEC = rd.NetworkSpec(filters=4, first_filter_size=3, block=5, stride=2, sigma=2.0, max_layers=2)
RUN = rd.RunSpec(chunk_images=60, accumulators=2, solve_threads=1, validation=0.25)

Series = dict[str, dict[int, float]]


def fit(store: Path, *listeners: Any) -> None:
    """Train two small layers."""
    rd.ResCNetClassifier(SPEC, store=store, run=RUN, listeners=list(listeners)).fit(X, Y)


def resume(store: Path, layers: int, *listeners: Any) -> None:
    """Resume a run up to a number of layers."""
    rd.ResCNetClassifier.resume(store, max_layers=layers, listeners=list(listeners))


def expected(store: Path) -> Series:
    """Return the scalars of a run by name and layer, from its store."""
    found, series = describe_run(store), {}
    for layer in found["layers"]:
        observed = layer["observed"]
        values = {
            "accuracy/train": layer["train"],
            "accuracy/validation": layer["validation"],
            "residual/positive": layer["residual"][0],
            "residual/negative": layer["residual"][1],
            "seconds/total": layer["seconds"],
            **{f"seconds/{phase}": spent for phase, spent in observed["seconds"].items()},
            "bytes/read": observed["read"],
            "bytes/written": observed["written"],
            "bytes/worker_memory_max": max(observed["memory"].values()),
        }
        for name, value in values.items():
            if value is not None:
                series.setdefault(name, {})[layer["layer"]] = pytest.approx(value, rel=1e-6)
    return series


def outcome(store: Path) -> dict[str, Any]:
    """Return the scalars that are written at the end of a run."""
    found = describe_run(store)
    chosen = found["layers"][found["depth"] - 1]
    values = {"chosen/depth": found["depth"]} | {
        f"chosen/{part}": chosen[part] for part in ("train", "validation")
    }
    return {name: pytest.approx(value, rel=1e-6) for name, value in values.items()}


# TensorBoard ------------------------------------------------------------------------------------


def board(folder: Path) -> tuple[EventAccumulator, Series]:
    """Read a folder with TensorBoard; fail if it has a step twice."""
    read = EventAccumulator(str(folder)).Reload()
    series: Series = {}
    for name in read.Tags()["scalars"]:
        steps = [event.step for event in read.Scalars(name)]
        assert steps == sorted(set(steps)), name
        series[name] = {event.step: event.value for event in read.Scalars(name)}
    return read, series


def pop_outcome(series: Series) -> dict[str, float]:
    """Remove the scalars of the end of a run; return the last value of each."""
    names = [name for name in series if name.startswith("chosen/")]
    return {name: series.pop(name).popitem()[1] for name in names}


def test_tensorboard_scalars_match_the_store(client: Client, tmp_path: Path) -> None:
    """Scalars, hyperparameters and the outcome; a resumed run has each step once."""
    store, folder = tmp_path / "run", tmp_path / "board"
    fit(store, rd.TensorBoardWriter(folder))
    for layers in (2, 3):
        if layers == 3:
            resume(store, layers, rd.TensorBoardWriter(folder))
        read, series = board(folder / "run")
        assert pop_outcome(series) == outcome(store)
        assert series == expected(store)
    content = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["network.filters"].number_value == 4
    assert hparams["network.power"].bool_value is SPEC.power
    assert hparams["run.validation"].number_value == 0.25
    assert hparams["network.levels"].string_value == ",".join(map(str, SPEC.levels))
    (text,) = read.Tensors("outcome")[-1].tensor_proto.string_val
    assert describe_run(store)["reason"] in text.decode()


def test_late_writer_writes_all_layers(client: Client, tmp_path: Path) -> None:
    """Layers trained without a writer are written with the times of their commits."""
    store, folder = tmp_path / "run", tmp_path / "board"
    fit(store)
    resume(store, 3, rd.TensorBoardWriter(folder))
    read, series = board(folder / "run")
    pop_outcome(series)
    assert series == expected(store)
    first = read.Scalars("seconds/total")[0]
    assert first.wall_time == describe_run(store)["layers"][0]["finished"]


def test_tensorboard_files_are_readable_during_a_run(client: Client, tmp_path: Path) -> None:
    """And an interrupted run closes its file."""
    counts: list[int] = []

    def read_board(event: Any) -> None:
        if type(event).__name__ == "PassDone" and event.phase == "grow":
            counts.append(len(board(tmp_path / "board/run")[1]["seconds/total"]))
            if event.layer == 2:
                raise KeyboardInterrupt

    def interrupted_fit() -> None:
        with rd.TensorBoardWriter(tmp_path / "board") as writer:
            fit(tmp_path / "run", writer, read_board)

    with pytest.raises(KeyboardInterrupt):
        interrupted_fit()
    assert counts == [1, 2]


# MLflow -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of MLflow, which takes seconds to create."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def read_mlflow(uri: str, experiment: str) -> tuple[Any, Series]:
    """Return the only MLflow run of an experiment, and its metrics by step."""
    reader = MlflowClient(tracking_uri=uri)
    (run,) = reader.search_runs([reader.get_experiment_by_name(experiment).experiment_id])
    series: Series = {}
    for name in run.data.metrics:
        history = reader.get_metric_history(run.info.run_id, name)
        assert len({metric.step for metric in history}) == len(history), name
        series[name] = {m.step: m.value for m in sorted(history, key=lambda m: m.step)}
    return run, series


@pytest.mark.slow
def test_mlflow_run_is_continued_on_resume(client: Client, tmp_path: Path, uri: str) -> None:
    """Scalars, params, tags, status."""
    store = tmp_path / "run"
    fit(store, rd.MLflowWriter("one", tracking_uri=uri))
    for layers in (2, 3):
        if layers == 3:
            resume(store, layers, rd.MLflowWriter("one", tracking_uri=uri))
        run, series = read_mlflow(uri, "one")
        assert pop_outcome(series) == outcome(store)
        assert series == expected(store)
        assert run.info.status == "FINISHED"
        assert run.data.tags["rescnet.reason"] == describe_run(store)["reason"]
        assert run.data.tags["rescnet.max_layers"] == str(layers)
    assert (run.info.run_name, run.data.tags["rescnet.url"]) == ("run", str(store))
    params = run.data.params
    assert (params["network.filters"], params["data.classes"]) == ("4", "10")
    assert (params["run.seed"], params["augment.copies"]) == ("0", "0")


@pytest.mark.slow
def test_mlflow_status_of_interrupted_runs(client: Client, tmp_path: Path, uri: str) -> None:
    """Killed by the user, or failed."""
    cases: dict[type[BaseException], str] = {KeyboardInterrupt: "KILLED", OSError: "FAILED"}
    for kind, status in cases.items():

        def interrupted_run(kind: type[BaseException] = kind) -> None:
            with rd.MLflowWriter(kind.__name__, tracking_uri=uri, run_name="mine") as writer:
                writer(RunStarted(str(tmp_path / "nowhere"), 1, 1, 0, ()))
                assert read_mlflow(uri, kind.__name__)[0].info.status == "RUNNING"
                raise kind

        with pytest.raises(kind):
            interrupted_run()
        run, _ = read_mlflow(uri, kind.__name__)
        assert (run.info.status, run.info.run_name) == (status, "mine")


def test_new_run_at_an_old_url_is_a_new_mlflow_run(
    client: Client, tmp_path: Path, uri: str
) -> None:
    """Distinguished by the time of creation."""
    store, reader = tmp_path / "run", MlflowClient(tracking_uri=uri)
    fit(store)
    resume(store, 2, rd.MLflowWriter("again", tracking_uri=uri))
    RunStore.open(store).update_attributes(provenance={"created": "2026-01-01T00:00:00+00:00"})
    resume(store, 2, rd.MLflowWriter("again", tracking_uri=uri))
    experiment = reader.get_experiment_by_name("again").experiment_id
    assert len(reader.search_runs([experiment])) == 2


# both -------------------------------------------------------------------------------------------


def test_secrets_in_urls_are_not_written(
    tmp_path: Path, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A run whose store cannot be opened by its masked URL is written without its specs."""
    writers = [rd.TensorBoardWriter(tmp_path), rd.MLflowWriter("secret", tracking_uri=uri)]
    with caplog.at_level(logging.WARNING, "rescnet_dist"), EventBus(writers) as bus:
        bus.publish(RunStarted("memory://***@host/run", 1, 1, 0, ()))
    assert caplog.text.count("Specs and earlier layers are not written") == 2
    assert "Traceback" not in caplog.text
    for writer in writers:
        writer.close()


def test_command_line_writes_both(
    client: Client, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train` and `resume`, without output; MLflow prints nothing by itself."""
    monkeypatch.chdir(tmp_path)
    images, labels = rd.load_digits()
    group = zarr.open_group("small.zarr", mode="w")
    group.create_array("images", data=images[:100])
    group.create_array("labels", data=labels[:100])
    trackers = ("--tensorboard", "board", "--mlflow", uri, "--quiet")
    small = ("--filters", "4", "--max-layers", "1", "--block", "14", "--stride", "14")
    train = ("train", "small.zarr", "--preset", "digits", "--store", "run")
    commands = [(*train, *small), ("resume", "run", "--max-layers", "2")]
    for command in commands:
        result = CliRunner().invoke(main, [*command, *trackers])
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
    for series in (board(tmp_path / "board/run")[1], read_mlflow(uri, "rescnet")[1]):
        pop_outcome(series)
        assert series == expected(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tensorboard", ""], "--tensorboard is empty"),
        (
            ["--tensorboard", "s3://bucket/board"],
            "folder s3://bucket/board is a URL. Event files are written to a folder of",
        ),
        (["--tensorboard", "file/board"], "The TensorBoard folder file/board cannot be created"),
        (["--mlflow", "nothing://x"], "MLflow cannot be used at the URI nothing://x"),
        (["--mlflow", ""], "--mlflow is empty"),
        (["--mlflow-models"], "--mlflow-models needs the URI to log to"),
    ],
)
def test_unusable_tracker_fails_before_the_run(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, and no file is created."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["train", *options])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("library", "make"),
    [
        ("tensorboard", lambda folder: rd.TensorBoardWriter(folder)),
        ("mlflow", lambda folder: rd.MLflowWriter(tracking_uri=f"sqlite:///{folder}/x.db")),
    ],
)
def test_missing_library_raises(
    library: str, make: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command to install it."""
    original = builtins.__import__

    def fake_import(name: str, *args: Any) -> Any:
        if name.split(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {library!r}")
        return original(name, *args)

    monkeypatch.setattr(builtins, "__import__", fake_import)
    with pytest.raises(rd.RescnetError, match=rf"pip install 'rescnet-dist\[{library}\]'"):
        make(tmp_path)
