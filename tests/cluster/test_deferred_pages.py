"""Dashboards of an embedded cluster, which are imported when a page is first requested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from urllib.request import urlopen

from rescnet_dist.cli.fork_server import start_fork_server


def has_bokeh():
    return "bokeh" in sys.modules


if __name__ == "__main__":
    forked = start_fork_server()
    from rescnet_dist.cluster import current_client
    from rescnet_dist.dashboard.scheduler import install

    with current_client(processes=True, forked=forked) as client:
        client.wait_for_workers(1, timeout=60)
        print(client.run_on_scheduler(install), has_bokeh(), set(client.run(has_bokeh).values()))
        address = client.dashboard_link.rsplit("/", 1)[0]
        pages = [urlopen(f"{address}/{name}", timeout=60) for name in ("rescnet", "status")]
        print([page.status for page in pages], has_bokeh(), set(client.run(has_bokeh).values()))
        workers = client.scheduler_info()["workers"].values()
        ports = [worker["services"]["dashboard"] for worker in workers]
        pages = [urlopen(f"http://127.0.0.1:{port}/status", timeout=60) for port in ports]
        print({page.status for page in pages}, set(client.run(has_bokeh).values()))
"""


def test_pages_are_imported_when_they_are_requested(tmp_path: Path) -> None:
    """Bokeh takes half a second of the scheduler and of each worker."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "True False {False}",
        "[200, 200] True {False}",
        "{200} {True}",
    ], done.stderr
