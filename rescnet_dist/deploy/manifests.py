"""Manifests of a deployment: a DaskJob or DaskCluster, network policies, disruption budgets."""

from __future__ import annotations

from typing import Any

from rescnet_dist.deploy.monitoring import monitoring_manifests
from rescnet_dist.deploy.pods import (
    CLUSTER_LABEL,
    COMPONENT_LABEL,
    DASHBOARD_PORT,
    SCHEDULER_PORT,
    WORKER_DASHBOARD_PORT,
    WORKER_PORT,
    Manifest,
    driver_pod,
    scheduler_pod,
    worker_pod,
)
from rescnet_dist.deploy.settings import Deployment
from rescnet_dist.deploy.sizes import Sizes

DASK_API_VERSION = "kubernetes.dask.org/v1"
CLIENT_LABEL = "rescnet-dist/client-of"  # label of pods that may connect to a long-lived cluster
POD_IDENTITY_CIDR = "169.254.170.23/32"  # of EKS Pod Identity; IRSA needs HTTPS only


def manifests(deployment: Deployment, sizes: Sizes, flags: list[str]) -> list[Manifest]:
    """Return all objects of a deployment, in the order in which to create them."""
    documents = [] if deployment.service_account else [_account(deployment)]
    documents += _policies(deployment) + _budgets(deployment)
    if deployment.monitoring:
        documents += monitoring_manifests(deployment, _metadata(deployment))
    return documents + (
        [_job(deployment, sizes, flags)]
        if deployment.kind == "job"
        else _cluster(deployment, sizes)
    )


def _job(deployment: Deployment, sizes: Sizes, flags: list[str]) -> Manifest:
    """Return the training job, which removes its cluster when it ends."""
    return {
        "apiVersion": DASK_API_VERSION,
        "kind": "DaskJob",
        "metadata": _metadata(deployment),
        "spec": {
            "job": {"spec": driver_pod(deployment, sizes, flags)},
            "cluster": {"spec": _cluster_spec(deployment, sizes)},
        },
    }


def _cluster(deployment: Deployment, sizes: Sizes) -> list[Manifest]:
    """Return the long-lived cluster, which has one worker when idle, and its autoscaler."""
    return [
        {
            "apiVersion": DASK_API_VERSION,
            "kind": "DaskCluster",
            "metadata": _metadata(deployment),
            "spec": {"idleTimeout": deployment.idle_timeout} | _cluster_spec(deployment, sizes),
        },
        {
            "apiVersion": DASK_API_VERSION,
            "kind": "DaskAutoscaler",
            "metadata": _metadata(deployment),
            "spec": {"cluster": deployment.name, "minimum": 1, "maximum": sizes.workers},
        },
    ]


def _cluster_spec(deployment: Deployment, sizes: Sizes) -> Manifest:
    """Return the spec of the scheduler and the workers."""
    ports = {"tcp-comm": SCHEDULER_PORT, "http-dashboard": DASHBOARD_PORT}
    return {
        "worker": {
            "replicas": sizes.workers if deployment.kind == "job" else 1,
            "spec": worker_pod(deployment, sizes),
        },
        "scheduler": {
            "spec": scheduler_pod(deployment, sizes),
            "service": {
                "type": "ClusterIP",
                "selector": {CLUSTER_LABEL: deployment.name, COMPONENT_LABEL: "scheduler"},
                "ports": [
                    {"name": name, "protocol": "TCP", "port": port, "targetPort": name}
                    for name, port in ports.items()
                ],
            },
        },
    }


def _account(deployment: Deployment) -> Manifest:
    """Return the service account of the pods, without permissions in the cluster.

    Annotate it to give the pods access to the buckets.
    """
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(deployment),
        "automountServiceAccountToken": False,
    }


def _budgets(deployment: Deployment) -> list[Manifest]:
    """Return the disruption budgets, which say how many pods may be drained at a time.

    Of a job, the scheduler and the driver are never drained unless they are unhealthy; workers
    are, a quarter at a time. A long-lived scheduler may be drained, as it never ends by itself.
    """

    def make_budget(component: str, limit: Manifest) -> Manifest:
        return {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": _metadata(deployment, component),
            "spec": {
                **limit,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": _pods(deployment, component),
            },
        }

    stable = ["scheduler", "job-runner"] if deployment.kind == "job" else []
    return [
        *(make_budget(component, {"minAvailable": 1}) for component in stable),
        make_budget("worker", {"maxUnavailable": "25%"}),
    ]


# network ----------------------------------------------------------------------------------------


def _policies(deployment: Deployment) -> list[Manifest]:
    """Return policies that allow only traffic between the components, DNS and the store."""
    scheduler, workers = _peer(deployment, "scheduler"), _peer(deployment, "worker")
    driver = _peer(deployment, "job-runner")
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": deployment.operator}}
    }
    clients, dashboard_peers = driver, [operator]
    if deployment.kind == "cluster":
        clients = {"podSelector": {"matchLabels": {CLIENT_LABEL: deployment.name}}}
        dashboard_peers.append(clients)  # they watch runs there
    dns = {"ports": [_port(53, "UDP"), _port(53)]}  # to any address, as it differs by cloud
    policies = [
        _policy(deployment, "deny", {"matchLabels": {CLUSTER_LABEL: deployment.name}}, [], []),
        _policy(
            deployment,
            "scheduler",
            _pods(deployment, "scheduler"),
            [_from([workers, clients], SCHEDULER_PORT), _from(dashboard_peers, DASHBOARD_PORT)],
            [dns, _to([workers], WORKER_PORT, WORKER_DASHBOARD_PORT)],
        ),
        _policy(
            deployment,
            "worker",
            _pods(deployment, "worker"),
            [_from([workers, scheduler], WORKER_PORT), _from([scheduler], WORKER_DASHBOARD_PORT)],
            [
                dns,
                _to([scheduler], SCHEDULER_PORT),
                _to([workers], WORKER_PORT),
                *_store_rules(deployment),
            ],
        ),
    ]
    if deployment.kind == "job":
        rules = [dns, _to([scheduler], SCHEDULER_PORT), *_store_rules(deployment)]
        policies.append(
            _policy(deployment, "job-runner", _pods(deployment, "job-runner"), [], rules)
        )
    return policies


def _store_rules(deployment: Deployment) -> list[Manifest]:
    """Return egress rules to the store and to the pod identity service.

    The metadata service, which gives out the permissions of the node, stays blocked.
    """
    ports = {deployment.store_port, 443} if deployment.service_account else {deployment.store_port}
    return [
        {"ports": [_port(number) for number in sorted(ports)]},
        {"to": [{"ipBlock": {"cidr": POD_IDENTITY_CIDR}}], "ports": [_port(80)]},
    ]


def _policy(
    deployment: Deployment, suffix: str, pods: Manifest, ingress: list[Any], egress: list[Any]
) -> Manifest:
    """Return a network policy for some pods."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(deployment, suffix),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _from(peers: list[Manifest], *ports: int) -> Manifest:
    """Return an ingress rule."""
    return {"from": peers, "ports": [_port(port) for port in ports]}


def _to(peers: list[Manifest], *ports: int) -> Manifest:
    """Return an egress rule."""
    return {"to": peers, "ports": [_port(port) for port in ports]}


def _port(port: int, protocol: str = "TCP") -> Manifest:
    """Return a port of a rule."""
    return {"protocol": protocol, "port": port}


def _peer(deployment: Deployment, component: str) -> Manifest:
    """Return the pods of a component as a peer of a rule."""
    return {"podSelector": _pods(deployment, component)}


def _pods(deployment: Deployment, component: str) -> Manifest:
    """Return the label selector of the pods of a component."""
    return {"matchLabels": {CLUSTER_LABEL: deployment.name, COMPONENT_LABEL: component}}


def _metadata(deployment: Deployment, suffix: str = "") -> Manifest:
    """Return name, namespace and labels of an object."""
    return {
        "name": f"{deployment.name}-{suffix}" if suffix else deployment.name,
        "namespace": deployment.namespace,
        "labels": {
            "app.kubernetes.io/name": "rescnet-dist",
            "app.kubernetes.io/instance": deployment.name,
            "app.kubernetes.io/part-of": "rescnet-dist",
        },
    }
