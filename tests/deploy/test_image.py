"""The images, checked without building them: rules, steps and entry points."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from rescnet_dist.deploy.pods import (
    DASHBOARD_PORT,
    IMAGE_USER_ID,
    METRICS_PORT,
    SCHEDULER_PORT,
    WORKER_DASHBOARD_PORT,
    WORKER_PORT,
)
from rescnet_dist.deploy.settings import Deployment
from rescnet_dist.kernels.cpu.ahead import FOLDER_VARIABLE

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "deploy/image"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("dashboard", "fast-png", "gateway", "k8s", "obstore", "prometheus", "s3")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile, and the name of its stage."""

    stage: str
    name: str
    text: str


def instructions() -> list[Instruction]:
    """Parse the Dockerfile, with continued lines joined and default arguments filled in."""
    lines = (IMAGE / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    found, stage, defaults = [], "", dict[str, str]()
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, rest = line.split(maxsplit=1)
        if name == "FROM":
            stage = rest.split()[-1]
        if name == "ARG" and "=" in rest:
            defaults.update([rest.split("=", 1)])
        for key, value in defaults.items():
            rest = rest.replace(f"${{{key}}}", value) if name in ("FROM", "ENV") else rest
        found.append(Instruction(stage, name, " ".join(rest.split())))
    return found


def find_instructions(name: str, stage: str | None = None) -> list[str]:
    """Return the instructions of one kind, of one stage or of all."""
    return [i.text for i in instructions() if i.name == name and stage in (None, i.stage)]


# rules ------------------------------------------------------------------------------------------


def test_base_images_are_pinned() -> None:
    """By name and version, without a host; never `latest`."""
    bases = {text.split()[2]: text.split()[0] for text in find_instructions("FROM")}
    assert list(bases) == ["build-cpu", "build-gpu", "runtime", "gpu", "cpu"]  # the last by default
    for base in bases.values():
        assert base in bases or re.fullmatch(r"[a-z]+:\d+\.\d+\.\d+-slim-[a-z]+", base), base


def test_only_known_instructions_and_no_downloads() -> None:
    """No ADD, no SHELL, no curl, wget, sudo or apt-get."""
    known = "ARG FROM ENV RUN WORKDIR COPY LABEL USER EXPOSE HEALTHCHECK CMD"
    assert {i.name for i in instructions()} == set(known.split())
    for command in find_instructions("RUN"):
        assert not re.search(r"\b(curl|wget|sudo|apt-get|apt|cd|chmod 777)\b", command)
        assert "://" not in command


def test_pip_installs_are_pinned() -> None:
    """Each has no cache, and files with hashes, the built wheel, or $PACKAGES."""
    lines = [
        command
        for command in find_instructions("RUN")
        if "pip install" in command or "pip wheel" in command
    ]
    assert len(lines) == 6
    for line in lines:
        assert "--no-cache-dir" in line
        hashed = r"--only-binary :all: (--no-deps )?--require-hashes --requirement [a-z]+\.txt"
        assert re.search(rf"{hashed}$|--no-deps (/wheels|--no-build)|\$PACKAGES$", line), line


def test_image_user_is_not_root() -> None:
    """It is numeric, and the user of the pods, so that Kubernetes can verify it."""
    assert find_instructions("USER") == [f"{IMAGE_USER_ID}:{IMAGE_USER_ID}"]
    assert find_instructions("USER", "runtime")
    assert not any(
        "--chown" in text for text in find_instructions("COPY")
    )  # so root owns the files


def test_gpu_image_differs_by_packages_and_variables() -> None:
    """It is the same image otherwise; the driver of the node is mounted by NVIDIA's runtime."""
    for stage in ("cpu", "gpu"):
        copied = [f"--from=build-{stage} /opt/rescnet /opt/rescnet"]
        assert find_instructions("COPY", stage) == copied
    assert {i.name for i in instructions() if i.stage == "cpu"} == {"FROM", "COPY"}
    assert {i.name for i in instructions() if i.stage == "gpu"} == {"FROM", "ENV", "COPY"}
    (variables,) = find_instructions("ENV", "gpu")
    assert variables == "NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"


def test_command_is_in_exec_form() -> None:
    """So that signals reach it; directories are absolute."""
    (command,) = find_instructions("CMD", "runtime")
    assert json.loads(command) == ["rescnet", "--help"]
    assert not find_instructions("ENTRYPOINT")  # pods and hubs have their own commands
    assert all(path.startswith("/") for path in find_instructions("WORKDIR"))


def test_labels_version_and_ports_match_the_project() -> None:
    """pyproject.toml, the default image of the renderer, and the pods."""
    (labels,) = find_instructions("LABEL", "runtime")
    found = dict(part.split("=", 1) for part in shlex.split(labels))
    prefix = "org.opencontainers.image."
    assert found[f"{prefix}title"] == PROJECT["name"]
    assert found[f"{prefix}version"] == PROJECT["version"] == version("rescnet-dist")
    assert found[f"{prefix}licenses"] == PROJECT["license"]
    assert Deployment("cluster").image == f"{PROJECT['name']}:{PROJECT['version']}"
    ports = set(map(int, find_instructions("EXPOSE", "runtime")[0].split()))
    served = {SCHEDULER_PORT, DASHBOARD_PORT, WORKER_DASHBOARD_PORT, WORKER_PORT, METRICS_PORT}
    assert ports == served | {8888}


def test_health_check_runs(tmp_path: Path) -> None:
    """In exec form; it passes without a URL, and fails if nothing responds."""
    (check,) = find_instructions("HEALTHCHECK", "runtime")
    options, command = check.split(" CMD ")
    assert all(option in options for option in ("--interval=", "--timeout=", "--start-period="))
    program, *rest = json.loads(command)
    assert program == "python"
    for url, expected in ((None, 0), ("http://127.0.0.1:1/health", 1)):
        environment = os.environ | ({"HEALTH_URL": url} if url else {})
        done = subprocess.run([sys.executable, *rest], env=environment, stderr=subprocess.DEVNULL)
        assert done.returncode == expected


def test_ignore_file_allows_copied_files_only() -> None:
    """It excludes everything else from the build context."""
    lines = (IMAGE / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        source
        for text in find_instructions("COPY")
        if "--from=" not in text
        for source in text.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / path).exists() for path in allowed)


def test_image_has_kernels_compiled_ahead() -> None:
    """They are compiled into the folder where a container looks for them."""
    (variables,) = find_instructions("ENV", "runtime")
    folder = dict(part.split("=", 1) for part in shlex.split(variables))[FOLDER_VARIABLE]
    assert any(f"compile_ahead('{folder}')" in text for text in find_instructions("RUN"))
    assert all(folder.startswith(text.split()[-1]) for text in find_instructions("COPY", "cpu"))


# constraints ------------------------------------------------------------------------------------


def pins(name: str = "constraints.txt") -> dict[str, str]:
    """Return the versions in a file by name; each must have hashes, and no URL or host."""
    lines = (IMAGE / name).read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    entry = r"([a-z0-9-]+)==([0-9][0-9a-z.+]*)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
    found = re.findall(entry, text + "\n")
    assert "".join(f"{name}=={version}{hashes}\n" for name, version, hashes in found) == text + "\n"
    assert [name for name, _, _ in found] == sorted(name for name, _, _ in found)
    return {name: version for name, version, _ in found}


def test_constraints_match_the_project() -> None:
    """A pin for each direct dependency, within its allowed range."""
    extras = PROJECT["optional-dependencies"]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for name, required in (
        ("constraints.txt", PROJECT["dependencies"] + [r for e in EXTRAS for r in extras[e]]),
        ("gpu.txt", extras["gpu"]),
        ("build.txt", build),
    ):
        found = pins(name)
        for line in required:
            requirement = Requirement(line)
            assert requirement.specifier.contains(found[requirement.name]), line
    assert not pins().keys() & pins("gpu.txt").keys()  # the GPU image has both


def test_locked_packages_are_those_of_the_project() -> None:
    """The script that writes the files names the same extras, and the Python of the image."""
    text = (IMAGE / "lock.sh").read_text().replace("\\\n", " ")
    assert tuple(re.findall(r"--extra ([a-z0-9-]+)", text)) == EXTRAS
    (python,) = re.findall(r"--python-version (\S+)", text)
    assert find_instructions("FROM", "build-cpu")[0].startswith(f"python:{python}-")
    for name, file in (("packages", "constraints"), ("gpu", "gpu"), ("build", "build")):
        found = pins(f"{file}.txt")
        for line in (IMAGE / f"{name}.in").read_text().splitlines():
            if entry := line.partition("#")[0].strip():
                requirement = Requirement(entry)
                assert requirement.specifier.contains(found[requirement.name]), line


def test_image_has_the_packages_of_a_hub() -> None:
    """JupyterLab with Dask's panel, its proxy and the gateway's client.

    JupyterHub has the major version of the hub, which warns of others.
    """
    found = pins()
    needed = {"jupyterlab", "dask-labextension", "jupyter-server-proxy", "dask-gateway"}
    assert needed <= found.keys()
    assert found["jupyterhub"].split(".")[0] == "5"  # that of the chart jupyterhub 4.4


# the steps --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_steps_and_entry_points_run(tmp_path: Path) -> None:
    """The RUN instructions of the build stage, in virtual environments instead of an image.

    Then the commands of all pods, and a short training.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    for text in find_instructions("COPY"):
        *sources, _ = text.split()
        for source in sources if "--from=" not in text else ():
            target = tmp_path / "src" / Path(source).name
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, target, ignore=ignored)
            else:
                target.parent.mkdir(exist_ok=True)
                shutil.copy(ROOT / source, target)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= dict(part.split("=", 1) for part in shlex.split(find_instructions("ENV")[0]))
    for command in find_instructions("RUN", "build-cpu"):  # CUDA's libraries are too large
        local = re.sub(r"/(opt|wheels)\b", rf"{tmp_path}/\1", command)
        local = local.replace("python3 -m venv", f"{sys.executable} -m venv")
        done = subprocess.run(
            ["sh", "-ec", local],
            cwd=tmp_path / "src",
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{local}\n{done.stdout}{done.stderr}"
    binaries = tmp_path / "opt/rescnet/bin"
    environment |= {
        "PATH": f"{binaries}:/usr/bin:/bin",
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        "RESCNET_KERNELS": str(tmp_path / "opt/rescnet/kernels"),
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Usage: rescnet" in run("rescnet", "--help")
    assert "--memory-limit" in run("dask", "worker", "--help")
    assert "--dashboard-address" in run("dask", "scheduler", "--help")
    assert run("jupyterhub-singleuser", "--version").startswith("5.")
    assert "dask_labextension" in run("jupyter", "server", "extension", "list")
    rendered = run(
        "rescnet", "deploy", "render", "--data", "digits", "--store", "s3://b/r", "--workers", "2"
    )
    assert "DaskJob" in {document["kind"] for document in yaml.safe_load_all(rendered)}
    assert "accuracy" in run("rescnet", "train", "--max-layers", "1", "--filters", "4")
