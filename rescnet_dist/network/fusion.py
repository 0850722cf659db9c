"""Late fusion: networks averaged by weights fitted on held-out images, used like one network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import dask
import numpy as np

from rescnet_dist.data import ImageInput, Images, as_images, encode, select_held_out
from rescnet_dist.errors import DataError, SpecError
from rescnet_dist.export import DEFAULT_OPSET
from rescnet_dist.formatting import html_table
from rescnet_dist.kernels import mixture_weights
from rescnet_dist.model import Calibration
from rescnet_dist.network.base import MAX_RANGE_RATIO, BaseNetwork
from rescnet_dist.network.network import Network
from rescnet_dist.network.saving import read_fused, write_fused
from rescnet_dist.spec import AugmentSpec
from rescnet_dist.spec.augment import MIRROR
from rescnet_dist.store import Location, translate_attribute_errors

if TYPE_CHECKING:
    import dask.array as da

Array = np.ndarray[Any, np.dtype[Any]]

WEIGHT_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Accuracies on the held-out images that the weights were fitted on, from 0 to 1.

    Attributes
    ----------
    images : int
        Number of the images.
    network_accuracies : tuple of float
        Accuracy of each network.
    accuracy : float
        Accuracy of the fused network.
    """

    images: int
    network_accuracies: tuple[float, ...]
    accuracy: float

    @classmethod
    def from_dict(cls, record: dict[str, Any] | None) -> HeldOut | None:
        """Return the accuracies of a stored record; None if there is none."""
        if record is None:
            return None
        return cls(**record | {"network_accuracies": tuple(record["network_accuracies"])})


@dataclass(frozen=True, eq=False)  # arrays have no single truth value
class FusedNetwork(BaseNetwork):
    """Several networks as one: its scores are the weighted mean of theirs.

    The networks have the same classes and images of the same shape. All else may differ: layers,
    components, preprocessing.

    Attributes
    ----------
    networks : sequence of Network
        The M networks.
    weights : ndarray of shape (M,)
        Weights ≥ 0 of the scores of the networks, which sum to 1.
    calibration : Calibration, default Calibration()
        How scores become probabilities.
    averaging : AugmentSpec, default AugmentSpec()
        Copies of each image that scores are averaged over, unless others are given.
    held_out : HeldOut or None, default None
        Accuracies on the images that the weights were fitted on.
    classes : ndarray of shape (C,)
        Labels of the classes.
    image_shape : tuple of int
        Height, width and channels (H, W, d) of the images.
    augment : AugmentSpec
        Augmented copies that all networks were trained on; none if these differ.
    input : ImageInput or None
        How the training images of the first network were made.

    Raises
    ------
    DataError
        If the networks do not fit together, or the weights are not valid.
    """

    networks: Sequence[Network]
    weights: Array
    calibration: Calibration = field(default_factory=Calibration)
    averaging: AugmentSpec = field(default_factory=AugmentSpec)
    held_out: HeldOut | None = None
    classes: Array = field(init=False, repr=False)
    image_shape: tuple[int, int, int] = field(init=False, repr=False)
    augment: AugmentSpec = field(init=False, repr=False)
    input: ImageInput | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_networks(self.networks)
        weights, count = np.asarray(self.weights, np.float64), len(self.networks)
        is_valid = weights.shape == (count,) and (weights >= 0).all()
        if not is_valid or abs(weights.sum() - 1) > WEIGHT_SUM_TOLERANCE:
            raise DataError(
                f"weights={np.array2string(weights)} are not {count} numbers from 0 on that sum to "
                "1. Give one weight for each network."
            )
        first = self.networks[0]
        same = all(network.augment == first.augment for network in self.networks)
        for name, value in {
            "networks": tuple(self.networks),
            "weights": weights,
            "classes": first.classes,
            "image_shape": first.image_shape,
            "augment": first.augment if same else AugmentSpec(),
            "input": first.input,
        }.items():
            object.__setattr__(self, name, value)

    def _repr_html_(self) -> str:
        rows = [(name, value, False) for name, value in self._describe()]
        for number, (network, weight) in enumerate(
            zip(self.networks, self.weights, strict=True), start=1
        ):
            text = f"weight {weight:.3f}, {network.depth} layers"
            rows.append((f"network {number}", text, False))
        return html_table("Fused network", rows)

    @property
    def depth(self) -> int:
        """Number of layers of all networks."""
        return sum(network.depth for network in self.networks)

    @property
    def trained_range(self) -> tuple[float, float]:
        """Smallest and largest value of the images that the first network was trained on."""
        return self.networks[0].trained_range

    @property
    def batch_images(self) -> int:
        """Number of images of a task."""
        return min(network.batch_images for network in self.networks)

    @property
    def compares_images(self) -> bool:
        """Whether heads of any network compare images with its training images."""
        return any(network.compares_images for network in self.networks)

    def in_memory(self) -> FusedNetwork:
        """Return the same network with all layers read into memory.

        Returns
        -------
        FusedNetwork
            A network that no longer needs its store.
        """
        return replace(self, networks=[network.in_memory() for network in self.networks])

    def on(self, array_backend: str, matmul_precision: str | None = None) -> FusedNetwork:
        """Return the same network with another array backend.

        Parameters
        ----------
        array_backend : {"numpy", "cupy"}
            Array library that runs images forward; "cupy" uses a GPU.
        matmul_precision : {"float32", "split", "half"} or None, default None
            Precision of matrix products on a GPU; None is that of the training of each network.

        Returns
        -------
        FusedNetwork
            A network that shares the layers of this one.

        Raises
        ------
        SpecError
            If a network is too large for the kernels of a GPU.
        """
        return replace(
            self, networks=[n.on(array_backend, matmul_precision) for n in self.networks]
        )

    def scores(
        self, images: Any, augment: AugmentSpec | None = None, *, layer: int | None = None
    ) -> Array | da.Array:
        """Compute the weighted mean of the networks' scores after their last layers.

        Parameters
        ----------
        images : Images or array-like of shape (n, H, W, d) or (n, H, W)
            Images; a NumPy, dask or xarray array.
        augment : AugmentSpec or None, default None
            Average the scores over each image and its augmented copies; None is `averaging`.
        layer : None, default None
            Must be None: networks may have different numbers of layers.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, C)
            Scores in float32; lazy for lazy images.

        Raises
        ------
        DataError
            If a layer is given, or the images have a different shape from the training images.
        """
        if layer is not None:
            raise DataError(
                f"layer={layer} is not known: a fused network has scores after the last layer of "
                "each network only. Ask one of its `networks`."
            )
        return self.map_scores(*self.prepare(images, augment))

    def map_scores(
        self, images: Images, augment: AugmentSpec, *, first: int = 0
    ) -> Array | da.Array:
        """Compute scores as `scores` does, of images and options that are checked already.

        Parameters
        ----------
        images : Images
            Images of shape (n, H, W, d).
        augment : AugmentSpec
            Copies of each image to average over.
        first : int, default 0
            Number of the first image in the array that these are a part of; random copies depend
            on it. Lazy images must be a whole array.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, C)
            Scores in float32; lazy for lazy images.
        """
        parts = [network.map_scores(images, augment, first=first) for network in self.networks]
        if images.is_lazy:
            import dask.array as da  # slow to import

            return da.map_blocks(_mean_scores, self.weights, *parts, dtype=np.float32)
        return _mean_scores(self.weights, *parts)

    def write(self, location: Location, dtype: str) -> None:
        """Write the network into a folder, as `save` does.

        Parameters
        ----------
        location : Location
            The folder, in which nothing is stored yet.
        dtype : {"float32", "float16"}
            Type in which the weights of layers are stored.
        """
        attributes = {
            "weights": self.weights.tolist(),
            "calibration": self.calibration.to_dict(),
            "averaging": self.averaging.to_dict(),
            "held_out": None if self.held_out is None else asdict(self.held_out),
        }
        write_fused(location, dtype, attributes, [network.write for network in self.networks])

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> FusedNetwork:
        """Load a saved fused network.

        Parameters
        ----------
        url : str or os.PathLike
            fsspec URL of a folder or a zip file.

        Returns
        -------
        FusedNetwork
            The network; layers are read when they are used.

        Raises
        ------
        StoreError
            If there is no fused network at the URL.
        """
        location = Location.of(url)
        attributes, members = read_fused(location)
        networks = [Network(**member) for member in members]
        with translate_attribute_errors(location):
            return cls(
                networks,
                np.array(attributes["weights"], np.float64),
                Calibration.from_dict(attributes["calibration"]),
                AugmentSpec.from_stored(attributes["averaging"]),
                HeldOut.from_dict(attributes["held_out"]),
            )

    def to_onnx(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: str = "float32",
        opset: int = DEFAULT_OPSET,
        external_data: bool | None = None,
    ) -> None:
        """Write all networks as one ONNX file with one input; see `Network.to_onnx`.

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
            If an option is not valid, a component of a network cannot be exported, or scores are
            averaged over copies other than mirror images.
        """
        if self.averaging.copies and self.averaging != MIRROR:
            raise SpecError(
                f"averaging={self.averaging} cannot be exported: ONNX files average over mirror "
                "images only. Fuse the networks with AugmentSpec(copies=1, flip=True) or none."
            )
        parts = [
            replace(network.exported, weight=float(weight))
            for network, weight in zip(self.networks, self.weights, strict=True)
        ]
        metadata = {
            "networks": [network.spec.to_dict() for network in self.networks],
            "depths": [network.depth for network in self.networks],
            "weights": self.weights.tolist(),
            "averaging": self.averaging.to_dict(),
        }
        mirror = bool(self.averaging.copies)
        self._write_onnx(path, parts, metadata, dtype, opset, external_data, mirror=mirror)


def fuse(
    networks: Sequence[Network],
    X: Any,
    y: Any = None,
    *,
    augment: AugmentSpec | None = None,
) -> FusedNetwork:
    """Average networks by weights that are fitted on held-out images.

    The weights minimize the log loss, and the temperature of the probabilities is fitted on the
    same images. No network should have been trained on them.

    Parameters
    ----------
    networks : sequence of Network
        Networks with the same classes and images of the same shape.
    X : array-like of shape (n, H, W, d) or (n, H, W), Dataset or str
        Held-out images; or a dataset, of which the val split is used, or the only one.
    y : array-like of shape (n,) or None, default None
        Labels; None if X is a dataset, which has them.
    augment : AugmentSpec or None, default None
        Copies of each image that scores are averaged over, here and in predictions.

    Returns
    -------
    FusedNetwork
        The fused network; its `held_out` has the accuracies of all networks on these images.

    Raises
    ------
    DataError
        If the networks do not fit together, there are no images, the images have a different shape
        from the training images, or a label is not among the classes.

    Examples
    --------
    >>> import rescnet_dist as rd
    >>> X, y = rd.load_digits()
    >>> specs = [rd.NetworkSpec.preset("digits").replace(filters=f, max_layers=1) for f in (3, 4)]
    >>> fitted = [rd.ResCNetClassifier(spec).fit(X[:400], y[:400]) for spec in specs]
    >>> fused = rd.fuse([clf.network_ for clf in fitted], X[400:600], y[400:600])
    >>> fused.weights.shape
    (2,)
    """
    networks = list(networks)
    images, codes = select_for_fusion(networks, X, y)
    scores = dask.compute(*(network.scores(images, augment) for network in networks))
    return fuse_scores(networks, scores, codes, augment)


def select_for_fusion(networks: Sequence[Network], X: Any, y: Any = None) -> tuple[Images, Array]:
    """Return held-out images and their codes (n,); raise DataError as `fuse` does."""
    _check_networks(networks)
    part = select_held_out(X, y, decoder=networks[0].photo_decoder())
    images = as_images(part.images)
    if not images.shape[0]:
        raise DataError("There are no held-out images. Pass images that no network has seen.")
    networks[0].look_at(images)
    return images, np.asarray(encode(part.labels, networks[0].classes))


def fuse_scores(
    networks: Sequence[Network], scores: Sequence[Array], codes: Array, augment: AugmentSpec | None
) -> FusedNetwork:
    """Return the fused network, given the scores (n, C) of each network on held-out images."""
    weights = mixture_weights(scores, codes)
    fused = _mean_scores(weights, *scores)
    held_out = HeldOut(
        len(codes),
        tuple(float((part.argmax(axis=1) == codes).mean()) for part in scores),
        float((fused.argmax(axis=1) == codes).mean()),
    )
    calibration = Calibration.fit(fused, codes)
    return FusedNetwork(networks, weights, calibration, augment or AugmentSpec(), held_out)


def _mean_scores(weights: Array, *scores: Array) -> Array:
    """Return the weighted mean of scores (n, C) in float32, computed in float64."""
    total = weights[0] * scores[0].astype(np.float64)
    for weight, part in zip(weights[1:], scores[1:], strict=True):
        total += weight * part
    return total.astype(np.float32)


def _check_networks(networks: Sequence[Any]) -> None:
    """Raise DataError if networks cannot be averaged."""
    if not networks:
        raise DataError("There are no networks to fuse. Give at least one.")
    first = networks[0]
    for number, network in enumerate(networks, start=1):
        if not isinstance(network, Network):
            raise DataError(
                f"Network {number} is a {type(network).__name__}, not a Network. Pass the "
                "`network_` of a classifier; of a fused network, pass its `networks`."
            )
        if network.image_shape != first.image_shape:
            raise DataError(
                f"Network {number} has images of shape {network.image_shape}, but network 1 of "
                f"{first.image_shape}. Fuse networks for the same images."
            )
        if network.classes.tolist() != first.classes.tolist():
            raise DataError(
                f"Network {number} has other classes than network 1, or in another order: "
                f"{_list_classes(network)} and {_list_classes(first)}. Fuse networks of the same "
                "classes."
            )
        ranges = [network.trained_range, first.trained_range]
        small, large = sorted(high - low for low, high in ranges)
        if large > MAX_RANGE_RATIO * small:
            (low, high), (first_low, first_high) = ranges
            raise DataError(
                f"Network {number} was trained on values from {low:g} to {high:g}, but network 1 "
                f"on values from {first_low:g} to {first_high:g}. Fuse networks for images on the "
                "same scale."
            )


def _list_classes(network: Network) -> str:
    """Return the first few classes of a network as text."""
    names = [str(label) for label in network.classes.tolist()]
    return f"{', '.join(names[:5])}{', …' if len(names) > 5 else ''} ({len(names)})"
