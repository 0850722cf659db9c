"""The same manifests as a kustomize tree: a base, and an overlay for each kind of place.

The fields `bases` and `patchesJson6902` are the old ones, which both the kustomize inside kubectl
1.14 and later and that of today understand.
"""

from __future__ import annotations

from typing import Any

from rescnet_dist.deploy.overlays import OVERLAYS, patch_of
from rescnet_dist.deploy.pods import Manifest
from rescnet_dist.deploy.yaml import to_yaml

HEAD = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
FILES = {  # what goes where in a base, and what is said at its top
    "DaskJob": ("job.yaml", "The training job: driver, scheduler and workers.\n"
    "A driver that is started again goes on with its run (--or-resume)."),
    "DaskCluster": ("cluster.yaml", "A long-lived cluster: scheduler and workers.\n"
    "The autoscaler asks the scheduler by HTTP, as it has no certificate."),
    "DaskAutoscaler": ("autoscaler.yaml", "Between one worker at rest, and as many as were "
    "planned for."),
    "ServiceAccount": ("account.yaml", "The identity of the pods. Annotate it in an overlay to "
    "give it rights to buckets;\nthen no Secret with keys is needed."),
    "NetworkPolicy": ("network.yaml", "Nothing is let in or out but what the parts say to one "
    "another, DNS and the store."),
    "PodDisruptionBudget": ("disruption.yaml", "What may be drained: workers by and by, the "
    "scheduler and the driver never while they run."),
}  # fmt: skip
OVERLAY_COMMENTS = {
    "local": "One machine, such as kind or minikube: images that were loaded into it.",
    "cloud-spot": "Workers on spot nodes, scheduler and driver on others.",
    "gpu": "Workers on nodes with a GPU, one each: for runs with --array-backend cupy, in an\n"
    "image that has CuPy.",
}
MADE = "Made by `rescnet deploy kustomize`: change its options, not this file."


def kustomize_files(deployments: dict[str, list[Manifest]]) -> dict[str, str]:
    """Files by their path: for each named list of manifests base/NAME and overlays/*/NAME, and one
    kustomization in each folder above for all of them."""
    names = list(deployments)
    files = {"base/kustomization.yaml": _kustomization(MADE, bases=names)}
    for name, documents in deployments.items():
        files |= {f"base/{name}/{path}": text for path, text in _base(documents).items()}
    for overlay in OVERLAYS:
        comment = f"{OVERLAY_COMMENTS[overlay]}\n{MADE}"
        files[f"overlays/{overlay}/kustomization.yaml"] = _kustomization(comment, bases=names)
        for name, documents in deployments.items():
            folder = f"overlays/{overlay}/{name}"
            found = _overlay(overlay, f"../../../base/{name}", documents)
            files |= {f"{folder}/{path}": text for path, text in found.items()}
    return files


def _base(documents: list[Manifest]) -> dict[str, str]:
    """The files of a base."""
    by_file: dict[str, list[Manifest]] = {}
    comments = dict(FILES.values())
    for document in documents:
        by_file.setdefault(FILES[document["kind"]][0], []).append(document)
    files = {path: to_yaml(found, f"{comments[path]}\n{MADE}") for path, found in by_file.items()}
    return files | {"kustomization.yaml": _kustomization(MADE, resources=sorted(by_file))}


def _overlay(overlay: str, base: str, documents: list[Manifest]) -> dict[str, str]:
    """The files of an overlay: one patch for each manifest that has pods."""
    files, patches = {}, []
    for document in documents:
        patch = patch_of(overlay, document["kind"])
        if not patch:
            continue
        group, version = document["apiVersion"].split("/")
        path = FILES[document["kind"]][0].replace(".yaml", "-patch.yaml")
        files[path] = to_yaml([patch], f"{OVERLAY_COMMENTS[overlay]}\n{MADE}")
        name = document["metadata"]["name"]
        target = {"group": group, "version": version, "kind": document["kind"], "name": name}
        patches.append({"target": target, "path": path})
    comment = f"{OVERLAY_COMMENTS[overlay]}\n{MADE}"
    files["kustomization.yaml"] = _kustomization(comment, bases=[base], patchesJson6902=patches)
    return files


def _kustomization(comment: str, **fields: Any) -> str:
    return to_yaml([HEAD | fields], comment)
