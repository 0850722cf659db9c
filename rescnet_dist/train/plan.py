"""The plan of a run: chunks, accumulators and threads, which fix the order of every sum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from rescnet_dist.spec import NetworkSpec, RunSpec

CHUNK_BYTES = 32 * 2**20  # of maps and images in float32


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive chunks of images, start to stop, that one task folds into one accumulator."""

    index: int
    start: int
    stop: int
    chunk_images: int

    def chunks(self) -> Iterator[tuple[int, int]]:
        """First image of each chunk and the one behind its last."""
        for start in range(self.start, self.stop, self.chunk_images):
            yield start, min(start + self.chunk_images, self.stop)


@dataclass(frozen=True, slots=True)
class Plan:
    """How the images are cut up: a run with the same plan gives the same bits on any cluster."""

    images: int
    chunk_images: int
    accumulators: int
    split_every: int
    solve_threads: int

    def groups(self) -> list[Group]:
        """All chunks, in order, shared out evenly over the accumulators."""
        chunks = math.ceil(self.images / self.chunk_images)
        edges = [
            min(chunks * g // self.accumulators * self.chunk_images, self.images)
            for g in range(self.accumulators + 1)
        ]
        return [
            Group(index, start, stop, self.chunk_images)
            for index, (start, stop) in enumerate(pairwise(edges))
        ]

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)


def make_plan(
    spec: NetworkSpec,
    run_spec: RunSpec,
    images: int,
    image_shape: tuple[int, int, int],
    slots: int,
    cores: int,
) -> Plan:
    """Plan a run over `images` images (H, W, d) for `slots` tasks at a time, on workers of `cores`
    threads each; what the run spec sets is taken from there."""
    height, width, channels = image_shape
    by_memory = max(1, CHUNK_BYTES // (4 * height * width * (channels + spec.filters)))
    by_balance = math.ceil(images / (2 * slots))
    chunk_images = run_spec.chunk_images or min(by_memory, by_balance)
    chunks = math.ceil(images / chunk_images)
    return Plan(
        images=images,
        chunk_images=chunk_images,
        accumulators=min(run_spec.accumulators or slots, chunks),
        split_every=run_spec.split_every,
        solve_threads=run_spec.solve_threads or cores,
    )
