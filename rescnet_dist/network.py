"""A fitted network: scores for images of any number, and its stored form."""

from __future__ import annotations

import os
import threading
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed

from rescnet_dist.data import Images, classes_from_json, classes_to_json
from rescnet_dist.errors import DataError, StoreError
from rescnet_dist.formatting import html_table, plain_text
from rescnet_dist.kernels import (
    Backend,
    ImageScale,
    Layer,
    augment_images,
    check_gpu_holds,
    forward,
)
from rescnet_dist.reduce import blas_threads
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import (
    FORMAT_VERSION,
    NETWORK_FORMAT,
    RUN_FORMAT,
    Location,
    RunStore,
    StoredLayers,
    check_format,
    read_image_scale,
    translate_attribute_errors,
    write_image_scale,
    write_layer,
)

Array = np.ndarray[Any, np.dtype[Any]]

PREDICT_SEED = 0  # of the copies that are averaged
SHOWN_CLASSES = 12  # of a network in a notebook
OTHER_SCALE = 50  # times as large or small a range of values as in training
LOOKED_AT = 64  # lazy images, whose values tell of the scale of all
BATCH_BYTES = 128 * 2**20  # of maps and images in float32; a layer is read once per batch
GPU_BATCH_BYTES = 4096 * 2**20  # the same on a GPU, but for small ones: not more than
GPU_PARTS = 16  # such parts of its memory, as a few times as much is held, beside others
GPU_TURN = threading.Lock()  # threads take turns on a GPU, whose memory is not for all of them


@dataclass(frozen=True, slots=True)
class Network:
    """A fitted network: classes (C,), image_shape (H, W, d), its layers, and how the images that it
    was trained on were augmented."""

    spec: NetworkSpec
    classes: Array
    image_shape: tuple[int, int, int]
    image_scale: ImageScale
    layers: Sequence[Layer]
    augment: AugmentSpec = field(default_factory=AugmentSpec)  # of the copies it was trained on

    backend: Backend = field(default_factory=Backend)  # that images are run forward with

    token: str = field(init=False, default_factory=lambda: uuid.uuid4().hex, repr=False)

    def __dask_tokenize__(self) -> str:
        # a URL may hold another network later, and hashing weights costs; of no use to `replace`,
        # so that a network with other layers is another to Dask too
        return self.token

    def _repr_html_(self) -> str:
        height, width, channels = self.image_shape
        names = [plain_text(label) for label in self.classes.tolist()[:SHOWN_CLASSES]]
        more = ", …" if len(self.classes) > SHOWN_CLASSES else ""
        facts = [
            ("layers", self.depth),
            ("images", f"{height}×{width}×{channels}"),
            ("classes", f"{len(self.classes):,}: {', '.join(names)}{more}"),
            ("copies", self.augment.copies),
        ]
        rows = [(name, value, False) for name, value in facts] + self.spec.rows()
        return html_table("Network, bold where its spec is not the default", rows)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def in_memory(self) -> Network:
        """The same network with all its layers read."""
        return replace(self, layers=tuple(self.layers))

    def on(self, array_backend: str, matmul_precision: str | None = None) -> Network:
        """The same network, which runs images forward with "numpy" or, on a GPU, with "cupy";
        matrices are multiplied there as in training unless `matmul_precision` says otherwise."""
        how = matmul_precision or self.backend.matmul_precision
        backend = Backend.of(RunSpec().replace(array_backend=array_backend, matmul_precision=how))
        if backend.on_gpu:
            check_gpu_holds(self.spec, self.image_shape, how)
        return replace(self, backend=backend)

    def check_images(self, images: Images) -> None:
        """Refuse images of another shape than the network was trained on, and warn of those in
        memory whose values are on quite another scale; of lazy ones nothing is computed."""
        if images.shape[1:] != tuple(self.image_shape):
            raise DataError(
                f"X has images of shape {images.shape[1:]} and the network was trained on "
                f"{tuple(self.image_shape)} (height, width, channels): give images of that shape"
            )
        if not images.is_lazy:
            self._warn_of_scale(np.asarray(images.array))

    def look_at(self, images: Images) -> None:
        """Warn of lazy images on another scale too, by the first few: for those who compute all."""
        if images.is_lazy:
            self._warn_of_scale(np.asarray(images.array[:LOOKED_AT]))

    def _warn_of_scale(self, images: Array) -> None:
        if not len(images):
            return
        low, high = float(images.min()), float(images.max())
        least, most = self.trained_range
        width = most - least
        if low < high and not width / OTHER_SCALE <= high - low <= width * OTHER_SCALE:
            warnings.warn(
                f"these images have values from {low:g} to {high:g}, and the network was trained "
                f"on values from {least:g} to {most:g}: give them on the same scale",
                stacklevel=4,
            )

    @property
    def trained_range(self) -> tuple[float, float]:
        """The least and the largest value of the images that the network was trained on."""
        low = float(np.min(self.image_scale.low))
        return low, low + 1 / float(np.max(self.image_scale.scale) or 1)

    def scores(self, images: Images, augment: AugmentSpec | None = None) -> Array | da.Array:
        """Running scores (N, C) after the last layer; lazy for lazy images.

        augment averages the scores of each image and of its copies.
        """
        self.check_images(images)
        array, classes = self._chunked(images), len(self.classes)
        scores = array.map_blocks(
            _final_scores, self._shared(), self._averaging(augment),
            drop_axis=(2, 3), chunks=(array.chunks[0], (classes,)), dtype=np.float32,
            meta=np.empty((0, 0), np.float32),
        )  # fmt: skip
        return scores if images.is_lazy else scores.compute()

    def staged_scores(self, images: Images, augment: AugmentSpec | None = None) -> Array | da.Array:
        """Running scores (N, L, C) after each layer; lazy for lazy images; augment as for
        `scores`."""
        self.check_images(images)
        array, classes = self._chunked(images), len(self.classes)
        scores = array.map_blocks(
            _all_scores, self._shared(), self._averaging(augment),
            drop_axis=3, chunks=(array.chunks[0], (self.depth,), (classes,)), dtype=np.float32,
            meta=np.empty((0, 0, 0), np.float32),
        )  # fmt: skip
        return scores if images.is_lazy else scores.compute()

    def _averaging(self, augment: AugmentSpec | None) -> AugmentSpec:
        augment = augment or AugmentSpec()
        augment.check_images(*self.image_shape)
        return augment

    def maps(self, images: Array, layer: int) -> Array:
        """Maps (n, H, W, f) of a few images (n, H, W, d) in memory after layer `layer`, from 1."""
        if not 1 <= layer <= self.depth:
            raise DataError(f"layer={layer}: the network has the layers 1 to {self.depth}")
        self.check_images(Images(images))
        stages = forward(
            images, self.layers[:layer], self.image_scale, self.spec, len(self.classes)
        )
        *_, (maps, _) = stages
        return maps

    def staged_correct(
        self, images: Images, codes: Any, augment: AugmentSpec | None = None
    ) -> Array:
        """How many images are classified rightly after each layer, (L,); codes (N,) as NumPy or
        dask, −1 for a label that is no class; augment as for `scores`."""
        self.check_images(images)
        self.look_at(images)
        array = self._chunked(images)
        codes = da.asarray(codes).rechunk((array.chunks[0],))[:, None, None, None]
        counts = da.map_blocks(
            _right_by_stage, array, codes, self._shared(), self._averaging(augment),
            drop_axis=(2, 3), chunks=((1,) * array.numblocks[0], (self.depth,)), dtype=np.int64,
            meta=np.empty((0, 0), np.int64),
        )  # fmt: skip
        return np.asarray(counts.sum(axis=0))

    @property
    def batch_images(self) -> int:
        """Images that are run forward at a time."""
        height, width, channels = self.image_shape
        size = BATCH_BYTES
        if self.backend.on_gpu:
            size = GPU_BATCH_BYTES
            if self.backend.available() and (memory := self.backend.memory()):
                size = min(size, memory[2] // GPU_PARTS)
        return max(1, size // (4 * height * width * self.spec.input_channels(2, channels)))

    def _chunked(self, images: Images) -> da.Array:
        """The images as a dask array in chunks of whole images."""
        array = images.array
        if not isinstance(array, da.Array):
            array = da.from_array(array, (self.batch_images, *array.shape[1:]), name=False)
        return array.rechunk((array.chunks[0], *array.shape[1:]))

    def _shared(self) -> Any:
        """The network as one key of a graph."""
        return delayed(self, pure=True, traverse=False)

    # the stored form ----------------------------------------------------------------------------

    def save(self, url: str | os.PathLike[str]) -> None:
        """Write the network to a URL that holds nothing yet; no pickle in it."""
        location = Location.of(url)
        if location.exists():
            raise StoreError(f"{location.url} already holds something: choose another URL")
        attributes = {
            "format": NETWORK_FORMAT,
            "format_version": FORMAT_VERSION,
            "network": self.spec.to_dict(),
            "classes": classes_to_json(self.classes),
            "image_shape": list(self.image_shape),
            "depth": self.depth,
            "augment": self.augment.to_dict(),
        }
        try:
            for number, layer in enumerate(self.layers, start=1):
                write_layer(location, number, layer)
            write_image_scale(location, self.image_scale)
            location.update_attributes(attributes)
        except BaseException:
            location.remove()
            raise

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> Network:
        """The network at a URL: one that was saved, or that of a run, at its chosen depth."""
        location = Location.of(url)
        attributes = check_format(location, NETWORK_FORMAT, RUN_FORMAT)
        depth = attributes.get("depth")
        if depth is None:
            result = RunStore(location).result()
            depth = result["depth"] if result else len(RunStore(location).commits()) - 1
        if depth < 1:
            raise StoreError(
                f"the run at {location.url} has no finished layer yet: resume it first"
            )
        with translate_attribute_errors(location):
            height, width, channels = attributes["image_shape"]
            return cls(
                NetworkSpec.from_stored(attributes["network"]),
                classes_from_json(attributes["classes"]),
                (height, width, channels),
                read_image_scale(location),
                StoredLayers(location, depth),
                AugmentSpec.from_stored(attributes.get("augment", {})),
                Backend(
                    matmul_precision=RunSpec.from_stored(attributes.get("run", {})).matmul_precision
                ),
            )


def stored_accuracies(url: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Accuracy after each layer, up to the last one judged, of the run at a URL; empty for a
    saved network."""
    location = Location.of(url)
    if location.attributes()["format"] != RUN_FORMAT:
        return []
    result = RunStore(location).result()
    return list(result["accuracies"]) if result else []


def _stages(
    images: Array, first: int, network: Network, augment: AugmentSpec
) -> Iterator[tuple[slice, int, Array]]:
    """Rows, number of the layer and scores (n, C) after it, for some of the images (N, H, W, d) at
    a time, of which the first has index `first`; averaged over copies if there are any."""
    copies, count = augment.copies, len(images)
    batch = max(1, network.batch_images // (1 + copies))
    copy = np.arange(1 + copies)[:, None]
    for start in range(0, count, batch):
        rows = slice(start, min(start + batch, count))
        n, some = rows.stop - start, images[rows]
        if copies:
            index, number = np.broadcast_arrays(first + np.arange(start, rows.stop), copy)
            some = np.concatenate([some] * (1 + copies))
            some = augment_images(
                some, index.reshape(-1), number.reshape(-1), augment, PREDICT_SEED
            )
        backend = network.backend
        stages = forward(
            backend.put(some), network.layers, network.image_scale, network.spec,
            len(network.classes),
        )  # fmt: skip
        turn = GPU_TURN if backend.on_gpu else nullcontext()
        with turn, backend.working(), np.errstate(all="ignore"):
            for stage, (_, scores) in enumerate(stages):
                mean = backend.get(scores.reshape(1 + copies, n, -1).mean(axis=0))
                _check_scores(mean, images[rows], first + start, network)
                yield rows, stage, mean


def _check_scores(scores: Array, images: Array, first: int, network: Network) -> None:
    """Refuse images (n, H, W, d), the first of this index, that scores (n, C) cannot be told of."""
    wrong = np.flatnonzero(~np.isfinite(scores).all(axis=1))
    if len(wrong):
        low, high = float(images[wrong[0]].min()), float(images[wrong[0]].max())
        least, most = network.trained_range
        raise DataError(
            f"image {first + wrong[0]} of X has values from {low:g} to {high:g}, and the network "
            f"was trained on values from {least:g} to {most:g}: single precision cannot hold what "
            "it makes of them; give images on the same scale"
        )


def _first_index(block_info: Any) -> int:
    """The index of the first image of a block, from what `map_blocks` tells."""
    return int(block_info[0]["array-location"][0][0]) if block_info else 0


def _final_scores(
    images: Array, network: Network, augment: AugmentSpec, block_info: Any = None
) -> Array:
    """Scores (n, C) of images (n, H, W, d) after the last layer."""
    out = np.zeros((len(images), len(network.classes)), np.float32)
    with blas_threads(1):
        for rows, _, scores in _stages(images, _first_index(block_info), network, augment):
            out[rows] = scores
    return out


def _all_scores(
    images: Array, network: Network, augment: AugmentSpec, block_info: Any = None
) -> Array:
    """Scores (n, L, C) of images (n, H, W, d) after each layer."""
    out = np.zeros((len(images), network.depth, len(network.classes)), np.float32)
    with blas_threads(1):
        for rows, stage, scores in _stages(images, _first_index(block_info), network, augment):
            out[rows, stage] = scores
    return out


def _right_by_stage(
    images: Array, codes: Array, network: Network, augment: AugmentSpec, block_info: Any = None
) -> Array:
    """How many images (n, H, W, d) with codes (n, 1, 1, 1) are right after each layer, (1, L)."""
    right = np.zeros((1, network.depth), np.int64)
    with blas_threads(1):
        for rows, stage, scores in _stages(images, _first_index(block_info), network, augment):
            right[0, stage] += (scores.argmax(axis=1) == codes[rows, 0, 0, 0]).sum()
    return right
