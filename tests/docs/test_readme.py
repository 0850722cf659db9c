"""The code blocks of the README and of the book's pages run as they stand.

Blocks marked `python` and `bash` run. Blocks marked `sh` need a GPU, a cluster or other data:
they are parsed, and the options in them are looked up.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from distributed import Client
from PIL import Image

from rescnet_dist import load_digits
from rescnet_dist.cli import main
from rescnet_dist.data import dataset
from tests.commands import run
from tests.conftest import Processes
from tests.docs.pages import BOOK, README, book_pages, code_blocks

Array = np.ndarray[Any, np.dtype[Any]]

# in this order: the later pages load the runs of the earlier ones
PYTHON_PAGES = [
    BOOK / f"{name}.md"
    for name in (
        "start/own-images",
        "start/choosing-settings",
        "start/not-learning",
        "guide/data",
        "guide/augmentation",
        "guide/training",
        "guide/planning",
        "guide/watching",
        "guide/predicting",
        "guide/clusters",
        "reference/spec",
        "reference/api",
        "reference/errors",
        "reference/events",
        "how-it-works/family",
        "develop/extending",
    )
]
SAME_AS_TRAINING = BOOK / "how-it-works/formats.md"  # the same lines, on a run of the command line
BASH_PAGES = [
    BOOK / "guide" / f"{name}.md"
    for name in ("data", "augmentation", "training", "watching", "clusters")
]
PAGES = [README, *book_pages()]


def page_name(page: Path) -> str:
    """Return the name of a page for the list of tests."""
    return page.stem if page == README else str(page.relative_to(BOOK).with_suffix(""))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with PNG files of two classes, of different sizes, in photos/split/class/."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 30), ("test", 10)):
        for shape, size in (("wide", (40, 60)), ("tall", (60, 40))):
            folder = tmp_path / "photos" / split / shape
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 100, (*size, 3))
                bar = np.s_[:, 10:20] if shape == "tall" else np.s_[10:20]
                pixels[bar] += 120
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03}.png")
    return tmp_path


IN_THREADS = """
    from distributed import Client
    with Client(n_workers=1, processes=False, dashboard_address="127.0.0.1:0"):
        {}
"""


def run_script(pages: list[Path], folder: Path, around: str = "\n    {}\n") -> str:
    """Run the Python blocks of pages, each page as one function, in one process in a folder.

    The calls of all functions replace the braces in `around`.
    """
    script = folder / "pages.py"
    parts = []
    for number, page in enumerate(pages):
        body = "\n".join(code_blocks(page, "python"))
        assert body, page
        parts.append(f"def page_{number}():\n" + re.sub("^", "    ", body, flags=re.MULTILINE))
    calls = around.format("; ".join(f"page_{number}()" for number in range(len(pages))))
    script.write_text("\n\n".join([*parts, f'if __name__ == "__main__":{calls}']))
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_of_the_readme_runs(photos: Path) -> None:
    """On a folder of images, from the import to a prediction."""
    printed = run_script([README], photos)
    found = re.search(r"test accuracy ([\d.]+)", printed)
    assert found
    assert float(found[1]) >= 0.9
    assert re.search(r"\['\w+'", printed)


@pytest.mark.slow
def test_python_of_the_book_runs(photos: Path) -> None:
    """All pages in one folder, on one cluster; the README's blocks start their own."""
    run_script(PYTHON_PAGES, photos, IN_THREADS)
    assert (photos / "networks/digits/zarr.json").exists()


def test_every_page_with_python_is_run() -> None:
    """A new page is added to the list above."""
    found = {page for page in book_pages() if code_blocks(page, "python")}
    assert found - {SAME_AS_TRAINING} == {*PYTHON_PAGES}


def split_commands(page: Path) -> list[str]:
    """Return the lines of the blocks of commands of a page, continued lines joined."""
    blocks = [b for b in code_blocks(page, "bash") if b.startswith("rescnet")]
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def load_fewer_digits(split: str = "train") -> tuple[Array, Array]:
    """Return the first 600 of the 6,000 training images, or all test images, with labels."""
    count = 600 if split == "train" else None
    images, labels = load_digits(split)
    return images[:count], labels[:count]


def test_command_blocks_run(
    client: Client, started: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All `rescnet` commands of the book, in order, in one folder and on one cluster.

    They train on fewer of the digits, which makes no difference to what they do. Output goes to a
    file after `>`, as in a shell. The dashboard is a process, which serves until it is interrupted.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(dataset, "load_digits", load_fewer_digits)
    printed = ""
    for page in BASH_PAGES:
        lines = split_commands(page)
        assert lines, page
        for line in lines:
            program, *words = shlex.split(line, comments=True)
            assert program == "rescnet", line
            if words[0] == "dashboard":
                run_until_interrupted(started, words)
                continue
            words, file = (words[:-2], words[-1]) if ">" in words else (words, None)
            result = run(*words)
            assert result.exit_code == 0, f"{line}\n{result.output}"
            printed += result.stdout
            if file is not None:
                Path(file).write_text(result.stdout)
    assert Path("labels.csv").read_text().count("\n") == 1001
    assert "after layer 2" in printed


def run_until_interrupted(started: Processes, words: list[str]) -> None:
    """Run a command of `rescnet` as a process, which must end well after Ctrl-C."""
    process = started.start(Path(sys.executable).parent / "rescnet", *words)
    started.wait_until(lambda: "http://" in started.read_output(), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0, started.read_output()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_shell_blocks_parse(page: Path) -> None:
    """Every block of a shell is valid Bash, and every `rescnet` command in it has its options."""
    for block in (*code_blocks(page, "sh"), *code_blocks(page, "bash")):
        done = subprocess.run(["bash", "-n", "-c", block], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.search(r"\brescnet (.+)", re.split(r"(?:^|\s)#", line)[0]):
                check_command(found[1])


def check_command(line: str) -> None:
    """Fail if a command line of `rescnet` names a command or an option that there is not."""
    words = shlex.split(re.split(r"[;|>&]", line)[0])
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words.pop(0))
        assert found, line
        command = found
        if command.name == "retry":  # options of its own, and then another command
            number = words.index("--tries") + 2 if "--tries" in words else 0
            words, command = words[number:], main
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    known |= {"-h", "--help"}
    assert {word for word in words if re.match(r"--?[a-z]", word)} <= known, line


@pytest.mark.parametrize("word", ["rescnet train", "pytest"])
def test_the_two_commands_are_there(word: str) -> None:
    """Each of the two commands makes its own environment and installs into it."""
    lines = [b for b in code_blocks(README, "bash") if b.startswith("python3 -m venv .venv")]
    assert any(word in line and "pip install" in line for line in lines)
