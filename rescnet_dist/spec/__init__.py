"""Options of a network, a run and its augmentation: frozen, validated specs with a TOML form."""

from rescnet_dist.spec.augment import AugmentSpec
from rescnet_dist.spec.base import Spec, read_toml
from rescnet_dist.spec.network import PRESETS, NetworkSpec
from rescnet_dist.spec.run import CHANGEABLE, DEFAULT_VALIDATION, RunSpec

__all__ = [
    "CHANGEABLE",
    "DEFAULT_VALIDATION",
    "PRESETS",
    "AugmentSpec",
    "NetworkSpec",
    "RunSpec",
    "Spec",
    "read_toml",
]
