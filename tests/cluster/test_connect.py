"""Connections to clusters by address, file, gateway and client, with TLS; and hidden secrets."""

from __future__ import annotations

import base64
import functools
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import dask
import numpy as np
import psutil
import pytest
import zarr
from click.testing import CliRunner, Result
from distributed import Client
from models import assert_same_bits, read_model
from ports import free_port

from rescnet_dist import (
    DataError,
    NetworkSpec,
    ResCNetClassifier,
    RescnetError,
    RunSpec,
    StoreError,
    load_digits,
)
from rescnet_dist.cli import main
from rescnet_dist.cluster import connect, current_client
from rescnet_dist.data import training_set
from rescnet_dist.errors import mask_secrets
from rescnet_dist.events import ChunkDone, Event
from rescnet_dist.store import Location, RunStore
from rescnet_dist.train.task_events import progress_topic

pytestmark = pytest.mark.slow  # minutes of real processes that start and stop

Model = dict[str, np.ndarray[Any, Any]]

X, Y = (array[:60] for array in load_digits())
X = X[:, ::2, ::2]
SPEC = NetworkSpec(filters=3, first_filter_size=3, block=7, stride=7, head="regress", max_layers=1)
RUN = RunSpec(validation=0, chunk_images=20, accumulators=2, solve_threads=1)
SECRET = "a-hidden-word"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a Zarr store of the images and labels."""
    path = tmp_path_factory.mktemp("data") / "digits.zarr"
    group = zarr.open_group(str(path), mode="w")
    group.create_array("images", data=X, chunks=(30, *X.shape[1:]))
    group.create_array("labels", data=Y, chunks=(30,))
    return path


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a TOML file with the specs."""
    path = tmp_path_factory.mktemp("config") / "network.toml"
    path.write_text(SPEC.to_toml() + RUN.to_toml())
    return path


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Model:
    """Return the arrays of the model that is trained in this process."""
    store = tmp_path_factory.mktemp("expected") / "run"
    with Client(threads_cluster):
        ResCNetClassifier(SPEC, store=store, run=RUN).fit(X, Y)
    return read_model(store)


@pytest.fixture(scope="module")
def scheduler_file(processes_in: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the scheduler file of a scheduler and a worker in processes of their own."""
    with processes_in(tmp_path_factory.mktemp("cluster")) as started:
        _, file = started.scheduler()
        started.worker(file)
        yield file


def address(scheduler_file: Path) -> str:
    """Return the address in a scheduler file."""
    return str(json.loads(scheduler_file.read_text())["address"])


def rescnet(*arguments: Any) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


@contextmanager
def expect_chunks(count: int, scheduler: str, store: Any) -> Iterator[None]:
    """Fail unless the workers of a scheduler do this number of chunks of a run in the body."""
    done: list[Any] = []
    topic = progress_topic(RunStore(Location.of(store)))
    with Client(scheduler, set_as_default=False) as client:
        client.subscribe_topic(topic, lambda e: e[1]["kind"] == "chunk" and done.append(e))
        yield
        deadline = time.monotonic() + 20
        while len(done) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert len(done) == count


# options that name a cluster --------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--scheduler", "--scheduler-file"])
def test_commands_use_the_named_cluster(
    option: str, scheduler_file: Path, data: Path, config: Path, tmp_path: Path, expected: Model
) -> None:
    """By its address and by its file; all commands, and its workers do the work."""
    scheduler = address(scheduler_file)
    cluster = (option, scheduler if option == "--scheduler" else scheduler_file)
    store = tmp_path / "run"
    planned = rescnet("plan", data, "--config", config, "--no-measure", *cluster)
    assert planned.exit_code == 0, planned.output
    assert "1 worker, 1 thread" in planned.output
    with expect_chunks(9, scheduler, store):  # three chunks: survey, layer, scores
        done = rescnet("train", data, "--config", config, "--store", store, *cluster)
        assert done.exit_code == 0, done.output
    assert_same_bits(read_model(store), expected)
    with expect_chunks(6, scheduler, store):
        more = rescnet("resume", store, "--max-layers", 2, *cluster)
        assert more.exit_code == 0, more.output
    assert rescnet("evaluate", store, data, *cluster).exit_code == 0
    assert rescnet("check", store, *cluster).exit_code == 0


def test_fit_uses_the_current_client(scheduler_file: Path, tmp_path: Path, expected: Model) -> None:
    """Its workers do the work, and it stays open."""
    events: list[Event] = []
    with Client(scheduler_file=str(scheduler_file)) as client:
        workers = set(client.scheduler_info()["workers"])
        clf = ResCNetClassifier(SPEC, store=tmp_path / "run", run=RUN, listeners=[events.append])
        clf.fit(X, Y)
        assert client.status == "running"
    assert {event.worker for event in events if isinstance(event, ChunkDone)} == workers
    assert_same_bits(read_model(tmp_path / "run"), expected)


# a Dask gateway ---------------------------------------------------------------------------------

GATEWAY = """
import sys
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = "127.0.0.1:{private}"
c.DaskGateway.authenticator_class = "dask_gateway_server.auth.SimpleAuthenticator"
c.SimpleAuthenticator.password = "{secret}"
c.Proxy.address = "127.0.0.1:{public}"
c.UnsafeLocalBackend.clusters_directory = "{folder}"
c.ClusterConfig.scheduler_cmd = [sys.executable, "-m", "dask", "scheduler"]
c.ClusterConfig.worker_cmd = [sys.executable, "-m", "dask", "worker"]
"""


@pytest.fixture(scope="module")
def gateway(processes_in: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a Dask gateway with a password that starts clusters as processes."""
    pytest.importorskip("dask_gateway")
    pytest.importorskip("dask_gateway_server")
    pytest.importorskip("sqlalchemy")  # needed by its local clusters
    folder, public = tmp_path_factory.mktemp("gateway"), free_port()
    settings = {"private": free_port(), "public": public, "secret": SECRET, "folder": folder}
    (folder / "config.py").write_text(GATEWAY.format(**settings))
    with processes_in(folder) as started:
        command = (sys.executable, "-m", "dask_gateway_server", "-f", folder / "config.py")
        server = started.start(*command)
        started.wait_until(lambda: is_healthy(f"http://127.0.0.1:{public}"), server)
        yield f"http://127.0.0.1:{public}"


def is_healthy(address: str) -> bool:
    """Return whether a gateway answers."""
    try:
        with urllib.request.urlopen(f"{address}/api/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except HTTPError as error:
        error.close()
    except OSError:
        pass
    return False


def password_config(word: str) -> dict[str, Any]:
    """Return Dask's configuration with the password of a gateway."""
    return {"gateway.auth.type": "basic", "gateway.auth.kwargs": {"password": word}}


def test_commands_use_a_cluster_of_a_gateway(
    gateway: str, data: Path, config: Path, tmp_path: Path, expected: Model
) -> None:
    """The only one, or the named one; and it keeps running after the command."""
    from dask_gateway import BasicAuth, Gateway

    store = tmp_path / "run"
    train = ("train", data, "--config", config, "--store", store, "--gateway", gateway)
    with dask.config.set(password_config(SECRET)):
        failed = rescnet(*train)
        assert failed.exit_code == 2
        assert f"gateway at {gateway} has 0 clusters of yours (running: none)" in failed.output
        admin = Gateway(gateway, auth=BasicAuth(password=SECRET))
        connect.GATEWAY_REFERENCES.append(admin)
        with admin, admin.new_cluster(shutdown_on_close=True) as running:
            connect.GATEWAY_REFERENCES.append(running)
            running.scale(1)
            done = rescnet(*train)
            assert done.exit_code == 0, done.output
            assert_same_bits(read_model(store), expected)
            name = ("--gateway-cluster", running.name)
            more = rescnet("resume", store, "--max-layers", 2, "--gateway", gateway, *name)
            assert more.exit_code == 0, more.output
            other = rescnet(*train[:-3], tmp_path / "b", "--gateway", gateway, name[0], "no")
            assert other.exit_code == 2
            assert f"has no cluster no of yours (running: {running.name})" in other.output
            assert [report.name for report in admin.list_clusters()] == [running.name]
    with dask.config.set(password_config("a-wrong-word")):
        refused = rescnet(*train[:-3], tmp_path / "b", "--gateway", gateway)
    assert refused.exit_code == 2
    assert f"No Dask gateway answers at {gateway}" in refused.output
    assert "Check the address and your permissions" in refused.output
    assert "a-wrong-word" not in refused.output
    assert not (tmp_path / "b").exists()


# TLS --------------------------------------------------------------------------------------------


def make_certificate(folder: Path) -> dict[str, str]:
    """Write a self-signed certificate for loopback; return its paths as Dask's options."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rescnet test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return {"cert": str(folder / "cert.pem"), "key": str(folder / "key.pem")}


def tls_config(files: dict[str, str]) -> dict[str, Any]:
    """Return Dask's configuration of a client that trusts and presents a certificate."""
    client = {f"distributed.comm.tls.client.{name}": path for name, path in files.items()}
    return {"distributed.comm.tls.ca-file": files["cert"], **client}


def test_tls_needs_the_right_certificate(
    started: Any,
    data: Path,
    config: Path,
    tmp_path: Path,
    expected: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From Dask's configuration; with no or another certificate nothing is started."""
    ours, others = make_certificate(tmp_path / "ours"), make_certificate(tmp_path / "others")
    options = ("--tls-ca-file", ours["cert"], "--tls-cert", ours["cert"], "--tls-key", ours["key"])
    _, file = started.scheduler("--protocol", "tls", *options)
    started.worker(file, *options)
    assert address(file).startswith("tls://127.0.0.1:")
    train = ("train", data, "--config", config, "--scheduler", address(file), "--store")
    with dask.config.set(tls_config(ours)):
        done = rescnet(*train, tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert_same_bits(read_model(tmp_path / "run"), expected)
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 2)
    for settings in (tls_config(others), {}):
        with dask.config.set(settings):
            refused = rescnet(*train, tmp_path / "refused")
        assert refused.exit_code == 2, refused.output
        assert f"No Dask scheduler answers at {address(file)}" in refused.output
        assert "the TLS settings of Dask's configuration" in refused.output
        assert not (tmp_path / "refused").exists()


# versions ---------------------------------------------------------------------------------------


def test_workers_with_other_versions_are_an_error(
    started: Any, scheduler_file: Path, data: Path, config: Path, tmp_path: Path
) -> None:
    """All differences are listed, and nothing is written."""
    for name, version in (("rescnet_dist", "0.0.1"), ("scipy", "1.0.0")):
        folder = tmp_path / "other" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
    options = ("--store", tmp_path / "run", "--scheduler-file", scheduler_file)
    train = ("train", data, "--config", config, *options)
    odd = started.worker(scheduler_file, PYTHONPATH=str(tmp_path / "other"))
    with Client(scheduler_file=str(scheduler_file), set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        refused = rescnet(*train)
        started.kill(odd)
        started.wait_until(lambda: len(client.nthreads()) == 1)
    assert refused.exit_code == 2, refused.output
    for words in (
        *("versions differ from this process's", "rescnet-dist 0.", "scipy 1."),
        *("has rescnet-dist 0.0.1", "has scipy 1.0.0", "Install the same versions everywhere"),
    ):
        assert words in refused.output
    assert "has numpy" not in refused.output
    assert not (tmp_path / "run").exists()
    done = rescnet(*train)
    assert done.exit_code == 0, done.output


# open ports -------------------------------------------------------------------------------------


def list_listening() -> set[tuple[str, int]]:
    """Return the addresses that this process and its children listen on."""
    this = psutil.Process()
    return {
        (found.laddr.ip, found.laddr.port)
        for process in (this, *this.children(recursive=True))
        for found in process.net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    }


@pytest.mark.parametrize("processes", [True, False])
def test_embedded_cluster_listens_on_loopback_only(processes: bool) -> None:
    """Neither scheduler, workers, nannies nor dashboards can be reached from another machine."""
    before = list_listening()
    with current_client(processes=processes) as client:
        client.wait_for_workers(1, timeout=60)
        opened = list_listening() - before
    assert len(opened) >= (4 if processes else 1)
    assert {ip for ip, _ in opened} <= {"127.0.0.1", "::1"}, opened


# secrets ----------------------------------------------------------------------------------------


class Guarded(SimpleHTTPRequestHandler):
    """An HTTP server of files behind a password."""

    def do_GET(self) -> None:
        """Send a file, or status 401."""
        word = base64.b64encode(f"me:{SECRET}".encode()).decode()
        if self.headers.get("Authorization") == f"Basic {word}":
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def guarded(data: Path) -> Iterator[str]:
    """Yield the URL of the data at a server on loopback, with the secret in it."""
    handler = functools.partial(Guarded, directory=str(data.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://me:{SECRET}@127.0.0.1:{server.server_port}/{data.name}"
        server.shutdown()


def test_secret_in_a_url_is_in_no_output_and_no_file(
    client: Client, guarded: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens the data, and is in no output, no file name and no file of the run."""
    monkeypatch.chdir(tmp_path)
    trained = rescnet("train", guarded, "--config", config, "--test", guarded)
    assert trained.exit_code == 0, trained.output
    (store,) = (tmp_path / "runs").iterdir()
    assert store.name.startswith("digits-")
    outputs = [trained.output]
    for command in (
        *(("info", store), ("info", store, "--json"), ("check", store), ("evaluate", store)),
        *(("evaluate", store, guarded), ("predict", store, guarded), ("resume", store)),
        *(("plan", guarded, "--config", config, "--no-measure"), ("check", guarded)),
        *(("train", guarded), ("train", guarded, "--config", config, "--store", store)),
        *(("train", guarded.replace(SECRET, f"{SECRET}-or-not"), "--config", config),),
        *(("evaluate", store, guarded + "-not-there"), ("resume", guarded), ("info", guarded)),
    ):
        result = rescnet(*command)
        assert result.exit_code in (0, 2), result.output
        outputs.append(result.output)
    assert f"http://***@127.0.0.1:{guarded.split(':')[-1]}" in "".join(outputs)
    for output in outputs:
        assert SECRET not in output
    for path in tmp_path.rglob("*"):
        assert SECRET not in path.name
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    # The run has a copy of the images, because their URL must not be stored.
    assert RunStore.open(store).images()[0].shape == X.shape


def test_secret_is_masked_in_python_output(client: Client, guarded: str) -> None:
    """In the text of the classifier, locations, events and errors."""
    events: list[Event] = []
    clf = ResCNetClassifier(SPEC, store=guarded, run=RUN, listeners=[events.append])
    assert "http://***@127.0.0.1" in repr(clf)
    texts = [repr(clf), clf._repr_html_(), str(clf._repr_mimebundle_()), repr(clf.get_params)]
    location = Location.of(guarded)
    texts += [repr(location), str(location), repr(RunStore(location)), str(RunStore(location))]
    texts += [repr(training_set(guarded, None))]
    for action in (lambda: clf.fit(X, Y), lambda: ResCNetClassifier.load(guarded)):
        with pytest.raises(RescnetError) as caught:
            action()
        texts += [str(caught.value), repr(caught.value)]
    ResCNetClassifier(SPEC, run=RUN, listeners=[events.append]).fit(guarded)
    for text in (*texts, *map(repr, events)):
        assert SECRET not in text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("s3://key:word@host/a", "s3://***@host/a"),
        ("https://me:w@rd@host/a@b", "https://***@host/a@b"),
        ("https://h/a?sig=x%2F1&v=2", "https://h/a?sig=***&v=2"),
        (
            "https://h/a?X-Amz-Security-Token=x;X-Goog-Signature=y z",
            "https://h/a?X-Amz-Security-Token=***;X-Goog-Signature=*** z",
        ),
        ("https://h/a?access_token=x&api_key=y", "https://h/a?access_token=***&api_key=***"),
        ("tcp://10.0.0.1:8786 and me@home", "tcp://10.0.0.1:8786 and me@home"),
    ],
)
def test_only_secrets_of_urls_are_masked(text: str, masked: str) -> None:
    """User and password, signatures, tokens and keys."""
    assert mask_secrets(text) == masked
    assert str(DataError(text)) == masked


# no pickle --------------------------------------------------------------------------------------


class Harm:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def write_pickled_array(folder: Path, values: Any, filters: list[str], harm: Path) -> None:
    """Write an array of Zarr format 2 whose only chunk is a pickle."""
    folder.mkdir(parents=True)
    record = {
        **{"zarr_format": 2, "shape": values.shape, "chunks": values.shape, "order": "C"},
        **{"dtype": "|O", "compressor": None, "fill_value": None},
        "filters": [{"id": name} for name in filters],
    }
    (folder / ".zarray").write_text(json.dumps(record))
    (folder / ".".join("0" * values.ndim)).write_bytes(pickle.dumps(Harm(harm)))


@pytest.mark.parametrize("filters", [["pickle"], ["vlen-utf8", "pickle"]])
@pytest.mark.parametrize("name", ["images", "labels"])
def test_data_are_never_unpickled(
    client: Client,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    filters: list[str],
) -> None:
    """Neither images nor labels, even if NumCodecs allows it."""
    monkeypatch.setattr("numcodecs.pickles.ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    location, harm = Path(shutil.copytree(data, tmp_path / "data.zarr")), tmp_path / "harm"
    (location / "zarr.json").unlink()
    (location / ".zgroup").write_text('{"zarr_format": 2}')
    for array, values in (("images", X), ("labels", Y)):
        shutil.rmtree(location / array)
        if array == name:
            write_pickled_array(location / array, values, filters, harm)
        else:
            zarr.create_array(location, name=array, data=values, zarr_format=2)
    with pytest.raises(RescnetError, match="pickle"):
        ResCNetClassifier(SPEC, store=tmp_path / "run", run=RUN).fit(str(location))
    assert not harm.exists()
    assert not (tmp_path / "run").exists()


def test_runs_are_never_unpickled(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything pickled: a run has only Zarr chunks and JSON."""
    monkeypatch.setattr("numcodecs.pickles.ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    store, harm = tmp_path / "run", tmp_path / "harm"
    ResCNetClassifier(SPEC, store=store, run=RUN).fit(X, Y)
    for path in store.rglob("*"):
        if path.is_file() and "c" not in path.relative_to(store).parts:
            json.loads(path.read_text())
    for name in ("layers/0001/filters", "image_scale/low", "data/labels"):
        before = zarr.open_array(store / name, mode="r")[...]
        shutil.move(store / name, tmp_path / "original")
        write_pickled_array(store / name, before, ["vlen-utf8", "pickle"], harm)
        for action in READERS:
            with pytest.raises(StoreError, match=r"stored by pickle|problems"):
                action(store)
        shutil.rmtree(store / name)
        shutil.move(tmp_path / "original", store / name)
    assert not harm.exists()
    assert rescnet("check", store).exit_code == 0


def _check(store: Path) -> None:
    """Raise the problems that `rescnet check` finds."""
    found = rescnet("check", store)
    assert found.exit_code == 1, found.output
    raise StoreError(f"problems: {found.output}")


READERS: tuple[Callable[[Path], Any], ...] = (
    _check,
    lambda store: (
        ResCNetClassifier.load(store).predict(X[:2]),
        ResCNetClassifier.resume(store, max_layers=2),
    ),
)


def test_error_of_a_script_without_guard_names_it(tmp_path: Path) -> None:
    """By a line of each worker process, and by the error of the script itself."""
    script = tmp_path / "script.py"
    script.write_text(
        "from rescnet_dist.cluster import current_client\n"
        "with current_client(processes=True, divide=lambda: (2, 1)):\n    pass\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    remedy = 'Put its code under `if __name__ == "__main__":`'
    assert remedy in lines[-1]
    assert lines[-1].startswith("rescnet_dist.errors.classes.ClusterError: The worker processes of")
    own = [line for line in lines if line.startswith("error: ")]
    assert len(own) == 2
    assert all(remedy in line for line in own)
    assert done.stderr.count("Traceback") <= 3  # of the script only
