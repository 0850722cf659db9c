"""The commands of `rescnet deploy`: Kubernetes manifests from specs and their plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from rescnet_dist.cli.estimate import (
    GPU_MEMORY_OPTION,
    make_problem,
    parse_shape,
    resolve_gpu_memory,
)
from rescnet_dist.cli.options import (
    HELP_SETTINGS,
    DataSize,
    parse_size,
    resolve_specs,
    spec_options,
)
from rescnet_dist.data import TrainingSet, training_set
from rescnet_dist.deploy import (
    HUB_COMMENTS,
    KINDS,
    OVERLAYS,
    Deployment,
    Node,
    Sizes,
    Tenant,
    aws_policy,
    compute_sizes,
    hub_values,
    kustomize_files,
    manifests,
    monitoring_files,
    seaweedfs_identity,
    tenant_manifests,
    to_yaml,
    training_flags,
    with_overlays,
)
from rescnet_dist.errors import RescnetError, SpecError, suggest_name
from rescnet_dist.flags import option_name
from rescnet_dist.planning import Forecast, Problem
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec

DEFAULT_DEPLOYMENT = Deployment("cluster")
# Number of classes of the data that each preset is for.
PRESET_CLASSES = {"digits": 10, "mnist": 10, "cifar10": 10, "cifar100": 100, "tiny-imagenet": 200}


@click.group("deploy", **HELP_SETTINGS)
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
        "data": click.option("--data", help="s3:// URL of the data, or digits"),
        "store": click.option("--store", help="s3:// URL of the run store"),
        "preset": click.option(
            "--preset", help="preset network to start from; see `rescnet presets`"
        ),
        "config": click.option("--config", help="TOML file with a [network] and a [run] table"),
        "images": click.option(
            "--images", metavar="NxHxWxD", help="such as 50000x32x32x3  [default: read from DATA]"
        ),
        "classes": click.option(
            "--classes", type=click.IntRange(2), help="[default: of the preset, or read from DATA]"
        ),
        "workers": click.option(
            "--workers", type=click.IntRange(1), required=True, help="number of worker pods"
        ),
        "threads": click.option(
            "--threads",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="threads per worker",
        ),
        "memory": click.option(
            "--memory", help="Dask memory limit of each worker  [default: what the plan needs]"
        ),
        "gpu_memory": GPU_MEMORY_OPTION,
        "node_memory": click.option(
            "--node-memory", help="memory of a node without its DaemonSets, such as 60GiB"
        ),
        "node_cpus": click.option(
            "--node-cpus", help="CPUs of a node without its DaemonSets, such as 7.9 or 7910m"
        ),
        "node_storage": click.option(
            "--node-storage", help="ephemeral storage of a node without its DaemonSets, as 90GiB"
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
            options[field.name] = click.option(
                option_name(field.name),
                field.name,
                type=int if isinstance(default, int) else str,
                help=texts[field.name],
                default=default,
                show_default=default is not None,
            )

    def decorate(command: Any) -> Any:
        for spec in (AugmentSpec, RunSpec, NetworkSpec):  # the last is listed first
            command = spec_options(spec)(command)
        for name in reversed(options):
            if name not in without:
                command = options[name](command)
        return command

    return decorate


@deploy_command.command("render", **HELP_SETTINGS)
@click.option(
    "--kind", default="job", show_default=True, help="kind of deployment: " + " or ".join(KINDS)
)
@click.option(
    "--overlay",
    "overlays",
    multiple=True,
    help="one of " + ", ".join(OVERLAYS) + "; can be repeated to combine them",
)
@deployment_options()
def render_command(kind: str, overlays: tuple[str, ...], **flags: Any) -> None:
    """Print the manifests of a training job, or of a Dask cluster.

    The job trains on a cluster of its own; the other cluster is long-lived. Memory and CPUs come
    from the plan of the run, which the job uses too. A run that does not fit is an error. Secrets
    are referenced by name and never printed.

    \b
    Example:
      rescnet deploy render --preset cifar10 --images 50000x32x32x3 --workers 32 \\
          --data s3://bucket/cifar10.zarr --store s3://bucket/runs/1 --overlay cloud-spot
    """
    for overlay in overlays:
        if overlay not in OVERLAYS:
            raise SpecError(f"Unknown overlay {overlay!r}. {suggest_name(overlay, OVERLAYS)}")
    request = _make_request(kind, flags)
    documents = with_overlays(request.manifests(request.deployment), overlays)
    click.echo(to_yaml(documents, request.comment()), nl=False)


@deploy_command.command("kustomize", **HELP_SETTINGS)
@click.argument("folder")
@click.option(
    "--cluster-name",
    default="rescnet-cluster",
    show_default=True,
    help="name of the objects of the long-lived cluster",
)
@deployment_options()
def kustomize_command(folder: str, cluster_name: str, **flags: Any) -> None:
    """Write a kustomize tree into FOLDER.

    It has bases of a job and of a long-lived cluster, components for one machine, for spot nodes
    and for GPU nodes, and overlays that combine them.

    \b
    Example:
      rescnet deploy kustomize deploy/kubernetes --preset cifar10 --images 50000x32x32x3 \\
          --workers 32 --data s3://bucket/cifar10.zarr --store s3://bucket/runs/1
      kubectl apply -k deploy/kubernetes/overlays/cloud-spot/job
    """
    if cluster_name == flags["name"]:
        raise SpecError(f"--cluster-name and --name are both {cluster_name}. Give two names.")
    job = _make_request("job", dict(flags))
    cluster = Deployment("cluster", **_select_fields(flags) | {"name": cluster_name})
    files = kustomize_files(
        {"job": job.manifests(job.deployment), "cluster": job.manifests(cluster)}
    )
    _write_files(folder, files)


def _write_files(folder: str, files: dict[str, str]) -> None:
    """Write files into a folder, and say how many."""
    for path, text in files.items():
        target = Path(folder, path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        except OSError as error:
            raise RescnetError(
                f"{target} cannot be written: {error.strerror}. Check the folder."
            ) from None
    click.echo(f"wrote {len(files)} files into {folder}", err=True)


@deploy_command.command("monitoring", **HELP_SETTINGS)
@click.argument("folder")
def monitoring_command(folder: str) -> None:
    """Write a Grafana dashboard and alerts into FOLDER.

    board.json is for Grafana, rules.yaml and prometheus.yaml are for a Prometheus on this machine.
    For the Prometheus operator, `rescnet deploy render --monitoring NAMESPACE` has the alerts.

    \b
    Example:
      rescnet deploy monitoring monitoring
      prometheus --config.file monitoring/prometheus.yaml
    """
    _write_files(folder, monitoring_files())


@deploy_command.command("hub", **HELP_SETTINGS)
@click.option(
    "--secret-per-user",
    is_flag=True,
    help="give each user a Secret of their own, named SECRET-USER",
)
@deployment_options(
    *("store", "name", "namespace", "tls_secret", "notice", "operator"),
    *("tries", "deadline", "idle_timeout", "priority_class", "worker_priority_class"),
    "monitoring",
)
def hub_command(secret_per_user: bool, **flags: Any) -> None:
    """Print values for a JupyterHub with a Dask gateway.

    They are for the public Helm chart daskhub. Notebooks have this package, and clusters of the
    gateway have the size of the plan of a run.

    \b
    Example:
      rescnet deploy hub --preset cifar10 --images 50000x32x32x3 --workers 32 --threads 4 > hub.yaml
      helm upgrade --install hub dask/daskhub -f hub.yaml
    """
    request = _make_request("cluster", flags)
    values = hub_values(
        request.deployment, request.sizes, request.node, secret_per_user=secret_per_user
    )
    comment = f"values of the Helm chart daskhub\n{request.forecast}{request.hint()}"
    click.echo(to_yaml([values], comment, HUB_COMMENTS), nl=False)


@deploy_command.command("tenant", **HELP_SETTINGS)
@click.argument("name")
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="runs at the same time that the quota has room for",
)
@click.option("--user", help="user of Kubernetes who may start runs in the namespace")
@deployment_options(
    *("store", "name", "namespace", "image", "secret", "service_account", "tls_secret", "endpoint"),
    *("notice", "operator", "tries", "deadline", "idle_timeout", "priority_class"),
    *("worker_priority_class", "monitoring"),
)
def tenant_command(name: str, runs: int, user: str | None, **flags: Any) -> None:
    """Print the namespace of the user or team NAME, with limits for runs of a plan.

    \b
    Example:
      rescnet deploy tenant ada --preset cifar10 --images 50000x32x32x3 --workers 8 --threads 4 \\
          --runs 2 | kubectl apply -f -
    """
    request = _make_request("cluster", flags)
    gpus = request.sizes.workers if flags["array_backend"] == "cupy" else 0
    documents = tenant_manifests(Tenant(name, runs, user, gpus), request.sizes)
    comment = f"tenant {name}, with room for this run, {runs} at a time\n{request.forecast}"
    click.echo(to_yaml(documents, comment), nl=False)


@deploy_command.command("s3-policy", **HELP_SETTINGS)
@click.argument("name")
@click.option("--store", required=True, help="s3:// URL of the folder for the runs of NAME")
@click.option(
    "--data", multiple=True, help="s3:// URL of a folder that NAME may read; can be repeated"
)
@click.option(
    "--server",
    type=click.Choice(["aws", "seaweedfs"]),
    default="aws",
    show_default=True,
    help="kind of store",
)
def s3_policy_command(name: str, store: str, data: tuple[str, ...], server: str) -> None:
    """Print what the key of the user NAME may do in an S3 store, as JSON.

    For AWS, it is a policy of a user or role. For SeaweedFS, it is an identity of the server's
    configuration, without the key.

    \b
    Example:
      rescnet deploy s3-policy ada --store s3://bucket/runs/ada --data s3://bucket/data
    """
    found = aws_policy(store, data)
    if server == "seaweedfs":
        found = seaweedfs_identity(name, store, data)
    click.echo(json.dumps(found, indent=2))


@dataclass(frozen=True, slots=True)
class _Request:
    """What the options ask for.

    Attributes
    ----------
    deployment : Deployment
        The deployment.
    forecast : Forecast
        Plan and estimates of the run.
    sizes : Sizes
        Resources of the pods.
    flags : list of str
        Options of `rescnet train` in the job.
    node : Node
        Resources of a node.
    """

    deployment: Deployment
    forecast: Forecast
    sizes: Sizes
    flags: list[str]
    node: Node

    def manifests(self, deployment: Deployment) -> list[dict[str, Any]]:
        """Return the manifests of a deployment with these sizes."""
        return manifests(deployment, self.sizes, self.flags)

    def comment(self) -> str:
        """Return the comment at the top of the manifests."""
        kind, name = self.deployment.kind, self.deployment.name
        text = f"{kind} {name}, for Kubernetes with the Dask operator\n"
        return text + str(self.forecast) + self.hint()

    def hint(self) -> str:
        """Return the options that give runs on a long-lived cluster this plan.

        Such a cluster may have only one worker, or none, when they start. A job has the options.
        """
        if self.deployment.kind == "job":
            return ""
        return f"\nfor this plan, however many workers there are at first: {' '.join(self.flags)}"


def _make_request(kind: str, flags: dict[str, Any]) -> _Request:
    """Return the deployment, plan and sizes that the options ask for."""
    deployment = Deployment(
        kind, data=flags["data"], store=flags.get("store"), **_select_fields(flags)
    )
    training = None if flags["images"] else _open_data(flags)
    size = _resolve_size(flags, training)
    spec, run_spec, augment = resolve_specs(
        flags["preset"], flags["config"], flags["data"] or "", flags, size
    )
    if training is None:
        problem = make_problem(flags["images"], size[2], spec, run_spec, augment)
    else:
        spec.check_images(*training.image_shape)
        augment.check_images(*training.image_shape)
        problem = Problem.of(replace(training, augment=augment), run_spec)
    node = Node(
        parse_size("--node-memory", flags["node_memory"]),
        _parse_cpus("--node-cpus", flags["node_cpus"]),
        parse_size("--node-storage", flags["node_storage"]),
    )
    forecast, sizes = compute_sizes(
        problem,
        spec,
        run_spec,
        flags["workers"],
        flags["threads"],
        parse_size("--memory", flags["memory"]),
        node,
        resolve_gpu_memory(run_spec, flags["gpu_memory"]),
    )
    train_flags = training_flags(spec, run_spec, augment, forecast.plan)
    return _Request(deployment, forecast, sizes, train_flags, node)


def _select_fields(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that are fields of a deployment, except kind, data and store."""
    names = {field.name for field in fields(Deployment)} - {"kind", "data", "store"}
    return {name: value for name, value in flags.items() if name in names}


def _resolve_size(flags: dict[str, Any], training: TrainingSet | None) -> DataSize:
    """Return the size of the training data or, without them, of the data that options describe."""
    if training is not None:
        return training.size
    number, *shape = parse_shape(flags["images"])
    classes = flags["classes"] or PRESET_CLASSES.get(flags["preset"])
    if classes is None:
        raise SpecError(
            f"--images {flags['images']} is given without a number of classes. Add --classes."
        )
    return (shape[0], shape[1], shape[2]), number, classes


def _open_data(flags: dict[str, Any]) -> TrainingSet:
    """Return the data that the options name."""
    if not flags["data"]:
        raise SpecError(
            "The number of images is not given. Add --images, such as 50000x32x32x3, and --classes."
        )
    try:
        return training_set(flags["data"], None, own_validation=flags["validation"] is None)
    except RescnetError as error:
        raise SpecError(
            f"--data cannot be read from here ({str(error).rstrip('.')}). Describe it with "
            "--images, such as 50000x32x32x3, and --classes."
        ) from None


def _parse_cpus(option: str, amount: str | None) -> float | None:
    """Return a number of CPUs, given as 7.9 or in thousandths as 7910m."""
    if amount is None:
        return None
    try:
        cpus = float(amount[:-1]) / 1000 if amount.endswith("m") else float(amount)
    except ValueError:
        cpus = 0
    if not 0 < cpus < 10_000:
        raise SpecError(f"{option} {amount} is not a number of CPUs. Give it as 7.9 or 7910m.")
    return cpus
