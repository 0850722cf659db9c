"""Rendered manifests without Kubernetes: pods as processes of this machine.

Commands, arguments and environment are those of the manifests, to the letter. What is mapped is
what Kubernetes maps too: Secrets, mounted volumes, the address of each pod (one of loopback for
each, so that ports stay as they are) and the name of the scheduler's service. Objects are made by
the Dask operator's own functions. Compiled kernels are the one exception: they are those of this
machine, as half a minute for each pod would be too long.
"""

from __future__ import annotations

import ctypes
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

import pytest
import yaml
from click.testing import CliRunner
from distributed.security import Security

from rescnet_dist.cli import main

Manifest = dict[str, Any]
LOOK_EVERY = 0.05  # seconds
MIB = 2**20


class NotStarted(Exception):
    """Kubernetes would not start this container, and say why among the pod's events."""


@dataclass
class Pod:
    """A pod, which a thread of its own starts, starts again as its policy says, and ends."""

    name: str
    ip: str
    spec: Manifest
    folder: Path
    command: list[str]
    environment: dict[str, str]
    backoff: float
    exits: list[int] = field(default_factory=list)  # codes of the containers that have ended
    peak: int = 0  # bytes that were resident in any of them
    seconds_to_end: float | None = None  # from the notice to its end
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.told, self.ended = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    @property
    def grace(self) -> float:
        """Seconds from the notice to the end."""
        return float(self.spec["terminationGracePeriodSeconds"])

    @property
    def container(self) -> Manifest:
        """Its only container."""
        (found,) = self.spec["containers"]
        return dict(found)

    @property
    def memory_limit(self) -> int:
        """Bytes from which on Kubernetes would kill it."""
        return int(self.container["resources"]["limits"]["memory"].removesuffix("Mi")) * MIB

    @property
    def log(self) -> str:
        """All that its containers have said."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def last_log(self) -> str:
        """What the last of its containers has said."""
        return sorted(self.folder.glob("log-*"))[-1].read_text()

    def healthy(self, probe: str = "livenessProbe") -> bool:
        """Whether it answers one of its probes."""
        asked = self.container[probe]["httpGet"]
        (port,) = (
            p["containerPort"] for p in self.container["ports"] if p["name"] == asked["port"]
        )
        seconds = self.container[probe]["timeoutSeconds"]
        try:
            return self.get(port, asked["path"], seconds) is not None
        except (URLError, OSError):
            return False

    def get(self, port: int, path: str, seconds: float = 10) -> str:
        """What it answers by HTTP."""
        with urllib.request.urlopen(f"http://{self.ip}:{port}{path}", timeout=seconds) as answer:
            return str(answer.read().decode())

    # its life ---------------------------------------------------------------------------------

    def _run(self) -> None:
        policy, pause = self.spec.get("restartPolicy", "Always"), self.backoff
        while not self.told.is_set():
            self._start()
            assert self.process
            while self.process.poll() is None:
                self.peak = max(self.peak, resident_peak(self.process.pid))
                time.sleep(LOOK_EVERY)
            self.exits.append(self.process.returncode)
            if policy == "Never" or (policy == "OnFailure" and self.exits[-1] == 0):
                break
            self.told.wait(pause)
            pause = min(2 * pause, 30 * self.backoff)
        self.ended.set()

    def _start(self) -> None:
        with (self.folder / f"log-{len(self.exits):03d}").open("wb") as log:
            self.process = subprocess.Popen(
                self.command, env=self.environment, cwd=self.folder / "root", stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=die_with_parent,
            )  # fmt: skip

    def signal(self, number: int) -> None:
        """Send its container a signal, as from outside; it is started again where it ends."""
        if self.process:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def kill(self) -> None:
        """End it without a word, as with its node."""
        self.told.set()
        self.signal(signal.SIGKILL)

    def evict(self) -> None:
        """End it as Kubernetes does: the hook, then SIGTERM; SIGKILL when the time is over, which
        counts from the beginning of the hook."""
        began = time.monotonic()
        self.told.set()
        hook = self.container.get("lifecycle", {}).get("preStop")
        if hook and not self.ended.is_set():
            self._hook(hook["exec"]["command"])
        self.signal(signal.SIGTERM)
        self.ended.wait(max(0.0, began + self.grace - time.monotonic()))
        self.signal(signal.SIGKILL)
        self.ended.wait()
        self.seconds_to_end = time.monotonic() - began

    def _hook(self, command: list[str]) -> None:
        with (self.folder / "hook").open("wb") as log, suppress(subprocess.TimeoutExpired):
            subprocess.run(
                found(command, self.environment), env=self.environment, cwd=self.folder / "root",
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=self.grace,
            )  # fmt: skip


class Cluster:
    """A DaskJob or DaskCluster of rendered manifests, with the Secrets and images that there are.

    A Secret is a dictionary of its keys, an image the environment that its programs run in.
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
        self.network = own_network()
        self.pods: list[Pod] = []
        self.workers: dict[str, Pod] = {}  # the pod that each worker's Deployment has now
        self.scheduler: Pod | None = None
        self.driver: Pod | None = None
        self.lock = threading.Lock()
        self.leaving: list[threading.Thread] = []

    @property
    def address(self) -> str:
        """Of the scheduler, on this machine."""
        return f"tls://{self.network}.1:8786"

    @property
    def security(self) -> Security:
        """The certificates of a client that its scheduler lets in, as pods have them."""
        pod, prefix = self.pods[0], "DASK_DISTRIBUTED__COMM__TLS__"
        return Security(
            tls_ca_file=pod.environment[f"{prefix}CA_FILE"],
            tls_client_cert=pod.environment[f"{prefix}CLIENT__CERT"],
            tls_client_key=pod.environment[f"{prefix}CLIENT__KEY"],
            require_encryption=True,
        )

    # what the operator does ---------------------------------------------------------------------

    def start_scheduler(self) -> Pod:
        """Make the scheduler's pod, and wait until it is ready."""
        controller = operator()
        made = controller.build_scheduler_deployment_spec(
            self.name, self.spec["scheduler"]["spec"], {}, {}
        )
        name = made["metadata"]["name"]
        self.scheduler = self.start_pod(name, made["spec"]["template"]["spec"], f"{self.network}.1")
        wait_until(lambda: self.scheduler and self.scheduler.healthy("readinessProbe"), self)
        return self.scheduler

    def start_workers(self, count: int | None = None, **changed: str) -> list[Pod]:
        """Make Deployments of so many workers, or as many as the manifest says; with arguments
        that stand elsewhere in place of theirs, as `memory_limit="1GiB"`."""
        count = self.spec["worker"]["replicas"] if count is None else count
        made = []
        for _ in range(count):
            number = f"{len(self.workers):010x}"
            deployment = operator().build_worker_deployment_spec(
                f"{self.name}-default", self.namespace, self.name, number,
                self.spec["worker"]["spec"], {}, {},
            )  # fmt: skip
            pod = deployment["spec"]["template"]["spec"]
            arguments = pod["containers"][0]["args"]
            for name, value in changed.items():
                arguments[arguments.index(f"--{name.replace('_', '-')}") + 1] = value
            worker = deployment["metadata"]["name"]
            self.workers[worker] = self.start_pod(worker, pod)
            made.append(self.workers[worker])
        return made

    def start_driver(self, *more: str) -> Pod:
        """Make the pod of the job, with some more arguments."""
        made = operator().build_job_pod_spec(
            self.name, self.name, self.namespace, self.document["spec"]["job"]["spec"], {}, {}
        )
        made["spec"]["containers"][0]["args"] += more
        self.driver = self.start_pod(made["metadata"]["name"], made["spec"])
        return self.driver

    def start(self) -> Pod:
        """Make all of it, as a job; its driver."""
        self.start_scheduler()
        self.start_workers()
        return self.start_driver()

    def replace(self, worker: str, *, notice: bool = True) -> Pod:
        """Take a worker's pod away, with the notice that it is due or with its node. Its Deployment
        makes another one at once, of the same name to Dask; returns the one that goes."""
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
        """Take all pods away, each as it is due: the driver's before those that it uses."""
        for group in ([self.driver], [*self.workers.values(), self.scheduler]):
            threads = [threading.Thread(target=pod.evict) for pod in group if pod]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for thread in self.leaving:
            thread.join()

    # what the kubelet does ----------------------------------------------------------------------

    def start_pod(self, name: str, spec: Manifest, ip: str | None = None) -> Pod:
        """Start a pod of this spec, at an address of its own unless one is given."""
        number = len(self.pods) + 2
        folder = self.folder / f"{name}-{number}"
        (container,) = spec["containers"]
        mounts = self._mounted(spec, folder)
        ip = ip or f"{self.network}.{number}"

        def here(text: str) -> str:
            """A word of the manifest, as it is to be on this machine."""
            for path, location in mounts.items():
                if text == path or text.startswith(f"{path}/"):
                    return f"{location}{text[len(path) :]}"
            host = rf"\b{self.name}-scheduler(\.{self.namespace}\.svc\.cluster\.local)?(?=:\d+$)"
            text = re.sub(host, f"{self.network}.1", text)
            return f"{ip}{text}" if re.fullmatch(r":\d+", text) else text

        environment = dict(self.images[container["image"]]) | {"TMPDIR": str(mounts["/tmp"])}
        unique = folder.name  # as pods of a Deployment are called
        for name_, value in self._variables(unique, container).items():
            environment[name_] = here(value)
        del environment["NUMBA_CACHE_DIR"]  # see the top of this module
        words = [
            here(expanded(word, environment)) for word in container["command"] + container["args"]
        ]
        if "ports" in container:
            words += ["--host", ip]  # which a pod has no other one than
        (folder / "root").mkdir(parents=True)  # where nothing may be written
        pod = Pod(
            name, ip, spec, folder, found(words, environment), environment, self.backoff
        )  # fmt: skip
        self.pods.append(pod)
        pod.thread.start()
        return pod

    def _variables(self, pod: str, container: Manifest) -> dict[str, str]:
        """The environment of a pod's container, with all that it refers to filled in."""
        variables: dict[str, str] = {}
        for entry in container["env"]:
            name = entry["name"]
            if "value" in entry:
                variables[name] = expanded(entry["value"], variables)
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
                raise NotStarted(f"couldn't find key {source['key']} in Secret {source['name']}")
        return variables

    def _mounted(self, spec: Manifest, folder: Path) -> dict[str, Path]:
        """Folders of this machine in place of what is mounted, by where it is."""
        mounts: dict[str, Path] = {}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in spec["containers"][0]["volumeMounts"]:
            location = folder / mount["mountPath"].strip("/").replace("/", "-")
            location.mkdir(parents=True)
            mounts[mount["mountPath"]] = location
            secret = volumes[mount["name"]].get("secret")
            if secret and secret["secretName"] not in self.secrets:
                raise NotStarted(f'secret "{secret["secretName"]}" not found')
            for key, value in self.secrets[secret["secretName"]].items() if secret else ():
                (location / key).write_text(value)
        return mounts

    def story(self) -> str:
        """What all pods have said, to show where a test fails."""
        return "\n".join(f"--- {pod.name} {pod.exits}\n{pod.log[-4000:]}" for pod in self.pods)


@contextmanager
def cluster(folder: Path, *arguments: Any, **more: Any) -> Iterator[Cluster]:
    """A `Cluster`, nothing of which is left after the body."""
    made = Cluster(folder, *arguments, **more)
    try:
        yield made
    finally:
        for pod in reversed(made.pods):
            pod.kill()
        for pod in made.pods:
            pod.ended.wait()


# --------------------------------------------------------------------------------------------------


def render(*options: Any) -> list[Manifest]:
    """The manifests that `rescnet deploy render` prints."""
    done = CliRunner().invoke(main, ["deploy", "render", *map(str, options)])
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.stdout))


def operator() -> Any:
    """The functions by which the Dask operator makes objects."""
    reason = "needs dask-kubernetes, which has the operator"
    pytest.importorskip("dask_kubernetes", reason=reason)
    from dask_kubernetes.operator.controller import controller

    return controller


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A text with `$(NAME)` replaced, where there is such a variable.

    >>> expanded("$(A)/b, $(C)", {"A": "a"})
    'a/b, $(C)'
    """
    return re.sub(r"\$\((\w+)\)", lambda name: variables.get(name[1], name[0]), text)


def found(command: list[str], environment: Mapping[str, str]) -> list[str]:
    """A command with its program found in the image, not in the path of this process."""
    for folder in environment["PATH"].split(os.pathsep):
        if os.access(path := os.path.join(folder, command[0]), os.X_OK):
            return [path, *command[1:]]
    raise NotStarted(f'exec: "{command[0]}": executable file not found in $PATH')


def die_with_parent() -> None:
    """Have this process killed when the thread that has started it ends, as where a test is."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, of Linux


def resident_peak(pid: int) -> int:
    """The most bytes that were ever resident in a process that runs."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(line[1]) * 1024 if line else 0


def own_network() -> str:
    """The beginning of addresses of loopback, on which nobody listens as a scheduler would."""
    for _ in range(100):
        network = f"127.{random.SystemRandom().randrange(16, 255)}.{os.getpid() % 250 + 1}"
        with socket.socket() as probe, suppress(OSError):
            probe.bind((f"{network}.1", 8786))
            return network
    pytest.skip("needs Linux, where all of 127.0.0.0/8 is loopback")


def wait_until(
    condition: Callable[[], Any], cluster: Cluster, seconds: float = 60, every: float = LOOK_EVERY
) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, cluster.story()
        time.sleep(every)
