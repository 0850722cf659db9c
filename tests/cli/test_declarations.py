"""Test the declarations of commands, which are apart from what the commands do."""

from __future__ import annotations

import inspect
import subprocess
import sys

import click
import pytest

import rescnet_dist as rd
from rescnet_dist.cli import main
from rescnet_dist.cli.actions.runs import SORT_KEYS
from rescnet_dist.cli.flag_table import (
    COMPONENT_GROUPS,
    TABLE_PATH,
    declared_flags,
    make_table,
    read_flags,
)
from rescnet_dist.cli.resume import RESUME_FLAGS
from rescnet_dist.dashboard.evaluation import MAX_EVALUATION_IMAGES
from rescnet_dist.dashboard.render import REPORT_FORMATS
from rescnet_dist.export import DEFAULT_OPSET, INPUT_DTYPES
from rescnet_dist.model import FEATURES, FILTERS, HEADS, VIEWS
from rescnet_dist.options import declared_options
from rescnet_dist.spec import CHANGEABLE, Spec

# NumPy alone takes 0.17 s, and so do the classes of components; the others take up to seconds.
SLOW_IMPORTS = (
    *("dask", "distributed", "fsspec", "numba", "numpy", "rich", "scipy", "sklearn", "zarr"),
    *("rescnet_dist.kernels", "rescnet_dist.model", "rescnet_dist.options", "rescnet_dist.spec"),
)


def test_help_of_no_command_imports_what_only_its_action_needs() -> None:
    """Commands of groups included."""
    code = f"""
import sys
from rescnet_dist.cli import main
from rescnet_dist.cli.group import COMMANDS
for name in COMMANDS:
    command = main.get_command(None, name)
    for words in ([name], *([name, found] for found in getattr(command, "commands", ()))):
        main([*words, "--help"], standalone_mode=False)
main(["--help"], standalone_mode=False)
print(sorted(set({SLOW_IMPORTS}) & sys.modules.keys()), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")


@pytest.mark.parametrize("kind", [rd.NetworkSpec, rd.RunSpec, rd.AugmentSpec])
def test_table_of_flags_is_that_of_the_declared_options(kind: type[Spec]) -> None:
    """After a change of options: python -m rescnet_dist.cli.flag_table."""
    assert read_flags(kind.table) == declared_flags(kind)


def test_table_of_flags_is_as_it_is_written() -> None:
    assert TABLE_PATH.read_text(encoding="utf-8") == make_table()


def test_packages_that_add_components_are_found_by_the_groups_of_the_registries() -> None:
    groups = {registry.group for registry in (FEATURES, FILTERS, HEADS, VIEWS)}
    assert set(COMPONENT_GROUPS) == groups


def test_process_of_a_command_ends_without_a_collection() -> None:
    """That of all imported objects takes most of a second; before the end, garbage is collected."""
    code = """
import atexit, gc
atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 0))  # is called last
from rescnet_dist.cli import main
main(["presets", "--json"], standalone_mode=False)
assert gc.get_freeze_count() == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("\nTrue True\n"), done.stderr


def list_commands(group: click.Group) -> list[click.Command]:
    """Return the commands of a group and of its groups."""
    found: list[click.Command] = []
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        found += list_commands(command) if isinstance(command, click.Group) else [command]
    return found


@pytest.mark.parametrize("command", list_commands(main), ids=lambda command: command.name)
def test_action_takes_the_parameters_of_its_command(command: click.Command) -> None:
    """Declaration and action are in different modules."""
    action = getattr(command.callback, "action", None)
    if action is None:
        assert command.name == "retry"  # which needs no import
        return
    names = [found.name for found in command.params if found.expose_value]
    inspect.signature(action()).bind(**dict.fromkeys(names))


def test_declared_choices_are_those_of_the_package() -> None:
    """They are written out in the declarations, whose imports must be fast."""
    options = {
        (command.name, found.name): found
        for command in list_commands(main)
        for found in command.params
    }
    assert options["predict", "array_backend"].type.choices == (
        declared_options(rd.RunSpec)["array_backend"].choices
    )
    assert RESUME_FLAGS == CHANGEABLE
    assert tuple(options["export", "dtype"].type.choices) == INPUT_DTYPES
    assert options["export", "opset"].default == DEFAULT_OPSET
    assert tuple(options["report", "form"].type.choices) == REPORT_FORMATS
    assert options["report", "images"].default == MAX_EVALUATION_IMAGES
    assert [*options["runs", "order"].type.choices] == ["name", "state", *SORT_KEYS]


@pytest.mark.parametrize("command", list_commands(main), ids=lambda command: command.name)
def test_choices_are_suggested(command: click.Command) -> None:
    """For a value with two letters exchanged, of each option with a closed set of values."""
    for found in command.params:
        if isinstance(found.type, click.Choice):
            choice = max(found.type.choices, key=len)
            typo = choice[:-2] + choice[:-3:-1]
            with pytest.raises(click.BadParameter, match=f"Did you mean {choice!r}"):
                found.type.convert(typo, found, None)
