"""Test learned views, copies and local contrast of images on a GPU against the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_cases import relative_error

from rescnet_dist.kernels import Augmentation, Backend, augment_images, local_contrast, to_host
from rescnet_dist.kernels.arrays import on_gpu
from rescnet_dist.kernels.copy_parameters import PADDINGS
from rescnet_dist.model import View, put_views
from rescnet_dist.model.views.global_contrast import GlobalContrast
from rescnet_dist.model.views.zca import ZCA
from tests.kernels.test_augment import (
    AUGMENTED_DTYPES,
    COMBINED_CHANGES,
    SINGLE_CHANGES,
    make_any_images,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("view", [GlobalContrast(), ZCA(), ZCA(gcn=False)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_learned_views_equal_those_of_the_cpu(
    backend: Backend, view: View, dtype: str, rng: np.random.Generator
) -> None:
    """What they learn, with weights, and the pixels; numbers stay in the memory of the host."""
    images = rng.random((60, 9, 8, 3)).cumsum(axis=1)
    images, weights = (images * 20).astype(dtype), rng.uniform(0.5, 2, 60)
    known: list[dict[str, Any]] = []
    for xp, put in ((np, np.asarray), (backend.xp, backend.put)):
        learned: dict[str, Any] = {}
        for _ in range(view.passes):
            with backend.working():
                one, two = (
                    view.observe(
                        view.empty((9, 8, 3), learned, xp),
                        put(images[rows]),
                        learned,
                        weights[rows],
                    )
                    for rows in (slice(25), slice(25, None))
                )
                learned = to_host(view.fit(one.merge(two), learned))
        known.append(learned)
    for name in view.arrays:
        assert relative_error(known[1][name], known[0][name]) < 1e-3
    on_gpu = put_views({view.name: known[0]}, backend)[view.name]
    found = backend.get(view(backend.put(images), on_gpu))
    assert relative_error(found, view(images, known[0])) < 1e-4


@pytest.mark.parametrize("slab", [20_000, None], ids=["many slabs", "one slab"])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("dtype", AUGMENTED_DTYPES)
def test_copies_have_the_bits_of_the_cpu(
    backend: Backend,
    rng: np.random.Generator,
    dtype: str,
    padding: str,
    slab: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For every kind of change, of images of several shapes; copies stay on the GPU."""
    if slab:
        monkeypatch.setattr("rescnet_dist.kernels.augment.COPY_SLAB_BYTES", slab)
    for shape in ((9, 11, 3), (1, 5, 3), (32, 32, 1)):
        images = make_any_images(rng, (30, *shape), dtype)
        index, copy = rng.integers(0, 10**6, 30), rng.integers(0, 5, 30)
        for options in [*SINGLE_CHANGES.values(), *COMBINED_CHANGES.values()]:
            if shape[2] != 3:
                options = {key: value for key, value in options.items() if key != "saturation"}
            changes = Augmentation(padding=padding, **options)
            found = augment_images(backend.put(images), index, copy, changes, 7)
            assert on_gpu(found)
            expected = augment_images(images, index, copy, changes, 7)
            assert backend.get(found).dtype == expected.dtype
            assert backend.get(found).tobytes() == expected.tobytes(), (shape, options)


def test_local_contrast_equals_that_of_the_cpu(backend: Backend, rng: np.random.Generator) -> None:
    """One image is constant."""
    images = rng.integers(0, 255, (40, 32, 32, 3)).astype(np.uint8)
    images[3] = 7
    found = backend.get(local_contrast(backend.put(images)))
    assert relative_error(found, local_contrast(images)) < 1e-5
