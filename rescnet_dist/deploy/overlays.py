"""What differs between places: patches of manifests, for the renderer and for kustomize alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from rescnet_dist.deploy.pods import Manifest
from rescnet_dist.errors import SpecError, suggest_name

Patch = list[Manifest]  # of JSON patch operations (RFC 6902)

# Where the pods of each kind are.
PODS = {
    "DaskJob": {
        "worker": "/spec/cluster/spec/worker/spec",
        "scheduler": "/spec/cluster/spec/scheduler/spec",
        "driver": "/spec/job/spec",
    },
    "DaskCluster": {"worker": "/spec/worker/spec", "scheduler": "/spec/scheduler/spec"},
}

# How clouds mark their spot nodes: EKS, Karpenter, GKE, AKS.
SPOT = {
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}


def _local(pods: dict[str, str]) -> Patch:
    """One machine: images that were loaded into it, and small shares for those who only wait."""
    patch: Patch = []
    for part, path in pods.items():
        patch.append(_replace(f"{path}/containers/0/imagePullPolicy", "Never"))
        if part != "worker":
            patch.append(_replace(f"{path}/containers/0/resources/requests/cpu", "100m"))
    return patch


def _cloud_spot(pods: dict[str, str]) -> Patch:
    """Workers on spot nodes and nowhere else, the parts that must not go away on others."""
    patch: Patch = []
    for part, path in pods.items():
        if part == "worker":
            terms = [{"matchExpressions": [_is(label, "In")]} for label in SPOT]  # any of them
            patch.append(_add(f"{path}/tolerations", [_tolerated(label) for label in SPOT]))
        else:
            terms = [{"matchExpressions": [_is(label, "NotIn") for label in SPOT]}]  # none
        required = {"nodeSelectorTerms": terms}
        where = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        patch.append(_add(f"{path}/affinity", where))
    return patch


def _gpu(pods: dict[str, str]) -> Patch:
    """Workers on nodes with a GPU, one each; `--image` may name one with a CUDA base."""
    path = pods["worker"]
    gpu = "nvidia.com/gpu"
    tolerated = {"key": gpu, "operator": "Exists", "effect": "NoSchedule"}
    amounts = f"{path}/containers/0/resources"
    return [
        _add(f"{path}/tolerations", [tolerated]),
        *(_add(f"{amounts}/{what}/{_escaped(gpu)}", "1") for what in ("requests", "limits")),
    ]


def _is(label: str, operator: str) -> Manifest:
    return {"key": label, "operator": operator, "values": [SPOT[label]]}


def _tolerated(label: str) -> Manifest:
    return {"key": label, "operator": "Equal", "value": SPOT[label], "effect": "NoSchedule"}


def _add(path: str, value: Any) -> Manifest:
    return {"op": "add", "path": path, "value": value}


def _replace(path: str, value: Any) -> Manifest:
    return {"op": "replace", "path": path, "value": value}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


OVERLAYS: dict[str, Callable[[dict[str, str]], Patch]] = {
    "local": _local,
    "cloud-spot": _cloud_spot,
    "gpu": _gpu,
}


def patch_of(overlay: str, kind: str) -> Patch:
    """The operations of an overlay on the manifest of this kind; none where it has no pods."""
    if overlay not in OVERLAYS:
        raise SpecError(f"Unknown overlay {overlay!r}. {suggest_name(overlay, OVERLAYS)}")
    return OVERLAYS[overlay](PODS[kind]) if kind in PODS else []


def with_overlay(documents: Iterable[Manifest], overlay: str | None) -> list[Manifest]:
    """The manifests as an overlay changes them; as they are where there is none."""
    found = [copy.deepcopy(document) for document in documents]
    for document in found if overlay is not None else ():
        for operation in patch_of(str(overlay), document["kind"]):
            _apply(document, operation)
    return found


def _apply(document: Manifest, operation: Manifest) -> None:
    """Change a manifest as one operation says, add or replace."""
    *way, last = operation["path"].lstrip("/").split("/")
    location: Any = document
    for step in way:
        location = location[int(step) if isinstance(location, list) else step]
    name = last.replace("~1", "/").replace("~0", "~")
    if operation["op"] == "replace" and name not in location:
        raise KeyError(f"{operation['path']} is not there to be replaced")
    location[name] = operation["value"]
