"""The backend that a run asks for, and whether a network fits it."""

from __future__ import annotations

from rescnet_dist.kernels import Backend, check_gpu_holds
from rescnet_dist.spec import NetworkSpec, RunSpec


def get_backend(run_spec: RunSpec) -> Backend:
    """Return the backend of a run, which need not be available in this process."""
    return Backend(run_spec.array_backend, run_spec.matmul_precision)


def get_available_backend(run_spec: RunSpec) -> str:
    """Return the array backend of a run, or "numpy" if the GPUs are those of the workers only."""
    backend = get_backend(run_spec)
    return backend.name if backend.available() else "numpy"


def check_backend(backend: Backend, spec: NetworkSpec, image_shape: tuple[int, int, int]) -> None:
    """Raise SpecError if the filters of a network are too large for the backend.

    image_shape is the shape (H, W, d) of an image.
    """
    if not backend.on_gpu:
        return
    height, width, _ = image_shape
    architecture = spec.architecture(image_shape, 1)
    for layer in architecture.distinct_layers:
        name = "first_filter_size" if layer == 1 else "filter_size"
        check_gpu_holds(
            name,
            architecture.filter_size(layer),
            architecture.patch_channels(layer),
            height,
            width,
            backend.matmul_precision,
        )
