"""What the parameters of a classifier ask for: the network, how to train, and on which data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from rescnet_dist.data import TrainingSet, training_set
from rescnet_dist.errors import SpecError
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec


class TrainingSettings:
    """A classifier with parameters that say how to train; each is checked when it is used."""

    spec: NetworkSpec | str | dict[str, Any] | None
    random_state: int | np.random.RandomState | None
    run: RunSpec | None
    augment: AugmentSpec | None
    class_weight: str | Mapping[Any, float] | None

    def _training_set(
        self,
        X: Any,
        y: Any,
        validation: Any,
        held_out: tuple[Any, Any] | None,
        groups: Any,
        sample_weight: Any,
    ) -> TrainingSet:
        """Return the training data of `fit` and `plan`, with the validation images if given."""
        augment = None if self.augment is None else self._augment_spec()
        return training_set(
            X,
            y,
            held_out,
            own_validation=validation is None,
            augment=augment,
            groups=groups,
            sample_weight=sample_weight,
            class_weight=None if isinstance(self.class_weight, str) else self.class_weight,
        )

    def _given_spec(self) -> NetworkSpec | None:
        """Return the network that is given, or None if settings are to be chosen for the images.

        Raise SpecError if `spec` is none of a network, the name of a preset, a dict and None.
        """
        spec = self.spec
        if spec is None or isinstance(spec, dict):
            return None
        if isinstance(spec, str):
            return NetworkSpec.preset(spec)
        if not isinstance(spec, NetworkSpec):
            raise SpecError(f"spec={spec!r} is not a NetworkSpec, the name of a preset or a dict.")
        return spec

    def _network_spec(self, data: TrainingSet) -> NetworkSpec:
        """Return the network to train on the data."""
        changes = self.spec if isinstance(self.spec, dict) else {}
        return self._given_spec() or NetworkSpec.auto(*data.size, **changes)

    def _run_spec(self) -> RunSpec:
        """Return how to train; raise SpecError if `run` does not say it."""
        run = self.run if self.run is not None else RunSpec()
        if not isinstance(run, RunSpec):
            raise SpecError(f"run={run!r} is not a RunSpec.")
        return run

    def _augment_spec(self) -> AugmentSpec:
        """Return the copies to make, without any by default; raise SpecError for other values."""
        augment = self.augment if self.augment is not None else AugmentSpec()
        if not isinstance(augment, AugmentSpec):
            raise SpecError(f"augment={augment!r} is not an AugmentSpec or None.")
        return augment

    def _resolve_run(
        self, validation: tuple[Any, Any] | float | None
    ) -> tuple[RunSpec, tuple[Any, Any] | None]:
        """Return how to train and the pair (X, y) of validation images, if given."""
        self._given_spec()  # raises before the data are read
        run = self._run_spec()
        seed = self.random_state
        if seed is None or isinstance(seed, np.random.RandomState):
            seed = check_random_state(seed).randint(2**31)
        if not isinstance(seed, int | np.integer):
            raise SpecError(f"random_state={seed!r} is not a whole number, RandomState or None.")
        run_spec = run.replace(seed=seed)
        if isinstance(self.class_weight, str):
            run_spec = run_spec.replace(class_weight=self.class_weight)
        elif self.class_weight is not None and run.class_weight is not None:
            raise SpecError(
                f"class_weight is a dict, but that of run is {run.class_weight!r}. Leave one of "
                "them out."
            )
        if validation is None:
            return run_spec, None
        if isinstance(validation, int | float | np.number):
            return run_spec.replace(validation=validation), None
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            text = repr(validation) if isinstance(validation, str) else type(validation).__name__
            raise SpecError(
                f"validation={text} is neither a pair (X, y) nor a fraction of the images. Pass "
                "a pair, or a fraction such as 0.1."
            )
        return run_spec, (validation[0], validation[1])
