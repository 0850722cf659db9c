"""Tenants: limits that fit a rendered run, Secrets of users, and prefixes of a real S3 server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from distributed import Client

from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec
from rescnet_dist.cli import main
from rescnet_dist.errors import StorePermissionError
from tests.conftest import S3_SECRET, clear_s3_cache, run_s3_server

pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
pytest.importorskip("dask_kubernetes", reason="needs dask-kubernetes, which has the CRDs")

from schemas import check, pods  # type: ignore[import-not-found]
from test_hub import GatewayBackend, make_config, values  # type: ignore[import-not-found]

SIZE = ("--preset", "digits", "--images", "1797x8x8x1", "--workers", "3", "--threads", "2")
URLS = ("--data", "digits", "--store", "s3://bucket/runs/ada/1")


def deploy(*arguments: str) -> str:
    """Return the output of `rescnet deploy`."""
    done = CliRunner().invoke(main, ["deploy", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def tenant(*options: str) -> dict[str, Any]:
    """Return the manifests of the tenant ada, by kind."""
    found = list(yaml.safe_load_all(deploy("tenant", "ada", *SIZE, *options)))
    assert len(found) == len({document["kind"] for document in found})
    return {document["kind"]: document for document in found}


def amount(quantity: str) -> int:
    """Return a number of CPUs, or MiB."""
    return int(quantity.removesuffix("Mi"))


def test_manifests_are_valid_and_in_the_namespace() -> None:
    """By the schemas of Kubernetes; only those with a user have a role."""
    found = tenant("--user", "ada@example.org", "--array-backend", "cupy", "--gpu-memory", "80GiB")
    for document in found.values():
        check(document)
        metadata = document["metadata"]
        assert metadata.get("namespace", metadata["name"]) == "rescnet-ada"
    assert found["ResourceQuota"]["spec"]["hard"]["requests.nvidia.com/gpu"] == "3"
    kinds = {"Namespace", "ResourceQuota", "LimitRange", "NetworkPolicy"}
    assert set(found) == kinds | {"Role", "RoleBinding"}
    assert set(tenant()) == kinds
    changed, seen = set(), set()
    for rule in found["Role"]["rules"]:
        reads = set(rule["verbs"]) <= {"get", "list", "watch"}
        (seen if reads else changed).update(rule["resources"])
    assert seen == {"pods", "pods/log", "services", "events", "resourcequotas"}
    dask = {"daskjobs", "daskclusters", "daskautoscalers", "daskworkergroups"}
    others = {"networkpolicies", "poddisruptionbudgets", "serviceaccounts", "pods/portforward"}
    assert changed == dask | others


def test_quota_is_the_sum_of_the_pods_of_rendered_runs() -> None:
    """Of as many as named; each container is within the limits."""
    (job,) = (
        document
        for document in yaml.safe_load_all(deploy("render", *SIZE, *URLS))
        if document["kind"] == "DaskJob"
    )
    found = tenant("--runs", "2")
    hard = found["ResourceQuota"]["spec"]["hard"]
    (limits,) = found["LimitRange"]["spec"]["limits"]
    counts = {"driver": 1, "scheduler": 1, "worker": 3}
    for name in ("cpu", "memory", "ephemeral-storage"):
        total = 0
        for pod, spec in pods(job):
            (container,) = spec["containers"]
            wanted = amount(container["resources"]["limits"][name])
            total += 2 * counts[pod] * wanted
            assert name not in limits["max"] or wanted <= amount(limits["max"][name])
        assert amount(hard[f"limits.{name}"]) == amount(hard[f"requests.{name}"]) == total
    assert hard["pods"] == "10"
    assert hard["count/daskclusters.kubernetes.dask.org"] == "2"
    limited = {name.removeprefix("limits.") for name in hard if name.startswith("limits.")}
    assert limits["default"].keys() == limits["defaultRequest"].keys() == limited


@pytest.mark.parametrize("kind", ["job", "cluster"])
def test_role_is_enough_to_apply_a_run(kind: str) -> None:
    """And to delete it: the role has all verbs for each kind of object."""
    allowed = {
        (group, name)
        for rule in tenant("--user", "ada@example.org")["Role"]["rules"]
        if {"get", "create", "patch", "delete"} <= set(rule["verbs"])
        for group in rule["apiGroups"]
        for name in rule["resources"]
    }
    for document in yaml.safe_load_all(deploy("render", *SIZE, *URLS, "--kind", kind)):
        group, _, _ = document["apiVersion"].rpartition("/")
        name = document["kind"].lower().removesuffix("y") + (
            "ies" if document["kind"].endswith("y") else "s"
        )
        assert (group, name) in allowed


def test_nothing_of_another_namespace_may_connect_to_a_run() -> None:
    """Except the operator, to the dashboard's port: all other peers are pods of the namespace."""
    policies = [
        tenant()["NetworkPolicy"],
        *yaml.safe_load_all(deploy("render", *SIZE, *URLS, "--namespace", "rescnet-ada")),
    ]
    policies = [document for document in policies if document["kind"] == "NetworkPolicy"]
    assert policies[0]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []}
    outside = []
    for policy in policies:
        assert policy["metadata"]["namespace"] == "rescnet-ada"
        for rule in policy["spec"]["ingress"]:
            assert rule["from"]
            for peer in rule["from"]:
                if "namespaceSelector" in peer or "ipBlock" in peer:
                    outside.append((peer, rule["ports"]))
                else:
                    assert peer["podSelector"]["matchLabels"]
    operator = {"kubernetes.io/metadata.name": "dask-operator"}
    ports = [{"protocol": "TCP", "port": 8787}]
    assert outside == [({"namespaceSelector": {"matchLabels": operator}}, ports)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tenant", "Ada", *SIZE), "NAME 'Ada' is not a Kubernetes name"),
        (("s3-policy", "Ada", "--store", "s3://b/ada"), "NAME 'Ada' is not a Kubernetes name"),
        (("s3-policy", "ada", "--store", "s3://bucket"), "s3://bucket is not the folder"),
        (("s3-policy", "ada", "--store", "s3://b/runs/*"), "has a wildcard"),
        (("s3-policy", "ada", "--store", "s3://k:s@b/runs"), "without credentials"),
        (("hub", *SIZE, "--secret-per-user", "--service-account", "a"), "Use one of them"),
    ],
)
def test_wrong_options_raise(arguments: tuple[str, ...], words: str) -> None:
    """Before anything is printed."""
    done = CliRunner().invoke(main, ["deploy", *arguments])
    assert done.exit_code == 2
    assert words in done.output
    assert not done.stdout


def test_aws_policy_is_limited_to_the_folders() -> None:
    """Writes to the own folder, reads of both, no listing of others."""
    urls = ("--store", "s3://bucket/runs/ada/", "--data", "s3://shared/data")
    policy = json.loads(deploy("s3-policy", "ada", *urls))
    own, data = "arn:aws:s3:::bucket/runs/ada/*", "arn:aws:s3:::shared/data/*"
    writes, reads, *lists = policy["Statement"]
    assert writes["Resource"] == own
    assert reads["Resource"] == [own, data]
    prefixes = [s["Condition"]["StringLike"]["s3:prefix"] for s in lists]
    assert prefixes == ["runs/ada/*", "data/*"]  # "runs/ada" would list runs/adam, too


def test_each_user_of_a_hub_gets_an_own_secret() -> None:
    """In notebooks by the spawner's template, in workers by the name that the gateway knows."""
    pytest.importorskip("dask_gateway_server")
    pytest.importorskip("kubernetes_asyncio")
    found = values(*SIZE, "--secret-per-user")
    variables = found["jupyterhub"]["singleuser"]["extraEnv"]
    secret = variables["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"]
    assert secret["name"] == "rescnet-s3-{username}"
    backend = GatewayBackend(make_config(found))
    for user in ("ada", "ben-2"):
        env = backend.cluster(SimpleNamespace(name=user)).worker_extra_container_config["env"]
        secrets = {v["valueFrom"]["secretKeyRef"]["name"] for v in env if "valueFrom" in v}
        assert secrets == {f"rescnet-s3-{user}"}
        assert "DASK_TEMPORARY_DIRECTORY" in {v["name"] for v in env}
    for wrong in ("Ada", "../ada", "ada@example.org", "1ada", "ada---1f2e3d4c", ""):
        with pytest.raises(ValueError, match="cannot be part of a Secret's name"):
            backend.cluster(SimpleNamespace(name=wrong))


# a real S3 server -------------------------------------------------------------------------------


@pytest.fixture
def log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that sets the key of a user of an S3 server: ada, ben, or key for all."""
    key = {"accessKey": "key", "secretKey": S3_SECRET}
    identities = [{"name": "admin", "credentials": [key], "actions": ["Admin"]}]
    for user in ("ada", "ben"):
        urls = ("--store", f"s3://runs/{user}", "--data", "s3://runs/data")
        identity = json.loads(deploy("s3-policy", user, "--server", "seaweedfs", *urls))
        identity["credentials"] = [{"accessKey": user, "secretKey": S3_SECRET}]
        identities.append(identity)
    (tmp_path / "weed").mkdir()
    config = tmp_path / "s3.json"
    config.write_text(json.dumps({"identities": identities}))
    with run_s3_server(tmp_path / "weed", f"-s3.config={config}") as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET)

        def set_key(user: str) -> None:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", user)
            clear_s3_cache()

        yield set_key
    clear_s3_cache()


def list_objects() -> dict[str, Any]:
    """Return the objects of the bucket, with their checksums."""
    found = fsspec.filesystem("s3").find("runs", detail=True)
    return {path: entry["ETag"] for path, entry in found.items()}


FORBIDDEN = {
    "info": ("info", "s3://runs/ada/1"),
    "predict": ("predict", "s3://runs/ada/1", "digits"),
    "resume": ("resume", "s3://runs/ada/1", "--max-layers", "2"),
    "check": ("check", "s3://runs/ada/1"),
    "report": ("report", "s3://runs/ada/1"),
    "runs": ("runs", "s3://runs/ada"),
    "all runs": ("runs", "s3://runs"),
    "data": ("train", "s3://runs/ada/data.zarr", "--store", "s3://runs/ben/1"),
    "train": ("train", "digits", "--store", "s3://runs/ada/2"),
    "or resume": ("train", "digits", "--store", "s3://runs/ada/1", "--or-resume"),
    "overwrite": ("train", "digits", "--store", "s3://runs/ada/1", "--overwrite"),
}


@pytest.mark.slow
def test_a_user_can_neither_read_nor_write_runs_of_another(
    log_in: Callable[[str], None], client: Client, rng: np.random.Generator
) -> None:
    """Each command ends with a sentence, and no object changes; the owner reads the run."""
    images, labels = rng.integers(0, 255, (24, 8, 8, 1), np.uint8), np.arange(24) % 2
    spec = NetworkSpec(filters=2, first_filter_size=3, block=4, stride=4, max_layers=1)
    run = RunSpec(validation=0, chunk_images=12, accumulators=2, solve_threads=1)
    log_in("ada")
    trained = ResCNetClassifier(spec, store="s3://runs/ada/1", run=run).fit(images, labels)
    log_in("key")
    before = list_objects()
    assert before
    assert all(path.startswith("runs/ada/1/") for path in before)

    log_in("ben")
    for name, arguments in FORBIDDEN.items():
        result = CliRunner().invoke(main, list(arguments))
        assert result.exit_code == 2, (name, result.output, result.exception)
        error = result.stderr.splitlines()[-1]
        url = next(part for part in arguments if part.startswith("s3://"))
        assert error.startswith(f"error: {url}"), (name, error)
        for words in ("cannot be reached", "refuses these credentials", "a folder of your own"):
            assert words in error, (name, error)
        assert "Traceback" not in result.stderr
    with pytest.raises(StorePermissionError, match="refuses these credentials"):
        ResCNetClassifier(spec, store="s3://runs/ada/1", run=run).fit(images, labels)
    ResCNetClassifier(spec, store="s3://runs/ben/1", run=run).fit(images, labels)

    log_in("key")
    after = list_objects()
    assert {path: tag for path, tag in after.items() if "/ada/" in path} == before
    assert {path.split("/")[1] for path in after} == {"ada", "ben"}
    log_in("ada")
    loaded = ResCNetClassifier.load("s3://runs/ada/1")
    assert np.array_equal(loaded.predict(images), trained.predict(images))
