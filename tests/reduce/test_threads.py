"""The number of BLAS threads of tasks, also of a BLAS that is loaded late."""

from __future__ import annotations

import subprocess
import sys

import pytest

# How many threads the BLAS libraries have in the block, if SciPy is first used there.
SCRIPT = """
import sys
import numpy, scipy
from threadpoolctl import threadpool_info
from rescnet_dist.reduce import blas_threads
assert "scipy.linalg" not in sys.modules
with blas_threads(3, numpy_only={numpy_only}):
    loaded = "scipy.linalg" in sys.modules
    scipy.linalg.cholesky(numpy.eye(3))
    libraries = [part for part in threadpool_info() if part["user_api"] == "blas"]
print(loaded, *(part["num_threads"] == 3 for part in libraries))
"""


@pytest.mark.parametrize(("numpy_only", "loaded"), [(False, "True"), (True, "False")])
def test_scipy_is_loaded_before_its_threads_are_limited(numpy_only: bool, loaded: str) -> None:
    """Unless the caller says that it does not use SciPy's BLAS."""
    command = [sys.executable, "-c", SCRIPT.format(numpy_only=numpy_only)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert found[0] == loaded
    assert numpy_only or (len(found) > 1 and set(found[1:]) == {"True"}), found
