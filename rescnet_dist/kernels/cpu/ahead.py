"""Kernels compiled ahead of time, such as in a container image, for all processors of a family.

Numba's cache on disk is valid for one processor model only. Here kernels are compiled for targets
that many models can run, and a process chooses the best target that its processor supports.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

FOLDER_VARIABLE = "RESCNET_KERNELS"  # of the kernels that were compiled ahead
CACHE_VARIABLE = "NUMBA_CACHE_DIR"
CPU_VARIABLE = "NUMBA_CPU_NAME"
# Features of processors, by Linux' names
V3_FEATURES = frozenset({"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
V4_FEATURES = V3_FEATURES | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
# By machine: LLVM's names of targets, best first, and the features that they need
TARGETS = {
    "x86_64": {"x86-64-v4": V4_FEATURES, "x86-64-v3": V3_FEATURES},
    "aarch64": {"generic": frozenset({"asimd", "fp"})},
}


def compile_ahead(folder: str) -> None:
    """Compile all kernels for each target of this machine into a folder.

    The processor of this machine need not support the targets.
    """
    code = "from rescnet_dist.kernels import prepare; prepare(rare=True)"
    for target in TARGETS.get(platform.machine(), {}):
        variables = _target_variables(target) | {CACHE_VARIABLE: folder}
        subprocess.run([sys.executable, "-c", code], env=os.environ | variables, check=True)


def use_kernels_compiled_ahead() -> None:
    """Let this process load kernels from the folder RESCNET_KERNELS, if that is set.

    They are copied to Numba's cache, NUMBA_CACHE_DIR, once: Numba does not read a folder that it
    cannot write to. Nothing happens if Numba was imported before, as its target is fixed then, if
    NUMBA_CPU_NAME is set, or if the processor supports no target. Kernels are compiled then.
    """
    source, cache = os.environ.get(FOLDER_VARIABLE), os.environ.get(CACHE_VARIABLE)
    if not source or not cache or "numba" in sys.modules or CPU_VARIABLE in os.environ:
        return
    target = choose_target(platform.machine(), _processor_features())
    if target is not None:
        os.environ.update(_target_variables(target))  # also for the processes that this one starts
        with suppress(OSError):
            copy_missing_folders(Path(source), Path(cache))


def choose_target(machine: str, features: Collection[str]) -> str | None:
    """Return the best target that a processor with these features supports, if any."""
    targets = TARGETS.get(machine, {})
    return next((name for name, needed in targets.items() if needed <= set(features)), None)


def copy_missing_folders(source: Path, cache: Path) -> None:
    """Copy those folders of `source` to `cache` that it does not have.

    Other processes may do so at the same time: a folder appears with all its files, or not at all.
    """
    cache.mkdir(parents=True, exist_ok=True)
    for folder in source.iterdir():
        if (cache / folder.name).exists():
            continue
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            copied = shutil.copytree(folder, Path(temporary, "copy"))
            with suppress(OSError):  # another process was first
                copied.rename(cache / folder.name)


def _target_variables(target: str) -> dict[str, str]:
    """Return the variables that have Numba compile for a target, and no more than its features."""
    return {CPU_VARIABLE: target, "NUMBA_CPU_FEATURES": ""}


def _processor_features() -> set[str]:
    """Return the features of the first processor of this machine, none if not on Linux."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(value.split())
    return set()
