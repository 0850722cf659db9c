"""Status lines and progress bars of commands."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from rescnet_dist.cli.status import show_progress, show_status
with show_status("working"):
    pass
with show_progress("importing", "images") as update:
    update(1, 3)
print("rich" in sys.modules)
"""


@pytest.mark.parametrize("has_terminal", [True, False])
def test_status_is_shown_on_terminals_only(has_terminal: bool) -> None:
    """Nothing is imported for it elsewhere, which takes a twentieth of a second."""
    terminal, other_end = pty.openpty()
    error = other_end if has_terminal else subprocess.PIPE
    environment = {**os.environ, "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=error, env=environment
    )
    os.close(other_end)
    shown = b""
    if has_terminal:
        with open(terminal, "rb", buffering=0) as file:
            shown = file.read(2**16)
    else:
        os.close(terminal)
    assert (done.returncode, done.stdout) == (0, f"{has_terminal}\n".encode())
    assert (b"working" in shown, b"importing" in shown) == (has_terminal, has_terminal)
    assert done.stderr == (None if has_terminal else b"")
