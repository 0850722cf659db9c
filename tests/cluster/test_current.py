"""The Dask client and worker of this thread."""

from __future__ import annotations

import subprocess
import sys

from distributed import Client

from rescnet_dist.cluster.current import find_client, find_worker


def test_client_and_worker_of_a_task(client: Client) -> None:
    """A task has those of its worker; this thread has a client that is current, and no worker."""
    found = client.submit(lambda: (find_worker().address, find_client() is not None), pure=False)
    address, has_client = found.result(timeout=30)
    assert address in client.nthreads()
    assert has_client
    with client.as_current():
        assert find_client() is client
    assert find_worker() is None


def test_distributed_is_not_imported_to_find_out() -> None:
    """A process without it has neither client nor worker."""
    code = (
        "import sys; from rescnet_dist.cluster.current import find_client, find_worker; "
        "sys.exit(str((find_client(), find_worker(), 'distributed' in sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "(None, None, False)\n"
