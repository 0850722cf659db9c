"""Test compiled kernels: workers load them from disk, and do not compile them themselves."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import rescnet_dist
from rescnet_dist.kernels import prepare, second_order_features
from rescnet_dist.kernels.cpu import jit

SCRIPT = """
import numpy as np
from rescnet_dist.kernels import LayerInput
from rescnet_dist.kernels.cpu import sliding
from rescnet_dist.kernels.cpu.products import sum_pair_products
if {doubles}:
    sliding.sum_over_patches(np.zeros((9, 9)), 3, 3, 1, 2, np.zeros((4, 4)))
sum_pair_products(LayerInput.of(np.ones((2, 3, 3, 1), np.float32)), 2, np.zeros(1, np.float32))
stats = sliding.sum_over_patches.stats
print(sum(stats.cache_misses.values()), sum(stats.cache_hits.values()))
"""


def count_compiled_and_loaded(cache: Path, doubles: bool) -> list[int]:
    """Return how often a new process compiled a kernel, and loaded it from disk."""
    return [
        int(number)
        for number in subprocess.run(
            [sys.executable, "-c", SCRIPT.format(doubles=doubles)],
            env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split()
    ]


@pytest.mark.slow
def test_kernels_are_compiled_by_another_process(tmp_path: Path) -> None:
    """This holds also if the kernel was cached for other types before."""
    assert count_compiled_and_loaded(tmp_path / "new", doubles=False) == [0, 1]
    assert count_compiled_and_loaded(tmp_path / "other", doubles=True) == [1, 1]
    assert count_compiled_and_loaded(tmp_path / "other", doubles=False) == [0, 1]


@pytest.mark.slow
def test_edit_of_another_module_invalidates_the_cache(tmp_path: Path) -> None:
    """A kernel contains what it calls: an upgrade must not run machine code of the old release."""
    package = tmp_path / "rescnet_dist"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(rescnet_dist.__file__).parent, package, ignore=ignored)
    script = """
from rescnet_dist.kernels.cpu.registers import split_vectors
split_vectors(5)
print(__import__("rescnet_dist").__file__, sum(split_vectors.stats.cache_hits.values()))
"""

    def count_loaded() -> int:
        found = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            cwd=tmp_path,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split()
        assert Path(found[0]).parent == package
        return int(found[1])

    assert [count_loaded(), count_loaded()] == [0, 1]
    with (package / "kernels/cpu/layout.py").open("a") as file:
        file.write("# edited\n")
    assert count_loaded() == 0


@pytest.mark.slow
def test_kernels_are_compiled_once_on_a_machine(tmp_path: Path) -> None:
    """Although all its workers need them at the same time."""
    script = """
from rescnet_dist.kernels.cpu import jit, layout, loading
compile_parts = jit._compile_in_processes
def record(parts):
    print(sum(map(len, parts)))
    compile_parts(parts)
jit._compile_in_processes = record
loading.kernel("gather_sums")
print(len(layout.gather_sums.signatures), sum(layout.gather_sums.stats.cache_misses.values()))
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = sorted(process.communicate(timeout=120)[0] for process in processes)
    assert outputs == ["0\n1 0\n", "0\n1 0\n", "1\n1 0\n"]


def test_lock_that_is_not_released_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are compiled twice then, which is better than never."""
    kernel = SimpleNamespace(stats=SimpleNamespace(cache_path=str(tmp_path)))
    with (tmp_path / jit.LOCK_FILE).open("w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        monkeypatch.setattr(jit, "MAX_COMPILE_SECONDS", 0.3)
        started = time.monotonic()
        with jit._lock_cache(kernel):
            assert 0.3 <= time.monotonic() - started < 30
        fcntl.flock(owner, fcntl.LOCK_UN)
        with jit._lock_cache(kernel), pytest.raises(BlockingIOError):
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.slow
def test_only_cached_kernels_are_loaded(tmp_path: Path) -> None:
    """The server that forks workers must not make them wait for a compiler."""
    script = """
from rescnet_dist.kernels.cpu import layout, loading
if {compiled}:
    loading.kernel("gather_sums")
loading.load_cached()
print(len(layout.gather_sums.signatures), len(layout.write_patches.signatures))
"""

    def count_loaded(compiled: bool) -> list[int]:
        return [
            int(number)
            for number in subprocess.run(
                [sys.executable, "-c", script.format(compiled=compiled)],
                env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
                capture_output=True,
                check=True,
                text=True,
            ).stdout.split()
        ]

    assert count_loaded(False) == [0, 0]
    count_loaded(True)
    assert count_loaded(False) == [1, 0]


def test_cached_kernels_are_loaded_without_what_compiles() -> None:
    """Registries of all that Numba can compile take 0.4 s, and SciPy's algebra a part of it.

    Kernels are in the cache of this machine, as other tests use them.
    """
    prepare(rare=True)
    script = """
import sys
import numpy as np
from rescnet_dist.kernels import prepare, second_order_features
prepare(rare=True)
print(sorted({"numba.np.arraymath", "numba.np.linalg", "scipy.linalg"} & sys.modules.keys()))
maps = np.ones((2, 8, 8, 3), np.float32)
print(second_order_features(maps, 4, 4, (1, 2)).sum())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    features = second_order_features(np.ones((2, 8, 8, 3), np.float32), 4, 4, (1, 2))
    assert (done.stdout, done.stderr) == (f"[]\n{features.sum()}\n", "")


def test_parts_are_compiled_into_kernels(tmp_path: Path) -> None:
    """Parts have no cache of their own, and rounding is that of kernels: products are fused.

    Exact kernels round them.
    """
    script = """
import numpy as np
from rescnet_dist.kernels.cpu.jit import (
    compile_exact_kernel, compile_exact_part, compile_kernel, compile_part
)

@compile_part
def multiply_add(a, b, c, into):
    for i in range(len(into)):
        into[i] = a[i] * b[i] + c[i]

@compile_kernel
def call(a, b, c, into):
    multiply_add(a, b, c, into)

@compile_kernel
def direct(a, b, c, into):
    for i in range(len(into)):
        into[i] = a[i] * b[i] + c[i]

@compile_exact_part
def multiply_then_add(a, b, c, into):
    for i in range(len(into)):
        into[i] = a[i] * b[i] + c[i]

@compile_exact_kernel
def call_exact(a, b, c, into):
    multiply_then_add(a, b, c, into)

a, b, c = np.random.default_rng(0).normal(size=(3, 101)).astype("f4")
found, expected, plain = np.empty((3, 101), "f4")
call(a, b, c, found)
direct(a, b, c, expected)
multiply_add(a, b, c, plain)
assert (found == expected).all()
assert np.allclose(plain, expected, atol=1e-6)
call_exact(a, b, c, found)
assert (found == a * b + c).all()
"""
    (tmp_path / "parts.py").write_text(script)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, tmp_path / "parts.py"], env=environment, check=True)
    indexes = {path.name.split("-")[0] for path in tmp_path.rglob("*.nbi")}
    assert indexes == {"parts.call", "parts.call_exact", "parts.direct"}
