"""Test kernels compiled ahead: the choice of a target, the copy, and a new container's start."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rescnet_dist as rd
from rescnet_dist.kernels.cpu import ahead

MAX_START_SECONDS = 5  # CPU time of a process that loads a network and predicts one image
PREDICT = """
import numpy as np
import rescnet_dist as rd
print(rd.load("network").decision_function(np.load("image.npy")).tobytes().hex())
from rescnet_dist.kernels.cpu.loading import FORWARD_KERNELS, kernel
stats = [kernel(name).stats for name in FORWARD_KERNELS]
print(sum(sum(s.cache_misses.values()) for s in stats))
print(sum(sum(s.cache_hits.values()) for s in stats))
"""


@pytest.mark.parametrize(
    ("machine", "features", "target"),
    [
        ("x86_64", ahead.V4_FEATURES | {"sse2", "amx_tile"}, "x86-64-v4"),
        ("x86_64", ahead.V4_FEATURES - {"avx512vl"}, "x86-64-v3"),
        ("x86_64", ahead.V3_FEATURES - {"fma"}, None),
        ("aarch64", {"fp", "asimd", "sve"}, "generic"),
        ("aarch64", set(), None),
        ("riscv64", {"asimd", "fp"}, None),
    ],
)
def test_best_target_that_the_processor_supports(machine, features, target):
    """None if kernels must be compiled."""
    assert ahead.choose_target(machine, features) == target


def test_copied_folders_are_complete_and_never_replaced(tmp_path: Path) -> None:
    """A folder that Numba has filled in the meantime stays as it is."""
    source, cache = tmp_path / "image", tmp_path / "deep/cache"
    for name in ("first", "second"):
        (source / name).mkdir(parents=True)
        (source / name / "kernel.nbi").write_text("of the image")
    (cache / "second").mkdir(parents=True)
    for _ in range(2):
        ahead.copy_missing_folders(source, cache)
    found = {str(path.relative_to(cache)) for path in cache.rglob("*")}
    assert found == {"first", "first/kernel.nbi", "second"}


@pytest.mark.parametrize("missing", [None, ahead.FOLDER_VARIABLE, ahead.CACHE_VARIABLE])
def test_process_uses_kernels_if_it_knows_their_folder(
    missing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a folder to copy them to; in a process that has not yet imported Numba."""
    target = ahead.choose_target(ahead.platform.machine(), ahead._processor_features())
    if target is None:
        pytest.skip("needs a processor that kernels can be compiled ahead for")
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    for name in (ahead.CPU_VARIABLE, "NUMBA_CPU_FEATURES"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    monkeypatch.setenv(ahead.FOLDER_VARIABLE, str(tmp_path / "image"))
    monkeypatch.setenv(ahead.CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "image/cpu").mkdir(parents=True)
    if missing:
        monkeypatch.delenv(missing)
    ahead.use_kernels_compiled_ahead()
    assert os.environ.get(ahead.CPU_VARIABLE) == (None if missing else target)
    assert (tmp_path / "cache/cpu").exists() == (not missing)


@pytest.mark.slow
def test_new_container_compiles_nothing(tmp_path: Path) -> None:
    """It predicts within seconds, and the same bits as with kernels for this very processor."""
    images, labels = rd.load_digits()
    spec = rd.NetworkSpec.preset("digits").replace(filters=8, max_layers=3)
    clf = rd.ResCNetClassifier(spec).fit(images[:500], labels[:500])
    clf.save(tmp_path / "network")
    np.save(tmp_path / "image.npy", images[:1])
    expected = clf.decision_function(images[:1])
    ahead.compile_ahead(str(tmp_path / "image"))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    folders = {ahead.FOLDER_VARIABLE: "image", ahead.CACHE_VARIABLE: "cache"}
    printed = subprocess.run(
        [sys.executable, "-c", PREDICT],
        cwd=tmp_path,
        env={**os.environ, **{name: str(tmp_path / path) for name, path in folders.items()}},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    scores, misses, hits = printed.split()
    assert (int(misses), int(hits)) == (0, 2)
    np.testing.assert_array_equal(np.frombuffer(bytes.fromhex(scores), expected.dtype), expected[0])
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds <= MAX_START_SECONDS
