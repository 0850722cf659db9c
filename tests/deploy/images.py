"""Replacements for images, as environments of this machine, and the Secrets of pods.

Environments have this package, do not have it, or have other versions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import pytest

from rescnet_dist.deploy.settings import Deployment

ROOT = Path(__file__).parents[2]
IMAGE = Deployment("cluster").image
NO_CLOUD = {"AWS_EC2_METADATA_DISABLED": "true"}  # no credentials from the metadata service
SCRIPT = """#!{python}
import sys
from {module} import main
sys.exit(main())
"""


def this_image() -> dict[str, str]:
    """Return the environment of the tests, with the package of this checkout."""
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    return NO_CLOUD | {"PATH": path, "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}


def other_image(folder: Path, **versions: str | None) -> dict[str, str]:
    """Return an image with other versions of some distributions, or without them.

    It is a virtual environment of links to everything else that is installed here.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    changed = tuple(versions)
    for source in Path(sysconfig.get_path("purelib")).iterdir():
        if not source.name.startswith(changed) and source.suffix != ".pth":
            (site / source.name).symlink_to(source)
    if "rescnet_dist" not in changed and not (site / "rescnet_dist").exists():
        (site / "rescnet_dist").symlink_to(ROOT / "rescnet_dist")  # installed in place
    for name, version in versions.items():
        if version is None:
            continue
        candidates = [folder / name for folder in (ROOT, Path(sysconfig.get_path("purelib")))]
        package = next(path for path in candidates if path.exists())
        shutil.copytree(package, site / name, ignore=shutil.ignore_patterns("tests"))
        metadata = site / f"{name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"
        )
        entry_points = distribution(name).read_text("entry_points.txt") or ""
        (metadata / "entry_points.txt").write_text(entry_points)
    programs = {"dask": "dask.__main__", "rescnet": "rescnet_dist.cli"}
    for program, module in programs.items():
        script = folder / "bin" / program
        script.write_text(SCRIPT.format(python=folder / "bin/python", module=module))
        script.chmod(0o755)
    return NO_CLOUD | {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "LANG": "C.UTF-8"}


@cache
def certificates(folder: Path, ca: str = "rescnet-ca-1") -> dict[str, str]:
    """Create a CA and a certificate in a folder, by the commands of the guide, as a Secret."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    guide = (ROOT / "deploy/README.md").read_text()
    commands = [line for line in guide.splitlines() if line.startswith("openssl ")]
    assert len(commands) == 3
    for command in commands:
        faster = command.replace("rsa:3072", "rsa:2048").replace("rescnet-ca-1", ca)
        subprocess.run(["sh", "-c", faster], cwd=folder, check=True, capture_output=True)
    return {name: (folder / name).read_text() for name in ("ca.crt", "tls.crt", "tls.key")}
