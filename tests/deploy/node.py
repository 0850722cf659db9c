"""A node for an `ApiServer`: its Deployments get pods, and its pods run as processes.

This is what the controller of Deployments, the scheduler of Kubernetes and the kubelet do, for pods
of one container. The processes are those of `kubelet.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from apiserver import ApiServer, Manifest
from kubelet import Cluster, Pod

SYNC_SECONDS = 0.1
CLOSE_SECONDS = 20


class Node:
    """Keeps the processes of a `Cluster` as the objects of an `ApiServer` say."""

    def __init__(self, api: ApiServer, cluster: Cluster) -> None:
        self.api, self.cluster = api, cluster
        self.pods: dict[str, Pod] = {}  # by uid of their object
        self.started: dict[str, float] = {}
        self.evictions: list[threading.Thread] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def processes(self) -> list[str]:
        """Return the names of pods with a running process."""
        return [pod.name for pod in self.cluster.pods if not pod.ended.is_set()]

    def close(self) -> None:
        """Stop to follow the server."""
        self.stopped.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.stopped.wait(SYNC_SECONDS):
            for deployment in self.api.find("Deployment"):
                self._sync_deployment(deployment)
            found = {pod["metadata"]["uid"]: pod for pod in self.api.find("Pod")}
            for uid, manifest in found.items():
                with suppress(KeyError):  # it was deleted in the meantime
                    self._sync_pod(uid, manifest)
            for uid in self.pods.keys() - found.keys():
                self._evict(self.pods.pop(uid))

    def _sync_deployment(self, deployment: Manifest) -> None:
        """Create the pod of a Deployment, if it is missing."""
        metadata, template = deployment["metadata"], deployment["spec"]["template"]
        for pod in self.api.find("Pod"):
            if metadata["uid"] in {o["uid"] for o in pod["metadata"].get("ownerReferences", ())}:
                return
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "controller": True}
        owner |= {"name": metadata["name"], "uid": metadata["uid"]}
        own = {
            "generateName": f"{metadata['name']}-",
            "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"],
            "ownerReferences": [owner],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": template["spec"]}
        self.api.create(pod | {"status": {"phase": "Pending"}})

    def _sync_pod(self, uid: str, manifest: Manifest) -> None:
        """Start the process of a pod, or report its state."""
        metadata = manifest["metadata"]
        if uid not in self.pods:
            is_scheduler = metadata["labels"].get("dask.org/component") == "scheduler"
            ip = f"{self.cluster.network}.1" if is_scheduler else None
            self.pods[uid] = self.cluster.start_pod(metadata["name"], manifest["spec"], ip)
            self.started[uid] = time.monotonic()
        pod = self.pods[uid]
        limit = manifest["spec"].get("activeDeadlineSeconds")
        if limit and time.monotonic() - self.started[uid] > limit and not pod.ended.is_set():
            self._evict(pod)
            status: dict[str, Any] = {"phase": "Failed", "reason": "DeadlineExceeded"}
        elif manifest.get("status", {}).get("reason") == "DeadlineExceeded":
            return
        elif pod.ended.is_set():
            status = {"phase": "Failed" if pod.exits[-1] else "Succeeded"}
        else:
            probe = "readinessProbe"
            is_ready = probe not in pod.container or pod.is_healthy(probe)
            status = {
                "phase": "Running",
                "podIP": pod.ip,
                "conditions": [
                    {"type": kind, "status": str(is_ready)} for kind in ("Ready", "ContainersReady")
                ],
            }
        key = "Pod", metadata["namespace"], metadata["name"]
        self.api.patch(key, {"status": status}, status=True)

    def _evict(self, pod: Pod) -> None:
        """End a pod in the background."""
        thread = threading.Thread(target=pod.evict, daemon=True)
        thread.start()
        self.evictions.append(thread)


@contextmanager
def run_operator(folder: Path, api: ApiServer, cluster: Cluster) -> Iterator[Node]:
    """Run the Dask operator and a node during the body."""
    service = f"{cluster.name}-scheduler.{cluster.namespace}"
    addresses = json.dumps({service: f"{cluster.network}.1"})
    script = str(Path(__file__).parent / "run_operator.py")
    environment = os.environ | {"KUBECONFIG": str(api.write_kubeconfig(folder / "kubeconfig"))}
    node = Node(api, cluster)
    with (folder / "operator.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, script, addresses],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield node
    finally:
        process.terminate()
        try:
            process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        node.close()
        api.close()
