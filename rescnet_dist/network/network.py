"""A fitted network of layers: scores of in-memory and dask images, and its stored form."""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
from dask.system import CPU_COUNT

from rescnet_dist.cluster.current import find_client
from rescnet_dist.cluster.tasks import uses_own_threads
from rescnet_dist.data import ImageInput, Images, as_images, classes_to_json
from rescnet_dist.data.kinds import is_dask_array
from rescnet_dist.errors import DataError
from rescnet_dist.export import DEFAULT_OPSET, ExportedNetwork
from rescnet_dist.formatting import html_table
from rescnet_dist.kernels import Backend
from rescnet_dist.model import Architecture, Calibration, ImageScale, Layer, forward, initial_state
from rescnet_dist.model.head import SampleHead
from rescnet_dist.network.base import BaseNetwork
from rescnet_dist.network.layer_cache import CachedLayers
from rescnet_dist.network.local import map_in_tasks, map_in_threads
from rescnet_dist.network.saving import read_network, write_network
from rescnet_dist.network.scoring import (
    GPU_LAYERS,
    Predictor,
    compare_part,
    compute_compared,
    compute_features,
    compute_scores,
    compute_staged_scores,
    count_staged_correct,
)
from rescnet_dist.network.training_images import TrainingImages
from rescnet_dist.planning.backend import check_backend, get_backend
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import Location

if TYPE_CHECKING:
    import dask.array as da

Array = np.ndarray[Any, np.dtype[Any]]

TASKS_PER_CORE = 4  # into which images in memory are divided at least, to balance the load
MIN_SCATTERED_BYTES = 2**20  # of layers in memory; smaller ones are part of the graph


@contextmanager
def images_in_graphs() -> Iterator[None]:
    """Compute graphs in the body without a warning that they are large.

    Images in memory are part of the graph, so that no task depends on a worker that may be lost.
    """
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": 2**60}):
        yield


@dataclass(frozen=True, eq=False)  # arrays have no single truth value
class Network(BaseNetwork):
    """A fitted network.

    Attributes
    ----------
    spec : NetworkSpec
        Options of the network.
    classes : ndarray of shape (C,)
        Labels of the classes.
    image_shape : tuple of int
        Height, width and channels (H, W, d) of the images.
    image_scale : ImageScale
        Min-max normalization of the images.
    layers : sequence of Layer
        The fitted layers; layers of a stored network are read when they are used.
    augment : AugmentSpec, default AugmentSpec()
        Augmented copies that the network was trained on.
    calibration : Calibration, default Calibration()
        How scores become probabilities.
    backend : Backend, default Backend()
        Array backend that runs images forward.
    input : ImageInput or None, default None
        How the training images were made: their dtype, and what they were resized and converted
        to; None for networks of releases that did not store it.
    training_images : TrainingImages or None, default None
        The training images, if heads compare images with them.
    token : str
        Identity of the network for Dask.
    """

    spec: NetworkSpec
    classes: Array
    image_shape: tuple[int, int, int]
    image_scale: ImageScale
    layers: Sequence[Layer]
    augment: AugmentSpec = field(default_factory=AugmentSpec)
    calibration: Calibration = field(default_factory=Calibration)
    backend: Backend = field(default_factory=Backend)
    input: ImageInput | None = None
    training_images: TrainingImages | None = None
    token: str = field(init=False, default_factory=lambda: uuid.uuid4().hex, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # With the arrays of all layers, not the URL of a store: a pickle must outlive its store.
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        in_memory = {"layers": tuple(self.layers), "training_images": self._read_training_images()}
        return _unpickle_network, (values | in_memory,)

    def _read_training_images(self) -> TrainingImages | None:
        """Return the training images in memory, None if heads do not need them."""
        return None if self.training_images is None else self.training_images.in_memory()

    def __dask_tokenize__(self) -> str:
        # Not the URL, which may have another network later, nor a hash of the weights, which is
        # slow. `replace` makes a new token, so a network with other layers is another one to Dask.
        return self.token

    def _repr_html_(self) -> str:
        rows = [(name, value, False) for name, value in self._describe()] + self.spec.rows()
        return html_table("Network, options that are not the default in bold", rows)

    @cached_property
    def architecture(self) -> Architecture:
        """What the layers compute, and from what."""
        return self.spec.architecture(self.image_shape, len(self.classes))

    @cached_property
    def predictor(self) -> Predictor:
        """What tasks need to run images forward."""
        if self.backend.on_gpu:  # frees the memory of the GPU with this network
            weakref.finalize(self, GPU_LAYERS.drop, self.token)
        return Predictor(
            self.architecture,
            self.image_scale,
            self.layers,
            self.backend,
            self.token,
            self.training_images,
        )

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def in_memory(self) -> Network:
        """Return the same network with all layers read into memory.

        Returns
        -------
        Network
            A network that no longer needs its store.
        """
        images = self._read_training_images()
        return replace(self, layers=tuple(self.layers), training_images=images)

    def on(self, array_backend: str, matmul_precision: str | None = None) -> Network:
        """Return the same network with another array backend.

        Parameters
        ----------
        array_backend : {"numpy", "cupy"}
            Array library that runs images forward; "cupy" uses a GPU.
        matmul_precision : {"float32", "split", "half"} or None, default None
            Precision of matrix products on a GPU; None is that of the training.

        Returns
        -------
        Network
            A network that shares the layers of this one.

        Raises
        ------
        SpecError
            If the network is too large for the kernels of a GPU.
        """
        precision = matmul_precision or self.backend.matmul_precision
        run_spec = RunSpec().replace(array_backend=array_backend, matmul_precision=precision)
        backend = get_backend(run_spec)
        check_backend(backend, self.spec, self.image_shape)
        return replace(self, backend=backend)

    @property
    def trained_range(self) -> tuple[float, float]:
        """Smallest and largest value of the images that the network was trained on."""
        return self.image_scale.value_range

    def scores(
        self, images: Any, augment: AugmentSpec | None = None, *, layer: int | None = None
    ) -> Array | da.Array:
        """Compute the running scores of images after a layer.

        Parameters
        ----------
        images : Images or array-like of shape (n, H, W, d) or (n, H, W)
            Images; a NumPy, dask or xarray array.
        augment : AugmentSpec or None, default None
            Average the scores over each image and its augmented copies.
        layer : int or None, default None
            Number of the layer, from 1; None is the last.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, C)
            Scores in float32; lazy for lazy images.

        Raises
        ------
        DataError
            If there is no such layer, or the images have a different shape from the training
            images.
        """
        layer = self._check_layer(layer)
        return self.map_scores(*self.prepare(images, augment), layer)

    def map_scores(
        self, images: Images, augment: AugmentSpec, layer: int | None = None, *, first: int = 0
    ) -> Array | da.Array:
        """Compute scores as `scores` does, of images and options that are checked already.

        Parameters
        ----------
        images : Images
            Images of shape (n, H, W, d).
        augment : AugmentSpec
            Copies of each image to average over.
        layer : int or None, default None
            Number of the layer, from 1; None is the last.
        first : int, default 0
            Number of the first image in the array that these are a part of; random copies depend
            on it. Lazy images must be a whole array.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, C)
            Scores in float32; lazy for lazy images.
        """
        depth = self.depth if layer is None else layer
        compute = partial(compute_scores, layer=depth)
        shape = (len(self.classes),)
        return self._map_images(compute, images, augment, shape, depth, first=first)

    def features(self, images: Any, *, layer: int | None = None) -> Array | da.Array:
        """Compute the features of images that the head of a layer gets.

        Parameters
        ----------
        images : Images or array-like of shape (n, H, W, d) or (n, H, W)
            Images; a NumPy, dask or xarray array.
        layer : int or None, default None
            Number of the layer, from 1; None is the last.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, D)
            Features in float32; lazy for lazy images.

        Raises
        ------
        DataError
            If there is no such layer, or the images have a different shape from the training
            images.
        """
        number = self._check_layer(layer)
        compute = partial(compute_features, layer=number)
        shape = (self.architecture.feature_count(number),)
        return self._map_images(compute, *self.prepare(images, None), shape)

    def _check_layer(self, layer: int | None) -> int:
        """Return the number of a layer, of the last if None; raise DataError if it is none."""
        if layer is None:
            return self.depth
        if not 1 <= layer <= self.depth:
            raise DataError(
                f"layer={layer} does not exist. The network has layers 1 to {self.depth}."
            )
        return layer

    def staged_scores(self, images: Any, augment: AugmentSpec | None = None) -> Array | da.Array:
        """Compute the running scores of images after each layer.

        Parameters
        ----------
        images : Images or array-like of shape (n, H, W, d) or (n, H, W)
            Images; a NumPy, dask or xarray array.
        augment : AugmentSpec or None, default None
            Average the scores over each image and its augmented copies.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, L, C)
            Scores in float32 after each of the L layers; lazy for lazy images.

        Raises
        ------
        DataError
            If the images have a different shape from the training images.
        """
        shape = self.depth, len(self.classes)
        prepared = self.prepare(images, augment)
        return self._map_images(compute_staged_scores, *prepared, shape, self.depth)

    def _map_images(
        self,
        compute: Callable[..., Array],
        images: Images,
        augment: AugmentSpec,
        shape: tuple[int, ...],
        depth: int = 0,
        *,
        first: int = 0,
    ) -> Array | da.Array:
        """Return what `compute`, of the module `scoring`, gives for all images: (n, *shape).

        A few images in memory are computed in this thread. Others are divided into tasks. The
        result for lazy images is lazy, with the same chunks. `depth` is the number of layers whose
        heads are needed, `first` the number of the first image in memory.
        """
        array, predictor = images.array, self.predictor
        compares = bool(depth) and self.training_images is not None
        if not is_dask_array(array):
            count = len(array)
            few = predictor.task_images if self.backend.on_gpu else predictor.slab_images
            if count <= few and not compares:
                rows = {0: {"array-location": [(first, first + count)]}}
                return compute(array, predictor, augment, block_info=rows)
            step = max(predictor.slab_images, -(-count // (TASKS_PER_CORE * CPU_COUNT)))
            step = count if compares else min(step, predictor.task_images)
            chunks = tuple(min(step, count - start) for start in range(0, count, step))
            chunks = predictor.divide(chunks)
            parts = self._map_in_memory(compute, chunks, [array], augment, depth, first=first)
            return np.concatenate(parts)
        tasks = array.rechunk((predictor.divide(array.chunks[0]), -1, -1, -1))
        result = self._map_lazy(
            compute,
            [tasks],
            augment,
            depth,
            drop_axis=list(range(1 + len(shape), 4)),
            chunks=(tasks.chunks[0], *((length,) for length in shape)),
            dtype=np.float32,
            meta=np.empty((0,) * (1 + len(shape)), np.float32),
        )
        return result.rechunk({0: array.chunks[0]})

    def _map_in_memory(
        self,
        compute: Callable[..., Array],
        chunks: Sequence[int],
        arrays: Sequence[Array],
        augment: AugmentSpec,
        depth: int,
        *,
        first: int = 0,
    ) -> list[Array]:
        """Return what `compute` gives for rows of arrays in memory, in chunks of that size.

        `depth` is the number of layers whose heads are needed, `first` the number of the first row.
        """
        task, steps = self._add_comparisons(partial(compute, augment=augment), len(chunks), depth)
        steps = [partial(step, augment=augment) for step in steps]
        if uses_own_threads():
            return map_in_threads(task, chunks, arrays, self.predictor, steps, first=first)
        with images_in_graphs():
            shared = self._share_predictor(lazy=False)
            return map_in_tasks(task, chunks, arrays, shared, steps, first=first)

    def _map_lazy(
        self,
        compute: Callable[..., Array],
        arrays: Sequence[da.Array],
        augment: AugmentSpec,
        depth: int,
        *,
        lazy: bool = True,
        **options: Any,
    ) -> da.Array:
        """Return what `compute` gives for blocks of arrays, of which the first has images.

        `depth` is as of `_map_in_memory`, `lazy` as of `_share_predictor`, and `options` are those
        of `dask.array.map_blocks`.
        """
        import dask.array as da  # slow to import

        images, predictor = arrays[0], self._share_predictor(lazy=lazy)
        task, steps = self._add_comparisons(
            partial(compute, augment=augment), images.numblocks[0], depth
        )
        sizes = 1 + augment.copies, depth, len(self.classes)
        sums = [
            images.map_blocks(
                step,
                predictor,
                augment,
                chunks=(images.chunks[0], *((size,) for size in sizes)),
                dtype=np.float64,
                meta=np.empty((0, 0, 0, 0)),
            )
            for step in steps
        ]
        return da.map_blocks(task, *arrays, *sums, predictor, **options)

    def _add_comparisons(
        self, compute: Callable[..., Array], tasks: int, depth: int
    ) -> tuple[Callable[..., Array], list[Callable[..., Array]]]:
        """Let tasks compare images with a part of the training images each, if this divides them.

        It returns what to call with the results of the calls in a list, which come first.
        """
        parts = self.predictor.count_parts(tasks, self._count_threads()) if depth else 1
        if parts == 1:
            return compute, []
        steps: list[Callable[..., Array]] = [
            partial(compare_part, part=(part, parts), layer=depth) for part in range(parts)
        ]
        return partial(compute_compared, compute=compute, parts=parts), steps

    def _count_threads(self) -> int:
        """Return the threads that tasks are divided between; those of a worker share its GPU."""
        if (client := find_client()) is None:
            return 1 if self.backend.on_gpu else CPU_COUNT
        if client.asynchronous:  # what it asks the scheduler must be awaited
            return 1
        threads = client.nthreads()
        return max(1, len(threads) if self.backend.on_gpu else sum(threads.values()))

    def _share_predictor(self, *, lazy: bool) -> Any:
        """Return the predictor as an argument of the tasks of a graph.

        That of stored layers is small, and part of each task: workers read the layers themselves,
        and graphs have no task in common that one may release while another needs it. Layers in
        memory are one key of the graph, as are large arrays of views. Large ones are sent to each
        worker of the current client once, not with each graph, unless the graph is lazy: it may be
        computed elsewhere, or later.
        """
        predictor, size = self.predictor, self.image_scale.nbytes
        if self.training_images is not None:
            size += self.training_images.nbytes
        if isinstance(self.layers, CachedLayers):
            if size < MIN_SCATTERED_BYTES:
                return predictor
        else:
            size += sum(layer.nbytes for layer in self.layers)
        from dask.delayed import delayed

        client = find_client()
        if lazy or client is None or size < MIN_SCATTERED_BYTES:
            return delayed(predictor, pure=True, traverse=False)
        cached = vars(self)  # of a frozen dataclass; not pickled, and no field
        owner, future = cached.get("_scattered", (None, None))
        if owner != client.id or future.status != "finished":  # lost with its workers
            future = client.scatter(predictor, broadcast=True, hash=False)
            cached["_scattered"] = client.id, future
        return delayed(future)

    def maps(self, images: Any, layer: int) -> Array:
        """Compute the maps of a few images after a layer.

        Parameters
        ----------
        images : Images or array-like of shape (n, H, W, d) or (n, H, W)
            Images; lazy ones are computed.
        layer : int
            Number of the layer, from 1.

        Returns
        -------
        ndarray of shape (n, H, W, f)
            Maps of the f filters of the layer.

        Raises
        ------
        DataError
            If there is no such layer, or the images have a different shape from the training
            images.
        """
        self._check_layer(layer)
        images = as_images(images)
        self.check_images(images)
        before = initial_state(np.asarray(images.array), self.image_scale, self.architecture)
        *_, state = forward(self.architecture, before, self.layers[:layer], heads=False)
        assert state.maps is not None
        return state.maps

    def staged_correct(self, images: Any, codes: Any, augment: AugmentSpec | None = None) -> Array:
        """Count the images that are classified correctly after each layer.

        Parameters
        ----------
        images : Images or array-like of shape (n, H, W, d) or (n, H, W)
            Images; a NumPy, dask or xarray array.
        codes : ndarray or dask.array.Array of shape (n,)
            Index of the class of each image.
        augment : AugmentSpec or None, default None
            Average the scores over each image and its augmented copies.

        Returns
        -------
        ndarray of shape (L,)
            Number of correctly classified images after each of the L layers.

        Raises
        ------
        DataError
            If the images have a different shape from the training images.
        """
        images, augment = self.prepare(images, augment)
        self.look_at(images)
        if not (images.is_lazy or is_dask_array(codes)):
            chunks = self.predictor.divide((images.shape[0],))
            rows = [np.asarray(images.array), np.asarray(codes)[:, None, None, None]]
            counts = self._map_in_memory(count_staged_correct, chunks, rows, augment, self.depth)
            return np.asarray(np.sum(counts, axis=(0, 1)))
        import dask.array as da  # slow to import

        array = da.asarray(images.array)
        array = array.rechunk((self.predictor.divide(array.chunks[0]), -1, -1, -1))
        codes = da.asarray(codes).rechunk((array.chunks[0],))[:, None, None, None]
        counts = self._map_lazy(
            count_staged_correct,
            [array, codes],
            augment,
            self.depth,
            lazy=False,
            drop_axis=(2, 3),
            chunks=((1,) * array.numblocks[0], (self.depth,)),
            dtype=np.int64,
            meta=np.empty((0, 0), np.int64),
        )
        with images_in_graphs():
            return np.asarray(counts.sum(axis=0))

    def staged_accuracy(self, images: Any, codes: Any, augment: AugmentSpec | None = None) -> Array:
        """Compute the accuracy on images after each layer.

        Parameters
        ----------
        images : Images or array-like of shape (n, H, W, d) or (n, H, W)
            Images; a NumPy, dask or xarray array.
        codes : ndarray or dask.array.Array of shape (n,)
            Index of the class of each image.
        augment : AugmentSpec or None, default None
            Average the scores over each image and its augmented copies.

        Returns
        -------
        ndarray of shape (L,)
            Accuracy from 0 to 1 after each of the L layers; NaN after layers without a head.

        Raises
        ------
        DataError
            If the images have a different shape from the training images.
        """
        images = as_images(images)
        accuracies = self.staged_correct(images, codes, augment) / images.shape[0]
        accuracies[: self.spec.first_head - 1] = np.nan
        return np.asarray(accuracies)

    @property
    def batch_images(self) -> int:
        """Number of images of a task."""
        return self.predictor.task_images

    @property
    def compares_images(self) -> bool:
        """Whether heads compare images with the training images."""
        return self.training_images is not None

    def write(self, location: Location, dtype: str) -> None:
        """Write the network into a folder, as `save` does.

        Parameters
        ----------
        location : Location
            The folder, in which nothing is stored yet.
        dtype : {"float32", "float16"}
            Type in which the weights are stored.
        """
        attributes: dict[str, Any] = {
            "classes": classes_to_json(self.classes),
            "image_shape": list(self.image_shape),
            "augment": self.augment.to_dict(),
            "matmul_precision": self.backend.matmul_precision,
            "input": None if self.input is None else self.input.to_dict(),
            "calibration": self.calibration.to_dict(),
        }
        if self.training_images is not None:
            head = self.layers[-1].head
            assert head is not None
            assert isinstance(self.spec.head, SampleHead)
            count = self.spec.head.sample_count(head.arrays)
            attributes["training_images"] = self.training_images.save(location, count)
        write_network(location, dtype, attributes, self.spec, self.image_scale, self.layers)

    def to_onnx(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: str = "float32",
        opset: int = DEFAULT_OPSET,
        external_data: bool | None = None,
    ) -> None:
        """Write the network as an ONNX file, which other runtimes can predict with.

        The input is `images` of shape (n, H, W, d), with the values of the training images. The
        outputs are `label` of shape (n,), in int64 for integer classes and else strings,
        `probabilities` of shape (n, C), and `scores` of shape (n, C), both in float32. Classes and
        options of the network are metadata. Needs `pip install 'rescnet-dist[onnx]'`.

        Parameters
        ----------
        path : str or os.PathLike
            Local path of the file, which is replaced if it exists.
        dtype : {"float32", "uint8"}, default "float32"
            Data type of the images.
        opset : int, default 23
            Version of the ONNX operators. Older runtimes need a lower one, from 18.
        external_data : bool or None, default None
            Whether weights are written to a second file, PATH.data. None does so above 2 GB, the
            limit of one file.

        Raises
        ------
        RescnetError
            If the package onnx is not installed, or the file cannot be written.
        SpecError
            If an option is not valid, or a component of the network cannot be exported.
        """
        metadata = {"network": self.spec.to_dict(), "depth": self.depth}
        self._write_onnx(path, [self.exported], metadata, dtype, opset, external_data)

    @property
    def exported(self) -> ExportedNetwork:
        """What is exported to ONNX."""
        return ExportedNetwork(self.architecture, self.image_scale, self.layers)

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> Network:
        """Load a saved network, or the network of a run at its chosen depth.

        Parameters
        ----------
        url : str or os.PathLike
            fsspec URL of a saved network, a folder or a zip file, or of a run store.

        Returns
        -------
        Network
            The network; its layers are read when they are used. Of an unfinished run it has all
            finished layers.

        Raises
        ------
        StoreError
            If there is no network at the URL, or no finished layer.
        """
        return cls(**read_network(Location.of(url)))


def _unpickle_network(values: dict[str, Any]) -> Network:
    """Return the network that was pickled with these attributes; it is the same one to Dask."""
    token = values.pop("token")
    network = Network(**values)
    object.__setattr__(network, "token", token)
    return network
