"""Execute the notebooks and store them with their outputs: python execute.py [NAMES]."""

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
CELL_TIMEOUT_SECONDS = 600


def execute(
    notebook: nbformat.NotebookNode, folder: str | Path, timeout: int = CELL_TIMEOUT_SECONDS
) -> nbformat.NotebookNode:
    """Execute all cells of a notebook in a folder, and drop what depends on this machine.

    The stored results are copied into the folder first, because one of the notebooks plots them.

    Parameters
    ----------
    notebook : NotebookNode
        The notebook, which is changed in place.
    folder : str or Path
        The working directory of the notebook.
    timeout : int
        The longest time that a cell may take, in seconds.

    Returns
    -------
    NotebookNode
        The same notebook, with new outputs.
    """
    shutil.copytree(HERE / "results", Path(folder) / "results")
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=timeout, kernel_name="python3", resources=resources, record_timing=False
    )
    client.execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    folder_prefix = f"{Path(folder).resolve()}/"
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                data.pop("image/jpeg", None)  # Pillow images are displayed in both formats.
            if "text/plain" in data:  # The repr of a run contains its absolute URL.
                data["text/plain"] = data["text/plain"].replace(folder_prefix, "")
    return notebook


def main(names: Sequence[str]) -> None:
    """Execute the notebooks whose file names start with one of `names`, or all notebooks."""
    for path in sorted(HERE.glob("*.ipynb")):
        if names and not path.name.startswith(tuple(names)):
            continue
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(nbformat.read(path, 4), folder)
            for figure in Path(folder).glob("figures/*.png"):  # The documentation shows them.
                shutil.copy(figure, HERE / "figures")
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
