"""Test binary hashing: histograms of codes of the maps' signs in blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rescnet_dist import NetworkSpec, SpecError
from rescnet_dist.kernels import binary_hash_features
from rescnet_dist.model.features.binary_hash import BinaryHash

Array = np.ndarray[Any, np.dtype[Any]]

CASES = [
    BinaryHash(bits=3, block=4, stride=2),
    BinaryHash(bits=2, block=3, stride=4),  # pixels between blocks
    BinaryHash(bits=6, block=7, stride=1),
    BinaryHash(bits=3, block=4, stride=1, levels=(4, 2, 1)),
    BinaryHash(bits=2, block=3, stride=2, levels=(3, 1), cells="even"),
    BinaryHash(bits=3, block=4, stride=2, levels=(2, 1), pool="sum"),
]


def make_maps(rng: np.random.Generator, filters: int = 6) -> Array:
    """Return maps (4, 9, 12, f) of both signs, with zeros."""
    maps = rng.normal(size=(4, 9, 12, filters)).astype(np.float32)
    maps[rng.random(maps.shape) < 0.1] = 0
    maps[1, :5] = -1
    return maps


def hash_slowly(maps: Array, extractor: BinaryHash) -> Array:
    """Return the counts of each image, pixel by pixel."""
    bits, block, stride = extractor.bits, extractor.block, extractor.stride
    rows = []
    for image in maps:
        height, width, filters = image.shape
        digits = [[["01"[int(z > 0)] for z in pixel] for pixel in line] for line in image]
        tops, lefts = (range(0, n - block + 1, stride) for n in (height, width))
        by_block = {}
        for i, top in enumerate(tops):
            for j, left in enumerate(lefts):
                for group in range(filters // bits):
                    histogram = [0] * 2**bits
                    for y in range(top, top + block):
                        for x in range(left, left + block):
                            text = digits[y][x][group * bits : (group + 1) * bits]
                            histogram[int("".join(text), 2)] += 1
                    by_block[i, j, group] = histogram
        row = []
        for members in list_cells(extractor, height, width, len(tops), len(lefts)):
            for group in range(filters // bits):
                inside = [by_block[i, j, group] for i, j in members]
                row += [
                    (sum if extractor.pool == "sum" else max)(c) for c in zip(*inside, strict=True)
                ]
        rows.append(row)
    return np.array(rows)


def list_cells(
    extractor: BinaryHash, height: int, width: int, rows: int, columns: int
) -> list[list[tuple[int, int]]]:
    """Return the blocks (row, column) that are pooled together, in the order of the features."""
    if not extractor.levels:
        return [[(i, j)] for i in range(rows) for j in range(columns)]

    def cell(number: int, count: int, length: int, level: int) -> int:
        if extractor.cells == "even":
            return number * level // count
        center = number * extractor.stride + math.ceil(extractor.block / 2)  # counted from 1
        return math.ceil(center / (length / level)) - 1

    found = []
    for level in extractor.levels:
        members: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for i in range(rows):
            for j in range(columns):
                key = cell(i, rows, height, level), cell(j, columns, width, level)
                members.setdefault(key, []).append((i, j))
        found += [members[key] for key in sorted(members)]
    return found


@pytest.mark.parametrize("extractor", CASES, ids=lambda e: f"{e.bits}-{e.levels}-{e.pool}")
def test_histograms_equal_oracle(extractor: BinaryHash, rng: np.random.Generator) -> None:
    """For all blocks, and pooled over pyramids by the maximum and the sum."""
    maps = make_maps(rng)
    found, expected = extractor(maps, (4, 2)), hash_slowly(maps, extractor)
    assert found.dtype == extractor.dtype
    assert found.shape == (4, extractor.count(9, 12, (4, 2)))
    assert np.array_equal(found, expected)


def test_first_map_is_the_highest_digit() -> None:
    """One pixel that is positive in maps 0 and 2 of 3 has the code 101."""
    maps = np.array([1, 0, 2], np.float32).reshape(1, 1, 1, 3)
    found = binary_hash_features(maps, 1, 1, bits=3)
    assert found.tolist() == [[0, 0, 0, 0, 0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"block": 15}, np.uint8),
        ({"block": 16}, np.uint16),
        ({"block": 8, "levels": (1,), "pool": "sum"}, np.uint32),
    ],
)
def test_dtype_holds_the_largest_count(options: dict[str, Any], dtype: type) -> None:
    """All pixels of an image have the same code."""
    extractor = BinaryHash(bits=1, stride=1, **options)
    found = extractor(np.ones((1, 20, 20, 1), np.float32), (1,))
    assert found.dtype == extractor.dtype == dtype
    blocks = (21 - extractor.block) ** 2 if dtype == np.uint32 else 1
    assert found.max() == blocks * extractor.block**2


def test_common_dtype_of_several_extractors() -> None:
    """It is that of integers if all are."""
    small, large = BinaryHash(), BinaryHash(block=16)
    spec = NetworkSpec(filters=8)
    for features, dtype in [
        ((small,), np.uint8),
        ((small, large), np.uint16),
        ((small, *spec.features), np.float32),
    ]:
        architecture = spec.replace(features=features).architecture((20, 20, 1), 2)
        assert architecture.feature_dtype == dtype
        found = architecture.extract(np.ones((2, 20, 20, 8), np.float32), 1)
        assert found.dtype == dtype
        assert found[0].max() == (256 if large in features else 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filters": 50}, r"filters=50 is not a multiple of 8.*Use 48 or 56 filters.*hash_bits"),
        ({"filters": 4}, r"filters=4 is not a multiple of 8.*Use 8 filters"),
        ({"hash_levels": (2, 0)}, r"levels=\(2, 0\) is not valid\. Give levels of at least 1"),
    ],
)
def test_options_must_fit_each_other(options: dict[str, Any], message: str) -> None:
    """The error says what to change."""
    with pytest.raises(SpecError, match=message):
        NetworkSpec(**{"filters": 8, "features": "binary-hash"} | options)


def test_blocks_must_fit_into_images() -> None:
    """The flat name of the option is in the message."""
    spec = NetworkSpec(filters=8, features="binary-hash")
    with pytest.raises(SpecError, match=r"hash_block=8 is larger than the image"):
        spec.architecture((7, 9, 1), 2).check_images()


@pytest.mark.parametrize("arguments", [{"block": 10, "bits": 3}, {"block": 3, "bits": 4}])
def test_maps_must_fit(arguments: dict[str, int], rng: np.random.Generator) -> None:
    """Kernels raise ValueError."""
    with pytest.raises(ValueError, match=r"6 maps of 9×12 pixels do not make codes"):
        binary_hash_features(make_maps(rng), stride=1, **arguments)
