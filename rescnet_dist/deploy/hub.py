"""Values of the public Helm chart daskhub: a JupyterHub with a Dask gateway, sized by a plan."""

from __future__ import annotations

from rescnet_dist.deploy.lab import lab_settings
from rescnet_dist.deploy.pods import (
    IMAGE_USER_ID,
    SPILL_FOLDER,
    TMP_SIZE_LIMIT,
    Manifest,
    common_variables,
    container_security,
    format_quantity,
    pod_security,
    store_variables,
)
from rescnet_dist.deploy.settings import Deployment
from rescnet_dist.deploy.sizes import MIB, Node, Sizes
from rescnet_dist.errors import SpecError

NOTEBOOK_HOME = "/home/rescnet"
JUPYTERLAB_BYTES = 512 * MIB  # for JupyterLab, in addition to the driver in a notebook
IDLE_SECONDS = 3600  # after which an unused cluster is ended
LAB_OVERRIDES_PATH = "/etc/jupyter/labconfig/default_setting_overrides.json"
GATEWAY_PROXY_LABELS = {
    "app.kubernetes.io/name": "dask-gateway",
    "app.kubernetes.io/component": "traefik",
}

# Comments above certain lines of the values.
HUB_COMMENTS = {
    "jupyterhub:": "Configure who may log in in a file of your own (hub.config, see the guide).\n"
    "By default, nobody can log in.",
    "  proxy:": "Reachable inside the cluster only, unless you change it.",
    "  singleuser:": "Notebooks: our image, with the memory of the driver of the planned run.",
    "    extraFiles:": "The Dask panel of JupyterLab: `File > Launch Dask Dashboard Layout` opens "
    "our plots.",
    "dask-gateway:": "Clusters of users: the same image, with workers as planned.",
    "    extraConfig:": "Options of users, which `Gateway().cluster_options()` shows.",
}

# Configuration of the gateway, in Python: the options that users may set.
GATEWAY_CONFIG = """\
from dask_gateway_server.options import Float, Integer, Mapping, Options, String

# Recent versions of Dask have no scripts dask-scheduler and dask-worker.
c.KubeClusterConfig.scheduler_cmd = [
    "dask", "scheduler", "--preload", "rescnet_dist.dashboard.scheduler",
]
c.KubeClusterConfig.worker_cmd = ["dask", "worker", "--preload", "rescnet_dist.cluster.warmup"]
c.KubeClusterConfig.cluster_max_workers = {workers}
c.KubeClusterConfig.idle_timeout = {idle}


{user_secret}def cluster_config(options{user}):
    memory = int(options.worker_memory * 2**30)
    return {{
        "worker_cores": options.worker_threads,
        "worker_cores_limit": options.worker_threads,
        "worker_threads": options.worker_threads,
        "worker_memory": memory,
        "worker_memory_limit": memory,
        "image": options.image,
        "environment": {{**c.KubeClusterConfig.environment, **options.environment}},{user_option}
    }}


c.Backend.cluster_options = Options(
    Integer("worker_threads", default={threads}, min=1, max={max_threads}, label="Threads"),
    Float("worker_memory", default={memory}, min=0.5, max={max_memory}, label="Memory (GiB)"),
    String("image", default="{image}", label="Image"),
    Mapping("environment", label="More variables"),
    handler=cluster_config,
)
"""

# The same with a Secret for each user, whose name is checked: other characters might name a Secret
# of somebody else. KubeSpawner uses the same names as they are, and hashes others after `---`.
USER_SECRET = """\
def user_container(user):
    import copy
    import re

    if not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", user.name):
        raise ValueError(
            f"The user name {user.name!r} cannot be part of a Secret's name. Use lowercase "
            "letters, digits and single hyphens, with a letter first."
        )
    container = copy.deepcopy(dict(c.KubeClusterConfig.worker_extra_container_config))
    for variable in container["env"]:
        if "valueFrom" in variable:
            variable["valueFrom"]["secretKeyRef"]["name"] = "SECRET-" + user.name
    return container


"""


def hub_values(
    deployment: Deployment, sizes: Sizes, node: Node, *, secret_per_user: bool = False
) -> Manifest:
    """Return values for daskhub, for its charts jupyterhub and dask-gateway.

    Clusters of the gateway have workers as planned. Users may ask for workers up to the size of a
    node, or up to the planned size if the size of a node is unknown. With `secret_per_user`, the
    Secret of each user has the user's name after a hyphen.
    """
    if secret_per_user and deployment.service_account:
        raise SpecError(
            "--secret-per-user has no effect with --service-account, which is that of all users. "
            "Use one of them."
        )
    values = {
        "jupyterhub": _jupyterhub(deployment, sizes),
        "dask-gateway": _gateway(deployment, sizes, node, secret_per_user=secret_per_user),
    }
    if secret_per_user:
        for value in values["jupyterhub"]["singleuser"]["extraEnv"].values():
            if isinstance(value, dict):  # a key of the Secret; the spawner replaces the name
                value["valueFrom"]["secretKeyRef"]["name"] = f"{deployment.secret}-{{username}}"
    return values


def _jupyterhub(deployment: Deployment, sizes: Sizes) -> Manifest:
    """Return the values of the chart jupyterhub."""
    memory = format_quantity(sizes.driver_pod + JUPYTERLAB_BYTES).removesuffix(
        "i"
    )  # JupyterHub's M is 2**20 bytes
    return {
        "hub": {
            "config": {
                "KubeSpawner": {
                    "notebook_dir": NOTEBOOK_HOME,
                    "pod_security_context": pod_security(),
                    # the file system is writable, as users may install packages
                    "container_security_context": {
                        "capabilities": {"drop": ["ALL"]},
                        "runAsNonRoot": True,
                    },
                }
            }
        },
        "proxy": {"service": {"type": "ClusterIP"}},
        "singleuser": {
            "image": _image(deployment),
            "uid": IMAGE_USER_ID,
            "fsGid": IMAGE_USER_ID,
            **(
                {"serviceAccountName": deployment.service_account}
                if deployment.service_account
                else {}
            ),
            "cpu": {"guarantee": 1, "limit": sizes.threads + 1},
            "memory": {"guarantee": memory, "limit": memory},
            "storage": {"homeMountPath": NOTEBOOK_HOME},
            "extraEnv": _user_variables(deployment, sizes),
            "extraFiles": {
                "lab-settings": {"mountPath": LAB_OVERRIDES_PATH, "data": lab_settings()}
            },
            # the policy below does the same without a privileged init container
            "cloudMetadata": {"blockWithIptables": False},
            "networkPolicy": _user_policy(deployment),
        },
    }


def _user_variables(deployment: Deployment, sizes: Sizes) -> Manifest:
    """Return the environment variables of notebooks.

    Kubernetes expands $(…), and the spawner replaces double braces by single ones.
    """
    variables: Manifest = {
        **common_variables(sizes),
        "HOME": NOTEBOOK_HOME,
        "DASK_GATEWAY__CLUSTER__OPTIONS__IMAGE": "$(JUPYTER_IMAGE_SPEC)",
        # for clusters inside the notebook server
        "DASK_DISTRIBUTED__DASHBOARD__LINK": "$(JUPYTERHUB_SERVICE_PREFIX)proxy/{{port}}/status",
        "DASK_LABEXTENSION__FACTORY__MODULE": "dask_gateway",
        "DASK_LABEXTENSION__FACTORY__CLASS": "GatewayCluster",
    }
    for variable in store_variables(deployment):
        name = variable["name"]
        variables[name] = variable.get("value") or {"valueFrom": variable["valueFrom"]}
    return variables


def _user_policy(deployment: Deployment) -> Manifest:
    """Return the egress rules of notebooks: the gateway's clusters, and a store in the cluster.

    The chart itself allows egress to public addresses only.
    """
    web = {"protocol": "TCP", "port": 8000}
    egress: list[Manifest] = [
        {"to": [{"podSelector": {"matchLabels": GATEWAY_PROXY_LABELS}}], "ports": [web]}
    ]
    if deployment.endpoint:
        egress.append({"ports": [{"protocol": "TCP", "port": deployment.store_port}]})
    return {"egress": egress}


def _gateway(
    deployment: Deployment, sizes: Sizes, node: Node, *, secret_per_user: bool
) -> Manifest:
    """Return the values of the chart dask-gateway."""
    memory = format_quantity(sizes.worker_pod).removesuffix("i")  # the gateway's M is 2**20 bytes
    scheduler = format_quantity(sizes.scheduler_pod).removesuffix("i")
    planned = sizes.worker_pod / 2**30
    options = GATEWAY_CONFIG.format(
        workers=sizes.workers,
        idle=IDLE_SECONDS,
        threads=sizes.threads,
        max_threads=int(node.cpus) if node.cpus else sizes.threads,
        memory=planned,
        max_memory=node.memory / 2**30 if node.memory else planned,
        image=deployment.image,
        user_secret=USER_SECRET.replace("SECRET", deployment.secret) if secret_per_user else "",
        user=", user" if secret_per_user else "",
        user_option='\n        "worker_extra_container_config": user_container(user),'
        if secret_per_user
        else "",
    )
    pod: Manifest = {
        "securityContext": pod_security(),
        "enableServiceLinks": False,
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE_LIMIT}}],
    }
    account = (
        {"serviceAccountName": deployment.service_account} if deployment.service_account else {}
    )
    container: Manifest = {
        "securityContext": container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    space = {"name": "space", "emptyDir": {"sizeLimit": format_quantity(sizes.worker_memory)}}
    spill_variable = {"name": "DASK_TEMPORARY_DIRECTORY", "value": SPILL_FOLDER}
    return {
        "gateway": {
            "backend": {
                "image": _image(deployment),
                "environment": common_variables(sizes),
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
                        "env": [spill_variable, *store_variables(deployment)],
                        "volumeMounts": [
                            *container["volumeMounts"],
                            {"name": "space", "mountPath": SPILL_FOLDER},
                        ],
                    },
                },
            },
            "extraConfig": {"rescnet-options": options},
        }
    }


def _image(deployment: Deployment) -> Manifest:
    """Return name and tag, or name@sha256 and digest; the charts join them with a colon."""
    name, _, tag = deployment.image.rpartition(":")
    return {"name": name, "tag": tag, "pullPolicy": "IfNotPresent"}
