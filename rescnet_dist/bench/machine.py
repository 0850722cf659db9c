"""The machine that is measured: its name, and how much of it others used meanwhile."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rescnet_dist.bench.timing import Result, product_rate
from rescnet_dist.cluster import available_cores
from rescnet_dist.cluster.load import MAX_OTHER_SHARE, CpuTimes

MAX_TRIES = 3  # of a case on a busy machine


def describe_machine() -> dict[str, Any]:
    """Describe the machine, its libraries, and its rate of matrix products."""
    return {
        "processor": find_processor(),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": available_cores(),
        "sgemm_gflops": product_rate() / 1e9,
    }


def find_processor() -> str:
    """Return the name of the processor, if the system knows it."""
    if shutil.which("lscpu"):
        output = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
        for line in output.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Model name" and value.strip() not in ("", "-"):
                return value.strip()
    return platform.processor() or platform.machine()


def name_file(machine: dict[str, Any]) -> str:
    """Return the name of the file of a machine's results.

    >>> name_file({"processor": "Intel(R) Xeon(R) CPU @ 2.60GHz", "cores": 2})
    'intel-r-xeon-r-cpu-2-60ghz-2-cores.json'
    """
    words = re.sub(r"[^a-z0-9]+", "-", f"{machine['processor']} {machine['cores']} cores".lower())
    return f"{words.strip('-')}.json"


# load ---------------------------------------------------------------------------------------------


def measure(
    run: Callable[[], Sequence[Result]],
    report: Callable[[str], None],
    read: Callable[[], CpuTimes] = CpuTimes.now,
) -> list[Result]:
    """Run a case until others leave the machine alone, a few times at most.

    The results are those of the try with the least load, which they carry: on a busy machine no bar
    is reached or missed.
    """
    best: list[Result] = []
    for number in range(MAX_TRIES):
        start = read()
        found = run()
        share = read().other_share(start)
        if not best or share < best[0].other_share:
            best = [replace(result, other_share=share) for result in found]
        if share <= MAX_OTHER_SHARE or not found:
            break
        again = "measuring again" if number + 1 < MAX_TRIES else "no bar is reached or missed"
        report(f"The machine was busy: others used {100 * share:.0f} % of its cores; {again}.")
    return best
