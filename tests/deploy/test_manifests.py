"""Manifests: valid, unprivileged, and sized by the plan."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rescnet_dist.cli import main
from rescnet_dist.cli.resolve import resolve_specs
from rescnet_dist.cluster import Workers
from rescnet_dist.deploy import OVERLAYS, with_overlays
from rescnet_dist.deploy.kustomize import TREE_OVERLAYS
from rescnet_dist.deploy.sizes import POD_STEP_BYTES, WORKER_OVERHEAD_BYTES
from rescnet_dist.planning import Problem, estimate
from rescnet_dist.spec import NetworkSpec, RunSpec

pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
pytest.importorskip("dask_kubernetes", reason="needs dask-kubernetes, which has the CRDs")

import jsonschema
import kubernetes_validate
from schemas import check, crd, pods  # type: ignore[import-not-found]

TREE = Path(__file__).parents[2] / "deploy/kubernetes"
EXAMPLE = [  # options of the tree
    *("--preset", "cifar10", "--images", "50000x32x32x3", "--classes", "10", "--workers", "32"),
    *("--threads", "4", "--data", "s3://bucket/cifar10.zarr", "--name", "cifar10"),
    *("--store", "s3://bucket/runs/cifar10"),
]
ON_DIGITS = ["--data", "digits", "--store", "s3://bucket/runs/1", "--workers", "3"]
RENDERS = {
    "spot": [*EXAMPLE, "--overlay", "cloud-spot"],
    "gpu": [*EXAMPLE, "--overlay", "gpu"],
    "spot gpu": [*EXAMPLE, "--overlay", "cloud-spot", "--overlay", "gpu"],
    "cluster": [*EXAMPLE, "--kind", "cluster"],
    "local cluster": [*EXAMPLE, "--kind", "cluster", "--overlay", "local"],
    "digits": ON_DIGITS,
    "account": [*ON_DIGITS, "--service-account", "trainer", "--notice", "120"],
    "endpoint": [*ON_DIGITS, "--endpoint", "http://s3.storage:8333", "--namespace", "ml"],
    "copies": [*ON_DIGITS, "--copies", "2", "--flip", "--levels", "2,1", "--memory", "2GiB"],
}


def render(*arguments: str) -> list[dict[str, Any]]:
    """Return the manifests that `rescnet deploy render` prints."""
    done = CliRunner().invoke(main, ["deploy", "render", *arguments])
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[dict[str, Any]]]:
    """Rendered manifests by name."""
    return {name: render(*arguments) for name, arguments in RENDERS.items()}


def find_one(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the only manifest of a kind."""
    (match,) = (document for document in documents if document["kind"] == kind)
    return match


def build(folder: Path) -> list[dict[str, Any]]:
    """Build a folder with kustomize."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
    if "invalid Kustomization" in done.stderr and "components" in done.stderr:
        pytest.skip("needs kubectl 1.21 or later")
    assert done.returncode == 0, done.stderr
    assert not done.stderr  # has warnings of deprecated fields
    return list(yaml.safe_load_all(done.stdout))


FOLDERS = [
    "base",
    *(f"overlays/{overlay}{part}" for overlay in TREE_OVERLAYS for part in ("", "/job")),
]


# schemas ----------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RENDERS)
def test_renders_are_valid(rendered: dict[str, list[dict[str, Any]]], name: str) -> None:
    """By the schemas of Kubernetes and of the operator's CRDs, without unknown fields."""
    assert rendered[name]
    for document in rendered[name]:
        check(document)


@pytest.mark.parametrize("path", sorted(TREE.glob("base/*/*.yaml")), ids=str)
def test_base_files_are_valid(path: Path) -> None:
    """As they are, without kustomize."""
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] != "Kustomization":
            check(document)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_builds_valid_manifests(folder: str) -> None:
    """Each base and overlay."""
    documents = build(TREE / folder)
    assert {"NetworkPolicy", "PodDisruptionBudget"} < {d["kind"] for d in documents}
    for document in documents:
        check(document)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("DaskJob", ("spec", "job", "spec", "restartpolicy"), "Never"),
        ("DaskJob", ("spec", "cluster", "spec", "worker", "replica"), 3),
        ("DaskJob", ("spec", "cluster", "spec", "worker", "replicas"), "3"),
        ("DaskJob", ("spec", "cluster", "spec", "worker", "spec", "toleration"), []),
        ("DaskJob", ("spec", "cluster", "spec", "scheduler", "services"), {}),
        ("DaskJob", ("jobs",), {}),
        ("NetworkPolicy", ("spec", "podselector"), {}),
        ("PodDisruptionBudget", ("spec", "minimumAvailable"), 1),
        ("ServiceAccount", ("automountServiceAccountTokens",), False),
    ],
)
def test_misspelled_field_raises(kind: str, path: tuple[str, ...], value: Any) -> None:
    """A check of the schemas themselves."""
    document = copy.deepcopy(next(d for d in render(*ON_DIGITS) if d["kind"] == kind))
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check(document)


def test_misspelled_container_field_raises_in_both_schemas() -> None:
    """In the CRD's schema alone, and in the pod's alone."""
    document = find_one(render(*ON_DIGITS), "DaskJob")
    worker = document["spec"]["cluster"]["spec"]["worker"]["spec"]["containers"][0]
    worker["securityContext"]["readOnlyRootFileSystem"] = True
    with pytest.raises(jsonschema.ValidationError, match="readOnlyRootFileSystem"):
        jsonschema.Draft202012Validator(crd("DaskJob")).validate(document)
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFileSystem"):
        check(document)


def test_operator_makes_valid_objects() -> None:
    """By its own functions: Deployments, a Pod and a worker group.

    The scheduler's address stays ours, as the operator's would not be encrypted.
    """
    from dask_kubernetes.operator.controller import controller

    job = find_one(render(*EXAMPLE, "--overlay", "cloud-spot"), "DaskJob")
    spec, labels = job["spec"]["cluster"]["spec"], job["metadata"]["labels"]
    worker = controller.build_worker_deployment_spec(
        "cifar10-default", "rescnet", "cifar10", "0123456789", spec["worker"]["spec"], {}, labels
    )
    scheduler = controller.build_scheduler_deployment_spec(
        "cifar10", spec["scheduler"]["spec"], {}, labels
    )
    service = controller.build_scheduler_service_spec(
        "cifar10", spec["scheduler"]["service"], {}, labels
    )
    runner = controller.build_job_pod_spec(
        "cifar10", "cifar10", "rescnet", job["spec"]["job"]["spec"], {}, labels
    )
    for document in (worker, scheduler, service, runner):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    group = controller.build_default_worker_group_spec("cifar10", spec["worker"], {}, labels)
    check(group)
    check(controller.build_cluster_spec("cifar10", spec["worker"], spec["scheduler"], {}, labels))
    assert len(worker["metadata"]["name"]) <= 63
    for pod in (worker["spec"]["template"]["spec"], runner["spec"]):
        variables = {v["name"]: v.get("value") for v in pod["containers"][0]["env"]}
        assert variables["DASK_SCHEDULER_ADDRESS"] == "tls://cifar10-scheduler:8786"
    assert service["metadata"]["name"] == "cifar10-scheduler"


# generated files---------------------------------------------------------------------------------


def test_tree_is_up_to_date(tmp_path: Path) -> None:
    """It equals the output of `rescnet deploy kustomize` with the example's options."""
    done = CliRunner().invoke(main, ["deploy", "kustomize", str(tmp_path), *EXAMPLE])
    assert done.exit_code == 0, done.output

    def files(folder: Path) -> dict[str, str]:
        return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}

    assert files(TREE) == files(tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("overlay", TREE_OVERLAYS)
@pytest.mark.parametrize("kind", ["job", "cluster"])
def test_kustomize_and_render_agree(overlay: str, kind: str) -> None:
    """The same overlays, built by kustomize and rendered."""

    def by_name(documents: list[dict[str, Any]]) -> dict[Any, Any]:
        return {(d["kind"], d["metadata"]["name"]): d for d in documents}

    name = ["--name", "rescnet-cluster"] if kind == "cluster" else []
    options = [word for part in TREE_OVERLAYS[overlay] for word in ("--overlay", part)]
    expected = render(*EXAMPLE, "--kind", kind, *options, *name)
    assert by_name(build(TREE / f"overlays/{overlay}/{kind}")) == by_name(expected)


def test_overlay_does_not_change_its_input() -> None:
    """And changes requests, not limits."""
    before = render(*ON_DIGITS)
    original = copy.deepcopy(before)
    after = with_overlays(before, ["local"])
    assert before == original
    resources = dict(pods(find_one(after, "DaskJob")))["scheduler"]["containers"][0]["resources"]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("100m", "1")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["job", "cluster"])
@pytest.mark.parametrize("overlays", [("cloud-spot", "gpu"), ("gpu", "cloud-spot", "gpu")])
def test_overlays_combine(kind: str, overlays: tuple[str, ...]) -> None:
    """In any order, and each once: a worker tolerates what it tolerates with each alone."""
    base = [*ON_DIGITS, "--kind", kind]

    def worker(*names: str) -> dict[str, Any]:
        options = [word for name in names for word in ("--overlay", name)]
        document = render(*base, *options)[-1 if kind == "job" else -2]
        return dict(pods(document))["worker"]

    def keys(pod: dict[str, Any]) -> list[str]:
        return [toleration["key"] for toleration in pod["tolerations"]]

    plain, both = worker(), worker(*overlays)
    added = [key for name in OVERLAYS for key in keys(worker(name))[len(keys(plain)) :]]
    assert "nvidia.com/gpu" in added
    assert "karpenter.sh/capacity-type" in added
    assert sorted(keys(both)) == sorted([*keys(plain), *added])
    assert both["affinity"] == worker("cloud-spot")["affinity"]
    assert both["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_pods_leave_lost_nodes_soon_and_spread() -> None:
    """But not the driver, as the operator starts no other one."""
    for part, pod in pods(find_one(render(*ON_DIGITS), "DaskJob")):
        seconds = {t["key"]: t["tolerationSeconds"] for t in pod.get("tolerations", ())}
        taints = ("not-ready", "unreachable")
        expected = {} if part == "driver" else {f"node.kubernetes.io/{t}": 30 for t in taints}
        assert seconds == expected, part
        assert ("topologySpreadConstraints" in pod) == (part == "worker")
        if part == "worker":
            (spread,) = pod["topologySpreadConstraints"]
            assert spread["whenUnsatisfiable"] == "ScheduleAnyway"  # one node is enough
            labels = {"dask.org/cluster-name": "rescnet", "dask.org/component": "worker"}
            assert spread["labelSelector"] == {"matchLabels": labels}


def test_priority_classes() -> None:
    """Of scheduler and driver, and another one of the workers; by default none."""
    classes = ("--priority-class", "high", "--worker-priority-class", "low")
    for part, pod in pods(find_one(render(*ON_DIGITS, *classes), "DaskJob")):
        assert pod["priorityClassName"] == ("low" if part == "worker" else "high")
    for _, pod in pods(find_one(render(*ON_DIGITS), "DaskJob")):
        assert "priorityClassName" not in pod


# security ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RENDERS)
def test_pods_are_unprivileged(rendered: dict[str, list[dict[str, Any]]], name: str) -> None:
    """All pods, with each overlay."""
    found = [pod for document in rendered[name] for pod in pods(document)]
    assert len(found) == (2 if "cluster" in name else 3)
    for part, pod in found:
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all({"emptyDir", "secret"} & volume.keys() for volume in pod["volumes"])
        (container,) = pod["containers"]
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["privileged"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        for amounts in container["resources"].values():
            assert {"cpu", "memory", "ephemeral-storage"} <= amounts.keys()
        writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
        assert writable == {"/tmp"} | ({"/dask-worker-space"} if part == "worker" else set())
        assert "livenessProbe" in container or part == "driver"


def test_encryption_threads_and_malloc_are_set(
    rendered: dict[str, list[dict[str, Any]]],
) -> None:
    """In every container; the kernel cache is in a writable folder."""
    for documents in rendered.values():
        for _, pod in (pod for document in documents for pod in pods(document)):
            variables = {v["name"]: v.get("value") for v in pod["containers"][0]["env"]}
            assert variables["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "true"
            for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
                assert variables[f"{library}_NUM_THREADS"] == "1"
            assert variables["MALLOC_TRIM_THRESHOLD_"] == "65536"
            assert variables["NUMBA_CACHE_DIR"].startswith("/tmp/")
            assert variables.get("DASK_SCHEDULER_ADDRESS", "tls://").startswith("tls://")


def test_credentials_are_references() -> None:
    """In the driver and the workers; none with a service account."""
    job = find_one(render(*ON_DIGITS, "--secret", "keys"), "DaskJob")
    for part, pod in pods(job):
        references = [v["valueFrom"] for v in pod["containers"][0]["env"] if "valueFrom" in v]
        sources = [source["secretKeyRef"] for source in references if "secretKeyRef" in source]
        assert {source["name"] for source in sources} == (
            set() if part == "scheduler" else {"keys"}
        )
    documents = render(*ON_DIGITS, "--service-account", "trainer")
    assert "ServiceAccount" not in {document["kind"] for document in documents}
    for _, pod in pods(find_one(documents, "DaskJob")):
        assert pod["serviceAccountName"] == "trainer"
        assert not any("secretKeyRef" in str(v) for v in pod["containers"][0]["env"])


def test_network_policies() -> None:
    """Deny by default; the scheduler cannot reach the store, the driver accepts no connection."""
    documents = render(*ON_DIGITS, "--endpoint", "http://s3.storage:8333")
    policies = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "NetworkPolicy"}
    assert policies["rescnet-deny"]["ingress"] == policies["rescnet-deny"]["egress"] == []
    assert policies["rescnet-job-runner"]["ingress"] == []

    def ports(rules: list[Any]) -> set[int]:
        return {port["port"] for rule in rules for port in rule["ports"]}

    assert ports(policies["rescnet-scheduler"]["egress"]) == {53, 8788, 8789}
    assert ports(policies["rescnet-worker"]["egress"]) == {53, 80, 8786, 8789, 8333}
    assert ports(policies["rescnet-job-runner"]["egress"]) == {53, 80, 8786, 8333}
    blocks = [
        peer["ipBlock"]["cidr"]
        for policy in policies.values()
        for rule in policy["egress"]
        for peer in rule.get("to", ())
        if "ipBlock" in peer
    ]
    assert set(blocks) == {"169.254.170.23/32"}  # never 169.254.169.254, of the node
    assert all(set(spec["policyTypes"]) == {"Ingress", "Egress"} for spec in policies.values())


# spot -------------------------------------------------------------------------------------------


def test_only_workers_run_on_spot_nodes() -> None:
    """They retire within the notice; scheduler and driver avoid spot nodes."""
    job = find_one(render(*ON_DIGITS, "--overlay", "cloud-spot", "--notice", "120"), "DaskJob")
    for part, pod in pods(job):
        affinity = pod["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        operators = {e["operator"] for term in terms for e in term["matchExpressions"]}
        assert operators == ({"In"} if part == "worker" else {"NotIn"})
        keys = {toleration["key"] for toleration in pod.get("tolerations", ())}
        assert ("karpenter.sh/capacity-type" in keys) == (part == "worker")
        if part == "worker":
            assert pod["terminationGracePeriodSeconds"] == 115
            (container,) = pod["containers"]
            assert container["lifecycle"]["preStop"]["exec"]["command"][-1].endswith("retire")
            variables = {v["name"]: v.get("value") for v in container["env"]}
            assert variables["RESCNET_LEAVE_SECONDS"] == "110"
            assert {"name": "RESCNET_WORKER_NAME"}.items() <= container["env"][-1].items()


# sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            ("--node-cpus", "3920m"),
            "nodes with 3.92 allocatable processors. Use --threads of at most 3",
        ),
        (("--node-storage", "20GiB"), "MiB of ephemeral storage, to spill"),
        (("--node-cpus", "four"), "--node-cpus four is not a number of CPUs"),
    ],
)
def test_pods_that_fit_no_node_raise(node: tuple[str, str], message: str) -> None:
    """By the allocatable resources of a node, which are less than its nominal ones."""
    failed = CliRunner().invoke(main, ["deploy", "render", *EXAMPLE, *node])
    assert failed.exit_code == 2
    assert message in failed.output
    large = ("--node-cpus", "7.9", "--node-storage", "90GiB", "--node-memory", "30GiB")
    assert CliRunner().invoke(main, ["deploy", "render", *EXAMPLE, *large]).exit_code == 0


def test_given_validation_fraction_is_passed_on() -> None:
    """Even the default one: it takes precedence over a dataset's validation images."""
    for given in ([], ["--validation", "0.1"]):
        job = find_one(render(*ON_DIGITS, *given), "DaskJob")
        arguments = job["spec"]["job"]["spec"]["containers"][0]["args"]
        assert ("--validation" in arguments) == bool(given)


@pytest.mark.parametrize("memory", [None, "12GiB", "40GiB"])
def test_sizes_match_the_plan(memory: str | None) -> None:
    """Requests, limits and Dask's memory limit; and the job has the options of the plan."""
    given = ["--memory", memory] if memory else []
    job = find_one(render(*EXAMPLE, *given), "DaskJob")
    worker = dict(pods(job))["worker"]["containers"][0]
    arguments = worker["args"]
    limit = int(arguments[arguments.index("--memory-limit") + 1])
    workers = Workers(32, 128, 4, 4, limit)
    problem = Problem(50_000, (32, 32, 3), 10)
    spec = NetworkSpec.preset("cifar10")
    found = estimate(problem, spec, RunSpec(validation=0.1), workers, None)
    assert found.peak_memory <= workers.share * limit
    if memory is None:  # and not much more than needed
        assert limit <= 1.06 * found.peak_memory / workers.share + POD_STEP_BYTES
    else:
        assert limit == int(memory.removesuffix("GiB")) * 2**30
    resources = worker["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["memory"] == f"{(limit + WORKER_OVERHEAD_BYTES) // 2**20}Mi"
    assert resources["limits"]["cpu"] == arguments[arguments.index("--nthreads") + 1] == "4"
    assert job["spec"]["cluster"]["spec"]["worker"]["replicas"] == 32
    command = dict(pods(job))["driver"]["containers"][0]["args"]
    for name in ("chunk_images", "accumulators", "solve_threads", "tile_features"):
        flag, value = f"--{name.replace('_', '-')}", getattr(found.plan, name)
        assert (flag in command) == (value is not None)
        assert value is None or command[command.index(flag) + 1] == str(value)


def test_small_node_gives_a_tiled_plan() -> None:
    """The scatter matrix is cut into tiles, and the pod has the size of that plan."""
    job = find_one(render(*EXAMPLE, "--node-memory", "12GiB", "--node-cpus", "4"), "DaskJob")
    pod = dict(pods(job))["worker"]["containers"][0]
    assert 7 * 1024 < int(pod["resources"]["limits"]["memory"].removesuffix("Mi")) < 9 * 1024
    assert "--tile-features" in dict(pods(job))["driver"]["containers"][0]["args"]


MEMORY_ADVICE = re.compile(r"--node-memory of at least ([\d,]+) MiB\.")


def test_advised_memory_of_a_node_is_enough() -> None:
    """The first message names the least that works, and the warning there what has a margin."""
    command = ["deploy", "render", *EXAMPLE, "--node-memory"]
    failed = CliRunner().invoke(main, [*command, "1GiB"])
    assert failed.exit_code == 2
    assert "--node-memory of 1,024 MiB is too small" in failed.output
    assert "256 MiB for other processes in a worker's pod, 768 MiB are left" in failed.output
    least = MEMORY_ADVICE.findall(failed.output)[0].replace(",", "")
    barely = CliRunner().invoke(main, [*command, f"{least}MiB"])
    assert barely.exit_code == 0
    assert "is barely enough" in barely.stderr
    roomy = MEMORY_ADVICE.findall(barely.stderr)[0].replace(",", "")
    assert int(roomy) > int(least)
    enough = CliRunner().invoke(main, [*command, f"{roomy}MiB"])
    assert (enough.exit_code, enough.stderr) == (0, "")
    slightly_less = CliRunner().invoke(main, [*command, f"{int(roomy) - 64}MiB"])
    assert "is barely enough" in slightly_less.stderr


def test_job_options_give_the_same_specs(tmp_path: Path) -> None:
    """Also if the specs came from a file."""
    config = tmp_path / "network.toml"
    config.write_text(
        "[network]\nfilters = 9\nlevels = [2, 1]\npower = true\npatience = 3\n[run]\nseed = 5\n"
        "[augment]\ncopies = 1\nflip = true\n"
    )
    (_, driver), *_ = pods(find_one(render(*ON_DIGITS, "--config", str(config)), "DaskJob"))
    command = [*driver["containers"][0]["command"], *driver["containers"][0]["args"]]
    start = ["rescnet", "retry", "--tries", "6", "--log-format", "json"]
    start += ["train", "digits", "--store", "s3://bucket/runs/1", "--or-resume"]
    assert command[: len(start)] == start
    train = main.get_command(None, "train")  # type: ignore[arg-type]
    assert train
    flags = train.make_context("train", command[command.index("train") + 1 :]).params
    preset, data = flags.pop("preset"), flags.pop("data")
    given = resolve_specs(preset, None, data, flags)
    expected = resolve_specs(None, str(config), "digits", {})
    assert given[0] == expected[0]
    assert given[2] == expected[2]
    assert (given[1].seed, given[1].validation) == (5, None)
    assert given[1].chunk_images


def test_cluster_scales_between_one_and_all() -> None:
    """And its scheduler has the HTTP route of the operator's autoscaler."""
    documents = render(*EXAMPLE, "--kind", "cluster")
    assert find_one(documents, "DaskAutoscaler")["spec"] == {
        "cluster": "cifar10",
        "minimum": 1,
        "maximum": 32,
    }
    cluster = find_one(documents, "DaskCluster")
    assert cluster["spec"]["worker"]["replicas"] == 1
    scheduler = cluster["spec"]["scheduler"]["spec"]["containers"][0]
    routes = {v["name"]: v.get("value") for v in scheduler["env"]}
    assert "scheduler.api" in routes["DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES"]
    worker = cluster["spec"]["worker"]["spec"]["containers"][0]
    assert worker["readinessProbe"]["httpGet"]["path"] == "/ready"  # once the kernels are loaded
    routes = {v["name"]: v.get("value") for v in worker["env"]}
    assert "rescnet_dist.cluster.ready" in routes["DASK_DISTRIBUTED__WORKER__HTTP__ROUTES"]


def test_nothing_runs_forever() -> None:
    """A job has limited tries and a deadline, and an idle cluster ends."""
    options = ("--tries", "3", "--deadline", "7200", "--idle-timeout", "600")
    driver = dict(pods(find_one(render(*ON_DIGITS, *options), "DaskJob")))["driver"]
    assert driver["restartPolicy"] == "Never"  # the operator ends the cluster of a failed pod
    assert driver["activeDeadlineSeconds"] == 7200
    assert driver["containers"][0]["args"][:2] == ["--tries", "3"]
    cluster = find_one(render(*EXAMPLE, "--kind", "cluster", *options), "DaskCluster")
    assert cluster["spec"]["idleTimeout"] == 600
    default = find_one(render(*EXAMPLE, "--kind", "cluster"), "DaskCluster")
    assert default["spec"]["idleTimeout"] == 3600


@pytest.mark.slow
def test_commands_exist() -> None:
    """The scripts of the operator's defaults do not exist in recent versions of Dask."""
    for part, pod in pods(find_one(render(*ON_DIGITS), "DaskJob")):
        command = pod["containers"][0]["command"]
        assert (
            command
            == {
                "driver": ["rescnet", "retry"],
                "scheduler": ["dask", "scheduler"],
                "worker": ["dask", "worker"],
            }[part]
        )
        words = command[1:]
        if part == "driver":
            words = [*words, "train"]  # whose options follow those of the first command
        program = "rescnet_dist" if command[0] == "rescnet" else command[0]
        done = subprocess.run(
            [sys.executable, "-m", program, *words, "--help"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        flags = [a for a in pod["containers"][0]["args"] if a.startswith("--") and a != "--tries"]
        assert all(flag in done.stdout for flag in flags), flags


# bad input --------------------------------------------------------------------------------------


SECRET = "AKIA-a-secret"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--memory", "300MiB"], "MiB of memory per worker"),
        (["--memory", "much"], "--memory much is not a size of memory of 64 MiB or more"),
        (["--memory", "8GiB", "--node-memory", "8GiB"], "does not fit nodes with 8,192 MiB"),
        (["--node-memory", "100MiB"], "0 MiB are left for Dask"),
        (["--node-memory", "512MiB"], "--node-memory of 512 MiB is too small: without 256 MiB"),
        (["--threads", "8", "--node-cpus", "4"], "Use --threads of at most 4, or larger nodes"),
        (["--workers", "0"], "0 is not in the range x>=1"),
        (["--overlay", "gpu", "--overlay", "cloud-spt"], "Did you mean 'cloud-spot'?"),
        (["--kind", "jobs"], "Did you mean 'job'?"),
        (["--name", "My_Run"], "--name 'My_Run' is not a Kubernetes name"),
        (["--name", "a" * 41], "Use at most 40 lowercase letters"),
        (["--namespace", "-ml"], "--namespace '-ml' is not a Kubernetes name"),
        (["--secret", "Keys"], "--secret 'Keys' is not a Kubernetes name"),
        (["--image", "rescnet-dist"], "--image rescnet-dist does not name one version"),
        (["--image", "rescnet-dist:latest"], "does not name one version"),
        (["--data", f"s3://key:{SECRET}@bucket/a.zarr"], "--data s3://***@bucket/a.zarr contains"),
        (["--store", f"s3://bucket/run?secret={SECRET}"], "contains credentials"),
        (["--endpoint", f"https://me:{SECRET}@host"], "--endpoint https://***@host contains"),
        (["--endpoint", "host:1"], "Use the form https://host:port"),
        (["--endpoint", "http://host:one"], "Use the form https://host:port"),
        (["--store", "runs/1"], "--store runs/1 cannot be reached from every pod"),
        (["--store", "s3://bucket"], "Use an s3://bucket/path URL"),
        (["--data", "photos/"], "--data photos/ cannot be reached from every pod"),
        (
            ["--notice", "14"],
            "--notice 14 s is too short for a worker to hand over its data. Use at least 15 s",
        ),
        (["--image", "Team/rescnet-dist:1"], "with a lowercase name"),
        (["--tries", "0"], "--tries 0 is too small. Use at least 1"),
        (["--idle-timeout", "-1"], "--idle-timeout -1 is too small. Use at least 0"),
        (["--store", "s3://bucket/a", "--data", "s3://bucket/a"], "are both s3://bucket/a"),
        (["--images", "9000x32x32x3"], "is given without a number of classes. Add --classes."),
        (["--image", "rescnet-dist@latest"], "does not name one version"),
        (["--images", "many", "--classes", "3"], "such as 50000x32x32x3"),
        (["--preset", "cifar"], "Unknown preset 'cifar'"),
        (["--preset", "cifar", "--images", "9000x32x32x3"], "Unknown preset 'cifar'"),
        (["--first-filter-size", "29"], "first_filter_size=29"),
    ],
)
def test_bad_options_give_one_line_error(arguments: list[str], expected: str) -> None:
    """With the value, the limit and the remedy; exit code 2, and nothing on standard output."""
    failed = CliRunner().invoke(main, ["deploy", "render", *ON_DIGITS, *arguments])
    assert failed.exit_code == 2
    assert expected in failed.output
    assert failed.stdout == ""
    assert SECRET not in failed.output
    assert failed.output.startswith("Usage") or failed.output.count("\n") == 1


def test_unreachable_data_needs_images_option() -> None:
    """If the server does not respond; and if no data are given at all."""
    unknown = ["deploy", "render", "--preset", "digits", "--workers", "2", "--store", "s3://b/r"]
    failed = CliRunner().invoke(
        main,
        [*unknown, "--data", "s3://b/d.zarr"],
        env={
            "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_MAX_ATTEMPTS": "1",
        },
    )
    assert failed.exit_code == 2
    assert "Describe it with --images" in failed.output
    assert SECRET not in failed.output
    failed = CliRunner().invoke(main, unknown)
    assert failed.exit_code == 2
    assert "--data is missing. Use an s3:// URL or 'digits'" in failed.output


def test_tree_over_a_file_raises(tmp_path: Path) -> None:
    """With the path; and equal names raise, too."""
    (tmp_path / "base").write_text("in the way")
    failed = CliRunner().invoke(main, ["deploy", "kustomize", str(tmp_path), *EXAMPLE])
    assert failed.exit_code == 2
    assert "cannot be written" in failed.output
    named = ["--cluster-name", "cifar10"]
    failed = CliRunner().invoke(main, ["deploy", "kustomize", str(tmp_path), *EXAMPLE, *named])
    assert "Give two names" in failed.output


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), None),
        (("--overlay", "gpu"), "warning: The overlay gpu gives workers a GPU each"),
        (("--array-backend", "cupy", "--gpu-memory", "80GiB"), "warning: The run uses GPUs"),
        (("--array-backend", "cupy", "--gpu-memory", "80GiB", "--overlay", "gpu"), None),
    ],
)
def test_gpus_are_used_where_they_are(options: tuple[str, ...], expected: str | None) -> None:
    """Else a warning says so."""
    done = CliRunner().invoke(main, ["deploy", "render", *EXAMPLE, *options])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith(expected) if expected else not done.stderr
