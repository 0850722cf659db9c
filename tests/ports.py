"""Free ports of loopback for the servers of tests."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def find_free_ports(count: int) -> list[int]:
    """Find free ports of loopback for SeaweedFS, which also uses the ports 10,000 above.

    They are outside the ephemeral range, so that they stay free, and none is 10,000 above another.
    """
    found: list[int] = []
    for port in random.sample(range(12_000, 22_000), 1000):
        if len(found) < count and is_free(port) and is_free(port + 10_000):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    """Return whether a port of loopback is free."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
