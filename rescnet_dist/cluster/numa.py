"""NUMA nodes of this machine, which have memory of their own."""

from __future__ import annotations

import os
import re
from pathlib import Path

NODES = Path("/sys/devices/system/node")
CORES = re.compile(r"([0-9]+)(?:-([0-9]+))?")  # one core, or the first and the last of a range


def count_numa_nodes(folder: Path = NODES) -> int:
    """Return the number of NUMA nodes with cores that this process may use; 1 if not known.

    It is not known if the list of a node cannot be read, or is not as Linux writes it.
    """
    if not hasattr(os, "sched_getaffinity"):
        return 1
    cores = os.sched_getaffinity(0)
    try:
        lists = [_parse_cores(path.read_text()) for path in folder.glob("node*/cpulist")]
    except (OSError, ValueError):  # as in some sandboxes
        return 1
    return sum(any(core in part for part in parts for core in cores) for parts in lists) or 1


def _parse_cores(text: str) -> list[range]:
    """Return the cores of a list as Linux writes it; raise ValueError if it is another text.

    >>> _parse_cores("0-2,5")
    [range(0, 3), range(5, 6)]
    """
    parts = list[range]()
    for part in text.strip().split(",") if text.strip() else ():
        match = CORES.fullmatch(part)
        if not match:
            raise ValueError(text)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(text)
        parts.append(range(first, last + 1))
    return parts
