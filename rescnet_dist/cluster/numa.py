"""NUMA nodes of this machine, which have memory of their own."""

from __future__ import annotations

import os
from pathlib import Path

NODES = Path("/sys/devices/system/node")


def count_numa_nodes(folder: Path = NODES) -> int:
    """Return the number of NUMA nodes with cores that this process may use; 1 if not known."""
    if not hasattr(os, "sched_getaffinity"):
        return 1
    cores = os.sched_getaffinity(0)
    try:
        lists = [path.read_text() for path in folder.glob("node*/cpulist")]
        return sum(not cores.isdisjoint(_parse_cores(text)) for text in lists) or 1
    except (OSError, ValueError):  # unreadable, as in some sandboxes
        return 1


def _parse_cores(text: str) -> set[int]:
    """Return the cores of a list as Linux writes it.

    >>> sorted(_parse_cores("0-2,5"))
    [0, 1, 2, 5]
    """
    cores = set[int]()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
