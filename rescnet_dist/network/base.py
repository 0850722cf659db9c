"""What fitted networks have in common: checks of images, probabilities, photos and evaluation."""

from __future__ import annotations

import os
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rescnet_dist.data import (
    ImageInput,
    Images,
    PhotoDecoder,
    as_images,
    classes_to_json,
    encode,
)
from rescnet_dist.data.kinds import is_dask_array
from rescnet_dist.errors import DataError, SpecError
from rescnet_dist.export import DEFAULT_OPSET, ExportedNetwork, write_onnx
from rescnet_dist.formatting import plain_text
from rescnet_dist.kernels import softmax
from rescnet_dist.model import Calibration
from rescnet_dist.network.metrics import Metrics, MetricSums
from rescnet_dist.network.prediction import ImagePrediction
from rescnet_dist.network.saving import write_store
from rescnet_dist.spec import AugmentSpec
from rescnet_dist.store import Location

if TYPE_CHECKING:
    import dask.array as da

Array = np.ndarray[Any, np.dtype[Any]]

MAX_REPR_CLASSES = 12  # class names in the notebook representation
MAX_RANGE_RATIO = 50  # between the value range of images and that in training, before a warning
EVALUATE_SPLIT_EVERY = 8  # sums of chunks that are merged by one task
RANGE_SAMPLE_IMAGES = 64  # lazy images that are computed to estimate the value range of all


class BaseNetwork(ABC):
    """A fitted network that gives scores of images: `Network` or `FusedNetwork`.

    Attributes
    ----------
    classes : ndarray of shape (C,)
        Labels of the classes.
    image_shape : tuple of int
        Height, width and channels (H, W, d) of the images.
    calibration : Calibration
        How scores become probabilities.
    augment : AugmentSpec
        Augmented copies that the network was trained on.
    input : ImageInput or None
        How the training images were made.
    averaging : AugmentSpec
        Copies of each image that scores are averaged over, unless others are given.
    """

    classes: Array
    image_shape: tuple[int, int, int]
    calibration: Calibration
    augment: AugmentSpec
    input: ImageInput | None
    averaging: AugmentSpec = AugmentSpec()

    @property
    @abstractmethod
    def depth(self) -> int:
        """Number of layers."""

    @property
    @abstractmethod
    def trained_range(self) -> tuple[float, float]:
        """Smallest and largest value of the images that the network was trained on."""

    @property
    @abstractmethod
    def batch_images(self) -> int:
        """Number of images of a task."""

    @property
    def compares_images(self) -> bool:
        """Whether heads compare images with the training images."""
        return False

    def chunk_images(self, count: int, threads: int) -> int:
        """Return the number of images of the chunks that lazy images should have.

        Parameters
        ----------
        count : int
            The number of all images.
        threads : int
            The number of threads that run them forward.

        Returns
        -------
        int
            As many as keep all threads busy, at most those of a task. If heads compare images, it
            is those of a task: fewer would run the training images forward more often.
        """
        if self.compares_images:
            return self.batch_images
        return max(1, min(self.batch_images, -(-count // threads)))

    @abstractmethod
    def in_memory(self) -> Self:
        """Return the same network with all layers read into memory."""

    @abstractmethod
    def on(self, array_backend: str, matmul_precision: str | None = None) -> Self:
        """Return the same network with another array backend."""

    @abstractmethod
    def scores(
        self, images: Any, augment: AugmentSpec | None = None, *, layer: int | None = None
    ) -> Array | da.Array:
        """Compute the scores (n, C) of images (n, H, W, d)."""

    @abstractmethod
    def map_scores(
        self, images: Images, augment: AugmentSpec, *, first: int = 0
    ) -> Array | da.Array:
        """Compute scores (n, C) as `scores` does, of images and options that are checked already.

        `first` is the number of the first image, if they are a part of an array in memory.
        """

    @abstractmethod
    def write(self, location: Location, dtype: str) -> None:
        """Write the network into a folder, as `save` does."""

    @abstractmethod
    def to_onnx(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: str = "float32",
        opset: int = DEFAULT_OPSET,
        external_data: bool | None = None,
    ) -> None:
        """Write the network as an ONNX file, which other runtimes can predict with."""

    def save(self, url: str | os.PathLike[str], *, dtype: str = "float32") -> None:
        """Write the network to a Zarr store, without pickles.

        Parameters
        ----------
        url : str or os.PathLike
            fsspec URL at which nothing is stored yet. One that ends in .zip becomes a single file,
            others a folder.
        dtype : {"float32", "float16"}, default "float32"
            Type in which the weights are stored. "float16" makes the store about half as large;
            the weights are rounded to 11 significant bits, and are float32 again when loaded.

        Raises
        ------
        StoreError
            If something is already stored at the URL.
        SpecError
            If `dtype` is unknown.
        """
        write_store(url, self.write, dtype)

    def _describe(self) -> list[tuple[str, Any]]:
        """Return names and values of the notebook representation."""
        height, width, channels = self.image_shape
        names = [plain_text(label) for label in self.classes.tolist()[:MAX_REPR_CLASSES]]
        more = ", …" if len(self.classes) > MAX_REPR_CLASSES else ""
        return [
            ("layers", self.depth),
            ("images", f"{height}×{width}×{channels}"),
            ("classes", f"{len(self.classes):,}: {', '.join(names)}{more}"),
            ("copies", self.augment.copies),
        ]

    def check_images(self, images: Images) -> None:
        """Raise DataError for images of a different shape from the training images.

        Images in memory whose values have quite another range give a warning. Lazy images are not
        computed.

        Parameters
        ----------
        images : Images
            Images of shape (n, H, W, d).

        Raises
        ------
        DataError
            If height, width or channels differ.
        """
        height, width, channels = self.image_shape
        if images.shape == (height, width, channels, 1):
            raise DataError(
                f"X has shape {images.shape[:3]} and looks like one image. Pass X[None] of shape "
                f"{(1, height, width, channels)}."
            )
        if images.shape[1:] != (height, width, channels):
            remedy = "Pass images of that shape."
            if images.shape[1:] == (channels, height, width):
                remedy = "X looks channels-first; pass X.transpose(0, 2, 3, 1)."
            raise DataError(
                f"X has images of shape {images.shape[1:]}, but the network was trained on "
                f"{(height, width, channels)} (height, width, channels). {remedy}"
            )
        if not images.is_lazy:
            self._warn_about_range(np.asarray(images.array))

    def look_at(self, images: Images) -> None:
        """Warn if the values of lazy images have quite another range than in training.

        The first images are computed. Use it before all of them are computed anyway.

        Parameters
        ----------
        images : Images
            Images of shape (n, H, W, d); images in memory are ignored.
        """
        if images.is_lazy:
            self._warn_about_range(np.asarray(images.array[:RANGE_SAMPLE_IMAGES]))

    def _warn_about_range(self, images: Array) -> None:
        """Warn if the value range of images (n, H, W, d) is far from that of the training."""
        if not len(images):
            return
        low, high = float(images.min()), float(images.max())
        trained_low, trained_high = self.trained_range
        width = trained_high - trained_low
        if low < high and not width / MAX_RANGE_RATIO <= high - low <= width * MAX_RANGE_RATIO:
            warnings.warn(
                f"The images have values from {low:g} to {high:g}, but the network was trained on "
                f"values from {trained_low:g} to {trained_high:g}. Pass images on the same scale.",
                stacklevel=4,
            )

    def photo_decoder(
        self, resize: int | tuple[int, int] | None = None, channels: str | None = None
    ) -> PhotoDecoder:
        """Return what turns photos into images of this network, as its training images were made.

        Parameters
        ----------
        resize : int, tuple of int or None, default None
            Size to resize photos to, (height, width) or the side of a square, where the network
            does not know; see `input`.
        channels : {"gray", "color"} or None, default None
            What to convert photos to, where the network does not know.

        Returns
        -------
        PhotoDecoder
            Its `read_photo` returns the image (H, W, d) of a file or of a Pillow image.

        Raises
        ------
        SpecError
            If `resize` or `channels` is invalid.
        """
        return PhotoDecoder.create(
            self.image_shape, self.trained_range, self.input, resize=resize, channels=channels
        )

    def resolve_copies(self, augment: AugmentSpec | int | None) -> AugmentSpec | None:
        """Return the copies that scores are averaged over.

        Parameters
        ----------
        augment : AugmentSpec, int or None
            The copies; an int is the number of copies, made as in training.

        Returns
        -------
        AugmentSpec or None
            The copies; None for none.

        Raises
        ------
        SpecError
            If copies are to be made as in training, and the network was trained without copies.
        """
        if augment is None or isinstance(augment, AugmentSpec):
            return augment
        if not self.augment.copies:
            raise SpecError(
                f"augment={augment} (--copies) asks for copies made as in training, but the "
                "network was trained without copies. Pass an AugmentSpec that describes them, or "
                "average over mirror images (--flips)."
            )
        return self.augment.replace(copies=augment) if augment else None

    def predict_image(
        self,
        image: Any,
        *,
        resize: int | tuple[int, int] | None = None,
        channels: str | None = None,
        augment: AugmentSpec | None = None,
    ) -> ImagePrediction:
        """Predict the label of one photo of any size.

        It is decoded, converted to gray or color and resized as the training images were when they
        were imported.

        Parameters
        ----------
        image : str, os.PathLike or PIL.Image.Image
            Path or fsspec URL of a PNG, JPEG or WebP file, or a Pillow image.
        resize : int, tuple of int or None, default None
            Size to resize the photo to, (height, width) or the side of a square, where the network
            does not know; see `input`.
        channels : {"gray", "color"} or None, default None
            What to convert the photo to, where the network does not know.
        augment : AugmentSpec or None, default None
            Average the scores over the image and augmented copies of it.

        Returns
        -------
        ImagePrediction
            The label, and the probability of each class.

        Raises
        ------
        DataError
            If the photo cannot be read, or does not become an image of the network's shape.
        SpecError
            If `resize` or `channels` is invalid.
        """
        pixels = self.photo_decoder(resize, channels).read_photo(image)
        scores = self.scores(Images(pixels[np.newaxis]), augment)
        return ImagePrediction(self.classes, self.probabilities(np.asarray(scores))[0])

    def probabilities(self, scores: Any) -> Any:
        """Convert running scores after the last layer to probabilities.

        Parameters
        ----------
        scores : ndarray or dask.array.Array of shape (n, C)
            Scores.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, C)
            softmax(scores / temperature) in float64, with the temperature of `calibration`:
            positive rows that sum to 1; lazy for lazy scores.
        """
        temperature = self.calibration.temperature
        if is_dask_array(scores):
            return scores.map_blocks(softmax, temperature, dtype=np.float64, meta=np.empty((0, 0)))
        return softmax(scores, temperature)

    def find_correct(
        self, images: Images, labels: Array | da.Array, augment: AugmentSpec | None = None
    ) -> Array | da.Array:
        """Return which images are classified correctly.

        Parameters
        ----------
        images : Images
            Images of shape (n, H, W, d).
        labels : ndarray or dask.array.Array of shape (n,)
            Labels, as the network was trained on.
        augment : AugmentSpec or None, default None
            Average the scores over each image and its augmented copies.

        Returns
        -------
        ndarray or dask.array.Array of shape (n,), bool
            Whether the class of the highest score is that of the label; lazy for lazy images.

        Raises
        ------
        DataError
            If the images have a different shape from the training images, or a label is not among
            the classes.
        """
        codes = encode(labels, self.classes)
        self.look_at(images)
        return self.scores(images, augment).argmax(axis=1) == codes

    def evaluate(self, images: Any, codes: Any, augment: AugmentSpec | None = None) -> Metrics:
        """Compute how well images are classified.

        Parameters
        ----------
        images : Images or array-like of shape (n, H, W, d) or (n, H, W)
            Images; a NumPy, dask or xarray array. Of lazy images, each task returns sums only.
        codes : ndarray or dask.array.Array of shape (n,)
            Index of the class of each image.
        augment : AugmentSpec or None, default None
            Average the scores over each image and its augmented copies.

        Returns
        -------
        Metrics
            Accuracy, log loss, confusion matrix, and metrics by class.

        Raises
        ------
        DataError
            If the images have a different shape from the training images.
        """
        images = as_images(images)
        self.look_at(images)
        probabilities = self.probabilities(self.scores(images, augment))
        if not is_dask_array(probabilities):
            return Metrics.of(self.classes, probabilities, np.asarray(codes))
        import dask.array as da  # slow to import
        from dask.delayed import delayed

        from rescnet_dist.reduce import tree_merge

        codes = da.asarray(codes).rechunk((probabilities.chunks[0],))
        blocks = zip(probabilities.to_delayed()[:, 0], codes.to_delayed(), strict=True)
        sums = tree_merge(
            [delayed(MetricSums.of, pure=False)(*block) for block in blocks],
            MetricSums.merge,
            split_every=EVALUATE_SPLIT_EVERY,
            name="evaluate",
            token=uuid.uuid4().hex,
        )
        return Metrics(self.classes, sums.compute())

    def _write_onnx(
        self,
        path: str | os.PathLike[str],
        networks: Sequence[ExportedNetwork],
        metadata: dict[str, Any],
        dtype: str,
        opset: int,
        external_data: bool | None,
        *,
        mirror: bool = False,
    ) -> None:
        """Write networks as one ONNX file, with what all kinds of networks have as metadata."""
        common = {
            "classes": classes_to_json(self.classes),
            "image_shape": list(self.image_shape),
            "calibration": self.calibration.to_dict(),
        }
        write_onnx(
            path,
            networks,
            self.classes,
            temperature=self.calibration.temperature,
            mirror=mirror,
            metadata=common | metadata,
            dtype=dtype,
            opset=opset,
            external_data=external_data,
        )

    def _check_augment(self, augment: AugmentSpec | None) -> AugmentSpec:
        """Return the spec of the copies to average over; raise if it does not fit the images."""
        augment = self.averaging if augment is None else augment
        augment.check_images(*self.image_shape)
        return augment

    def prepare(self, images: Any, augment: AugmentSpec | None) -> tuple[Images, AugmentSpec]:
        """Return checked images, and the spec of the copies to average over.

        Parameters
        ----------
        images : Images or array-like of shape (n, H, W, d) or (n, H, W)
            Images; a NumPy, dask or xarray array.
        augment : AugmentSpec or None
            Copies of each image to average over; None is `averaging`.

        Returns
        -------
        images : Images
            The images.
        augment : AugmentSpec
            The copies.

        Raises
        ------
        DataError
            If the images have a different shape from the training images.
        SpecError
            If copies of such images cannot be made.
        """
        images = as_images(images)
        self.check_images(images)
        return images, self._check_augment(augment)
