"""The commands of `rescnet deploy`: Kubernetes manifests from specs and their plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from rescnet_dist.cli.common import (
    HELP_SETTINGS,
    Choice,
    GroupedCommand,
    SuggestingGroup,
    grouped_option,
)
from rescnet_dist.cli.defer import defer
from rescnet_dist.cli.estimate import GPU_MEMORY_OPTION
from rescnet_dist.cli.flag_table import read_flags
from rescnet_dist.cli.options import CONFIG_OPTION, PRESET_OPTION, spec_options
from rescnet_dist.deploy import KINDS, OVERLAYS, Deployment
from rescnet_dist.formatting import option_name

DEFAULT_DEPLOYMENT = Deployment("cluster")


@click.group("deploy", cls=SuggestingGroup, **HELP_SETTINGS)
def deploy_command() -> None:
    """Write Kubernetes manifests, or values for a JupyterHub.

    Manifests are for the Dask operator. Their sizes come from the plan of a run.

    \b
    Example:
      rescnet deploy render --preset cifar10 --images 50000x32x32x3 --classes 10 --workers 32 \\
          --data s3://bucket/cifar10.zarr --store s3://bucket/runs/1 | kubectl apply -f -
    """


def deployment_options(*without: str) -> Callable[[Any], Any]:
    """Return a decorator that adds the options of a deployment, except some."""
    options: dict[str, Callable[[Any], Any]] = {
        "data": grouped_option("Data", "--data", help="s3:// URL of the data, or digits"),
        "images": grouped_option(
            *("Data", "--images"),
            metavar="NxHxWxD",
            help="number and shape of the images, such as 50000x32x32x3  [default: read from "
            "--data]",
        ),
        "classes": grouped_option(
            *("Data", "--classes"),
            type=click.IntRange(2),
            help="number of classes  [default: of the preset, or read from --data]",
        ),
        "store": grouped_option("Data", "--store", help="s3:// URL of the run store"),
        "workers": grouped_option(
            *("Cluster", "--workers"),
            type=click.IntRange(1),
            required=True,
            help="number of worker pods",
        ),
        "threads": grouped_option(
            *("Cluster", "--threads"),
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="threads per worker",
        ),
        "memory": grouped_option(
            *("Cluster", "--memory"),
            help="Dask memory limit of each worker  [default: what the plan needs]",
        ),
        "gpu_memory": GPU_MEMORY_OPTION,
        "node_memory": grouped_option(
            *("Cluster", "--node-memory"),
            help="memory of a node without its DaemonSets, such as 60GiB",
        ),
        "node_cpus": grouped_option(
            *("Cluster", "--node-cpus"),
            help="CPUs of a node without its DaemonSets, such as 7.9 or 7910m",
        ),
        "node_storage": grouped_option(
            *("Cluster", "--node-storage"),
            help="ephemeral storage of a node without its DaemonSets, such as 90GiB",
        ),
    }
    texts = {
        "name": "name of all objects",
        "namespace": "namespace of all objects",
        "image": "container image, name:version",
        "secret": "Secret with S3 keys",
        "service_account": "service account with rights to the buckets, instead of a Secret",
        "tls_secret": "Secret with ca.crt, tls.crt, tls.key",
        "endpoint": "URL of an S3 server other than AWS",
        "notice": "seconds between the eviction notice and the end of a machine",
        "operator": "namespace of the Dask operator",
        "tries": "tries in a row without a finished layer, after which the job fails",
        "deadline": "seconds after which the job fails, whatever it does",
        "idle_timeout": "seconds without a task after which a long-lived cluster ends; 0: never",
        "priority_class": "existing PriorityClass of scheduler and driver",
        "worker_priority_class": "existing PriorityClass of the workers, which may be lower",
        "monitoring": "namespace of Prometheus, which may scrape the pods; adds alerts",
    }
    for field in fields(Deployment):
        if field.name in texts:
            default = getattr(DEFAULT_DEPLOYMENT, field.name)
            options[field.name] = grouped_option(
                *("Kubernetes", option_name(field.name), field.name),
                type=int if isinstance(default, int) else str,
                help=texts[field.name],
                default=default,
                show_default=default is not None,
            )
    options |= {"preset": PRESET_OPTION, "config": CONFIG_OPTION}

    def decorate(command: Any) -> Any:
        for table in ("augment", "run", "network"):  # the last is listed first
            command = spec_options(read_flags(table))(command)
        for name in reversed(options):
            if name not in without:
                command = options[name](command)
        return command

    return decorate


@deploy_command.command("render", cls=GroupedCommand, **HELP_SETTINGS)
@grouped_option(
    *("Kubernetes", "--kind"),
    default="job",
    show_default=True,
    help="kind of deployment: " + " or ".join(KINDS),
)
@grouped_option(
    *("Kubernetes", "--overlay", "overlays"),
    multiple=True,
    help="one of " + ", ".join(OVERLAYS) + "; can be repeated to combine them",
)
@deployment_options()
@defer("deploy.render")
def render_command() -> None:
    """Print the manifests of a training job, or of a Dask cluster.

    The job trains on a cluster of its own; the other cluster is long-lived. Memory and CPUs come
    from the plan of the run, which the job uses too. A run that does not fit is an error. Secrets
    are referenced by name and never printed.

    \b
    Example:
      rescnet deploy render --preset cifar10 --images 50000x32x32x3 --workers 32 \\
          --data s3://bucket/cifar10.zarr --store s3://bucket/runs/1 --overlay cloud-spot
    """


OVERWRITE_OPTION = grouped_option(
    *("Output", "--overwrite"),
    is_flag=True,
    help="replace files in FOLDER that differ from what is written",
)


@deploy_command.command("kustomize", cls=GroupedCommand, **HELP_SETTINGS)
@click.argument("folder")
@OVERWRITE_OPTION
@grouped_option(
    *("Kubernetes", "--cluster-name"),
    default="rescnet-cluster",
    show_default=True,
    help="name of the objects of the long-lived cluster",
)
@deployment_options()
@defer("deploy.kustomize")
def kustomize_command() -> None:
    """Write a kustomize tree into FOLDER.

    It has bases of a job and of a long-lived cluster, components for one machine, for spot nodes
    and for GPU nodes, and overlays that combine them.

    \b
    Example:
      rescnet deploy kustomize deploy/kubernetes --preset cifar10 --images 50000x32x32x3 \\
          --workers 32 --data s3://bucket/cifar10.zarr --store s3://bucket/runs/1
      kubectl apply -k deploy/kubernetes/overlays/cloud-spot/job
    """


@deploy_command.command("monitoring", **HELP_SETTINGS)
@click.argument("folder")
@OVERWRITE_OPTION
@defer("deploy.monitoring")
def monitoring_command() -> None:
    """Write a Grafana dashboard and alerts into FOLDER.

    board.json is for Grafana, rules.yaml and prometheus.yaml are for a Prometheus on this machine.
    For the Prometheus operator, `rescnet deploy render --monitoring NAMESPACE` has the alerts.

    \b
    Example:
      rescnet deploy monitoring monitoring
      prometheus --config.file monitoring/prometheus.yaml
    """


@deploy_command.command("hub", cls=GroupedCommand, **HELP_SETTINGS)
@grouped_option(
    *("Kubernetes", "--secret-per-user"),
    is_flag=True,
    help="give each user a Secret of their own, named SECRET-USER",
)
@deployment_options(
    *("store", "name", "namespace", "tls_secret", "notice", "operator"),
    *("tries", "deadline", "idle_timeout", "priority_class", "worker_priority_class"),
    "monitoring",
)
@defer("deploy.hub")
def hub_command() -> None:
    """Print values for a JupyterHub with a Dask gateway.

    They are for the public Helm chart daskhub. Notebooks have this package, and clusters of the
    gateway have the size of the plan of a run.

    \b
    Example:
      rescnet deploy hub --preset cifar10 --images 50000x32x32x3 --workers 32 --threads 4 > hub.yaml
      helm upgrade --install hub dask/daskhub -f hub.yaml
    """


@deploy_command.command("tenant", cls=GroupedCommand, **HELP_SETTINGS)
@click.argument("name")
@grouped_option(
    *("Kubernetes", "--runs"),
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="runs at the same time that the quota has room for",
)
@grouped_option(
    *("Kubernetes", "--user"), help="user of Kubernetes who may start runs in the namespace"
)
@deployment_options(
    *("store", "name", "namespace", "image", "secret", "service_account", "tls_secret", "endpoint"),
    *("notice", "operator", "tries", "deadline", "idle_timeout", "priority_class"),
    *("worker_priority_class", "monitoring"),
)
@defer("deploy.tenant")
def tenant_command() -> None:
    """Print the namespace of a user or team, with limits.

    NAME is the user or team. The limits are for runs of the plan.

    \b
    Example:
      rescnet deploy tenant ada --preset cifar10 --images 50000x32x32x3 --workers 8 --threads 4 \\
          --runs 2 | kubectl apply -f -
    """


@deploy_command.command("s3-policy", **HELP_SETTINGS)
@click.argument("name")
@click.option("--store", required=True, help="s3:// URL of the folder for the runs of NAME")
@click.option(
    "--data", multiple=True, help="s3:// URL of a folder that NAME may read; can be repeated"
)
@click.option(
    "--server",
    type=Choice(["aws", "seaweedfs"]),
    default="aws",
    show_default=True,
    help="kind of store",
)
@defer("s3_policy")
def s3_policy_command() -> None:
    """Print what the key of a user may do in an S3 store.

    The output is JSON. For AWS, it is a policy of a user or role. For SeaweedFS, it is an identity
    of the server's configuration, without the key.

    \b
    Example:
      rescnet deploy s3-policy ada --store s3://bucket/runs/ada --data s3://bucket/data
    """
