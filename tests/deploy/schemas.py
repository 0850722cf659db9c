"""Schemas that manifests are held to: Kubernetes' own, and those of the Dask operator's CRDs."""

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

DASK = "kubernetes.dask.org/v1"
VERSIONS = ("1.29", kubernetes_validate.latest_version())  # the oldest we say works, the newest
CRDS = "operator/deployment/helm/dask-kubernetes-operator/crds"


@cache
def crd(kind: str) -> dict[str, Any]:
    """The schema of one of the operator's kinds, in which unknown fields are errors."""
    package = find_spec("dask_kubernetes")
    assert package
    assert package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0], CRDS)
    found = yaml.safe_load((folder / f"{kind.lower()}.yaml").read_text())
    assert found["spec"]["names"]["kind"] == kind
    (version,) = found["spec"]["versions"]
    schema = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"] |= {"apiVersion": {"const": DASK}, "kind": {"const": kind}}
    schema["properties"]["metadata"] = {"type": "object"}  # which Kubernetes itself checks
    return schema


def closed(schema: Any) -> Any:
    """A schema that refuses fields it does not name, unless it says that it preserves them; with
    values that are numbers or strings, as Kubernetes has them, told in JSON Schema's own way."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if found.get("x-kubernetes-int-or-string") is True:
        found["type"] = ["integer", "string"]
    named = isinstance(found.get("properties"), dict) and found.get("type") == "object"
    open_ = found.get("x-kubernetes-preserve-unknown-fields") is True
    if named and not open_:
        found.setdefault("additionalProperties", False)
    return found


def pods(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and spec of every pod of a manifest."""
    spec = document.get("spec", {})
    if document["kind"] == "DaskJob":
        yield "driver", spec["job"]["spec"]
        spec = spec["cluster"]["spec"]
    if document["kind"] in ("DaskJob", "DaskCluster"):
        yield "scheduler", spec["scheduler"]["spec"]
        yield "worker", spec["worker"]["spec"]


def as_core(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What of a manifest is of Kubernetes' own kinds: itself, or its pods and its service."""
    if document["apiVersion"] != DASK:
        yield document
        return
    metadata = document["metadata"]
    for name, spec in pods(document):
        yield {
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata | {"name": name}, "spec": spec,
        }  # fmt: skip
    if document["kind"] in ("DaskJob", "DaskCluster"):
        spec = document["spec"]
        scheduler = spec.get("cluster", {"spec": spec})["spec"]["scheduler"]
        yield {
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": scheduler["service"],
        }  # fmt: skip
    else:
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def check(document: dict[str, Any]) -> None:
    """Fail where a manifest is not as its schemas say."""
    for core in as_core(copy.deepcopy(document)):
        for version in VERSIONS:
            kubernetes_validate.validate(core, version, strict=True)
    if document["apiVersion"] == DASK:
        jsonschema.Draft202012Validator(crd(document["kind"])).validate(document)
