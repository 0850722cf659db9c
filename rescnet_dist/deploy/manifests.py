"""The manifests of a deployment: a DaskJob or a DaskCluster, and what guards it."""

from __future__ import annotations

from typing import Any

from rescnet_dist.deploy.pods import (
    COMM,
    DASHBOARD,
    WORKER_COMM,
    WORKER_DASHBOARD,
    Manifest,
    driver_pod,
    scheduler_pod,
    worker_pod,
)
from rescnet_dist.deploy.settings import Deployment
from rescnet_dist.deploy.sizes import Sizes

DASK = "kubernetes.dask.org/v1"
CLUSTER, COMPONENT = "dask.org/cluster-name", "dask.org/component"  # labels the operator gives
CLIENT = "rescnet-dist/client-of"  # label of pods that may connect to a long-lived cluster
IDENTITY = "169.254.170.23/32"  # where EKS hands out the rights of a pod; IRSA needs HTTPS only


def manifests(what: Deployment, sizes: Sizes, flags: list[str]) -> list[Manifest]:
    """All objects of a deployment, in the order they are to be made in."""
    found = [] if what.service_account else [_account(what)]
    found += _policies(what) + _budgets(what)
    return found + ([_job(what, sizes, flags)] if what.kind == "job" else _cluster(what, sizes))


def _job(what: Deployment, sizes: Sizes, flags: list[str]) -> Manifest:
    """The training job, which takes its cluster down when it ends."""
    return {
        "apiVersion": DASK,
        "kind": "DaskJob",
        "metadata": _metadata(what),
        "spec": {
            "job": {"spec": driver_pod(what, sizes, flags)},
            "cluster": {"spec": _cluster_spec(what, sizes)},
        },
    }


def _cluster(what: Deployment, sizes: Sizes) -> list[Manifest]:
    """The long-lived cluster, which has one worker at rest."""
    return [
        {
            "apiVersion": DASK,
            "kind": "DaskCluster",
            "metadata": _metadata(what),
            "spec": _cluster_spec(what, sizes),
        },
        {
            "apiVersion": DASK,
            "kind": "DaskAutoscaler",
            "metadata": _metadata(what),
            "spec": {"cluster": what.name, "minimum": 1, "maximum": sizes.workers},
        },
    ]


def _cluster_spec(what: Deployment, sizes: Sizes) -> Manifest:
    ports = {"tcp-comm": COMM, "http-dashboard": DASHBOARD}
    return {
        "worker": {
            "replicas": sizes.workers if what.kind == "job" else 1,
            "spec": worker_pod(what, sizes),
        },
        "scheduler": {
            "spec": scheduler_pod(what, sizes),
            "service": {
                "type": "ClusterIP",
                "selector": {CLUSTER: what.name, COMPONENT: "scheduler"},
                "ports": [
                    {"name": name, "protocol": "TCP", "port": port, "targetPort": name}
                    for name, port in ports.items()
                ],
            },
        },
    }


def _account(what: Deployment) -> Manifest:
    """The identity of the pods, with no rights in the cluster; annotate it to give it some to the
    buckets."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(what),
        "automountServiceAccountToken": False,
    }


def _budgets(what: Deployment) -> list[Manifest]:
    """What may be drained: of a job never the scheduler and the driver, unless they are broken;
    workers by and by. A long-lived scheduler may be, as nobody could wait for its end."""

    def budget(component: str, limit: Manifest) -> Manifest:
        return {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": _metadata(what, component),
            "spec": {
                **limit,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": _pods(what, component),
            },
        }

    stable = ["scheduler", "job-runner"] if what.kind == "job" else []
    return [
        *(budget(component, {"minAvailable": 1}) for component in stable),
        budget("worker", {"maxUnavailable": "25%"}),
    ]


# network ----------------------------------------------------------------------------------------


def _policies(what: Deployment) -> list[Manifest]:
    """Nothing is let in or out but what the parts say to one another, names, and the store."""
    scheduler, workers = _peer(what, "scheduler"), _peer(what, "worker")
    driver = _peer(what, "job-runner")
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": what.operator}}
    }
    guests, lookers = driver, [operator]
    if what.kind == "cluster":
        guests = {"podSelector": {"matchLabels": {CLIENT: what.name}}}
        lookers.append(guests)  # who watch runs there
    names = {"ports": [_port(53, "UDP"), _port(53)]}  # anywhere, as clouds differ in where DNS is
    found = [
        _policy(what, "deny", {"matchLabels": {CLUSTER: what.name}}, [], []),
        _policy(
            what, "scheduler", _pods(what, "scheduler"),
            [_from([workers, guests], COMM), _from(lookers, DASHBOARD)],
            [names, _to([workers], WORKER_COMM, WORKER_DASHBOARD)],
        ),
        _policy(
            what, "worker", _pods(what, "worker"),
            [_from([workers, scheduler], WORKER_COMM), _from([scheduler], WORKER_DASHBOARD)],
            [names, _to([scheduler], COMM), _to([workers], WORKER_COMM), *_stores(what)],
        ),
    ]  # fmt: skip
    if what.kind == "job":
        rules = [names, _to([scheduler], COMM), *_stores(what)]
        found.append(_policy(what, "job-runner", _pods(what, "job-runner"), [], rules))
    return found


def _stores(what: Deployment) -> list[Manifest]:
    """The way to the store, and to who hands out the rights of pods; never to those of a node."""
    ports = {what.store_port, 443} if what.service_account else {what.store_port}
    return [
        {"ports": [_port(number) for number in sorted(ports)]},
        {"to": [{"ipBlock": {"cidr": IDENTITY}}], "ports": [_port(80)]},
    ]


def _policy(
    what: Deployment, suffix: str, pods: Manifest, ingress: list[Any], egress: list[Any]
) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(what, suffix),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _from(peers: list[Manifest], *ports: int) -> Manifest:
    return {"from": peers, "ports": [_port(port) for port in ports]}


def _to(peers: list[Manifest], *ports: int) -> Manifest:
    return {"to": peers, "ports": [_port(port) for port in ports]}


def _port(port: int, protocol: str = "TCP") -> Manifest:
    return {"protocol": protocol, "port": port}


def _peer(what: Deployment, component: str) -> Manifest:
    return {"podSelector": _pods(what, component)}


def _pods(what: Deployment, component: str) -> Manifest:
    return {"matchLabels": {CLUSTER: what.name, COMPONENT: component}}


def _metadata(what: Deployment, suffix: str = "") -> Manifest:
    return {
        "name": f"{what.name}-{suffix}" if suffix else what.name,
        "namespace": what.namespace,
        "labels": {
            "app.kubernetes.io/name": "rescnet-dist",
            "app.kubernetes.io/instance": what.name,
            "app.kubernetes.io/part-of": "rescnet-dist",
        },
    }
