"""Pods of a deployment: scheduler, worker and driver, from one image, without privileges."""

from __future__ import annotations

from typing import Any

from rescnet_dist.deploy.settings import Deployment
from rescnet_dist.deploy.sizes import MIB, SCRATCH_STORAGE_BYTES, Sizes
from rescnet_dist.logs import JSON_LOGGING

Manifest = dict[str, Any]

IMAGE_USER_ID = 10001  # of the image, see deploy/image/Dockerfile
SCHEDULER_PORT, DASHBOARD_PORT = 8786, 8787
WORKER_DASHBOARD_PORT, WORKER_PORT = 8788, 8789
METRICS_PORT = 8790  # of the driver
CERTIFICATE_FOLDER = "/etc/rescnet/tls"
SPILL_FOLDER = "/dask-worker-space"
# Seconds that workers and scheduler stay on a node that does not answer, instead of Kubernetes'
# five minutes. A driver stays for those, as the operator starts no other one.
UNREACHABLE_SECONDS = 30
UNREACHABLE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
CLUSTER_LABEL, COMPONENT_LABEL = (
    "dask.org/cluster-name",
    "dask.org/component",
)  # set by the operator
DRIVER_WAIT = "30m"  # that a driver waits for nodes to start and workers to join
TMP_SIZE_LIMIT = "2Gi"  # of /tmp, which has compiled kernels and little else
API_ROUTES = "distributed.http.scheduler.api"  # used by the operator's autoscaler
WORKER_HTTP_ROUTES = (
    *("distributed.http.worker.prometheus", "distributed.http.health"),
    *("distributed.http.statics", "rescnet_dist.cluster.ready"),
)
HTTP_ROUTES = (
    *("distributed.http.scheduler.prometheus", "distributed.http.scheduler.info"),
    *("distributed.http.scheduler.json", "distributed.http.health"),
    *("distributed.http.proxy", "distributed.http.statics", API_ROUTES),
)


def scheduler_pod(deployment: Deployment, sizes: Sizes) -> Manifest:
    """Return the pod spec of the scheduler."""
    environment = _pod_variables(sizes)
    if deployment.kind == "cluster":  # the operator has no certificate, so it uses HTTP
        environment["DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES"] = repr(list(HTTP_ROUTES))
    health = {"httpGet": {"path": "/health", "port": "http-dashboard"}}
    container = _make_container(
        deployment,
        "scheduler",
        [
            *("dask", "scheduler", "--protocol", "tls", "--port", str(SCHEDULER_PORT)),
            *("--dashboard-address", f":{DASHBOARD_PORT}"),
        ],
        environment,
        _make_resources(1, sizes.scheduler_pod),
        ports={"tcp-comm": SCHEDULER_PORT, "http-dashboard": DASHBOARD_PORT},
        readinessProbe={**health, "periodSeconds": 5, "timeoutSeconds": 5},
        livenessProbe={**health, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6},
    )
    return (
        _make_pod(deployment, container, grace_seconds=30, priority=deployment.priority_class)
        | _unreachable_tolerations()
    )


def worker_pod(deployment: Deployment, sizes: Sizes) -> Manifest:
    """Return the pod spec of a worker."""
    memory = sizes.worker_memory
    # A new pod may be up before the old one is gone, and both would have the name that the operator
    # gives, so workers of a job use the name of the pod. The autoscaler needs the operator's name.
    name = "DASK_WORKER_NAME" if deployment.kind == "cluster" else "RESCNET_WORKER_NAME"
    health = {"httpGet": {"path": "/health", "port": "http-dashboard"}}
    container = _make_container(
        deployment,
        "worker",
        [
            *("dask", "worker", "--protocol", "tls", "--no-nanny", "--name", f"$({name})"),
            *("--nthreads", str(sizes.threads), "--memory-limit", str(memory)),
            *("--worker-port", str(WORKER_PORT)),
            *("--dashboard-address", f":{WORKER_DASHBOARD_PORT}"),
            *("--local-directory", SPILL_FOLDER, "--preload", "rescnet_dist.cluster.warmup"),
        ],
        _pod_variables(sizes)
        | {
            "DASK_SCHEDULER_ADDRESS": deployment.scheduler_address,
            "RESCNET_LEAVE_SECONDS": str(deployment.retire_seconds),
            "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": repr(list(WORKER_HTTP_ROUTES)),
        },
        _make_resources(sizes.threads, sizes.worker_pod, sizes.worker_storage),
        ports={"tcp-comm": WORKER_PORT, "http-dashboard": WORKER_DASHBOARD_PORT},
        uses_store=True,
        startupProbe={**health, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 36},
        readinessProbe={  # once the kernels are loaded
            "httpGet": {"path": "/ready", "port": "http-dashboard"},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
        livenessProbe={**health, "periodSeconds": 30, "timeoutSeconds": 15, "failureThreshold": 10},
        lifecycle={
            "preStop": {"exec": {"command": ["python", "-m", "rescnet_dist.cluster.retire"]}}
        },
    )
    if deployment.kind == "job":
        pod_name = {"fieldRef": {"fieldPath": "metadata.name"}}
        container["env"].append({"name": name, "valueFrom": pod_name})
    container["volumeMounts"].append({"name": "space", "mountPath": SPILL_FOLDER})
    pod = _make_pod(
        deployment,
        container,
        grace_seconds=deployment.grace_seconds,
        priority=deployment.worker_priority_class,
    )
    pod |= _unreachable_tolerations() | _spread(deployment)
    pod["volumes"].append({"name": "space", "emptyDir": {"sizeLimit": format_quantity(memory)}})
    return pod


def driver_pod(deployment: Deployment, sizes: Sizes, flags: list[str]) -> Manifest:
    """Return the pod spec of the driver, which starts the run, and resumes it after a failure.

    The operator removes the cluster once this pod has failed. Kubernetes would restart a container
    without end, so it restarts none, and the number of tries is limited inside.
    """
    assert deployment.data is not None
    assert deployment.store is not None
    container = _make_container(
        deployment,
        "job",
        [
            *("rescnet", "retry", "--tries", str(deployment.tries), "--log-format", "json"),
            *("train", deployment.data, "--store", deployment.store),
            *("--or-resume", "--wait", DRIVER_WAIT),
            *("--metrics-address", f":{METRICS_PORT}", "--log-format", "json"),
            *flags,
        ],
        _pod_variables(sizes) | {"DASK_SCHEDULER_ADDRESS": deployment.scheduler_address},
        _make_resources(1, sizes.driver_pod),
        ports={"metrics": METRICS_PORT},
        uses_store=True,
    )
    pod = _make_pod(deployment, container, grace_seconds=60, priority=deployment.priority_class)
    return pod | {"restartPolicy": "Never", "activeDeadlineSeconds": deployment.deadline}


# ------------------------------------------------------------------------------------------------


def _make_pod(
    deployment: Deployment, container: Manifest, *, grace_seconds: int, priority: str | None
) -> Manifest:
    """Return a pod of one container that can write to its own empty volumes only."""
    return {
        **({"priorityClassName": priority} if priority else {}),
        "serviceAccountName": deployment.account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE_LIMIT}},
            {"name": "tls", "secret": {"secretName": deployment.tls_secret, "defaultMode": 0o440}},
        ],
    }


def _unreachable_tolerations() -> Manifest:
    """Return tolerations that end a pod soon after its node has stopped answering."""
    return {
        "tolerations": [
            {
                "key": taint,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": UNREACHABLE_SECONDS,
            }
            for taint in UNREACHABLE_TAINTS
        ]
    }


def _spread(deployment: Deployment) -> Manifest:
    """Return the constraint that spreads workers evenly over nodes, where there are several."""
    labels = {CLUSTER_LABEL: deployment.name, COMPONENT_LABEL: "worker"}
    return {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels},
            }
        ]
    }


def _make_container(
    deployment: Deployment,
    name: str,
    command: list[str],
    environment: dict[str, str],
    resources: Manifest,
    *,
    ports: dict[str, int] | None = None,
    uses_store: bool = False,
    **probes: Any,
) -> Manifest:
    """Return a container; uses_store adds the credentials of the Secret, if there is one."""
    variables: list[Manifest] = [{"name": k, "value": v} for k, v in environment.items()]
    if uses_store:
        variables += store_variables(deployment)
    container: Manifest = {
        "name": name,
        "image": deployment.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command[:2],
        "args": command[2:],
        "env": variables,
        "resources": resources,
    }
    if ports:
        container["ports"] = [
            {"name": port, "containerPort": number, "protocol": "TCP"}
            for port, number in ports.items()
        ]
    mounts = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "tls", "mountPath": CERTIFICATE_FOLDER, "readOnly": True},
    ]
    security = {"securityContext": container_security(), "volumeMounts": mounts}
    return container | probes | security


def pod_security() -> Manifest:
    """Return the security context of all pods: a user that is not root."""
    return {
        "runAsNonRoot": True,
        "runAsUser": IMAGE_USER_ID,
        "runAsGroup": IMAGE_USER_ID,
        "fsGroup": IMAGE_USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    """Return the security context of all containers: no privileges, a read-only file system."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }


def store_variables(deployment: Deployment) -> list[Manifest]:
    """Return the variables for the location and the credentials of the store.

    The credentials are optional, so that a pod without them starts and logs that it has none.
    """
    variables: list[Manifest] = []
    if deployment.endpoint:
        variables.append({"name": "AWS_ENDPOINT_URL", "value": deployment.endpoint})
    if deployment.service_account:
        return variables
    names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "DEFAULT_REGION")
    for name in (f"AWS_{part}" for part in names):
        source = {"name": deployment.secret, "key": name, "optional": True}
        variables.append({"name": name, "valueFrom": {"secretKeyRef": source}})
    return variables


def common_variables(sizes: Sizes, **tls: str) -> dict[str, str]:
    """Return the variables of every container: one thread per task, free memory returned."""
    threads = dict.fromkeys(
        (f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")), "1"
    )
    return {
        **threads,  # a solve uses more threads by itself, as planned
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "MALLOC_ARENA_MAX": "2",
        "NUMBA_CACHE_DIR": "/tmp/numba",
        "HOME": "/tmp",
        **tls,
        "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": str(sizes.share),  # as in the plan
    }


def _pod_variables(sizes: Sizes) -> dict[str, str]:
    """Return the variables of the pods of a job or cluster: TLS, and logs of Dask as JSON."""
    return common_variables(sizes, **_tls_variables()) | {"DASK_LOGGING": repr(JSON_LOGGING)}


def _tls_variables() -> dict[str, str]:
    """Return the variables that require TLS, with the certificates of the Secret."""
    comm = "DASK_DISTRIBUTED__COMM__"
    roles = {
        f"{comm}TLS__{role}__{part}": f"{CERTIFICATE_FOLDER}/tls.{ending}"
        for role in ("SCHEDULER", "WORKER", "CLIENT")
        for part, ending in (("CERT", "crt"), ("KEY", "key"))
    }
    return {
        f"{comm}REQUIRE_ENCRYPTION": "true",
        f"{comm}TLS__CA_FILE": f"{CERTIFICATE_FOLDER}/ca.crt",
        **roles,
    }


def _make_resources(cpus: int, memory: int, storage: int = SCRATCH_STORAGE_BYTES) -> Manifest:
    """Return equal requests and limits, so that a pod gets what was planned."""
    amounts = {
        "cpu": str(cpus),
        "memory": format_quantity(memory),
        "ephemeral-storage": format_quantity(storage),
    }
    return {"requests": amounts, "limits": dict(amounts)}  # two dicts, as patches may change one


def format_quantity(size: int) -> str:
    """Return bytes as a Kubernetes quantity in MiB, rounded up."""
    return f"{-(-size // MIB)}Mi"
