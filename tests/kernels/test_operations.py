"""Test the choice between the operations of NumPy and of CuPy, without a GPU."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest

from rescnet_dist.kernels import cpu
from rescnet_dist.kernels.backend import Operations, get_operations

GPU = Path(cpu.__file__).parent.parent / "gpu"
NAMES = sorted(name for name in vars(Operations) if not name.startswith("_"))


def get_gpu_parameters() -> dict[str, list[str]]:
    """Return the parameters of each function that the package `gpu` exports, read as text."""
    package = ast.parse((GPU / "__init__.py").read_text())
    imports = [node for node in package.body if isinstance(node, ast.ImportFrom)]
    parameters = {}
    for node in imports:
        module = ast.parse((GPU / f"{str(node.module).rpartition('.')[2]}.py").read_text())
        functions = {item.name: item for item in module.body if isinstance(item, ast.FunctionDef)}
        for alias in node.names:
            arguments = functions[alias.name].args
            parameters[alias.name] = [a.arg for a in (*arguments.args, *arguments.kwonlyargs)]
    return parameters


def test_both_libraries_have_all_operations_with_equal_parameters() -> None:
    """Neither has more than the interface."""
    expected = {
        name: [p for p in inspect.signature(getattr(Operations, name)).parameters if p != "self"]
        for name in NAMES
    }
    assert len(expected) == 15
    found = {name: list(inspect.signature(getattr(cpu, name)).parameters) for name in cpu.__all__}
    assert found == expected
    assert get_gpu_parameters() == expected


def test_array_chooses_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy is recognized by its arrays, and its operations are loaded only then."""
    gpu_array = type("ndarray", (), {"__module__": "cupy._core.core"})()
    monkeypatch.setattr("rescnet_dist.kernels.backend._load_gpu_operations", lambda: "gpu")
    assert get_operations(np.zeros(3)) is cpu
    assert get_operations(gpu_array) == "gpu"
