"""The attributes of a run, parsed: specs, plan, shape of the images and table of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rescnet_dist.data import RowTable
from rescnet_dist.kernels import Backend, feature_blocks
from rescnet_dist.model.architecture import Architecture
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.planning.plan import Plan
from rescnet_dist.planning.requirements import Problem
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import RunStore, translate_attribute_errors


@dataclass(frozen=True, slots=True)
class RunState:
    """The attributes of a run, read once per task."""

    spec: NetworkSpec
    run_spec: RunSpec
    plan: Plan
    classes: int
    image_shape: tuple[int, int, int]
    rows: RowTable
    augment: AugmentSpec

    @classmethod
    def of(cls, run: RunStore) -> RunState:
        """Read the attributes of a run store."""
        return cls.from_attributes(run, run.attributes())

    @classmethod
    def from_attributes(cls, run: RunStore, attributes: dict[str, Any]) -> RunState:
        """Parse the stored attributes of a run."""
        with translate_attribute_errors(run.location):
            height, width, channels = attributes["image_shape"]
            state = cls(
                NetworkSpec.from_stored(attributes["network"]),
                RunSpec.from_stored(attributes["run"]),
                Plan.from_dict(attributes["plan"]),
                len(attributes["classes"]["values"]),
                (height, width, channels),
                RowTable.from_dict(attributes["rows"]),
                AugmentSpec.from_stored(attributes["augment"]),
            )
            _ = state.architecture.features  # raises ValueError if blocks are larger than images
            return state

    def problem(self, itemsize: int) -> Problem:
        """Return the size of the training problem; itemsize is the number of bytes of a pixel."""
        return Problem(
            self.plan.images, self.image_shape, self.classes, itemsize, self.augment.copies
        )

    @property
    def backend(self) -> Backend:
        """Backend (NumPy or CuPy) that the kernels work on."""
        return get_backend(self.run_spec)

    @property
    def writes_features(self) -> bool:
        """Whether features are written to the work area."""
        return bool(self.plan.tile_features or self.spec.head.iterative_solver)

    def feature_blocks(self, layer: int) -> list[slice]:
        """Return the columns of each block of the features of a layer: of tiles, or all."""
        features = self.architecture.feature_count(layer)
        return feature_blocks(features, self.plan.tile_features or features)

    @property
    def architecture(self) -> Architecture:
        """Architecture of the network for the images of the run.

        With weights, `filter_images` counts repetitions, as the numbers of images of classes do.
        """
        network = self.spec.architecture(self.image_shape, self.classes, self.run_spec.seed)
        repeats = self.rows.draws_per_weight
        if network.filter_images is None or repeats is None:
            return network
        return replace(network, filter_images=max(1, round(network.filter_images * repeats)))
