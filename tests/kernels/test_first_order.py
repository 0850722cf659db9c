"""Test first-order pooling: means and maxima of maps over a spatial pyramid."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from rescnet_dist import NetworkSpec, SpecError
from rescnet_dist.kernels import first_order_features
from rescnet_dist.model.features.first_order import FirstOrder

Array = np.ndarray[Any, np.dtype[Any]]

ACTIVATIONS = ("relu", "absolute", "soft-threshold", "none")
SIZES = [(12, 12, (2, 1)), (7, 10, (3, 2, 1)), (5, 6, (4,)), (1, 3, (1,))]


def make_maps(rng: np.random.Generator, height: int, width: int) -> Array:
    """Return maps (4, H, W, 3) of both signs; one is 0 everywhere."""
    maps = rng.normal(size=(4, height, width, 3)).astype(np.float32)
    maps[1, :, :, 2] = 0
    return maps


def pool_slowly(maps: Array, extractor: FirstOrder) -> Array:
    """Return the features of each image, cell by cell and map by map, in double precision."""
    threshold = float(np.float32(extractor.threshold))
    halves = {
        "relu": [lambda z: max(0.0, z)],
        "absolute": [abs],
        "soft-threshold": [lambda z: max(0.0, z - threshold), lambda z: max(0.0, -z - threshold)],
        "none": [lambda z: z],
    }[extractor.activation]
    pools = {"both": ["mean", "max"], "mean": ["mean"], "max": ["max"]}[extractor.pools]
    rows = []
    for image in maps.astype(np.float64):
        height, width, filters = image.shape
        row = []
        for g in extractor.levels:
            for i, j in product(range(g), range(g)):
                top, bottom = height * i // g, height * (i + 1) // g
                left, right = width * j // g, width * (j + 1) // g
                for pool, half, k in product(pools, halves, range(filters)):
                    pixels = [half(z) for z in image[top:bottom, left:right, k].ravel()]
                    row.append(max(pixels) if pool == "max" else sum(pixels) / len(pixels))
        rows.append(row)
    features = np.array(rows)
    return np.sign(features) * np.abs(features) ** 0.5 if extractor.power else features


@pytest.mark.parametrize(("height", "width", "levels"), SIZES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("pools", ["both", "mean", "max"])
def test_features_equal_oracle(
    height: int,
    width: int,
    levels: tuple[int, ...],
    activation: str,
    pools: str,
    rng: np.random.Generator,
) -> None:
    """All activations and pools, on cells of unequal size, with and without the root."""
    maps = make_maps(rng, height, width)
    threshold = 0.3 if activation == "soft-threshold" else 0.0
    for power in (False, True):
        extractor = FirstOrder(activation, threshold, pools, levels, power)  # type: ignore[arg-type]
        found, expected = extractor(maps, (3,)), pool_slowly(maps, extractor)
        assert found.dtype == np.float32
        assert found.shape == expected.shape == (4, extractor.count(height, width, (3,)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 if power else 1e-6)


def test_sums_are_in_one_order(rng: np.random.Generator) -> None:
    """Neither the memory layout nor the number of images changes a bit of the features."""
    maps = make_maps(rng, 9, 11)
    features = first_order_features(maps, (3, 2, 1))
    transposed = np.ascontiguousarray(maps.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)
    assert np.array_equal(first_order_features(transposed, (3, 2, 1)), features)
    assert np.array_equal(first_order_features(maps[2:3], (3, 2, 1)), features[2:3])
    assert len(first_order_features(maps[:0], (3, 2, 1))) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": ()}, r"levels=\(\) is not valid\. Give at least one level"),
        ({"threshold": 0.1}, r"threshold=0.1 has no effect with activation='relu'"),
        ({"threshold": -0.1, "activation": "soft-threshold"}, r"It must be at least 0"),
    ],
)
def test_options_must_fit_each_other(options: dict[str, Any], message: str) -> None:
    """The error says what to change."""
    with pytest.raises(SpecError, match=message):
        FirstOrder(**options)


def test_images_must_have_a_pixel_in_every_cell() -> None:
    """A level has at most as many cells per side as the images have pixels."""
    spec = NetworkSpec(features="first-order", first_order_levels=(9, 1))
    spec.architecture((9, 12, 1), 2).check_images()
    with pytest.raises(SpecError, match=r"more cells per side than images of 8×12 have pixels"):
        spec.architecture((8, 12, 1), 2).check_images()
