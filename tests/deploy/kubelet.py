"""Rendered manifests without Kubernetes: pods as processes of this machine.

Commands, arguments and environment are exactly those of the manifests. Mapped are the things that
Kubernetes maps, too: Secrets, mounted volumes, the address of each pod (an address of loopback for
each, so that ports are unchanged) and the name of the scheduler's service. Objects are made by the
Dask operator's own functions. The only exception are compiled kernels: those of this machine are
used, as half a minute for each pod would be too long.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError

import psutil
import pytest
import yaml
from click.testing import CliRunner
from distributed.security import Security
from peak_memory import read_peak_memory

from rescnet_dist.cli import main

Manifest = dict[str, Any]
POLL_SECONDS = 0.05
MIB = 2**20


class NotStartedError(Exception):
    """Kubernetes would not start this container; the pod's events would have the message."""


@dataclass
class Pod:
    """A pod, run by a thread that starts, restarts by its policy, and ends its container."""

    name: str
    ip: str
    spec: Manifest
    folder: Path
    command: list[str]
    environment: dict[str, str]
    backoff: float
    exits: list[int] = field(default_factory=list)  # exit codes of the ended containers
    peak: int = 0  # largest resident bytes of any of them
    seconds_to_end: float | None = None  # from the notice to its end
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.terminating, self.ended = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    @property
    def grace(self) -> float:
        """Grace period in seconds, from the notice to the end."""
        return float(self.spec["terminationGracePeriodSeconds"])

    @property
    def container(self) -> Manifest:
        """The only container."""
        (container,) = self.spec["containers"]
        return dict(container)

    @property
    def memory_limit(self) -> int:
        """Memory limit in bytes, above which Kubernetes would kill the pod."""
        return int(self.container["resources"]["limits"]["memory"].removesuffix("Mi")) * MIB

    @property
    def log(self) -> str:
        """The output of all containers."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def records(self) -> list[dict[str, Any]]:
        """Return the lines of the log, all of which must be JSON."""
        return [json.loads(line) for line in self.log.splitlines() if line]

    def last_layer(self) -> int:
        """Return the last layer that the log of a driver says is grown, or 0."""
        grown = (record for record in self.records() if record.get("pass") == "grow")
        return max((record["layer"] for record in grown), default=0)

    def last_log(self) -> str:
        """Return the output of the last container."""
        return sorted(self.folder.glob("log-*"))[-1].read_text()

    def is_healthy(self, probe: str = "livenessProbe") -> bool:
        """Return whether the pod responds to one of its probes."""
        request = self.container[probe]["httpGet"]
        (port,) = (
            p["containerPort"] for p in self.container["ports"] if p["name"] == request["port"]
        )
        seconds = self.container[probe]["timeoutSeconds"]
        try:
            return self.get(port, request["path"], seconds) is not None
        except (URLError, OSError):
            return False

    def get(self, port: int, path: str, seconds: float = 10) -> str:
        """Return a page that the pod serves by HTTP."""
        with urllib.request.urlopen(f"http://{self.ip}:{port}{path}", timeout=seconds) as response:
            return str(response.read().decode())

    # life cycle -------------------------------------------------------------------------------

    def _run(self) -> None:
        policy, pause = self.spec.get("restartPolicy", "Always"), self.backoff
        while not self.terminating.is_set():
            self._start()
            assert self.process
            while self.process.poll() is None:
                self.peak = max(self.peak, read_peak_memory(self.process.pid))
                time.sleep(POLL_SECONDS)
            self.exits.append(self.process.returncode)
            if policy == "Never" or (policy == "OnFailure" and self.exits[-1] == 0):
                break
            self.terminating.wait(pause)
            pause = min(2 * pause, 30 * self.backoff)
        self.ended.set()

    def _start(self) -> None:
        with (self.folder / f"log-{len(self.exits):03d}").open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=self.folder / "root",
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def signal(self, number: int) -> None:
        """Send a signal to the container, which is restarted by the policy if it ends.

        A killed container ends with all its processes.
        """
        if self.process:
            with suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(self.process.pid, number)
                else:
                    self.process.send_signal(number)

    def signal_child(self, number: int) -> None:
        """Send a signal to the process that the container's first process has started."""
        assert self.process
        for child in psutil.Process(self.process.pid).children():
            child.send_signal(number)

    def kill(self) -> None:
        """Kill the pod, as when its node is lost."""
        self.terminating.set()
        self.signal(signal.SIGKILL)

    def evict(self) -> None:
        """End the pod as Kubernetes does: hook, SIGTERM, and SIGKILL after the grace period.

        The grace period starts with the hook.
        """
        started = time.monotonic()
        self.terminating.set()
        hook = self.container.get("lifecycle", {}).get("preStop")
        if hook and not self.ended.is_set():
            self._run_hook(hook["exec"]["command"])
        self.signal(signal.SIGTERM)
        self.ended.wait(max(0.0, started + self.grace - time.monotonic()))
        self.signal(signal.SIGKILL)
        self.ended.wait()
        self.seconds_to_end = time.monotonic() - started

    def _run_hook(self, command: list[str]) -> None:
        with (self.folder / "hook").open("wb") as log, suppress(subprocess.TimeoutExpired):
            subprocess.run(
                find_program(command, self.environment),
                env=self.environment,
                cwd=self.folder / "root",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=self.grace,
            )


class Cluster:
    """A DaskJob or DaskCluster of rendered manifests, with some Secrets and images.

    A Secret is a dict of its keys, an image is the environment that its programs run in.
    """

    def __init__(
        self,
        folder: Path,
        manifests: list[Manifest],
        secrets: Mapping[str, Mapping[str, str]],
        images: Mapping[str, Mapping[str, str]],
        backoff: float = 1.0,
    ) -> None:
        self.folder, self.secrets, self.images, self.backoff = folder, secrets, images, backoff
        (self.document,) = (d for d in manifests if d["kind"] in ("DaskJob", "DaskCluster"))
        self.name = str(self.document["metadata"]["name"])
        self.namespace = self.document["metadata"]["namespace"]
        spec = self.document["spec"]
        self.spec = spec["cluster"]["spec"] if "cluster" in spec else spec
        self.network = find_network()
        self.pods: list[Pod] = []
        self.workers: dict[str, Pod] = {}  # the current pod of each worker's Deployment
        self.scheduler: Pod | None = None
        self.driver: Pod | None = None
        self.lock = threading.Lock()
        self.leaving: list[threading.Thread] = []

    @property
    def address(self) -> str:
        """Address of the scheduler on this machine."""
        return f"tls://{self.network}.1:8786"

    @property
    def security(self) -> Security:
        """The certificates of the pods, with which clients may connect to the scheduler."""
        pod, prefix = self.pods[0], "DASK_DISTRIBUTED__COMM__TLS__"
        return Security(
            tls_ca_file=pod.environment[f"{prefix}CA_FILE"],
            tls_client_cert=pod.environment[f"{prefix}CLIENT__CERT"],
            tls_client_key=pod.environment[f"{prefix}CLIENT__KEY"],
            require_encryption=True,
        )

    # done by the operator -----------------------------------------------------------------------

    def start_scheduler(self) -> Pod:
        """Start the scheduler's pod, and wait until it is ready."""
        controller = operator()
        deployment = controller.build_scheduler_deployment_spec(
            self.name, self.spec["scheduler"]["spec"], {}, {}
        )
        name = deployment["metadata"]["name"]
        spec = deployment["spec"]["template"]["spec"]
        self.scheduler = self.start_pod(name, spec, f"{self.network}.1")
        wait_until(lambda: self.scheduler and self.scheduler.is_healthy("readinessProbe"), self)
        return self.scheduler

    def start_workers(self, count: int | None = None, **arguments: str) -> list[Pod]:
        """Start a number of workers, by default the number in the manifest.

        Arguments replace those of the manifest, as in `memory_limit="1GiB"`.
        """
        count = self.spec["worker"]["replicas"] if count is None else count
        started = []
        for _ in range(count):
            number = f"{len(self.workers):010x}"
            deployment = operator().build_worker_deployment_spec(
                f"{self.name}-default",
                self.namespace,
                self.name,
                number,
                self.spec["worker"]["spec"],
                {},
                {},
            )
            pod = deployment["spec"]["template"]["spec"]
            words = pod["containers"][0]["args"]
            for name, value in arguments.items():
                words[words.index(f"--{name.replace('_', '-')}") + 1] = value
            worker = deployment["metadata"]["name"]
            self.workers[worker] = self.start_pod(worker, pod)
            started.append(self.workers[worker])
        return started

    def start_driver(self, *arguments: str) -> Pod:
        """Start the pod of the job, with additional arguments."""
        pod = operator().build_job_pod_spec(
            self.name, self.name, self.namespace, self.document["spec"]["job"]["spec"], {}, {}
        )
        pod["spec"]["containers"][0]["args"] += arguments
        self.driver = self.start_pod(pod["metadata"]["name"], pod["spec"])
        return self.driver

    def start(self) -> Pod:
        """Start all pods of a job; return the driver."""
        self.start_scheduler()
        self.start_workers()
        return self.start_driver()

    def replace(self, worker: str, *, notice: bool = True) -> Pod:
        """Remove a worker's pod, with notice or with its node; return the removed pod.

        Its Deployment starts another one at once, with the same name in Dask.
        """
        with self.lock:
            old = self.workers[worker]
            if notice:
                leaving = threading.Thread(target=old.evict, daemon=True)
                leaving.start()
                self.leaving.append(leaving)
            else:
                old.kill()
            self.workers[worker] = self.start_pod(worker, old.spec)
        return old

    def stop(self) -> None:
        """Evict all pods, the driver's before those that it uses."""
        for group in ([self.driver], [*self.workers.values(), self.scheduler]):
            threads = [threading.Thread(target=pod.evict) for pod in group if pod]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for thread in self.leaving:
            thread.join()

    # done by the kubelet ------------------------------------------------------------------------

    def start_pod(self, name: str, spec: Manifest, ip: str | None = None) -> Pod:
        """Start a pod of a spec, at a new address unless one is given."""
        number = len(self.pods) + 2
        folder = self.folder / f"{name}-{number}"
        (container,) = spec["containers"]
        mounts = self._create_mounts(spec, folder)
        ip = ip or f"{self.network}.{number}"

        def translate(text: str) -> str:
            """Translate a word of the manifest to this machine."""
            for path, location in mounts.items():
                if text == path or text.startswith(f"{path}/"):
                    return f"{location}{text[len(path) :]}"
            host = rf"\b{self.name}-scheduler(\.{self.namespace}\.svc\.cluster\.local)?(?=:\d+$)"
            text = re.sub(host, f"{self.network}.1", text)
            return f"{ip}{text}" if re.fullmatch(r":\d+", text) else text

        environment = dict(self.images[container["image"]]) | {"TMPDIR": str(mounts["/tmp"])}
        unique = folder.name  # like the names of a Deployment's pods
        for name_, value in self._variables(unique, container).items():
            environment[name_] = translate(value)
        del environment["NUMBA_CACHE_DIR"]  # see the top of this module
        words = [
            translate(expand(word, environment))
            for word in container["command"] + container["args"]
        ]
        if container["command"][0] == "dask":
            words += ["--host", ip]  # the only address of a pod
        (folder / "root").mkdir(parents=True)  # must stay empty
        command = find_program(words, environment)
        pod = Pod(name, ip, spec, folder, command, environment, self.backoff)
        self.pods.append(pod)
        pod.thread.start()
        return pod

    def _variables(self, pod: str, container: Manifest) -> dict[str, str]:
        """Return the environment of a pod's container, with all references resolved."""
        variables: dict[str, str] = {}
        for entry in container["env"]:
            name = entry["name"]
            if "value" in entry:
                variables[name] = expand(entry["value"], variables)
                continue
            if "fieldRef" in entry["valueFrom"]:
                assert entry["valueFrom"]["fieldRef"] == {"fieldPath": "metadata.name"}
                variables[name] = pod
                continue
            source = entry["valueFrom"]["secretKeyRef"]
            keys = self.secrets.get(source["name"], {})
            if source["key"] in keys:
                variables[name] = keys[source["key"]]
            elif not source.get("optional"):
                raise NotStartedError(
                    f"couldn't find key {source['key']} in Secret {source['name']}"
                )
        return variables

    def _create_mounts(self, spec: Manifest, folder: Path) -> dict[str, Path]:
        """Create a folder for each volume mount; return the folders by mount path."""
        mounts: dict[str, Path] = {}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in spec["containers"][0]["volumeMounts"]:
            location = folder / mount["mountPath"].strip("/").replace("/", "-")
            location.mkdir(parents=True)
            mounts[mount["mountPath"]] = location
            secret = volumes[mount["name"]].get("secret")
            if secret and secret["secretName"] not in self.secrets:
                raise NotStartedError(f'secret "{secret["secretName"]}" not found')
            for key, value in self.secrets[secret["secretName"]].items() if secret else ():
                (location / key).write_text(value)
        return mounts

    def collect_logs(self) -> str:
        """Return the logs of all pods, for failed tests."""
        return "\n".join(f"--- {pod.name} {pod.exits}\n{pod.log[-4000:]}" for pod in self.pods)


@contextmanager
def run_cluster(folder: Path, *args: Any, **kwargs: Any) -> Iterator[Cluster]:
    """Run a `Cluster` during the body of the context; its pods are killed afterwards."""
    cluster = Cluster(folder, *args, **kwargs)
    try:
        yield cluster
    finally:
        for pod in reversed(cluster.pods):
            pod.kill()
        for pod in cluster.pods:
            pod.ended.wait()


# --------------------------------------------------------------------------------------------------


def render(*options: Any) -> list[Manifest]:
    """Return the manifests that `rescnet deploy render` prints."""
    done = CliRunner().invoke(main, ["deploy", "render", *map(str, options)])
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.stdout))


def operator() -> Any:
    """Return the module with the Dask operator's functions."""
    reason = "needs dask-kubernetes, which has the operator"
    pytest.importorskip("dask_kubernetes", reason=reason)
    from dask_kubernetes.operator.controller import controller

    return controller


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` in a text, if there is such a variable.

    >>> expand("$(A)/b, $(C)", {"A": "a"})
    'a/b, $(C)'
    """
    return re.sub(r"\$\((\w+)\)", lambda name: variables.get(name[1], name[0]), text)


def find_program(command: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return a command with the path of its program in the image."""
    for folder in environment["PATH"].split(os.pathsep):
        if os.access(path := os.path.join(folder, command[0]), os.X_OK):
            return [path, *command[1:]]
    raise NotStartedError(f'exec: "{command[0]}": executable file not found in $PATH')


def die_with_parent() -> None:
    """Have this process killed when its parent thread ends, as when a test is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, of Linux


def find_network() -> str:
    """Return a prefix of loopback addresses whose scheduler port is free."""
    for _ in range(100):
        network = f"127.{random.SystemRandom().randrange(16, 255)}.{os.getpid() % 250 + 1}"
        with socket.socket() as probe, suppress(OSError):
            probe.bind((f"{network}.1", 8786))
            return network
    pytest.skip("needs Linux, where all of 127.0.0.0/8 is loopback")


def wait_until(
    condition: Callable[[], Any], cluster: Cluster, seconds: float = 60, every: float = POLL_SECONDS
) -> None:
    """Wait until a condition is true; fail with the logs of all pods after a timeout."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, cluster.collect_logs()
        time.sleep(every)
