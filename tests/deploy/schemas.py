"""Validation of manifests: the schemas of Kubernetes and of the Dask operator's CRDs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

DASK_API_VERSION = "kubernetes.dask.org/v1"
KUBERNETES_VERSIONS = (
    "1.29",
    kubernetes_validate.latest_version(),
)  # oldest supported, newest
CRD_FOLDER = "operator/deployment/helm/dask-kubernetes-operator/crds"


@cache
def crd(kind: str) -> dict[str, Any]:
    """Return the schema of one of the operator's kinds, in which unknown fields are errors."""
    package = find_spec("dask_kubernetes")
    assert package
    assert package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0], CRD_FOLDER)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # takes a sixth of the time
    document = yaml.load((folder / f"{kind.lower()}.yaml").read_text(), loader)
    assert document["spec"]["names"]["kind"] == kind
    (version,) = document["spec"]["versions"]
    schema = close_schema(version["schema"]["openAPIV3Schema"])
    schema["properties"] |= {"apiVersion": {"const": DASK_API_VERSION}, "kind": {"const": kind}}
    schema["properties"]["metadata"] = {"type": "object"}  # validated by Kubernetes itself
    return schema


def close_schema(schema: Any) -> Any:
    """Return a schema that rejects unknown fields, unless it says that it preserves them.

    Kubernetes' values that are numbers or strings are translated to JSON Schema.
    """
    if isinstance(schema, list):
        return [close_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: close_schema(value) for key, value in schema.items()}
    if found.get("x-kubernetes-int-or-string") is True:
        found["type"] = ["integer", "string"]
    has_properties = isinstance(found.get("properties"), dict) and found.get("type") == "object"
    is_open = found.get("x-kubernetes-preserve-unknown-fields") is True
    if has_properties and not is_open:
        found.setdefault("additionalProperties", False)
    return found


def pods(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and spec of every pod of a manifest."""
    spec = document.get("spec", {})
    if document["kind"] == "DaskJob":
        yield "driver", spec["job"]["spec"]
        spec = spec["cluster"]["spec"]
    if document["kind"] in ("DaskJob", "DaskCluster"):
        yield "scheduler", spec["scheduler"]["spec"]
        yield "worker", spec["worker"]["spec"]


def as_core(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a manifest as objects of Kubernetes' own kinds: itself, or its pods and service."""
    if document["apiVersion"] != DASK_API_VERSION:
        yield document
        return
    metadata = document["metadata"]
    for name, spec in pods(document):
        pod_metadata = metadata | {"name": name}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": spec}
    if document["kind"] in ("DaskJob", "DaskCluster"):
        spec = document["spec"]
        scheduler = spec.get("cluster", {"spec": spec})["spec"]["scheduler"]
        service = scheduler["service"]
        yield {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service}
    else:
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def check(document: dict[str, Any]) -> None:
    """Raise if a manifest does not match its schemas."""
    for core in as_core(copy.deepcopy(document)):
        for version in KUBERNETES_VERSIONS:
            kubernetes_validate.validate(core, version, strict=True)
    if document["apiVersion"] == DASK_API_VERSION:
        jsonschema.Draft202012Validator(crd(document["kind"])).validate(document)
