"""What `rescnet presets` does."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from rescnet_dist.spec import PRESETS, NetworkSpec


def presets(name: str | None, as_json: bool) -> None:
    """List the presets, or print one as TOML."""
    if name:
        spec = NetworkSpec.preset(name)
        click.echo(json.dumps(spec.to_dict()) if as_json else spec.to_toml(), nl=as_json)
        return
    if as_json:
        click.echo(json.dumps({key: spec.to_dict() for key, spec in PRESETS.items()}))
        return
    table = Table("preset", "options that are not the default")
    for key, spec in PRESETS.items():
        changes = (f"{option}={value}" for option, value, is_changed in spec.rows() if is_changed)
        table.add_row(key, ", ".join(changes))
    Console().print(table)
