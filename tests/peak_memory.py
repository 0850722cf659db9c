"""Peak memory of processes, read from outside: in them, it would import modules of tests."""

import os
import re
from pathlib import Path

from distributed import Client


def read_peak_memory(pid: int) -> int:
    """Return the largest number of resident bytes so far of a process, 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(line[1]) * 1024 if line else 0


def read_peak_memory_of_workers(client: Client) -> list[int]:
    """Return the same of each worker of this machine; none may have ended."""
    peaks = [read_peak_memory(pid) for pid in client.run(os.getpid).values()]
    assert all(peaks), peaks
    return peaks
