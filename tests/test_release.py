"""The release: the wheel has what the package needs and nothing else, and trains once installed."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rescnet_dist

ROOT = Path(rescnet_dist.__file__).parents[1]
DATA_FILES = {
    "rescnet_dist/py.typed",
    "rescnet_dist/data/digits.npz",
    "rescnet_dist/data/digits-LICENSE.txt",
    "rescnet_dist/dashboard/report.html.jinja",
}


def run(*command: object, cwd: Path) -> str:
    """Run a command and return what it prints."""
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the checkout, as a release does."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_wheel_content(wheel: Path) -> None:
    """Sources, CUDA files, templates, the embedded digits and licenses; no tests, no notebooks."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = ROOT / "rescnet_dist"
    sources = {
        str(path.relative_to(ROOT))
        for suffix in ("py", "cu")
        for path in package.rglob(f"*.{suffix}")
    }
    assert names == sources | DATA_FILES


@pytest.mark.slow
def test_metadata_renders(wheel: Path) -> None:
    """Check the metadata and the long description as an index would."""
    pytest.importorskip("twine", reason="pip install twine")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, cwd=wheel.parent)


@pytest.mark.slow
def test_wheel_trains_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Install the wheel alone, with what it declares, and train on the embedded digits."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    scripts = tmp_path / "venv/bin"
    run(scripts / "pip", "install", "-q", wheel, cwd=tmp_path)
    options = ("--max-layers", 1, "--store", "run", "--json")
    outcome = json.loads(run(scripts / "rescnet", "train", *options, cwd=tmp_path))
    assert outcome["depth"] == 1
    assert outcome["test"] > 0.95
