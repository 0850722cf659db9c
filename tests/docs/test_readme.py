"""The README's code blocks run as they stand, one after another."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
INTERRUPT = "timeout --preserve-status --signal INT 10"


def blocks(language: str) -> list[str]:
    """The README's fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)


def test_python_blocks_run(tmp_path: Path) -> None:
    """All Python blocks, in order, as one script."""
    script = tmp_path / "readme.py"
    body = "\n".join(blocks("python"))
    script.write_text(
        "def main():\n" + re.sub("^", "    ", body, flags=re.MULTILINE) + "\n\n"
        'if __name__ == "__main__":\n    main()\n'
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "networks/digits/zarr.json").exists()


def test_command_blocks_run(tmp_path: Path) -> None:
    """All `rescnet` commands, in order, in one shell; the two that install are CI's own."""
    commands = [block for block in blocks("bash") if block.startswith("rescnet")]
    assert commands
    # which serves until it is interrupted
    commands = [c.replace("rescnet dashboard", f"{INTERRUPT} rescnet dashboard") for c in commands]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "labels.csv").read_text().count("\n") == 1001
    assert "after layer 2" in done.stdout


@pytest.mark.parametrize("word", ["rescnet train", "pytest"])
def test_the_two_commands_are_there(word: str) -> None:
    """Each of the two commands makes its own environment and installs into it."""
    lines = [block for block in blocks("bash") if block.startswith("python3 -m venv .venv")]
    assert any(word in line and "pip install" in line for line in lines)
