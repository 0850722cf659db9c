"""Run the Dask operator's controller, with the names of services resolved from an argument.

The argument is a JSON object of addresses by host name, as the cluster's DNS has them.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import kopf


def main(addresses: dict[str, str]) -> None:
    """Run the controller until it is terminated."""
    from dask_kubernetes.operator.controller import controller  # noqa: F401  registers its handlers

    resolve = socket.getaddrinfo

    def resolve_service(host: Any, *arguments: Any, **options: Any) -> Any:
        """Resolve a host name, the names of services included."""
        return resolve(addresses.get(host, host), *arguments, **options)

    socket.getaddrinfo = resolve_service
    kopf.configure(verbose=False)
    kopf.run(standalone=True, clusterwide=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
