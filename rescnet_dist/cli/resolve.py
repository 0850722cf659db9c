"""The specs of a command: how files, presets and flags combine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from rescnet_dist.composition import BANK_SHORTHANDS
from rescnet_dist.errors import SpecError
from rescnet_dist.options import declared_options
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec, Spec, read_toml
from rescnet_dist.spec.augment import MIRROR

AnySpec = TypeVar("AnySpec", bound=Spec)

DataSize = tuple[tuple[int, int, int], int, int]  # shape (H, W, d), images and classes


def resolve_averaging(flips: bool, copies: int | None) -> AugmentSpec | int | None:
    """Return the copies that predictions are averaged over, as `ResCNetClassifier` takes them."""
    if flips and copies:
        raise SpecError(f"--flips and --copies {copies} exclude each other. Give one of them.")
    return MIRROR if flips else copies


def is_automatic(preset: str | None, config: str | None) -> bool:
    """Return whether neither a preset nor a file with a network is given."""
    tables = read_toml(Path(config)) if config else {}
    return not (preset or tables.get("preset") or NetworkSpec.table in tables)


def find_preset(preset: str | None, config: str | None) -> str | None:
    """Return the name of the preset that is given, or else of the one in the file, if any."""
    return preset or (read_toml(Path(config)).get("preset") if config else None)


def resolve_specs(
    preset: str | None,
    config: str | None,
    data: str,
    flags: dict[str, Any],
    size: DataSize | None = None,
) -> tuple[NetworkSpec, RunSpec, AugmentSpec]:
    """Return the specs of a command: the preset, updated by the file, then by the flags.

    Without a preset or a network in the file, settings are chosen for the size of the data.
    """
    tables = read_toml(Path(config)) if config else {}
    name = find_preset(preset, config)
    automatic = is_automatic(preset, config)
    if automatic and size is None:
        raise SpecError(
            f"No network is given for {data}, and the size of its images is not known. Add "
            "--preset (`rescnet presets` lists them), or --config with a [network] table."
        )
    if name is None and data == "digits":
        name = "digits"
    base = NetworkSpec.preset(name) if name else NetworkSpec()
    given = {key: value for key, value in flags.items() if value is not None}

    def update(spec: AnySpec) -> AnySpec:
        by_flags = {key: given[key] for key in declared_options(type(spec)) if key in given}
        table = tables.get(spec.table, {})
        if "bank" in by_flags:  # it replaces the bank that the shorthands in the file stand for
            table = {key: value for key, value in table.items() if key not in BANK_SHORTHANDS}
        # A component that is given by a flag takes over the options of the one in the file.
        if {"bank", "features", "head"} & table.keys() & by_flags.keys():
            return spec.replace(**table).replace(**by_flags)
        return spec.replace(**table | by_flags)

    if automatic and size is not None:
        names = declared_options(NetworkSpec).keys() & given.keys()
        network = NetworkSpec.auto(*size, **{key: given[key] for key in names})
    else:
        network = update(base)
    return network, update(RunSpec()), update(AugmentSpec())
