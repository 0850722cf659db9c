"""The command `rescnet export`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner

from rescnet_dist.cli import main
from rescnet_dist.data import Images
from tests.export.networks import SMALL, make_images, make_network


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a saved network."""
    url = tmp_path_factory.mktemp("network") / "net"
    make_network(SMALL).save(url)
    return str(url)


def test_network_is_exported(stored: str, tmp_path: Path) -> None:
    """The file gives the scores of the network."""
    path = tmp_path / "net.onnx"
    result = CliRunner().invoke(main, ["export", stored, str(path), "--dtype", "uint8"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"wrote {path} (")
    images = make_images()
    (scores,) = onnxruntime.InferenceSession(path).run(["scores"], {"images": images})
    expected = make_network(SMALL).scores(Images(images))
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)


def test_export_does_not_import_numba(stored: str, tmp_path: Path) -> None:
    """It computes no features, and Numba takes a quarter of a second."""
    code = (
        "import sys\nfrom rescnet_dist.cli import main\n"
        f"main(['export', {stored!r}, {str(tmp_path / 'net.onnx')!r}], standalone_mode=False)\n"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_second_file_is_named(stored: str, tmp_path: Path) -> None:
    """Weights are in it on request."""
    path = tmp_path / "net.onnx"
    result = CliRunner().invoke(main, ["export", stored, str(path), "--external-data"])
    assert f"wrote {path} and {path}.data (" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["net.zip"], "net.zip does not end in .onnx"),
        (["missing/net.onnx"], "there is no folder missing. Create it"),
        (["net.onnx", "--opset", "3"], "opset=3 is out of range"),
    ],
)
def test_bad_input_prints_a_message(stored: str, options: list[str], message: str) -> None:
    """With exit code 2."""
    result = CliRunner().invoke(main, ["export", stored, *options])
    assert result.exit_code == 2
    assert message in result.output
