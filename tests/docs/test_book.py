"""The book builds without a warning."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import BOOK, ROOT

NEEDED = (
    "sphinx",
    "myst_nb",
    "numpydoc",
    "pydata_sphinx_theme",
    "sphinx_copybutton",
    "sphinx_design",
)
PAGES = [
    "index.html",
    "start/own-images.html",
    "guide/faults.html",
    "guide/deploying.html",
    "how-it-works/index.html",
    "reference/index.html",
    "develop/index.html",
    "results.html",
    *(f"{path.stem}.html" for path in sorted(BOOK.glob("0*.ipynb"))),
]


@pytest.mark.slow
def test_the_book_builds(tmp_path: Path) -> None:
    """By the README's command: warnings are errors, and notebooks are not executed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f'needs {", ".join(missing)}: pip install -e ".[docs]"')
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", tmp_path / "doctrees", BOOK, tmp_path / "html"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        assert (tmp_path / "html" / page).exists(), page
    assert "98.40" in (tmp_path / "html/results.html").read_text()
