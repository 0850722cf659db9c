"""What hostile inputs are given to: sources, stores, specs, TOML, events and dashboard requests.

A target is made in a folder. It is a function that makes one hostile input from a generator and
uses it. Input is used, or rejected by a RescnetError; any other exception is a fault.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
from click.testing import CliRunner
from damaged_sources import FORMATS, PIXELS, encode_image, make_damaged, read_dataset, write_files
from mutations import damage

import rescnet_dist as rd
from rescnet_dist.cli import main
from rescnet_dist.dashboard.page import PLOTS
from rescnet_dist.dashboard.scheduler import TOPIC_PREFIX, RunsPlugin
from rescnet_dist.dashboard.server import Dashboard
from rescnet_dist.dashboard.summary import describe_html
from rescnet_dist.dashboard.view import StoredRun
from rescnet_dist.data import import_dataset, verify_dataset
from rescnet_dist.errors import DataError, RescnetError
from rescnet_dist.lifecycle import check_resume
from rescnet_dist.network.loading import load_network
from rescnet_dist.runs import describe_run
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import RunStore
from rescnet_dist.train import verify_run

Attack = Callable[[random.Random], None]
Make = Callable[[Path], Attack]

SPEC = NetworkSpec(filters=2, first_filter_size=3, block=4, stride=4, head="regress", max_layers=1)
RUN = RunSpec(validation=0, chunk_images=3, accumulators=2, solve_threads=1, maps="store")
HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "0", "none", "x" * 5000, "\0", "\ud800", "../../x", "{}"),
    *([], {}, [[]], [None], [{}], {"": {}}, list(range(300)), "s3://", "file:///", "memory://x"),
)
MAX_NESTING = 3000  # of a hostile value, deeper than Python recurses


def mutate(value: Any, rng: random.Random) -> Any:
    """Return a copy of a JSON value that is changed in one to three places."""
    root = {"root": copy.deepcopy(value)}
    for _ in range(rng.choice((1, 1, 2, 3))):
        holder, key = draw_place(root, rng)
        action = rng.randrange(10)
        if action == 0 and holder is not root:
            del holder[key]
        elif action == 1 and isinstance(holder, dict) and holder is not root:
            holder[str(rng.choice(HOSTILE_VALUES))] = holder[key]
        elif action == 2:
            holder[key] = [copy.deepcopy(holder[key]) for _ in range(rng.choice((1, 2, 50)))]
        else:
            holder[key] = copy.deepcopy(rng.choice(HOSTILE_VALUES))
    return root["root"]


def draw_place(root: dict[str, Any], rng: random.Random) -> tuple[Any, Any]:
    """Draw a place in a nested value: its dict or list, and its key."""
    holder, key = root, "root"
    while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.8:
        holder = holder[key]
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    return holder, key


def list_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each part of a JSON value; of lists only of the first two items."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from list_places(value[key], (*path, key))
    elif isinstance(value, list):
        for number in range(min(len(value), 2)):
            yield from list_places(value[number], (*path, number))


def replace_at(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of a JSON value with another one at a path."""
    copied = holder = copy.deepcopy(value)
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = new
    return copied


def remove_at(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy of a JSON value without what is at a path."""
    copied = holder = copy.deepcopy(value)
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return copied


def nest(depth: int) -> bytes:
    """Return JSON that is nested deeper than Python recurses."""
    return b"[" * depth + b"]" * depth


def damage_json(content: bytes, rng: random.Random) -> bytes:
    """Damage a JSON file in its values, or as bytes."""
    if rng.random() < 0.02:
        return nest(MAX_NESTING)
    if rng.random() < 0.3:
        return damage(content, rng)
    return json.dumps(mutate(json.loads(content), rng)).encode()


# sources ----------------------------------------------------------------------------------------


def make_source(name: str, folder: Path) -> Attack:
    """Return an attack by a damaged dataset of one format."""

    def attack(rng: random.Random) -> None:
        (files,) = make_damaged(name, 1, rng.randrange(2**60))
        place = folder / "source"
        try:
            if read_dataset(write_files(place, files)) == "rejected":
                raise DataError("rejected")
        finally:
            shutil.rmtree(place)

    return attack


def make_csv(folder: Path) -> Attack:
    """Return an attack by a damaged CSV file of paths and labels."""
    names = [f"{number}.png" for number in range(len(PIXELS))]
    images = {name: encode_image(image, "PNG") for name, image in zip(names, PIXELS, strict=True)}
    write_files(folder, images)
    rows = [f"{name},{number % 3},train" for number, name in enumerate(names)]
    text = "\n".join(["path,label,split", *rows]).encode()

    def attack(rng: random.Random) -> None:
        (folder / "a.csv").write_bytes(damage(text, rng))
        data = rd.open_dataset(str(folder / "a.csv"))
        data["images"].data.compute(scheduler="sync")

    return attack


# stores -----------------------------------------------------------------------------------------


def train_run(url: Path, spec: NetworkSpec = SPEC, run: RunSpec = RUN) -> None:
    """Train a small run."""
    images = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 1), np.uint8)
    rd.ResCNetClassifier(spec, store=url, run=run).fit(images, [0, 1, 2, 0, 1, 2])


class DamagedStore:
    """A store of which one file is damaged at a time, and the functions that read it by its URL."""

    def __init__(self, root: Path, uses: list[Callable[[str], Any]]) -> None:
        self.root, self.uses = root, uses
        self.files = sorted(path for path in root.rglob("*") if path.is_file())

    def attack(self, rng: random.Random) -> None:
        """Damage or remove a file, use the store, and put the file back."""
        path = rng.choice(self.files)
        content = path.read_bytes()
        is_json = path.suffix == ".json"
        if rng.random() < 0.05:
            path.unlink()
        else:
            path.write_bytes((damage_json if is_json else damage)(content, rng))
        try:
            self.use(rng)
        finally:
            path.write_bytes(content)

    def use(self, rng: random.Random) -> None:
        """Read the store in one of the ways."""
        with dask.config.set(scheduler="sync"):
            rng.choice(self.uses)(str(self.root))


def use_network(url: str) -> None:
    """Load a network and predict."""
    load_network(url).scores(np.zeros((2, 8, 8, 1), np.uint8))


def run_command(*arguments: str) -> None:
    """Run a command that reads a store; raise RescnetError if it fails with a message."""
    result = CliRunner().invoke(main, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise RescnetError(result.output)


def make_run(folder: Path) -> DamagedStore:
    """Return a run to damage."""
    train_run(folder / "run")
    uses: list[Callable[[str], Any]] = [
        describe_run,
        partial(run_command, "info"),
        partial(run_command, "runs"),
        verify_run,
        use_network,
        lambda url: check_resume(RunStore.open(url)),
        lambda url: StoredRun(url).view(),
    ]
    return DamagedStore(folder / "run", uses)


def make_network(folder: Path) -> DamagedStore:
    """Return a network to damage, saved to a folder."""
    train_run(folder / "run")
    load_network(folder / "run").save(folder / "network")
    return DamagedStore(folder / "network", [use_network])


def make_zipped_network(folder: Path) -> DamagedStore:
    """Return a network to damage, saved to a zip file."""
    train_run(folder / "run")
    (folder / "zipped").mkdir()
    path = folder / "zipped" / "net.zip"
    load_network(folder / "run").save(path)
    return DamagedStore(folder / "zipped", [lambda _: use_network(str(path))])


def make_dataset(folder: Path) -> DamagedStore:
    """Return an imported dataset to damage."""
    write_files(folder / "source", FORMATS["npz"](lambda c: c, lambda c: c))
    with dask.config.set({"distributed.worker.profile.enabled": False}), rd_client() as client:
        import_dataset(str(folder / "source"), str(folder / "data.zarr"), client, chunk_images=3)

    def read(url: str) -> None:
        rd.open_dataset(url)["images"].data.compute(scheduler="sync")

    return DamagedStore(folder / "data.zarr", [read, verify_dataset])


def rd_client() -> Any:
    """Return a client of a worker in this process."""
    from distributed import Client

    return Client(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    )


# specs ------------------------------------------------------------------------------------------


def make_spec(_folder: Path) -> Attack:
    """Return an attack by the options of a spec."""
    specs = [
        *(NetworkSpec.preset(name) for name in rd.spec.PRESETS),
        *(RUN, AugmentSpec(copies=2, flip=True), SPEC),
    ]

    def attack(rng: random.Random) -> None:
        spec = rng.choice(specs)
        values = mutate(spec.to_dict(), rng)
        if isinstance(values, dict):
            type(spec).from_dict(values)

    return attack


def make_toml(folder: Path) -> Attack:
    """Return an attack by a TOML file of settings."""
    text = (SPEC.to_toml() + RUN.to_toml() + AugmentSpec(copies=1, flip=True).to_toml()).encode()

    def attack(rng: random.Random) -> None:
        path = folder / "settings.toml"
        path.write_bytes(damage(text, rng))
        for kind in (NetworkSpec, RunSpec, AugmentSpec):
            kind.from_toml(path)

    return attack


# events -----------------------------------------------------------------------------------------

TOPIC = f"{TOPIC_PREFIX}hostile"
MESSAGES: list[dict[str, Any]] = [
    {"kind": "chunk", "phase": "grow", "layer": 1, "start": 0, "images": 3, "worker": "w"}
    | {"memory": 10**8, "seconds": 0.1, "time": 1.0},
    {"kind": "started", "phase": "grow", "layer": 1, "start": 0},
    {"kind": "io", "phase": "grow", "layer": 1, "read": 1, "written": 1, "worker": "w"}
    | {"memory": 1},
    {"kind": "solving", "phase": "grow", "layer": 1, "worker": "w", "memory": 1},
    {"kind": "rebuilt", "phase": "grow", "layer": 1, "start": 0, "images": 3, "reason": "r"},
    {"kind": "event", "event": "pass_started", "phase": "grow", "layer": 1, "time": 1.0},
    {"kind": "event", "event": "pass_retried", "phase": "grow", "layer": 1, "reason": "r"},
    {"kind": "event", "event": "maps_placed", "layer": 1, "in_memory": True, "reason": "r"},
    {"kind": "event", "event": "run_stopped", "reason": "r"},
    {"kind": "event", "event": "run_done", "reason": "r", "depth": 1},
    {"kind": "event", "event": "pass_done", "phase": "grow", "layer": 1, "seconds": 1.0}
    | {"accuracy": {"layer": 1, "train": 0.5, "validation": 0.5}, "residual": [0.5, 0.5]}
    | {"observed": {"seconds": {"read": 1.0}, "read": 1, "written": 1, "memory": {"w": 1}}},
]


def make_events(folder: Path) -> Attack:
    """Return an attack by messages of tasks and drivers to the scheduler, which shows pages."""
    train_run(folder / "run")
    described = describe_run(folder / "run")
    messages = [*MESSAGES, {"kind": "run", "run": described, "driver": "d"}]
    plugin = RunsPlugin()
    plots = [kind(plugin.board.views) for kind in PLOTS]

    def attack(rng: random.Random) -> None:
        message = mutate(rng.choice(messages), rng)
        plugin.log_event(TOPIC, message)
        for view in plugin.board.views():
            view.seconds_left(2.0)
            describe_html(view)
        for plot in plots if rng.random() < 0.05 else ():
            plot.update()

    return attack


# requests ---------------------------------------------------------------------------------------

REQUEST = (
    b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\nAccept: */*\r\n"
    b"Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
)
PATHS = (b"", b"ws", b"static/js/bokeh.min.js", b"metadata", b"autoload.js", b"?token=1&theme=dark")
MAX_REPLY_BYTES = 2**24
REPLY_SECONDS = 10.0


def make_requests(folder: Path) -> Attack:
    """Return an attack by requests to the dashboard, which must not fail or stop to answer."""
    train_run(folder / "run")
    ports, ready = list[int](), threading.Event()

    def serve() -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        dashboard = Dashboard([str(folder / "run")], port=0)
        ports.append(dashboard.port)
        ready.set()
        dashboard.serve()

    threading.Thread(target=serve, daemon=True).start()
    ready.wait(60)

    def attack(rng: random.Random) -> None:
        request = damage(REQUEST % (rng.choice(PATHS), ports[0]), rng)
        reply = send(ports[0], request)
        if reply.startswith(b"HTTP/1.1 5"):
            raise AssertionError(f"the dashboard has failed: {request!r} {reply[:200]!r}")
        if rng.random() < 0.05:
            reply = send(ports[0], REQUEST % (b"metadata", ports[0]), is_last=False)
            assert reply.startswith(b"HTTP/1.1 "), f"no answer after {request!r}"

    return attack


def send(port: int, request: bytes, *, is_last: bool = True) -> bytes:
    """Send bytes to the dashboard, then return what it answers until it closes the connection.

    It may close the connection without an answer if it learns that they were the last.
    """
    parts: list[bytes] = []
    with socket.create_connection(("127.0.0.1", port), REPLY_SECONDS) as connection:
        try:
            connection.sendall(request)
            if is_last:
                connection.shutdown(socket.SHUT_WR)
            while sum(map(len, parts)) < MAX_REPLY_BYTES and (part := connection.recv(2**16)):
                parts.append(part)
        except OSError:  # it has closed the connection
            pass
    return b"".join(parts)


# --------------------------------------------------------------------------------------------------

STORES: dict[str, Callable[[Path], DamagedStore]] = {
    "run": make_run,
    "network": make_network,
    "zipped network": make_zipped_network,
    "dataset": make_dataset,
}


def attack_store(make: Callable[[Path], DamagedStore], folder: Path) -> Attack:
    """Return an attack by a damaged store."""
    return make(folder).attack


TARGETS: dict[str, Make] = {
    **{f"source: {name}": partial(make_source, name) for name in FORMATS},
    "source: csv": make_csv,
    **{f"store: {name}": partial(attack_store, make) for name, make in STORES.items()},
    "spec": make_spec,
    "toml": make_toml,
    "events": make_events,
    "requests": make_requests,
}


def is_rejected(attack: Attack, rng: random.Random) -> bool:
    """Return whether an input was rejected by an error of this package; raise any other error."""
    try:
        attack(rng)
    except RescnetError as error:
        if not str(error) or len(str(error)) > 6000:
            raise AssertionError(f"bad message: {str(error)[:1000]!r}") from None
        return True
    return False
