"""The notebooks run from top to bottom, show pictures, and are stored without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    """Nothing executed is committed."""
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_draws(path: Path, tmp_path: Path) -> None:
    """Every cell runs, and every cell that ends in a plot gives a picture."""
    notebook = nbformat.read(path, 4)
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code" and "plt.show()" in cell.source:
            pictures = [out for out in cell.outputs if "image/png" in out.get("data", {})]
            assert pictures, f"no picture from:\n{cell.source}"
