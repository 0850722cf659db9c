"""The part of the Kubernetes API that the Dask operator uses, as a server on loopback.

The operator runs as its own process and does not know the difference. Objects are kept as they are
written: there is no admission and no validation, see `schemas.py` for that. Deletion follows
finalizers and owner references, as the garbage collector of Kubernetes does.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
import uuid
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

Manifest = dict[str, Any]
Key = tuple[str, str, str]  # kind, namespace, name

# Kinds by group and version, with their plural names; a star marks a status subresource.
RESOURCES = {
    "v1": {
        "Pod": "pods*",
        "Service": "services*",
        "ServiceAccount": "serviceaccounts",
        "Event": "events",
        "Namespace": "namespaces",
    },
    "apps/v1": {"Deployment": "deployments*"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
    "kubernetes.dask.org/v1": {
        "DaskCluster": "daskclusters",
        "DaskWorkerGroup": "daskworkergroups",
        "DaskJob": "daskjobs*",
        "DaskAutoscaler": "daskautoscalers",
    },
}
PATH = re.compile(
    r"(?:/api/(?P<core>v1)|/apis/(?P<group>[^/]+/[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>\w+))?"
)


class ApiServer:
    """Objects of a cluster, served by HTTP until `close`."""

    def __init__(self) -> None:
        self.objects: dict[Key, Manifest] = {}
        self.history: list[tuple[float, str, Manifest]] = []  # time, kind of event, object
        self.changed = threading.Condition(threading.RLock())
        self.closed = False
        handler = type("Handler", (_Handler,), {"api": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.server.server_port}"

    def write_kubeconfig(self, path: Path) -> Path:
        """Write a configuration of clients of this server to a path; return the path."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": "none"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def close(self) -> None:
        """Stop the server, and end all watches."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()

    # objects ----------------------------------------------------------------------------------

    def apply(self, manifests: Iterable[Manifest]) -> None:
        """Create objects, as `kubectl apply -f` does."""
        for manifest in manifests:
            self.create(manifest)

    def delete_all(self, manifests: Iterable[Manifest]) -> None:
        """Delete objects, as `kubectl delete -f` does."""
        for manifest in manifests:
            metadata = manifest["metadata"]
            self.delete((manifest["kind"], metadata["namespace"], metadata["name"]))

    def find(self, kind: str, namespace: str | None = None, **labels: str) -> list[Manifest]:
        """Return copies of the objects of a kind that have all labels."""
        with self.changed:
            return [
                copy.deepcopy(found)
                for (other, place, _), found in self.objects.items()
                if other == kind
                and namespace in (None, place)
                and labels.items() <= found["metadata"].get("labels", {}).items()
            ]

    def create(self, manifest: Manifest) -> Manifest:
        """Add an object."""
        added = copy.deepcopy(manifest)
        metadata = added.setdefault("metadata", {})
        if "name" not in metadata:
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:8]
        key = added["kind"], metadata.get("namespace", ""), metadata["name"]
        if added["kind"] == "Service":
            added["status"] = {"loadBalancer": {}}  # as Kubernetes adds it
        with self.changed:
            if key in self.objects:
                raise FileExistsError(key)
            metadata |= {
                "uid": str(uuid.uuid4()),
                "generation": 1,
                "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            return self._store(key, added, "ADDED")

    def patch(self, key: Key, change: Any, *, status: bool | None = None) -> Manifest:
        """Change an object by a merge patch or a list of JSON patches.

        `status` says whether only the status is changed, or all but the status; by default, all.
        """
        with self.changed:
            old = self.objects[key]
            new = copy.deepcopy(old)
            new = _patch(new, change) if isinstance(change, list) else _merge(new, change)
            if status is not None:
                kept, other = (old, new) if status else (new, old)
                new = {k: v for k, v in copy.deepcopy(kept).items() if k != "status"}
                new |= {k: v for k, v in other.items() if k == "status"}
            if new == old:
                return new
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] += 1
            if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
                self._store(key, new, "MODIFIED")
                return self._remove(key)
            return self._store(key, new, "MODIFIED")

    def delete(self, key: Key) -> Manifest:
        """Delete an object, once it has no finalizers, and then what it owns."""
        with self.changed:
            found = self.objects[key]
            if found["metadata"].get("finalizers"):
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                return self.patch(key, {"metadata": {"deletionTimestamp": now}})
            return self._remove(key)

    def _store(self, key: Key, new: Manifest, event: str) -> Manifest:
        new["metadata"]["resourceVersion"] = str(len(self.history) + 1)
        self.objects[key] = new
        self.history.append((time.time(), event, copy.deepcopy(new)))
        self._collect_garbage()
        self.changed.notify_all()
        return copy.deepcopy(new)

    def _remove(self, key: Key) -> Manifest:
        removed = self.objects.pop(key)
        removed["metadata"]["resourceVersion"] = str(len(self.history) + 1)
        self.history.append((time.time(), "DELETED", copy.deepcopy(removed)))
        self._collect_garbage()
        self.changed.notify_all()
        return removed

    def _collect_garbage(self) -> None:
        """Delete the objects that have owners, all of which are gone."""
        present = {found["metadata"]["uid"] for found in self.objects.values()}
        for key, found in list(self.objects.items()):
            owners = {owner["uid"] for owner in found["metadata"].get("ownerReferences", ())}
            is_deleted = "deletionTimestamp" in found["metadata"]
            if key in self.objects and owners and not owners & present and not is_deleted:
                self.delete(key)


def _merge(target: Any, change: Any) -> Any:
    """Apply a merge patch (RFC 7386)."""
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result


def _patch(target: Any, operations: list[Manifest]) -> Any:
    """Apply the operations of a JSON patch (RFC 6902) that kopf uses: on finalizers."""
    for operation in operations:
        *parents, last = operation["path"].lstrip("/").replace("~1", "/").split("/")
        place = target
        for step in parents:
            place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
        name: Any = int(last) if isinstance(place, list) and last != "-" else last
        match operation["op"]:
            case "test":
                if place[name] != operation["value"]:
                    raise ValueError(f"{operation} does not hold")
            case "remove":
                del place[name]
            case "add" if isinstance(place, list):
                place.insert(len(place) if last == "-" else name, operation["value"])
            case _:
                place[name] = operation["value"]
    return target


class _Handler(BaseHTTPRequestHandler):
    """Answers requests of one `ApiServer`."""

    api: ApiServer

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""

    def _handle(self) -> None:
        location = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(location.query).items()}
        path = location.path.rstrip("/").replace("//", "/")
        if (page := _discover(path)) is not None:
            self._answer(page)
            return
        match = PATH.fullmatch(path)
        kinds = RESOURCES.get((match["core"] or match["group"]) if match else "", {})
        plurals = {plural.rstrip("*"): kind for kind, plural in kinds.items()}
        if match is None or match["plural"] not in plurals:
            self._fail(404, f"{path} is unknown")
            return
        kind, namespace = plurals[match["plural"]], match["namespace"] or ""
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        has_status = kinds[kind].endswith("*")
        try:
            if match["name"]:
                key = kind, namespace, match["name"]
                self._answer(self._handle_item(key, body, match["sub"], has_status))
            elif self.command == "POST":
                body.setdefault("kind", kind)
                body.setdefault("metadata", {}).setdefault("namespace", namespace)
                self._answer(self.api.create(body), 201)
            elif query.get("watch") in ("true", "1"):
                self._watch(kind, match["namespace"], query)
            else:
                self._list(match["core"] or match["group"], kind, match["namespace"], query)
        except KeyError as error:
            self._fail(404, f"{error} is not there")
        except FileExistsError as error:
            self._fail(409, f"{error} exists")
        except ValueError as error:
            self._fail(422, str(error))

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _handle

    def _handle_item(self, key: Key, body: Any, sub: str | None, has_status: bool) -> Manifest:
        match self.command:
            case "GET":
                return copy.deepcopy(self.api.objects[key])
            case "DELETE":
                return self.api.delete(key)
            case _:
                status = (sub == "status") if has_status else None
                return self.api.patch(key, body, status=status)

    def _list(self, version: str, kind: str, namespace: str | None, query: dict[str, str]) -> None:
        with self.api.changed:
            found = [f for f in self.api.find(kind, namespace) if _matches(f, query)]
            metadata = {"resourceVersion": str(len(self.api.history))}
        page = {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": found}
        self._answer(page)

    def _watch(self, kind: str, namespace: str | None, query: dict[str, str]) -> None:
        """Send events of a kind, one by line, until the client or the server ends."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        sent = int(query.get("resourceVersion") or 0)
        deadline = time.monotonic() + float(query.get("timeoutSeconds") or 600)
        while time.monotonic() < deadline:
            with self.api.changed:
                if len(self.api.history) == sent:
                    self.api.changed.wait(timeout=1)
                if self.api.closed:
                    return
                events = self.api.history[sent:]
                sent = len(self.api.history)
            for _, event, found in events:
                place = found["metadata"].get("namespace")
                if found["kind"] == kind and namespace in (None, place) and _matches(found, query):
                    line = json.dumps({"type": event, "object": found}).encode() + b"\n"
                    try:
                        self.wfile.write(line)
                    except OSError:  # the client is gone
                        return

    def _answer(self, page: Manifest, code: int = 200) -> None:
        text = json.dumps(page).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _fail(self, code: int, message: str) -> None:
        reason = {404: "NotFound", 409: "AlreadyExists", 422: "Invalid"}[code]
        page = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        self._answer(page | {"message": message, "reason": reason}, code)


def _matches(found: Manifest, query: dict[str, str]) -> bool:
    """Return whether an object has the labels and fields of a query."""
    labels = found["metadata"].get("labels", {})
    for term in filter(None, query.get("labelSelector", "").split(",")):
        name, _, value = term.partition("=")
        if labels.get(name) != value.lstrip("="):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        place: Any = found
        for step in path.split("."):
            place = place.get(step, {})
        if place != value.lstrip("="):
            return False
    return True


def _discover(path: str) -> Manifest | None:
    """Return a page about the API itself; None for paths of objects."""
    if path == "/version":
        return {"major": "1", "minor": "35", "gitVersion": "v1.35.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [version.split("/") for version in RESOURCES if "/" in version]
        return {
            "kind": "APIGroupList",
            "groups": [
                {
                    "name": name,
                    "versions": [{"groupVersion": f"{name}/{version}", "version": version}],
                    "preferredVersion": {"groupVersion": f"{name}/{version}", "version": version},
                }
                for name, version in groups
            ],
        }
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version not in RESOURCES:
        return None
    resources: list[Manifest] = []
    for kind, plural in RESOURCES[version].items():
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        entry = {
            "name": plural.rstrip("*"),
            "singularName": kind.lower(),
            "namespaced": kind != "Namespace",
            "kind": kind,
            "verbs": verbs,
        }
        resources.append(entry)
        if plural.endswith("*"):
            resources.append(entry | {"name": f"{plural.rstrip('*')}/status"})
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
