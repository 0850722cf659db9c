"""The training command of a deployment: specs and a plan as the options of `rescnet train`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rescnet_dist.planning.plan import Plan
    from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec


def training_flags(
    spec: NetworkSpec,
    run_spec: RunSpec,
    augment: AugmentSpec,
    plan: Plan,
) -> list[str]:
    """Return options that give the same specs and plan, for any number of workers at the start.

    They are the nearest preset, and what differs from it and from the defaults. A validation
    fraction that was given takes precedence over a dataset's own validation images.
    """
    from rescnet_dist.flags import flags, nearest_preset  # slow to import, with NumPy
    from rescnet_dist.planning.plan import PLAN_FIELDS  # and with Dask
    from rescnet_dist.spec import AugmentSpec, RunSpec

    preset, base = nearest_preset(spec)
    planned = run_spec.replace(**{name: getattr(plan, name) for name in PLAN_FIELDS})
    words = ["--preset", preset, *flags(spec, base), *flags(planned, RunSpec())]
    return words + flags(augment, AugmentSpec())
