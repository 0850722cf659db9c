"""The progress that `fit` shows with `verbose`: lines in a terminal, a cell in a notebook."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from distributed import Client
from rich.console import Console

import rescnet_dist as rd
from rescnet_dist import ResCNetClassifier, RunSpec
from rescnet_dist.dashboard.progress import TerminalProgress
from rescnet_dist.events import ChunkRebuilt
from tests.dashboard.test_notebook import Display

X, Y = (array[:60] for array in rd.load_digits())
X = X[:, ::2, ::2]
RUN = RunSpec(solve_threads=1)
OPTIONS = {"filters": 3, "max_layers": 2}


def test_terminal(client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The chosen settings and a line per layer on standard error; nothing without `verbose`."""
    ResCNetClassifier(OPTIONS, run=RUN).fit(X, Y)
    assert capsys.readouterr() == ("", "")
    store = tmp_path / "run"
    ResCNetClassifier(OPTIONS, run=RUN, store=store, verbose=True).fit(X, Y)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(
        "settings chosen for 60 images of 14×14×1 and 10 classes: filters=3"
    )
    assert "layer 2/2" in output.err
    assert "after layer 2: train" in output.err
    ResCNetClassifier.resume(store, max_layers=3, verbose=True)
    assert "layer 3/3" in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_bar_prints_only_rebuilt_chunks_that_are_damaged(*, quiet: bool) -> None:
    """A resumed run computes maps again that were in memory, which is no problem."""
    output = StringIO()
    bar = TerminalProgress(Console(file=output), quiet=quiet)
    for start in (0, 30):
        bar(ChunkRebuilt(2, start, start + 30, "they were in memory", unexpected=False))
        bar(ChunkRebuilt(2, start, start + 30, "maps/0002 is damaged", unexpected=True))
    expected = [False] * (not quiet) + [True]
    lines = output.getvalue().splitlines()
    assert ["damaged" in line for line in lines] == expected


def test_link_of_an_embedded_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its dashboard listens on the loopback address only, and the link has that address."""
    store = tmp_path / "run"
    ResCNetClassifier(OPTIONS, run=RUN, store=store, verbose=True).fit(X, Y)
    assert re.search(r"^dashboard: http://127\.0\.0\.1:\d+/rescnet$", capsys.readouterr().err, re.M)


class ZMQInteractiveShell:
    """Named like the shell of a notebook's kernel, by which rich recognizes notebooks."""


def test_notebook(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cell is shown at once, and updated until the run is done."""
    shown = Display()
    monkeypatch.setattr("IPython.display.display", shown)
    monkeypatch.setattr("builtins.get_ipython", ZMQInteractiveShell, raising=False)
    ResCNetClassifier(OPTIONS, run=RUN, verbose=True).fit(X, Y)
    assert "starting" in shown.shown[0]
    assert all("settings chosen for 60 images" in text for text in shown.shown)
    assert any("is running" in text for text in shown.shown)
    assert "is done: max_layers=2 reached" in shown.shown[-1]
    assert shown.shown[-1].count("<circle") == 2
    assert capsys.readouterr() == ("", "")
