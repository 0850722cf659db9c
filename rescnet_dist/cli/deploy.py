"""The commands `rescnet deploy`: manifests for Kubernetes from a spec and its plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from rescnet_dist.cli.estimate import GPU_MEMORY_OPTION, gpu_memory_of, problem_of
from rescnet_dist.cli.options import SHOW, resolve_specs, size_of, spec_options
from rescnet_dist.data import training_set
from rescnet_dist.deploy import (
    HUB_COMMENTS,
    KINDS,
    OVERLAYS,
    Deployment,
    Node,
    Sizes,
    compute_sizes,
    hub_values,
    kustomize_files,
    manifests,
    to_yaml,
    training_flags,
    with_overlay,
)
from rescnet_dist.errors import RescnetError, SpecError, suggest_name
from rescnet_dist.flags import option_name
from rescnet_dist.planning import Forecast, Problem
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec

USUAL = Deployment("cluster")
CLASSES = {"digits": 10, "mnist": 10, "cifar10": 10, "cifar100": 100, "tiny-imagenet": 200}


@click.group("deploy", **SHOW)
def deploy_command() -> None:
    """Manifests for Kubernetes, for the Dask operator, sized by the plan of a run; and values for a
    JupyterHub.

    \b
    Example:
      rescnet deploy render --preset cifar10 --images 50000x32x32x3 --classes 10 --workers 32 \\
          --data s3://bucket/cifar10.zarr --store s3://bucket/runs/1 | kubectl apply -f -
    """


def what_options(*without: str) -> Callable[[Any], Any]:
    """A decorator that adds the options of what is deployed, but some."""
    options: dict[str, Callable[[Any], Any]] = {
        "data": click.option("--data", help="s3:// URL of the data, or digits"),
        "store": click.option("--store", help="s3:// URL of the run store"),
        "preset": click.option("--preset", help="network to start from; see `rescnet presets`"),
        "config": click.option("--config", help="TOML file with a [network] and a [run] table"),
        "images": click.option(
            "--images", metavar="NxHxWxD", help="such as 50000x32x32x3  [default: a look at DATA]"
        ),
        "classes": click.option(
            "--classes", type=click.IntRange(2), help="[default: the preset's, or a look at DATA]"
        ),
        "workers": click.option(
            "--workers", type=click.IntRange(1), required=True, help="pods of workers"
        ),
        "threads": click.option("--threads", type=click.IntRange(1), default=1, show_default=True),
        "memory": click.option(
            "--memory", help="of each worker for Dask  [default: what the plan takes]"
        ),
        "gpu_memory": GPU_MEMORY_OPTION,
        "node_memory": click.option(
            "--node-memory", help="that a node has to give beside DaemonSets, such as 60GiB"
        ),
        "node_cpus": click.option("--node-cpus", help="likewise, such as 7.9 or 7910m"),
        "node_storage": click.option("--node-storage", help="likewise, ephemeral, such as 90GiB"),
    }
    texts = {
        "name": "of all objects", "namespace": "they are in", "image": "name:version",
        "secret": "Secret with S3 keys", "service_account": "with rights to the buckets, instead",
        "tls_secret": "Secret with ca.crt, tls.crt, tls.key", "endpoint": "of another S3 server",
        "notice": "seconds from the notice of an eviction to the end of a machine",
        "operator": "namespace of the Dask operator",
    }  # fmt: skip
    for field in fields(Deployment):
        if field.name in texts:
            usual = getattr(USUAL, field.name)
            flag = option_name(field.name)
            kind = int if isinstance(usual, int) else str
            options[field.name] = click.option(
                flag, field.name, type=kind, help=texts[field.name], default=usual,
                show_default=usual is not None,
            )  # fmt: skip

    def decorated(command: Any) -> Any:
        for spec in (AugmentSpec, RunSpec, NetworkSpec):  # the last is shown first
            command = spec_options(spec)(command)
        for name in reversed(options):
            if name not in without:
                command = options[name](command)
        return command

    return decorated


@deploy_command.command("render", **SHOW)
@click.option("--kind", default="job", show_default=True, help=" or ".join(KINDS))
@click.option("--overlay", help=", ".join(OVERLAYS))
@what_options()
def render_command(kind: str, overlay: str | None, **flags: Any) -> None:
    """Print manifests: a job that trains and has a cluster of its own, or a long-lived cluster.

    Memory and processors come from the plan of the run, which the job is held to. What would not
    fit is refused. Secrets are referred to by name, and never printed.

    \b
    Example:
      rescnet deploy render --preset cifar10 --images 50000x32x32x3 --workers 32 \\
          --data s3://bucket/cifar10.zarr --store s3://bucket/runs/1 --overlay cloud-spot
    """
    if overlay is not None and overlay not in OVERLAYS:
        raise SpecError(f"unknown overlay {overlay!r}: {suggest_name(overlay, OVERLAYS)}")
    found = _asked(kind, flags)
    documents = with_overlay(found.manifests(found.what), overlay)
    click.echo(to_yaml(documents, found.comment()), nl=False)


@deploy_command.command("kustomize", **SHOW)
@click.argument("folder")
@click.option("--cluster-name", default="rescnet-cluster", show_default=True)
@what_options()
def kustomize_command(folder: str, cluster_name: str, **flags: Any) -> None:
    """Write a kustomize tree into FOLDER: bases of a job and of a long-lived cluster, and overlays
    for one machine, for spot nodes and for GPU nodes.

    \b
    Example:
      rescnet deploy kustomize deploy/kubernetes --preset cifar10 --images 50000x32x32x3 \\
          --workers 32 --data s3://bucket/cifar10.zarr --store s3://bucket/runs/1
      kubectl apply -k deploy/kubernetes/overlays/cloud-spot/job
    """
    if cluster_name == flags["name"]:
        raise SpecError(f"--cluster-name and --name are both {cluster_name}: give two names")
    job = _asked("job", dict(flags))
    cluster = Deployment("cluster", **_named(flags) | {"name": cluster_name})
    files = kustomize_files({"job": job.manifests(job.what), "cluster": job.manifests(cluster)})
    for path, text in files.items():
        target = Path(folder, path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        except OSError as error:
            raise RescnetError(f"{target} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {len(files)} files into {folder}", err=True)


@deploy_command.command("hub", **SHOW)
@what_options("store", "name", "namespace", "tls_secret", "notice", "operator")
def hub_command(**flags: Any) -> None:
    """Print values for the public Helm chart daskhub: a JupyterHub whose notebooks have this
    package, and a Dask gateway whose clusters are as large as the plan of a run wants them.

    \b
    Example:
      rescnet deploy hub --preset cifar10 --images 50000x32x32x3 --workers 32 --threads 4 > hub.yaml
      helm upgrade --install hub dask/daskhub -f hub.yaml
    """
    found = _asked("cluster", flags)
    values = hub_values(found.what, found.sizes, found.node)
    comment = f"values of the Helm chart daskhub\n{found.forecast}{found.hint()}"
    click.echo(to_yaml([values], comment, HUB_COMMENTS), nl=False)


# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the options ask for: a deployment, its plan, sizes, and the options of the training."""

    what: Deployment
    forecast: Forecast
    sizes: Sizes
    flags: list[str]
    node: Node

    def manifests(self, what: Deployment) -> list[dict[str, Any]]:
        """The manifests of a deployment of these sizes."""
        return manifests(what, self.sizes, self.flags)

    def comment(self) -> str:
        """What it is, to stand on top of it."""
        text = f"{self.what.kind} {self.what.name}, for Kubernetes with the Dask operator\n"
        return text + str(self.forecast) + self.hint()

    def hint(self) -> str:
        """What makes runs on a cluster keep to this plan: it may have but one worker, or none,
        when they begin. A job is told so already."""
        if self.what.kind == "job":
            return ""
        return f"\nfor this plan, however many workers there are at first: {' '.join(self.flags)}"


def _asked(kind: str, flags: dict[str, Any]) -> _Asked:
    what = Deployment(kind, data=flags["data"], store=flags.get("store"), **_named(flags))
    spec, run_spec, augment = resolve_specs(
        flags["preset"], flags["config"], flags["data"] or "", flags
    )
    problem = _problem(flags, spec, run_spec, augment)
    memory = size_of("--memory", flags["memory"])
    node = Node(
        size_of("--node-memory", flags["node_memory"]),
        _processors("--node-cpus", flags["node_cpus"]),
        size_of("--node-storage", flags["node_storage"]),
    )
    found, sizes = compute_sizes(
        problem, spec, run_spec, flags["workers"], flags["threads"], memory, node,
        gpu_memory_of(run_spec, flags["gpu_memory"]),
    )  # fmt: skip
    told = training_flags(
        spec, run_spec, augment, found.plan, held_out=flags["validation"] is not None
    )
    return _Asked(what, found, sizes, told, node)


def _named(flags: dict[str, Any]) -> dict[str, Any]:
    """The fields of a deployment among all flags, but its kind, data and store."""
    names = {field.name for field in fields(Deployment)} - {"kind", "data", "store"}
    return {name: value for name, value in flags.items() if name in names}


def _problem(
    flags: dict[str, Any], spec: NetworkSpec, run_spec: RunSpec, augment: AugmentSpec
) -> Problem:
    """The images, as the options have them, or as a look at the data shows."""
    if flags["images"]:
        classes = flags["classes"] or CLASSES.get(flags["preset"])
        if classes is None:
            raise SpecError(f"--images {flags['images']} of how many classes? Give --classes, too")
        return problem_of(flags["images"], classes, spec, run_spec, augment)
    if not flags["data"]:
        raise SpecError("how many images? Give --images, such as 50000x32x32x3, and --classes")
    try:
        training = training_set(flags["data"], None, own_validation=flags["validation"] is None)
    except RescnetError as error:
        raise SpecError(
            f"--data cannot be looked at from here ({error}): say what is there by --images, such "
            "as 50000x32x32x3, and --classes"
        ) from None
    spec.check_images(*training.image_shape)
    augment.check_images(*training.image_shape)
    return Problem.of(replace(training, augment=augment), run_spec)


def _processors(option: str, amount: str | None) -> float | None:
    """A number of processors, as 7.9 or as Kubernetes' thousandths, 7910m."""
    if amount is None:
        return None
    try:
        found = float(amount[:-1]) / 1000 if amount.endswith("m") else float(amount)
    except ValueError:
        found = 0
    if not 0 < found < 10_000:
        raise SpecError(f"{option} {amount} is no number of processors: give it as 7.9 or 7910m")
    return found
