"""Networks that can be cut, and clocks that can be stepped, for the processes of a harness only."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

HUB = "10.77.0.1"  # of the harness, schedulers, drivers and the S3 server
CLONE_NEWNET = 0x40000000


class Network:
    """A network namespace for this process, and one for each worker, joined by a bridge.

    Nothing of it is visible to other processes, and it ends with its processes. Making one raises
    OSError or CalledProcessError if that is not allowed.
    """

    def __init__(self, workers: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "unshare")
        self.holders: list[subprocess.Popen[bytes]] = []
        self.paths: list[str] = []
        _run("ip link set lo up")
        _run("ip link add bridge0 type bridge")
        _run(f"ip addr add {HUB}/24 dev bridge0")
        _run("ip link set bridge0 up")
        for number in range(workers):
            self._add_namespace(number)

    def _add_namespace(self, number: int) -> None:
        """Make the namespace of a worker and connect it."""
        holder = subprocess.Popen(["unshare", "--net", "--kill-child", "sleep", "infinity"])
        self.holders.append(holder)
        path = f"/proc/{holder.pid}/ns/net"
        while os.readlink(path) == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        self.paths.append(path)
        _run(f"ip link add worker{number} type veth peer name eth0 netns {holder.pid}")
        _run(f"ip link set worker{number} master bridge0 up")
        inside = f"nsenter --target {holder.pid} --net ip"
        _run(f"{inside} link set lo up")
        _run(f"{inside} addr add {self.address(number)}/24 dev eth0")
        _run(f"{inside} link set eth0 up")

    @staticmethod
    def address(number: int) -> str:
        """Return the address of a worker."""
        return f"10.77.0.{10 + number}"

    def cut(self, number: int) -> None:
        """Cut a worker off from everything else: packets are lost, connections stay open."""
        _run(f"ip link set worker{number} down")

    def heal(self, number: int) -> None:
        """Connect a worker again."""
        _run(f"ip link set worker{number} up")

    def close(self) -> None:
        """End the processes that hold the namespaces."""
        for holder in self.holders:
            with suppress(ProcessLookupError):
                holder.kill()
            holder.wait()


def _run(command: str) -> None:
    """Run a command that configures the network."""
    subprocess.run(command.split(), check=True, capture_output=True)


CLOCK_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offsets;

__attribute__((constructor)) static void load(void) {
  const char *path = getenv("RESCNET_CLOCK_OFFSETS");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file < 0) return;
  void *found = mmap(0, PROCESSES * 8L, PROT_READ, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) offsets = found;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *found) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, found);
  if (!failed && offsets && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    found->tv_sec += offsets[getpid()];
  return failed;
}

time_t time(time_t *result) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (result) *result = found.tv_sec;
  return found.tv_sec;
}

int gettimeofday(struct timeval *restrict result, void *restrict zone) {
  struct timespec found;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &found);
  result->tv_sec = found.tv_sec;
  result->tv_usec = found.tv_nsec / 1000;
  return 0;
}
"""


class Clocks:
    """Steps of the wall clock of single processes, by a preloaded library.

    The monotonic clock, and the times that the kernel reports, are not changed. Making one raises
    FileNotFoundError without a C compiler.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise FileNotFoundError("there is no C compiler (cc)")
        processes = int(Path("/proc/sys/kernel/pid_max").read_text())
        self.library, self.offsets = folder / "clock.so", folder / "clock-offsets"
        with self.offsets.open("wb") as file:
            file.truncate(8 * processes)
        options = ("-shared", "-fPIC", "-O1", f"-DPROCESSES={processes}", "-x", "c", "-", "-ldl")
        command = [compiler, "-o", str(self.library), *options]
        subprocess.run(command, input=CLOCK_SOURCE.encode(), check=True, capture_output=True)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of processes whose clocks can be stepped."""
        return {"LD_PRELOAD": str(self.library), "RESCNET_CLOCK_OFFSETS": str(self.offsets)}

    def step(self, pid: int, seconds: int) -> None:
        """Set how far the clock of a process is ahead of the real one."""
        with self.offsets.open("r+b") as file:
            file.seek(8 * pid)
            file.write(seconds.to_bytes(8, "little", signed=True))
