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
from rescnet_dist.dashboard.evaluation import MAX_EVALUATION_IMAGES
from rescnet_dist.dashboard.render import REPORT_FORMATS
from rescnet_dist.options import declared_options

SLOW_IMPORTS = {"dask", "distributed", "fsspec", "numba", "rich", "scipy.linalg", "sklearn", "zarr"}


def test_help_of_no_command_imports_what_only_its_action_needs() -> None:
    """Those take seconds."""
    code = f"""
import sys
from rescnet_dist.cli import main
from rescnet_dist.cli.group import COMMANDS
for words in ([], *([name] for name in COMMANDS)):
    main([*words, "--help"], standalone_mode=False)
print(sorted({SLOW_IMPORTS} & sys.modules.keys()), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")


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
    assert tuple(options["report", "form"].type.choices) == REPORT_FORMATS
    assert options["report", "images"].default == MAX_EVALUATION_IMAGES
    assert [*options["runs", "order"].type.choices] == ["name", "state", *SORT_KEYS]
