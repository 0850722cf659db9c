"""NUMA nodes of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rescnet_dist.cluster.numa import count_numa_nodes

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="the system has no affinity of processes"
)


def write_lists(folder: Path, *lists: str | bytes) -> None:
    """Write the lists of cores of nodes as in the folder of Linux."""
    for node, cores in enumerate(lists):
        (folder / f"node{node}").mkdir()
        content = cores.encode() if isinstance(cores, str) else cores
        (folder / f"node{node}" / "cpulist").write_bytes(content)


def test_nodes_whose_cores_may_be_used_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those without cores, with cores of others only, or without a list do not."""
    write_lists(tmp_path, "0-3,8\n", "4-7\n", "\n", "64\n")
    (tmp_path / "node4").mkdir()
    (tmp_path / "online").write_text("0-4\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 5, 8})
    assert count_numa_nodes(tmp_path) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {100})
    assert count_numa_nodes(tmp_path) == 1


def test_cores_that_are_offline_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux leaves them out of the list of a node, and out of those that a process may use."""
    write_lists(tmp_path, "0,2-3\n", "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 3})
    assert count_numa_nodes(tmp_path) == 1


def test_one_node_where_it_is_not_known(tmp_path: Path) -> None:
    """Other systems than Linux have no such folder."""
    assert count_numa_nodes(tmp_path / "missing") == 1
    assert count_numa_nodes() >= 1


@pytest.mark.parametrize(
    "text",
    [
        "all of them",
        "0-",
        "-3",
        "3-0",
        "0,,1",
        "0-1-2",
        "0x1",
        "1_0",
        "0-6:2/4",
        b"\xff\x00",
        "9" * 5000,
    ],
)
def test_malformed_lists_are_of_one_node(
    text: str | bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the lists of other nodes are."""
    write_lists(tmp_path, "0", "1", text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert count_numa_nodes(tmp_path) == 1


def test_long_ranges_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of more cores than a machine can have."""
    write_lists(tmp_path, f"0-{10**18}", "0")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert count_numa_nodes(tmp_path) == 2


def test_unreadable_lists_are_of_one_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list may not be a file, and reading one may fail."""
    write_lists(tmp_path, "0", "1")
    (tmp_path / "node2" / "cpulist").mkdir(parents=True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert count_numa_nodes(tmp_path) == 1
    (tmp_path / "node2" / "cpulist").rmdir()
    assert count_numa_nodes(tmp_path) == 2

    def fail(*_: object) -> str:
        raise PermissionError("of a sandbox")

    monkeypatch.setattr(Path, "read_text", fail)
    assert count_numa_nodes(tmp_path) == 1
