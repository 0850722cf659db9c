"""Overlays for kinds of clusters: JSON patches of manifests, for `render` and `kustomize`.

Patches add to lists and never replace one, so that overlays can be combined in any order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from rescnet_dist.deploy.pods import Manifest
from rescnet_dist.errors import SpecError, suggest_name

Patch = list[Manifest]  # JSON patch operations (RFC 6902)

# Paths of the pod specs in each kind of manifest.
POD_PATHS = {
    "DaskJob": {
        "worker": "/spec/cluster/spec/worker/spec",
        "scheduler": "/spec/cluster/spec/scheduler/spec",
        "driver": "/spec/job/spec",
    },
    "DaskCluster": {"worker": "/spec/worker/spec", "scheduler": "/spec/scheduler/spec"},
}

# Labels of spot nodes in EKS, Karpenter, GKE and AKS.
SPOT_LABELS = {
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}


def _local(pods: dict[str, str]) -> Patch:
    """Return the patch for one machine: loaded images, and small requests for pods that wait."""
    patch: Patch = []
    for part, path in pods.items():
        patch.append(_replace(f"{path}/containers/0/imagePullPolicy", "Never"))
        if part != "worker":
            patch.append(_replace(f"{path}/containers/0/resources/requests/cpu", "100m"))
    return patch


def _cloud_spot(pods: dict[str, str]) -> Patch:
    """Return the patch that puts workers on spot nodes only, and the other pods on other nodes."""
    patch: Patch = []
    for part, path in pods.items():
        if part == "worker":
            terms = [
                {"matchExpressions": [_spot_expression(label, "In")]} for label in SPOT_LABELS
            ]  # any of them
            patch += [
                _add(f"{path}/tolerations/-", _spot_toleration(label)) for label in SPOT_LABELS
            ]
        else:
            terms = [
                {"matchExpressions": [_spot_expression(label, "NotIn") for label in SPOT_LABELS]}
            ]  # none
        required = {"nodeSelectorTerms": terms}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        patch.append(_add(f"{path}/affinity", affinity))
    return patch


def _gpu(pods: dict[str, str]) -> Patch:
    """Return the patch that puts workers on nodes with a GPU, one each.

    `--image` may name an image with a CUDA base.
    """
    path = pods["worker"]
    gpu = "nvidia.com/gpu"
    toleration = {"key": gpu, "operator": "Exists", "effect": "NoSchedule"}
    resources = f"{path}/containers/0/resources"
    return [
        _add(f"{path}/tolerations/-", toleration),
        *(_add(f"{resources}/{kind}/{_escape_path(gpu)}", "1") for kind in ("requests", "limits")),
    ]


def _spot_expression(label: str, operator: str) -> Manifest:
    """Return a match expression for a label of spot nodes."""
    return {"key": label, "operator": operator, "values": [SPOT_LABELS[label]]}


def _spot_toleration(label: str) -> Manifest:
    """Return a toleration of a taint of spot nodes."""
    return {"key": label, "operator": "Equal", "value": SPOT_LABELS[label], "effect": "NoSchedule"}


def _add(path: str, value: Any) -> Manifest:
    """Return the operation that adds a value."""
    return {"op": "add", "path": path, "value": value}


def _replace(path: str, value: Any) -> Manifest:
    """Return the operation that replaces a value."""
    return {"op": "replace", "path": path, "value": value}


def _escape_path(name: str) -> str:
    """Escape a key for a path of a JSON patch."""
    return name.replace("~", "~0").replace("/", "~1")


OVERLAYS: dict[str, Callable[[dict[str, str]], Patch]] = {
    "local": _local,
    "cloud-spot": _cloud_spot,
    "gpu": _gpu,
}


def make_patch(overlay: str, kind: str) -> Patch:
    """Return the operations of an overlay on a kind of manifest; none if it has no pods."""
    if overlay not in OVERLAYS:
        raise SpecError(f"Unknown overlay {overlay!r}. {suggest_name(overlay, OVERLAYS)}")
    return OVERLAYS[overlay](POD_PATHS[kind]) if kind in POD_PATHS else []


def with_overlays(documents: Iterable[Manifest], overlays: Iterable[str]) -> list[Manifest]:
    """Return copies of the manifests with all overlays applied, each once."""
    patched = [copy.deepcopy(document) for document in documents]
    for overlay in dict.fromkeys(overlays):
        for document in patched:
            for operation in make_patch(overlay, document["kind"]):
                _apply(document, operation)
    return patched


def _apply(document: Manifest, operation: Manifest) -> None:
    """Apply one add or replace operation to a manifest, in place."""
    *parents, last = operation["path"].lstrip("/").split("/")
    location: Any = document
    for step in parents:
        location = location[int(step) if isinstance(location, list) else step]
    name, value = last.replace("~1", "/").replace("~0", "~"), copy.deepcopy(operation["value"])
    if isinstance(location, list):
        if name != "-":
            raise KeyError(f"{operation['path']} is not the end of a list.")
        location.append(value)
        return
    if operation["op"] == "replace" and name not in location:
        raise KeyError(f"{operation['path']} is not in the manifest and cannot be replaced.")
    location[name] = value
