"""Scores of chunks of images in memory, which are run forward in batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from typing import Any

import numpy as np

from rescnet_dist.errors import DataError
from rescnet_dist.kernels import Augmentation, Backend, augment_images
from rescnet_dist.kernels.cpu.threads import blas_threads
from rescnet_dist.model import (
    Architecture,
    ImageScale,
    Layer,
    State,
    forward,
    initial_state,
    put_views,
)
from rescnet_dist.model.architecture import SLAB_BYTES
from rescnet_dist.model.forward import add_corrections, check_sample_count, compare_forward
from rescnet_dist.model.head import SampleHead
from rescnet_dist.network.layer_cache import CachedLayers, LayerCache
from rescnet_dist.network.training_images import TrainingImages
from rescnet_dist.spec import AugmentSpec

Array = np.ndarray[Any, np.dtype[Any]]

PREDICT_SEED = 0  # of the augmented copies that predictions are averaged over
# Maps and images in float32 of the images of one task
TASK_BYTES = 32 * 2**20
GPU_TASK_BYTES = 4096 * 2**20
STREAM_TASK_BYTES = 512 * 2**20  # for layers that do not fit into memory, and are read per task
# A task uses at most this fraction of a GPU's memory: a few times its size is allocated, and other
# processes need memory too.
GPU_TASK_FRACTION = 1 / 16
GPU_LAYERS_FRACTION = 1 / 4  # of a GPU's memory, for layers that are kept there
# If heads compare images: every task runs all training images forward, too, so tasks are few and
# large. Their maps before and after a layer, and their features, have this fraction.
GPU_COMPARING_TASK_FRACTION = 3 / 7
# Maps and images of the training images that run forward together with the images of a task
COMPARED_BYTES = 512 * 2**20
# Maps, images and features of a block of training images. Tasks have whole blocks.
COMPARED_BLOCK_BYTES = 32 * 2**20
GPU_COMPARED_FRACTION = 1 / 4  # of a GPU's memory
COMPARED_FEATURE_COPIES = 3  # of the features of images that are compared, while they are scaled
GPU_LOCK = threading.Lock()  # one thread at a time: a GPU has no memory for the batches of all


def _get_gpu_layer_memory() -> int:
    """Return the bytes of layers that are kept on the GPU."""
    memory = Backend("cupy").memory()
    return int(memory[2] * GPU_LAYERS_FRACTION) if memory else 0


GPU_LAYERS = LayerCache(_get_gpu_layer_memory)


@dataclass(frozen=True, slots=True)
class Predictor:
    """What a task needs of a network to run images forward.

    Attributes
    ----------
    architecture : Architecture
        What the layers compute.
    image_scale : ImageScale
        Min-max normalization of the images.
    layers : sequence of Layer
        The fitted layers.
    backend : Backend
        Array backend that runs images forward.
    token : str
        Identity of the network for Dask.
    training_images : TrainingImages or None, default None
        The training images, if heads compare images with them.
    corrections : ndarray of float64, shape (n, 1 + copies, L, C), or None, default None
        The sums of `compare` over all training images, if they are known for the images to run.
    """

    architecture: Architecture
    image_scale: ImageScale
    layers: Sequence[Layer]
    backend: Backend
    token: str
    training_images: TrainingImages | None = None
    corrections: Array | None = None

    def __dask_tokenize__(self) -> str:
        return self.token

    @property
    def task_images(self) -> int:
        """Number of images of a task: as many as its memory allows, whatever chunks images have."""
        size = self._batch_images
        if self.training_images is not None and self.backend.on_gpu and self.backend.available():
            memory = self.backend.memory()
            available = int(memory[2] * GPU_COMPARING_TASK_FRACTION) if memory else 0
            size = max(size, available // self._compared_image_bytes)
        return size

    @property
    def _compared_image_bytes(self) -> int:
        """Bytes of an image on a GPU that is compared with training images."""
        features = (4 + self._stored_itemsize) * self.architecture.features
        return 2 * self.architecture.image_bytes + features

    @property
    def _stored_itemsize(self) -> int:
        """Bytes of a number of the maps and features of training images."""
        return np.dtype(self.architecture.store_dtype).itemsize

    @property
    def _batch_images(self) -> int:
        """Number of images that run forward together."""
        if self.backend.on_gpu:
            size = GPU_TASK_BYTES
            if self.backend.available() and (memory := self.backend.memory()):
                size = min(size, int(memory[2] * GPU_TASK_FRACTION))
        else:
            size = STREAM_TASK_BYTES if self._wants_large_batches else TASK_BYTES
        return max(1, size // self._image_bytes)

    @property
    def slab_images(self) -> int:
        """Number of images that stay in the cache of the processor."""
        return max(1, SLAB_BYTES // self._image_bytes)

    @property
    def streams_layers(self) -> bool:
        """Whether the layers are read again for each batch, as they do not fit into memory."""
        return isinstance(self.layers, CachedLayers) and not self.layers.fits

    @property
    def _image_bytes(self) -> int:
        """Bytes of an image that tasks and batches are sized by."""
        size = self.architecture.image_bytes
        if self.training_images is not None and not self.backend.on_gpu:
            size += COMPARED_FEATURE_COPIES * 4 * self.architecture.features
        return size

    @property
    def block_images(self) -> int:
        """Number of training images that are compared at a time."""
        if self.backend.on_gpu:
            return self._batch_images
        return max(1, COMPARED_BLOCK_BYTES // self._image_bytes)

    @property
    def sample_count(self) -> int:
        """Number of training images that heads compare images with."""
        kind, head = self.architecture.head, self.layers[-1].head
        assert isinstance(kind, SampleHead)
        assert head is not None
        return kind.sample_count(head.arrays)

    def count_parts(self, tasks: int, threads: int) -> int:
        """Return the number of parts of the training images that tasks compare images with.

        It does not change the scores.

        Parameters
        ----------
        tasks : int
            The number of tasks that `divide` gives.
        threads : int
            The number of threads that compute them.

        Returns
        -------
        int
            The number of parts; 1 if tasks are enough for all threads, or heads do not compare.
        """
        if self.training_images is None:
            return 1
        return max(1, min(-(-threads // tasks), -(-self.sample_count // self.block_images)))

    def divide(self, chunks: tuple[int, ...]) -> tuple[int, ...]:
        """Divide images into tasks.

        Parameters
        ----------
        chunks : tuple of int
            The number of images in each chunk of an array.

        Returns
        -------
        tuple of int
            The number of images of each task. Large chunks are divided. Small ones are merged
            whole on a GPU, which needs many images at a time, and if layers are read for each task;
            otherwise they stay, so that part of a lazy result needs the chunks of that part only.
        """
        size, tasks, is_open = self.task_images, list[int](), False
        for chunk in chunks:
            if is_open and tasks[-1] + chunk <= size:
                tasks[-1] += chunk
                continue
            parts = max(1, -(-chunk // size))
            tasks += [chunk // parts + (part < chunk % parts) for part in range(parts)]
            is_open = parts == 1 and self._wants_large_batches
        return tuple(tasks)

    @property
    def _wants_large_batches(self) -> bool:
        """Whether as many images as possible go through a layer together."""
        return self.backend.on_gpu or self.streams_layers or self.training_images is not None

    def _batches(self, count: int, rows_per_image: int) -> Iterator[slice]:
        """Divide the images of a task into the batches that go through all layers.

        If layers are in the memory of the host, a batch is one slab, which stays in the cache of
        the processor from layer to layer. On a GPU, or if layers are read for each batch, it is as
        large as memory allows.
        """
        size = self.task_images if self._wants_large_batches else self.slab_images
        step = max(1, size // rows_per_image)
        for start in range(0, count, step):
            yield slice(start, min(start + step, count))

    def _iter_layers(self) -> Generator[Layer]:
        """Yield the layers; heads are in the memory that the images are in."""
        if self.backend.on_gpu:
            yield from GPU_LAYERS.iterate(self.token, len(self.layers), self._put_layer)
        else:
            yield from self.layers

    def _put_layer(self, index: int) -> Layer:
        """Return a layer with the arrays of its head on the GPU."""
        layer = self.layers[index]
        if layer.head is None:
            return layer
        arrays = {name: self.backend.put(a) for name, a in layer.head.arrays.items()}
        return replace(layer, head=replace(layer.head, arrays=arrays))

    def compare(
        self,
        images: Array,
        first: int,
        augment: AugmentSpec,
        part: tuple[int, int] = (0, 1),
        depth: int | None = None,
    ) -> Array:
        """Compare images with a part of the training images.

        Parameters
        ----------
        images : ndarray of shape (n, H, W, d)
            Images in memory.
        first : int
            Index of the first image in the whole array, which copies depend on.
        augment : AugmentSpec
            Copies of each image that are compared, too.
        part : (int, int), default (0, 1)
            The number of the part, from 0, and the number of parts.
        depth : int, optional
            The number of layers L to run; all by default.

        Returns
        -------
        ndarray of float64, shape (n, 1 + copies, L, C)
            What the part adds to the scores in each layer, before the learning rate is applied. The
            sum over all parts is exact, so its bits do not depend on their number.

        Raises
        ------
        CorruptDataError
            If there are more or fewer training images than the heads were fitted to.
        """
        copies, layers = 1 + augment.copies, len(self.layers) if depth is None else depth
        out = np.zeros((len(images), copies, layers, self.architecture.classes))

        def get_layers() -> Iterator[Layer]:
            return islice(self._iter_layers(), layers)

        def use(rows: slice, batch: Array, scale: ImageScale) -> None:
            before = initial_state(batch, scale, self.architecture)
            groups = self._iter_training_states(scale, *part)
            sums = compare_forward(self.architecture, before, groups, get_layers)
            shape = layers, copies, rows.stop - rows.start, -1
            out[rows] = self.backend.get(sums).reshape(shape).transpose(2, 1, 0, 3)

        self._for_batches(images, first, augment, use)
        return out

    def _iter_training_states(
        self, scale: ImageScale, part: int, parts: int
    ) -> Iterator[list[tuple[slice, State]]]:
        """Yield blocks of a part of the training images, as many at a time as memory allows."""
        images, count, step = self.training_images, self.sample_count, self.block_images
        assert images is not None
        blocks, is_last = -(-count // step), part == parts - 1
        first, stop = (blocks * number // parts * step for number in (part, part + 1))
        size = COMPARED_BYTES
        if self.backend.on_gpu and (memory := self.backend.memory()):
            size = int(memory[2] * GPU_COMPARED_FRACTION)
        image_bytes = self.architecture.image_bytes * self._stored_itemsize // 4
        limit, group = size // image_bytes, list[tuple[slice, State]]()
        for batch in images.batches(step, first, None if is_last else stop):
            rows = slice(first, first + len(batch))
            if rows.stop > count:
                check_sample_count(count, images.count())
            if group and rows.stop - group[0][0].start > limit:
                yield group
                group = []
            state = initial_state(self.backend.put(batch), scale, self.architecture)
            group.append((rows, state))
            first = rows.stop
        if missing := min(stop, count) - first:
            check_sample_count(count, min(images.count(), count - missing))
        if group:
            yield group

    def _for_batches(
        self,
        images: Array,
        first: int,
        augment: AugmentSpec,
        use: Callable[[slice, Array, ImageScale], None],
    ) -> None:
        """Call a function with the rows of each batch, its images, and their normalization.

        Images are followed by the first copy of each, and so on. It is not a generator, which would
        hold the lock of the GPU while it is suspended.
        """
        backend, changes = self.backend, Augmentation(**augment.copy_options)
        scale = replace(self.image_scale, views=put_views(self.image_scale.views, backend))
        copy = np.arange(1 + augment.copies)[:, None]
        for rows in self._batches(len(images), len(copy)):
            batch = backend.put(images[rows])  # while another thread computes
            lock = GPU_LOCK if backend.on_gpu else nullcontext()
            with lock, backend.working(), np.errstate(all="ignore"):
                if augment.copies:
                    index, number = np.broadcast_arrays(
                        np.arange(first + rows.start, first + rows.stop), copy
                    )
                    batch = backend.xp.concatenate([batch] * len(copy))
                    batch = augment_images(
                        batch, index.reshape(-1), number.reshape(-1), changes, PREDICT_SEED
                    )
                use(rows, batch, scale)

    def run(
        self,
        images: Array,
        first: int,
        augment: AugmentSpec,
        use: Callable[[slice, Iterator[State]], None],
        *,
        heads: bool = True,
        depth: int | None = None,
    ) -> None:
        """Run images through the layers, batch by batch.

        Parameters
        ----------
        images : ndarray of shape (n, H, W, d)
            Images in memory.
        first : int
            Index of the first image in the whole array, which copies depend on.
        augment : AugmentSpec
            Copies of each image that are run, too.
        use : callable
            Called with each batch: the slice of its m images, and an iterator of the State of
            (1 + copies)·m images after each layer, first of the images, then of the first copy of
            each, and so on. Layers that it does not ask for are not run, unless heads compare
            images with the training images; states have no maps then.
        heads : bool, default True
            Whether heads update the scores, which stay 0 otherwise.
        depth : int, optional
            The number of layers that `use` asks for; all by default.
        """
        if heads and self.training_images is not None:
            self._run_compared(images, first, augment, use, depth)
            return

        def use_batch(rows: slice, batch: Array, scale: ImageScale) -> None:
            before = initial_state(batch, scale, self.architecture)
            with closing(self._iter_layers()) as layers:
                use(rows, forward(self.architecture, before, layers, heads=heads))

        self._for_batches(images, first, augment, use_batch)

    def _run_compared(
        self,
        images: Array,
        first: int,
        augment: AugmentSpec,
        use: Callable[[slice, Iterator[State]], None],
        depth: int | None,
    ) -> None:
        """Do what `run` does with heads that compare images with the training images."""
        corrections, classes = self.corrections, self.architecture.classes
        if corrections is None:
            corrections = self.compare(images, first, augment, depth=depth)
        for rows in self._batches(len(images), 1 + augment.copies):
            part = corrections[rows].transpose(2, 1, 0, 3)
            part = part.reshape(len(part), -1, classes)
            before = State(None, None, np.zeros(part.shape[1:], np.float32))
            use(rows, add_corrections(before, self.layers, part))

    def scores(self, state: State, images: Array, first: int) -> Array:
        """Return the scores of a batch of images, averaged over their copies.

        Parameters
        ----------
        state : State of (1 + copies)·m images
            A state of `run`.
        images : ndarray of shape (m, H, W, d)
            The images of the batch.
        first : int
            Index of the first of them, for the message.

        Returns
        -------
        ndarray of shape (m, C)
            The running scores.

        Raises
        ------
        DataError
            If a score is not finite.
        """
        scores = self.backend.get(state.scores.reshape(-1, len(images), state.scores.shape[1]))
        scores = scores.mean(axis=0)
        _check_scores(scores, images, first, self.image_scale)
        return scores


def _check_scores(scores: Array, images: Array, first: int, scale: ImageScale) -> None:
    """Raise DataError if scores (n, C) of images (n, H, W, d) are not finite.

    `first` is the index of the first image, for the message.
    """
    invalid = np.flatnonzero(~np.isfinite(scores).all(axis=1))
    if len(invalid):
        low, high = float(images[invalid[0]].min()), float(images[invalid[0]].max())
        trained_low, trained_high = scale.value_range
        raise DataError(
            f"image {first + invalid[0]} of X has values from {low:g} to {high:g}, but the network "
            f"was trained on values from {trained_low:g} to {trained_high:g}. Its scores overflow "
            "in single precision. Pass images on the same scale."
        )


def _one_thread(predictor: Predictor) -> AbstractContextManager[None]:
    """Return a context with one BLAS thread; only heads that compare images use SciPy's BLAS."""
    return blas_threads(1, numpy_only=predictor.training_images is None)


def _get_first_index(block_info: Any) -> int:
    """Return the index of the first image of a block, from the `block_info` of `map_blocks`."""
    return int(block_info[0]["array-location"][0][0]) if block_info else 0


def _get_state(states: Iterator[State], layer: int) -> State:
    """Return the state after a layer, numbered from 1; later layers are not run."""
    return next(islice(states, layer - 1, None))


def compare_part(
    images: Array,
    predictor: Predictor,
    augment: AugmentSpec,
    block_info: Any = None,
    *,
    part: tuple[int, int],
    layer: int | None,
) -> Array:
    """Return what a part of the training images adds to the scores of images (n, H, W, d).

    The shape is (n, 1 + copies, L, C) for the layers up to a number, all if it is None; see
    `Predictor.compare`.
    """
    with _one_thread(predictor):
        return predictor.compare(images, _get_first_index(block_info), augment, part, layer)


def compute_compared(
    *values: Any, compute: Callable[..., Array], parts: int, block_info: Any = None
) -> Array:
    """Call another function of this module with what all parts have added to the scores.

    `values` are the arrays that it takes, what `compare_part` returned for each part, and the
    predictor.
    """
    *arrays, predictor = values
    total = reduce(np.add, arrays[-parts:])
    known = replace(predictor, corrections=total)
    return compute(*arrays[:-parts], known, block_info=block_info)


def compute_scores(
    images: Array,
    predictor: Predictor,
    augment: AugmentSpec,
    block_info: Any = None,
    *,
    layer: int,
) -> Array:
    """Return the scores (n, C) of images (n, H, W, d) after a layer, numbered from 1."""
    out = np.zeros((len(images), predictor.architecture.classes), np.float32)
    first = _get_first_index(block_info)

    def use(rows: slice, states: Iterator[State]) -> None:
        state = _get_state(states, layer)
        out[rows] = predictor.scores(state, images[rows], first + rows.start)

    with _one_thread(predictor):
        predictor.run(images, first, augment, use, depth=layer)
    return out


def compute_staged_scores(
    images: Array, predictor: Predictor, augment: AugmentSpec, block_info: Any = None
) -> Array:
    """Return the scores (n, L, C) of images (n, H, W, d) after each layer."""
    layers, classes = len(predictor.layers), predictor.architecture.classes
    out = np.zeros((len(images), layers, classes), np.float32)
    first = _get_first_index(block_info)

    def use(rows: slice, states: Iterator[State]) -> None:
        for stage, state in enumerate(states):
            out[rows, stage] = predictor.scores(state, images[rows], first + rows.start)

    with _one_thread(predictor):
        predictor.run(images, first, augment, use)
    return out


def compute_features(
    images: Array,
    predictor: Predictor,
    augment: AugmentSpec,
    block_info: Any = None,
    *,
    layer: int,
) -> Array:
    """Return the features (n, D) of images (n, H, W, d) after a layer, numbered from 1."""
    architecture, backend = predictor.architecture, predictor.backend
    out = np.zeros((len(images), architecture.feature_count(layer)), np.float32)

    def use(rows: slice, states: Iterator[State]) -> None:
        state = _get_state(states, layer)
        assert state.maps is not None
        for slab in architecture.slabs(state.scores):
            features = backend.get(architecture.extract(state.maps[slab], layer))
            out[rows.start + slab.start : rows.start + slab.stop] = features

    with _one_thread(predictor):
        predictor.run(images, _get_first_index(block_info), augment, use, heads=False)
    return out


def count_staged_correct(
    images: Array,
    codes: Array,
    predictor: Predictor,
    augment: AugmentSpec,
    block_info: Any = None,
) -> Array:
    """Count the correct images (n, H, W, d) with codes (n, 1, 1, 1) after each layer: (1, L)."""
    scores = compute_staged_scores(images, predictor, augment, block_info)
    return np.asarray((scores.argmax(axis=2) == codes[:, 0, 0]).sum(axis=0, keepdims=True))
