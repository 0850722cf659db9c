"""The pods of a deployment: scheduler, worker and driver, from one image, without any privilege."""

from __future__ import annotations

from typing import Any

from rescnet_dist.deploy.settings import Deployment
from rescnet_dist.deploy.sizes import MIB, STORAGE, Sizes

Manifest = dict[str, Any]

USER = 10001  # of the image, see deploy/image/Dockerfile
COMM, DASHBOARD, WORKER_DASHBOARD, WORKER_COMM = 8786, 8787, 8788, 8789  # ports
CERTIFICATES = "/etc/rescnet/tls"
SPACE = "/dask-worker-space"
WAIT = "30m"  # that a driver gives nodes to start, and workers to come
SCRATCH = "2Gi"  # of /tmp: compiled kernels, and little else
API = "distributed.http.scheduler.api"  # what the operator's autoscaler asks
ROUTES = (
    *("distributed.http.scheduler.prometheus", "distributed.http.scheduler.info"),
    *("distributed.http.scheduler.json", "distributed.http.health"),
    *("distributed.http.proxy", "distributed.http.statics", API),
)


def scheduler_pod(what: Deployment, sizes: Sizes) -> Manifest:
    """The pod of the scheduler."""
    environment = settings(sizes, **_encrypted())
    if what.kind == "cluster":  # the operator has no certificate, so that it asks by HTTP
        environment["DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES"] = repr(list(ROUTES))
    health = {"httpGet": {"path": "/health", "port": "http-dashboard"}}
    container = _container(
        what, "scheduler",
        [
            *("dask", "scheduler", "--protocol", "tls", "--port", str(COMM)),
            *("--dashboard-address", f":{DASHBOARD}"),
        ],
        environment, _amounts(1, sizes.scheduler_pod),
        ports={"tcp-comm": COMM, "http-dashboard": DASHBOARD},
        readinessProbe={**health, "periodSeconds": 5, "timeoutSeconds": 5},
        livenessProbe={**health, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6},
    )  # fmt: skip
    return _pod(what, container, grace=30)


def worker_pod(what: Deployment, sizes: Sizes) -> Manifest:
    """The pod of a worker."""
    memory = sizes.worker_memory
    # a new pod may be up before the old one is gone, and the operator would give both one name; by
    # which its autoscaler goes
    name = "DASK_WORKER_NAME" if what.kind == "cluster" else "RESCNET_WORKER_NAME"
    health = {"httpGet": {"path": "/health", "port": "http-dashboard"}}
    container = _container(
        what, "worker",
        [
            *("dask", "worker", "--protocol", "tls", "--no-nanny", "--name", f"$({name})"),
            *("--nthreads", str(sizes.threads), "--memory-limit", str(memory)),
            *("--worker-port", str(WORKER_COMM), "--dashboard-address", f":{WORKER_DASHBOARD}"),
            *("--local-directory", SPACE, "--preload", "rescnet_dist.cluster.warmup"),
        ],
        settings(sizes, **_encrypted())
        | {"DASK_SCHEDULER_ADDRESS": what.scheduler, "RESCNET_LEAVE_SECONDS": str(what.leaving)},
        _amounts(sizes.threads, sizes.worker_pod, sizes.worker_storage),
        ports={"tcp-comm": WORKER_COMM, "http-dashboard": WORKER_DASHBOARD},
        stored=True,
        startupProbe={**health, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 36},
        livenessProbe={**health, "periodSeconds": 30, "timeoutSeconds": 15, "failureThreshold": 10},
        lifecycle={
            "preStop": {"exec": {"command": ["python", "-m", "rescnet_dist.cluster.retire"]}}
        },
    )  # fmt: skip
    if what.kind == "job":
        pod_name = {"fieldRef": {"fieldPath": "metadata.name"}}
        container["env"].append({"name": name, "valueFrom": pod_name})
    container["volumeMounts"].append({"name": "space", "mountPath": SPACE})
    pod = _pod(what, container, grace=what.grace)
    pod["volumes"].append({"name": "space", "emptyDir": {"sizeLimit": mib(memory)}})
    return pod


def driver_pod(what: Deployment, sizes: Sizes, flags: list[str]) -> Manifest:
    """The pod of the driver: begins the run, and goes on with it each time it is started again."""
    assert what.data is not None
    assert what.store is not None
    container = _container(
        what, "job",
        [
            *("rescnet", "train", what.data, "--store", what.store, "--or-resume", "--wait", WAIT),
            *flags,
        ],
        settings(sizes, **_encrypted()) | {"DASK_SCHEDULER_ADDRESS": what.scheduler},
        _amounts(1, sizes.driver_pod),
        stored=True,
    )  # fmt: skip
    return _pod(what, container, grace=60) | {"restartPolicy": "OnFailure"}


# ------------------------------------------------------------------------------------------------


def _pod(what: Deployment, container: Manifest, *, grace: int) -> Manifest:
    """A pod of one container that may do nothing but write to its own empty volumes."""
    return {
        "serviceAccountName": what.account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {"sizeLimit": SCRATCH}},
            {"name": "tls", "secret": {"secretName": what.tls_secret, "defaultMode": 0o440}},
        ],
    }


def _container(
    what: Deployment,
    name: str,
    command: list[str],
    environment: dict[str, str],
    resources: Manifest,
    *,
    ports: dict[str, int] | None = None,
    stored: bool = False,
    **probes: Any,
) -> Manifest:
    """A container; one that uses the store has the credentials of the Secret, if there is one."""
    variables: list[Manifest] = [{"name": k, "value": v} for k, v in environment.items()]
    if stored:
        variables += store_variables(what)
    found: Manifest = {
        "name": name,
        "image": what.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command[:2],
        "args": command[2:],
        "env": variables,
        "resources": resources,
    }
    if ports:
        found["ports"] = [
            {"name": port, "containerPort": number, "protocol": "TCP"}
            for port, number in ports.items()
        ]
    return found | probes | {
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "tls", "mountPath": CERTIFICATES, "readOnly": True},
        ],
    }  # fmt: skip


def pod_security() -> Manifest:
    """Of all pods: a user that is not root."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    """Of all containers: no privileges, and nothing to write to but volumes."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }


def store_variables(what: Deployment) -> list[Manifest]:
    """Where the store is, and the credentials for it. Those are optional, so that a pod without
    them starts, and says in its log that it has none."""
    variables: list[Manifest] = []
    if what.endpoint:
        variables.append({"name": "AWS_ENDPOINT_URL", "value": what.endpoint})
    if what.service_account:
        return variables
    names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "DEFAULT_REGION")
    for name in (f"AWS_{part}" for part in names):
        source = {"name": what.secret, "key": name, "optional": True}
        variables.append({"name": name, "valueFrom": {"secretKeyRef": source}})
    return variables


def settings(sizes: Sizes, **encryption: str) -> dict[str, str]:
    """Variables of every container: one thread for each task, memory given back."""
    one = dict.fromkeys(
        (f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")), "1"
    )
    return {
        **one,  # a solve takes more for itself, as planned
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "MALLOC_ARENA_MAX": "2",
        "NUMBA_CACHE_DIR": "/tmp/numba",
        "HOME": "/tmp",
        **encryption,
        "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": str(sizes.share),  # that was planned with
    }


def _encrypted() -> dict[str, str]:
    """TLS only, with the certificates of the Secret."""
    comm = "DASK_DISTRIBUTED__COMM__"
    roles = {
        f"{comm}TLS__{role}__{part}": f"{CERTIFICATES}/tls.{ending}"
        for role in ("SCHEDULER", "WORKER", "CLIENT")
        for part, ending in (("CERT", "crt"), ("KEY", "key"))
    }
    return {
        f"{comm}REQUIRE_ENCRYPTION": "true",
        f"{comm}TLS__CA_FILE": f"{CERTIFICATES}/ca.crt",
        **roles,
    }


def _amounts(cpus: int, memory: int, storage: int = STORAGE) -> Manifest:
    """Requests and limits, which are the same, so that a pod has what it was planned with."""
    amounts = {
        "cpu": str(cpus),
        "memory": mib(memory),
        "ephemeral-storage": mib(storage),
    }
    return {"requests": amounts, "limits": dict(amounts)}  # two, as patches may change one


def mib(size: int) -> str:
    """Bytes as Kubernetes has them, rounded up."""
    return f"{-(-size // MIB)}Mi"
