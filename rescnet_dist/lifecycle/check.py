"""Checks of a run before a cluster is started: the spec against the data, and the store."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from rescnet_dist.data import TrainingSet
from rescnet_dist.errors import DataError, SpecError
from rescnet_dist.lifecycle.match import describe_plan_difference, is_incomplete, match_run
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store import Location, RunStore, check_unclaimed


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """A run that can begin or, if the store has it, be resumed; only `check_run` makes one.

    Attributes
    ----------
    store : RunStore
        Where the run is or will be.
    spec : NetworkSpec
        The network.
    run_spec : RunSpec
        How to train.
    data : TrainingSet
        The images and labels.
    source : str or None
        A name for the data, stored with the run.
    temporary : bool
        Whether the store is temporary. It may have classes that cannot be read back from it.
    stored : dict or None
        The attributes of the run in the store, which is to be resumed; None to begin a run.
    replaces_incomplete : bool
        Whether the store has a run that died before its data were complete, to be replaced.
    """

    store: RunStore
    spec: NetworkSpec
    run_spec: RunSpec
    data: TrainingSet
    source: str | None = None
    temporary: bool = False
    stored: dict[str, Any] | None = None
    replaces_incomplete: bool = False

    @property
    def plan_difference(self) -> str | None:
        """What differs between the plan of the stored run and the one asked for, if anything."""
        return describe_plan_difference(self.stored, self.run_spec) if self.stored else None


def check_run(
    url: str | os.PathLike[str],
    spec: NetworkSpec,
    run_spec: RunSpec,
    data: TrainingSet,
    *,
    source: str | None = None,
    temporary: bool = False,
    or_resume: bool = False,
) -> CheckedRun:
    """Return the run to begin; raise an error for everything that can be checked before any work.

    That is a network that does not fit the images (SpecError), a validation split that they do not
    allow (DataError), and a store that is in use (StoreError). With `or_resume`, the store may have
    the same run, which is to be resumed, or one that died before its data were complete.
    """
    store, stored, incomplete = RunStore(Location.of(url)), None, False
    if or_resume and store.location.exists():
        if incomplete := is_incomplete(store.location):
            check_unclaimed(store.location)
        else:
            stored = match_run(store, spec, run_spec, data, source)
    _check_specs(spec, run_spec, data)
    if not (stored or incomplete):
        store.check_free()
    return CheckedRun(store, spec, run_spec, data, source, temporary, stored, incomplete)


def _check_specs(spec: NetworkSpec, run_spec: RunSpec, data: TrainingSet) -> None:
    """Raise SpecError or DataError if the data cannot be trained on with these specs."""
    run_spec.check_effect()
    spec.check_images(*data.image_shape)
    data.augment.check_images(*data.image_shape)
    fraction, images, classes = run_spec.validation, data.train_count, len(data.classes)
    held_out = int(images * fraction)
    if fraction > 0 and not data.has_validation and not 1 <= held_out <= images - classes:
        minimum = max(math.ceil(1 / fraction), math.ceil(classes / (1 - fraction)))
        raise DataError(
            f"validation={fraction} cannot be held out of {images} images of {classes} classes. "
            f"Give at least {minimum} images, another fraction, or a validation set."
        )
    if spec.patience is not None and not (fraction > 0 or data.has_validation):
        raise SpecError(
            f"patience={spec.patience} counts layers without a better validation accuracy, but "
            "there are no validation images. Give a validation fraction or set, or omit patience."
        )
