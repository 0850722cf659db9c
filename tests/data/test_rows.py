"""Rows of a run are the same however they are divided into blocks and chunks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rescnet_dist.data import RowBlock, RowTable, copy_maker, read_rows
from rescnet_dist.kernels import Augmentation, Backend, augment_images
from rescnet_dist.spec import AugmentSpec

IMAGES, COPIES = 50, 2


@pytest.mark.parametrize("block", [1, 7, 50, 64])
def test_chunks_have_the_rows_of_all_blocks(rng: np.random.Generator, block: int) -> None:
    """Random chunks have the rows of a loop over images, and each block is read once."""
    labels, train = rng.integers(0, 5, IMAGES), rng.random(IMAGES) < 0.6
    expected = [(i, copy) for i in range(IMAGES) for copy in range(1 + COPIES * train[i])]
    ends = np.cumsum(1 + COPIES * train)[block - 1 :: block].tolist()
    starts = (0, *ends) if IMAGES % block == 0 else (0, *ends, len(expected))
    table = RowTable(IMAGES, COPIES, block, starts)
    numbers = []

    def read_block(number: int) -> RowBlock:
        numbers.append(number)
        own = slice(*table.image_range(number))
        return RowBlock.of(table, number, labels[own], train[own])

    inner = np.sort(rng.choice(np.arange(1, len(expected)), 8, replace=False)).tolist()
    chunks = list(pairwise([0, *inner, len(expected)]))
    found = list(read_rows(table, chunks, read_block))
    assert [len(rows.image) for rows in found] == [stop - start for start, stop in chunks]
    assert [pair for rows in found for pair in zip(rows.image, rows.copy, strict=True)] == expected
    image = np.array([number for number, _ in expected])
    assert np.array_equal(np.concatenate([rows.labels for rows in found]), labels[image])
    assert np.array_equal(np.concatenate([rows.train for rows in found]), train[image])
    assert numbers == list(range(len(starts) - 1))


def test_copies_are_made_of_their_originals(rng: np.random.Generator) -> None:
    """Rows that begin with a copy, as those of a chunk may, need the original of it."""
    train = np.ones(6, bool)
    table = RowTable(6, COPIES, 6, (0, 18))
    rows = RowBlock.of(table, 0, np.zeros(6, int), train).rows(4, 11)
    images = rng.integers(0, 255, (6, 8, 8, 1)).astype(np.uint8)
    augment = AugmentSpec(copies=COPIES, shift=2)
    make_copies = copy_maker(rows, augment, 3, Backend())
    assert rows.image_range == (1, 4)
    assert make_copies is not None
    changes = Augmentation(**augment.copy_options)
    expected = augment_images(images[rows.image], rows.image, rows.copy, changes, 3)
    assert np.array_equal(make_copies(images[1:4]), expected)
    assert copy_maker(rows, AugmentSpec(), 3, Backend()) is None
