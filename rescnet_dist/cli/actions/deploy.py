"""What `rescnet deploy` does."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from rescnet_dist.cli.actions.estimate import (
    make_problem,
    parse_shape,
    resolve_classes,
    resolve_gpu_memory,
)
from rescnet_dist.cli.common import parse_size
from rescnet_dist.cli.resolve import DataSize, find_preset, resolve_specs
from rescnet_dist.data import TrainingSet, training_set
from rescnet_dist.deploy import (
    HUB_COMMENTS,
    OVERLAYS,
    Deployment,
    Node,
    Sizes,
    Tenant,
    compute_sizes,
    find_narrow_margin,
    hub_values,
    kustomize_files,
    manifests,
    monitoring_files,
    tenant_manifests,
    to_yaml,
    training_flags,
    with_overlays,
)
from rescnet_dist.errors import RescnetError, SpecError, suggest_name
from rescnet_dist.planning import Forecast, Problem

MAX_LISTED_FILES = 3  # in a message


def render(kind: str, overlays: tuple[str, ...], **flags: Any) -> None:
    """Print the manifests of a training job, or of a Dask cluster."""
    for overlay in overlays:
        if overlay not in OVERLAYS:
            raise SpecError(f"Unknown overlay {overlay!r}. {suggest_name(overlay, OVERLAYS)}")
    request = _make_request(kind, flags)
    if problem := _check_gpus(request, overlays):
        click.echo(f"warning: {problem}", err=True)
    documents = with_overlays(request.manifests(request.deployment), overlays)
    click.echo(to_yaml(documents, request.comment()), nl=False)


def kustomize(folder: str, overwrite: bool, cluster_name: str, **flags: Any) -> None:
    """Write a kustomize tree into FOLDER."""
    if cluster_name == flags["name"]:
        raise SpecError(f"--cluster-name and --name are both {cluster_name}. Give two names.")
    job = _make_request("job", dict(flags))
    cluster = Deployment("cluster", **_select_fields(flags) | {"name": cluster_name})
    files = kustomize_files(
        {"job": job.manifests(job.deployment), "cluster": job.manifests(cluster)}
    )
    _write_files(folder, files, overwrite=overwrite)


def _write_files(folder: str, files: dict[str, str], *, overwrite: bool) -> None:
    """Write files into a folder, and say how many.

    Without `overwrite`, write none if others are there under these names, as users may edit them.
    """
    changed = [path for path in files if _is_other_file(Path(folder, path), files[path])]
    if changed and not overwrite:
        listed = ", ".join(changed[:MAX_LISTED_FILES])
        more = f" and {len(changed) - MAX_LISTED_FILES} more" * (len(changed) > MAX_LISTED_FILES)
        raise RescnetError(
            f"{folder} has other content in {listed}{more}, from other options or edited since. "
            "Choose another folder, or replace it with --overwrite."
        )
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


def _is_other_file(path: Path, text: str) -> bool:
    """Return whether there is a file with another content than this."""
    try:
        return path.read_bytes() != text.encode()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # cannot be read, which is not what was written
        return True


def monitoring(folder: str, overwrite: bool) -> None:
    """Write a Grafana dashboard and alerts into FOLDER."""
    _write_files(folder, monitoring_files(), overwrite=overwrite)


def hub(secret_per_user: bool, **flags: Any) -> None:
    """Print values for a JupyterHub with a Dask gateway."""
    request = _make_request("cluster", flags)
    values = hub_values(
        request.deployment, request.sizes, request.node, secret_per_user=secret_per_user
    )
    comment = f"values of the Helm chart daskhub\n{request.forecast}{request.hint()}"
    click.echo(to_yaml([values], comment, HUB_COMMENTS), nl=False)


def tenant(name: str, runs: int, user: str | None, **flags: Any) -> None:
    """Print the namespace of the user or team NAME, with limits for runs of a plan."""
    request = _make_request("cluster", flags)
    gpus = request.sizes.workers if flags["array_backend"] == "cupy" else 0
    documents = tenant_manifests(Tenant(name, runs, user, gpus), request.sizes)
    comment = f"tenant {name}, with room for this run, {runs} at a time\n{request.forecast}"
    click.echo(to_yaml(documents, comment), nl=False)


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
    uses_gpu : bool
        Whether the run uses GPUs.
    """

    deployment: Deployment
    forecast: Forecast
    sizes: Sizes
    flags: list[str]
    node: Node
    uses_gpu: bool

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
    gpu_memory = resolve_gpu_memory(run_spec, flags["gpu_memory"])
    forecast, sizes = compute_sizes(
        problem,
        spec,
        run_spec,
        flags["workers"],
        flags["threads"],
        parse_size("--memory", flags["memory"]),
        node,
        gpu_memory,
    )
    if problem_of_nodes := find_narrow_margin(forecast, sizes, node):
        click.echo(f"warning: {problem_of_nodes}", err=True)
    train_flags = training_flags(spec, run_spec, augment, forecast.plan)
    return _Request(deployment, forecast, sizes, train_flags, node, gpu_memory is not None)


def _check_gpus(request: _Request, overlays: tuple[str, ...]) -> str | None:
    """Return what is wrong if a run uses GPUs and its workers have none, or the reverse."""
    if request.uses_gpu and "gpu" not in overlays:
        return "The run uses GPUs, but its workers request none. Add --overlay gpu, or patch them."
    if "gpu" in overlays and not request.uses_gpu:
        return (
            "The overlay gpu gives workers a GPU each, but the run uses none. Add --array-backend "
            "cupy and --gpu-memory SIZE."
        )
    return None


def _select_fields(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that are fields of a deployment, except kind, data and store."""
    names = {field.name for field in fields(Deployment)} - {"kind", "data", "store"}
    return {name: value for name, value in flags.items() if name in names}


def _resolve_size(flags: dict[str, Any], training: TrainingSet | None) -> DataSize:
    """Return the size of the training data or, without them, of the data that options describe."""
    if training is not None:
        return training.size
    number, *shape = parse_shape(flags["images"])
    classes = resolve_classes(flags["classes"], find_preset(flags["preset"], flags["config"]))
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
