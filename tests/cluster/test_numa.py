"""NUMA nodes of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rescnet_dist.cluster.numa import count_numa_nodes

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="the system has no affinity of processes"
)


def test_nodes_whose_cores_may_be_used_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those without cores, or with cores of others only, do not."""
    for node, cores in enumerate(("0-3,8\n", "4-7\n", "\n", "64\n")):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        (folder / "cpulist").write_text(cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 5, 8})
    assert count_numa_nodes(tmp_path) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {100})
    assert count_numa_nodes(tmp_path) == 1


def test_one_node_where_it_is_not_known(tmp_path: Path) -> None:
    """Other systems than Linux have no such folder."""
    assert count_numa_nodes(tmp_path / "missing") == 1
    assert count_numa_nodes() >= 1
    (tmp_path / "node0").mkdir()
    (tmp_path / "node0" / "cpulist").write_text("all of them")
    assert count_numa_nodes(tmp_path) == 1
