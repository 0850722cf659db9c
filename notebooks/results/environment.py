"""The environment that a record was made in: versions, machines of the workers, commit."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cloudpickle
from distributed import Client

from rescnet_dist.bench import find_processor
from rescnet_dist.cluster import available_cores
from rescnet_dist.kernels import Backend

ROOT = Path(__file__).parents[2]
PACKAGES = ("rescnet-dist", "numpy", "scipy", "numba", "dask", "distributed", "zarr")

# Workers of another machine cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def get_environment(client: Client) -> dict[str, Any]:
    """Return versions, which the workers share, and the machines of the workers."""
    machines = list(client.run(describe_machine).values())
    return {
        "versions": {"python": platform.python_version()} | {n: version(n) for n in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "workers": len(machines),
        "threads": sum(client.nthreads().values()),
        "machines": [kind for n, kind in enumerate(machines) if kind not in machines[:n]],
    }


def describe_machine() -> dict[str, Any]:
    """Return processor, cores and, if CuPy finds any, GPUs of this machine.

    gpu_memory is the number of bytes of a GPU that this process may use, as in the plan of the run.
    """
    found: dict[str, Any] = {"processor": find_processor(), "cores": available_cores()}
    try:
        import cupy

        devices = range(cupy.cuda.runtime.getDeviceCount())
        names = [cupy.cuda.runtime.getDeviceProperties(device)["name"] for device in devices]
        memory = Backend("cupy").memory()
    except Exception:  # not installed or no driver: the error depends on the version
        return found
    return found | {
        "gpus": [name.decode() for name in names],
        "gpu_memory": memory[2] if memory else None,
        "cupy": cupy.__version__,
    }


def get_commit() -> str | None:
    """Return the commit of the package, with "+" if its files were changed; None if unknown."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "rescnet_dist")
    return commit and commit + ("+" if changes else "")


def _git(*arguments: str) -> str | None:
    """Return the output of a git command in the repository; None if it fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
