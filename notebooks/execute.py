"""Run the notebooks anew and store them with what they show: python execute.py [NAMES]."""

import shutil
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def execute(notebook, folder, timeout=600):
    """Run all cells of a notebook in a folder, and keep what is the same on every machine.

    The folder gets the results that are stored beside the notebooks, which one of them draws."""
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
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            shown = output.get("data", {})
            if "image/png" in shown:
                shown.pop("image/jpeg", None)  # Pillow gives both
            if "text/plain" in shown:  # a run tells its absolute URL
                shown["text/plain"] = shown["text/plain"].replace(f"{Path(folder).resolve()}/", "")
    return notebook


def main(names):
    """Run the notebooks whose file names begin with one of `names`, or all."""
    for path in sorted(HERE.glob("*.ipynb")):
        if names and not path.name.startswith(tuple(names)):
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(nbformat.read(path, 4), folder)
            for picture in Path(folder).glob("figures/*.png"):  # that the README shows
                shutil.copy(picture, HERE / "figures")
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
