"""The deployment guide: its commands run, and its code and sizes are correct."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from dask.distributed import SSHCluster

from rescnet_dist import ResCNetClassifier
from rescnet_dist.cli import main

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "deploy/README.md"
CLUSTER_COMMAND = "dask scheduler"


def blocks(language: str) -> list[str]:
    """Return the guide's fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def run(commands: list[str], folder: Path) -> str:
    """Run commands in one shell in a folder; return their output."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    rescnet = f'rescnet() {{ "{sys.executable}" -m rescnet_dist "$@"; }}\n'
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", rescnet + "\n".join(commands)],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            output, errors = shell.communicate(timeout=300)
        finally:
            with suppress(ProcessLookupError):  # background processes of a failed command
                os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, errors
    return output


@pytest.mark.slow
def test_commands_run(tmp_path: Path) -> None:
    """All blocks marked bash, in order, except the one that starts a cluster."""
    for program in ("openssl", "kubectl"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    output = run([block for block in blocks("bash") if CLUSTER_COMMAND not in block], tmp_path)
    assert "# features  17,150 per layer; scatter matrix kept whole" in output
    rendered = list(yaml.safe_load_all((tmp_path / "cifar10.yaml").read_text()))
    built = list(yaml.safe_load_all((tmp_path / "job.yaml").read_text()))
    assert {d["kind"] for d in rendered} == {d["kind"] for d in built}
    kinds = {d["kind"] for d in yaml.safe_load_all((tmp_path / "cluster.yaml").read_text())}
    assert {"DaskCluster", "DaskAutoscaler"} < kinds
    hub = yaml.safe_load((tmp_path / "hub.yaml").read_text())
    assert hub.keys() == {"jupyterhub", "dask-gateway"}


@pytest.mark.slow
def test_manual_cluster_trains(tmp_path: Path) -> None:
    """The block that starts a scheduler and a worker."""
    (block,) = (block for block in blocks("bash") if CLUSTER_COMMAND in block)
    assert "accuracy" in run([block], tmp_path)
    assert (tmp_path / "first/result.json").exists()


@pytest.mark.parametrize("block", blocks("sh"))
def test_sh_blocks_are_valid_shell(block: str) -> None:
    """Parsed, not run."""
    done = subprocess.run(["bash", "-n", "-c", block], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_operator_is_the_one_of_the_tests() -> None:
    """Its version is pinned among the packages of the tests, which run its controller."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pin,) = (
        line.removeprefix("dask-kubernetes==")
        for line in project["optional-dependencies"]["test"]
        if line.startswith("dask-kubernetes")
    )
    (install,) = (block for block in blocks("sh") if "helm install" in block)
    assert re.findall(r"--version (\S+)", install) == [pin]


def test_python_blocks_use_existing_names() -> None:
    """Parsed; keywords of installed packages are compared with signatures."""
    found = {}
    for block in blocks("python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Call) and node.keywords:
                name = ast.unparse(node.func).rsplit(".", 1)[-1]
                found[name] = {keyword.arg for keyword in node.keywords}
    assert {"SLURMCluster", "Cluster", "SSHCluster"} <= found.keys()
    assert found["SSHCluster"] <= inspect.signature(SSHCluster).parameters.keys()
    assert found["ResCNetClassifier"] <= inspect.signature(ResCNetClassifier).parameters.keys()


def test_sizes_in_the_guide_match_rendered_sizes(tmp_path: Path) -> None:
    """The rows of the table of sizes, rendered again here."""
    text = GUIDE.read_text()
    rows = re.findall(r"^\| `(--threads [^`]*)` \| (\S+).*? \| ([\d.]+) GiB \|", text, re.MULTILINE)
    assert len(rows) == 3
    for options, plan, size in rows:
        done = CliRunner().invoke(
            main,
            [
                *("deploy", "render", "--preset", "cifar10", "--images", "50000x32x32x3"),
                *("--workers", "32", "--data", "s3://b/d", "--store", "s3://b/r"),
                *options.split(),
            ],
        )
        assert done.exit_code == 0, done.output
        (job,) = (d for d in yaml.safe_load_all(done.stdout) if d["kind"] == "DaskJob")
        worker = job["spec"]["cluster"]["spec"]["worker"]["spec"]["containers"][0]
        memory = int(worker["resources"]["limits"]["memory"].removesuffix("Mi")) / 1024
        assert round(memory, 1) == float(size), options
        arguments = job["spec"]["job"]["spec"]["containers"][0]["args"]
        assert ("--tile-features" in arguments) == (plan == "tiles")
