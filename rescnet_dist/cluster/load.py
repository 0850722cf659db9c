"""How much of this machine others use while something is measured on it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import psutil

MAX_OTHER_SHARE = 0.05  # of the machine's CPU time that others use, above which it is busy


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since some start: of the clock, and of CPUs that worked, were stolen, or were ours.

    Time is stolen from a virtual machine if its host runs others. Ours are those of this process
    and of all processes that it has started.
    """

    clock: float
    busy: float
    stolen: float
    own: float

    @classmethod
    def now(cls) -> CpuTimes:
        """Read the counters of the system."""
        system, process = psutil.cpu_times(), psutil.Process()
        busy = system.user + system.system + getattr(system, "nice", 0.0)
        busy += getattr(system, "irq", 0.0) + getattr(system, "softirq", 0.0)
        own = sum(process.cpu_times()[:4])  # with those of children that have ended
        for child in process.children(recursive=True):
            try:
                own += sum(child.cpu_times()[:4])
            except psutil.Error:
                continue  # It has ended, and counts as a child that has.
        return cls(time.monotonic(), busy, getattr(system, "steal", 0.0), own)

    def other_share(self, start: CpuTimes) -> float:
        """Return the share of all CPU time since the start that others used, from 0 to 1."""
        available = (self.clock - start.clock) * (psutil.cpu_count() or 1)
        others = (self.busy - start.busy) - (self.own - start.own) + self.stolen - start.stolen
        return float(np.clip(others / available, 0, 1)) if available > 0 else 0.0
