"""How much of this machine others use while something is measured on it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

MAX_OTHER_SHARE = 0.05  # of the machine's CPU time that others use, above which it is busy


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since some start: of the clock, and of CPUs that worked, were stolen, or were ours.

    Time is stolen from a virtual machine if its host runs others. Ours are those of this process
    and of all processes that it has started. `cpus` is the number of CPUs that are counted.
    """

    clock: float
    busy: float
    stolen: float
    own: float
    cpus: int = 1

    @classmethod
    def now(cls, cpus: Collection[int] | None = None) -> CpuTimes:
        """Read the counters of CPUs, given by number: by default those that this process may use.

        Under `taskset`, work of others on other CPUs takes no time from it.
        """
        process, counted = psutil.Process(), _read_cpus(cpus)
        busy = stolen = 0.0
        for cpu in counted:
            busy += cpu.user + cpu.system + getattr(cpu, "nice", 0.0)
            busy += getattr(cpu, "irq", 0.0) + getattr(cpu, "softirq", 0.0)
            stolen += getattr(cpu, "steal", 0.0)
        own = sum(process.cpu_times()[:4])  # with those of children that have ended
        for child in process.children(recursive=True):
            try:
                own += sum(child.cpu_times()[:4])
            except psutil.Error:
                continue  # It has ended, and counts as a child that has.
        return cls(time.monotonic(), busy, stolen, own, len(counted))

    def other_share(self, start: CpuTimes) -> float:
        """Return the share of the CPUs' time since the start that others used, from 0 to 1."""
        available = (self.clock - start.clock) * self.cpus
        others = (self.busy - start.busy) - (self.own - start.own) + self.stolen - start.stolen
        return float(np.clip(others / available, 0, 1)) if available > 0 else 0.0


def _read_cpus(cpus: Collection[int] | None) -> list[Any]:
    """Return the times of some CPUs, or of those that this process may use; of all if unknown."""
    if cpus is None and hasattr(os, "sched_getaffinity"):
        cpus = os.sched_getaffinity(0)
    found = psutil.cpu_times(percpu=True)
    if not cpus or max(cpus) >= len(found):  # positions are no numbers if some CPUs are offline
        return list(found)
    return [found[cpu] for cpu in sorted(cpus)]
