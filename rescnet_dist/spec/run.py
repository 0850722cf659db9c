"""Options of how a network is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rescnet_dist.errors import SpecError
from rescnet_dist.options import option
from rescnet_dist.spec.base import Spec

DEFAULT_VALIDATION = 0.1  # fraction of the training images that is held out
# Options that do not affect what is learned, and may be changed when a run is resumed.
CHANGEABLE = ("maps", "checkpoint_every", "keep_maps")


@dataclass(frozen=True, slots=True)
class RunSpec(Spec):
    """Options of how a network is trained.

    Except `seed`, `validation` and `class_weight`, none of them changes the mathematics.

    Raises
    ------
    SpecError
        If an option is unknown, or a value is out of range or does not fit the others.

    Examples
    --------
    >>> RunSpec(validation=0.1, chunk_images=500).chunk_images
    500
    """

    table: ClassVar[str] = "run"
    title: ClassVar[str] = "Run"

    seed: int = option(
        0,
        help="seed of the draws, the validation split and the copies",
        doc="Seed of the patch draws, the validation split and the augmented copies.",
        low=0,
        high=2**63 - 1,
    )
    validation: float | None = option(
        None,
        help="fraction of the training images to hold out  "
        f"[default: {DEFAULT_VALIDATION}, if there are {round(1 / DEFAULT_VALIDATION)} per class]",
        doc="Fraction of the training images held out if there is no validation set, up to 0.9. "
        f"None is {DEFAULT_VALIDATION}, or 0 if there are fewer than "
        f"{round(1 / DEFAULT_VALIDATION)} images per class.",
        low=0,
        high=0.9,
        group="Data",
    )
    class_weight: Literal["balanced"] | None = option(
        None,
        help="weights of classes; balanced: all classes count the same in what is learned",
        doc='Weights of classes: "balanced" weights the images of each class in inverse proportion '
        "to their number, so that all classes count the same; None weights all images the same.",
        group="Data",
    )
    chunk_images: int | None = option(
        None, help="images per chunk", doc="Images per chunk; None lets the plan choose.", low=1
    )
    accumulators: int | None = option(
        None,
        help="partial sums that the tree reduction starts from",
        doc="Partial sums that the tree reduction starts from; None lets the plan choose.",
        low=1,
    )
    split_every: int = option(2, help="fan-in of the tree reduction", low=2)
    solve_threads: int | None = option(
        None,
        help="BLAS threads of the solve",
        doc="BLAS threads of the solve; None uses all threads of a machine.",
        low=1,
    )
    tile_features: int | None = option(
        None,
        help="width and height of the tiles of the scatter matrix, in features",
        doc="Width and height of the tiles of the scatter matrix of the features; None lets "
        "the plan choose, which uses tiles only if a worker cannot hold the whole matrix.",
        low=1,
    )
    calibrate: bool = option(
        False,
        help="measure the cluster first, and use tiles of the scatter matrix if they are faster",
        doc="Measure the speed of the cluster before the run, and let the plan use tiles of the "
        "scatter matrix if all workers factorize them clearly faster than one factorizes the whole "
        "matrix. The plan then depends on the measurement; the run keeps it.",
    )
    keep_maps: Literal["last", "all", "none"] = option(
        "last",
        help="layers whose maps stay in the store",
        doc="Layers whose maps and scores stay in the store: the last, all, or none once the "
        "run is done. A run without them computes them again when it is resumed.",
    )
    codec: Literal["none", "zstd"] = option("none", help="compression of the stored maps")
    maps: Literal["auto", "store", "memory"] = option(
        "auto",
        help="where maps are kept until the next layer; auto: in memory if they fit",
        doc="Where maps are kept until the next layer: in the store, in the memory of the "
        "workers, or (auto) in memory if the plan finds room.",
    )
    checkpoint_every: int = option(
        10,
        help="layers after which maps in memory are stored",
        doc="Layers after which maps in memory are written to the store. They are also "
        'written at the end, unless `keep_maps` is "none". Layers since the last '
        "checkpoint are computed again on resume.",
        low=1,
    )
    array_backend: Literal["numpy", "cupy"] = option(
        "numpy",
        help="array library of the workers; cupy: on their GPUs",
        doc='Array library of the workers; "cupy" is for workers with a GPU.',
    )
    matmul_precision: Literal["float32", "split", "half"] = option(
        "split",
        help="precision of matrix products on a GPU; split is nearly float32, half is fastest",
        doc="Precision of matrix products on a GPU: single precision, three products of "
        "halves, or half precision.",
        old_name="products",
    )

    def check(self) -> None:
        """Raise SpecError if options do not fit each other.

        Raises
        ------
        SpecError
            If options for maps in memory, maps in the store and tiles are mixed.
        """
        if self.maps == "memory" and self.keep_maps == "all":
            raise SpecError(
                'keep_maps="all" stores the maps of every layer, but maps="memory" does not. Leave '
                "one of them out."
            )
        if self.tile_features and (self.maps == "memory" or self.array_backend == "cupy"):
            other = 'maps="memory"' if self.maps == "memory" else 'array_backend="cupy"'
            raise SpecError(
                f"tile_features={self.tile_features} is for scatter matrices that no worker can "
                f"hold, but {other} needs workers that can. Leave one of them out."
            )

    @property
    def maps_stay(self) -> bool:
        """Whether the maps of the last layer stay in the store once the run is done."""
        return self.keep_maps != "none"

    def check_effect(self) -> None:
        """Raise SpecError if an option would have no effect on a new run.

        Raises
        ------
        SpecError
            If `matmul_precision` is set for a run without a GPU.
        """
        if self.matmul_precision != "split" and self.array_backend != "cupy":
            raise SpecError(
                f'matmul_precision="{self.matmul_precision}" is how a GPU multiplies matrices, but '
                f'array_backend="{self.array_backend}" does not use one. Set array_backend="cupy", '
                "or leave matmul_precision out."
            )
