"""A JupyterHub with a Dask gateway: values for the public Helm chart daskhub, from the plan."""

from __future__ import annotations

from rescnet_dist.deploy.lab import lab_settings
from rescnet_dist.deploy.pods import (
    SCRATCH,
    SPACE,
    USER,
    Manifest,
    container_security,
    mib,
    pod_security,
    settings,
    store_variables,
)
from rescnet_dist.deploy.settings import Deployment
from rescnet_dist.deploy.sizes import MIB, Node, Sizes

HOME = "/home/rescnet"
LAB = 512 * MIB  # of JupyterLab, beside the driver that a notebook is
IDLE = 3600  # seconds after which a cluster that nobody uses is ended
OVERRIDES = "/etc/jupyter/labconfig/default_setting_overrides.json"
TRAEFIK = {"app.kubernetes.io/name": "dask-gateway", "app.kubernetes.io/component": "traefik"}

# What is said in the values, above certain lines of them.
COMMENTS = {
    "jupyterhub:": "Who may log in is for a file of yours to say (hub.config, see the guide): as "
    "it is,\nJupyterHub lets nobody in.",
    "  proxy:": "Open inside the cluster only, until you say otherwise.",
    "  singleuser:": "Notebooks: our image, as large as the driver of the planned run.",
    "    extraFiles:": "The Dask panel of JupyterLab: `File > Launch Dask Dashboard Layout` opens "
    "our plots.",
    "dask-gateway:": "Clusters of users: the same image, workers as planned.",
    "    extraConfig:": "What users may ask for, as `Gateway().cluster_options()` shows it.",
}

# What users may ask of the gateway; it is Python, as its configuration file is.
OPTIONS = """\
from dask_gateway_server.options import Float, Integer, Mapping, Options, String

# Recent versions of Dask have no scripts dask-scheduler and dask-worker.
c.KubeClusterConfig.scheduler_cmd = [
    "dask", "scheduler", "--preload", "rescnet_dist.dashboard.scheduler",
]
c.KubeClusterConfig.worker_cmd = ["dask", "worker", "--preload", "rescnet_dist.cluster.warmup"]
c.KubeClusterConfig.cluster_max_workers = {workers}
c.KubeClusterConfig.idle_timeout = {idle}


def cluster_of(options):
    memory = int(options.worker_memory * 2**30)
    return {{
        "worker_cores": options.worker_threads,
        "worker_cores_limit": options.worker_threads,
        "worker_threads": options.worker_threads,
        "worker_memory": memory,
        "worker_memory_limit": memory,
        "image": options.image,
        "environment": {{**c.KubeClusterConfig.environment, **options.environment}},
    }}


c.Backend.cluster_options = Options(
    Integer("worker_threads", default={threads}, min=1, max={most_threads}, label="Threads"),
    Float("worker_memory", default={memory}, min=0.5, max={most_memory}, label="Memory (GiB)"),
    String("image", default="{image}", label="Image"),
    Mapping("environment", label="More variables"),
    handler=cluster_of,
)
"""


def hub_values(what: Deployment, sizes: Sizes, node: Node) -> Manifest:
    """Values for daskhub: its charts jupyterhub and dask-gateway.

    Clusters of the gateway have workers as planned unless a user asks for others, which may be as
    large as a node, if that is known, and else no larger than planned.
    """
    return {"jupyterhub": _jupyterhub(what, sizes), "dask-gateway": _gateway(what, sizes, node)}


def _jupyterhub(what: Deployment, sizes: Sizes) -> Manifest:
    memory = mib(sizes.driver_pod + LAB).removesuffix("i")  # JupyterHub's M is 2**20 bytes
    return {
        "hub": {
            "config": {
                "KubeSpawner": {
                    "notebook_dir": HOME,
                    "pod_security_context": pod_security(),
                    # the file system is not read-only, as users may install what they like
                    "container_security_context": {
                        "capabilities": {"drop": ["ALL"]},
                        "runAsNonRoot": True,
                    },
                }
            }
        },
        "proxy": {"service": {"type": "ClusterIP"}},
        "singleuser": {
            "image": _image(what),
            "uid": USER,
            "fsGid": USER,
            **({"serviceAccountName": what.service_account} if what.service_account else {}),
            "cpu": {"guarantee": 1, "limit": sizes.threads + 1},
            "memory": {"guarantee": memory, "limit": memory},
            "storage": {"homeMountPath": HOME},
            "extraEnv": _user_variables(what, sizes),
            "extraFiles": {"lab-settings": {"mountPath": OVERRIDES, "data": lab_settings()}},
            # the policy below does it, without an init container that has privileges
            "cloudMetadata": {"blockWithIptables": False},
            "networkPolicy": _user_policy(what),
        },
    }


def _user_variables(what: Deployment, sizes: Sizes) -> Manifest:
    """The environment of notebooks. Kubernetes fills in $(…), and the spawner makes one brace of
    two."""
    found: Manifest = {
        **settings(sizes),
        "HOME": HOME,
        "DASK_GATEWAY__CLUSTER__OPTIONS__IMAGE": "$(JUPYTER_IMAGE_SPEC)",
        "DASK_DISTRIBUTED__DASHBOARD__LINK": (
            "$(JUPYTERHUB_SERVICE_PREFIX)proxy/{{port}}/status"  # of clusters inside the notebook
        ),
        "DASK_LABEXTENSION__FACTORY__MODULE": "dask_gateway",
        "DASK_LABEXTENSION__FACTORY__CLASS": "GatewayCluster",
    }
    for variable in store_variables(what):
        name = variable["name"]
        found[name] = variable.get("value") or {"valueFrom": variable["valueFrom"]}
    return found


def _user_policy(what: Deployment) -> Manifest:
    """Beside what the chart lets out (no private addresses): the gateway's clusters, and a store
    that is inside."""
    web = {"protocol": "TCP", "port": 8000}
    egress: list[Manifest] = [{"to": [{"podSelector": {"matchLabels": TRAEFIK}}], "ports": [web]}]
    if what.endpoint:
        egress.append({"ports": [{"protocol": "TCP", "port": what.store_port}]})
    return {"egress": egress}


def _gateway(what: Deployment, sizes: Sizes, node: Node) -> Manifest:
    memory = mib(sizes.worker_pod).removesuffix("i")  # the gateway's M is 2**20 bytes
    scheduler = mib(sizes.scheduler_pod).removesuffix("i")
    planned = sizes.worker_pod / 2**30
    options = OPTIONS.format(
        workers=sizes.workers,
        idle=IDLE,
        threads=sizes.threads,
        most_threads=int(node.cpus) if node.cpus else sizes.threads,
        memory=planned,
        most_memory=node.memory / 2**30 if node.memory else planned,
        image=what.image,
    )
    pod: Manifest = {
        "securityContext": pod_security(),
        "enableServiceLinks": False,
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": SCRATCH}}],
    }
    account = {"serviceAccountName": what.service_account} if what.service_account else {}
    container: Manifest = {
        "securityContext": container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    space = {"name": "space", "emptyDir": {"sizeLimit": mib(sizes.worker_memory)}}
    spilled = {"name": "DASK_TEMPORARY_DIRECTORY", "value": SPACE}
    return {
        "gateway": {
            "backend": {
                "image": _image(what),
                "environment": settings(sizes),
                "scheduler": {
                    "cores": {"request": 1, "limit": 1},
                    "memory": {"request": scheduler, "limit": scheduler},
                    "extraPodConfig": pod,
                    "extraContainerConfig": container,
                },
                "worker": {
                    "cores": {"request": sizes.threads, "limit": sizes.threads},
                    "memory": {"request": memory, "limit": memory},
                    "threads": sizes.threads,
                    "extraPodConfig": {**pod, **account, "volumes": [*pod["volumes"], space]},
                    "extraContainerConfig": {
                        **container,
                        "env": [spilled, *store_variables(what)],
                        "volumeMounts": [
                            *container["volumeMounts"],
                            {"name": "space", "mountPath": SPACE},
                        ],
                    },
                },
            },
            "extraConfig": {"rescnet-options": options},
        }
    }


def _image(what: Deployment) -> Manifest:
    """Name and tag, or name@sha256 and digest, which the charts join by a colon."""
    name, _, tag = what.image.rpartition(":")
    return {"name": name, "tag": tag, "pullPolicy": "IfNotPresent"}
