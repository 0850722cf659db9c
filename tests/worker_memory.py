"""Peak memory of worker processes, read from outside: functions of tests would import more."""

import os
import re
from pathlib import Path

from distributed import Client


def read_peak_memory(client: Client) -> list[int]:
    """Return the largest number of resident bytes so far of each worker of this machine."""
    peaks = []
    for pid in client.run(os.getpid).values():
        status = Path(f"/proc/{pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found, status
        peaks.append(int(found[1]) * 1024)
    return peaks
