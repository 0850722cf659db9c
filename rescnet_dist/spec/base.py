"""Base class of the specs, and their TOML form."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, ClassVar, Self

import tomli_w

from rescnet_dist.errors import SpecError, suggest_name
from rescnet_dist.options import Options

TABLES = ("network", "run", "augment")  # of a TOML file: one for each spec

# As tomli_w writes it, one item per line; strings have no line breaks there.
ARRAY_OF_NUMBERS = re.compile(r"\[\n((?: *[-+\w.]+,\n)+)\]")


def read_toml(source: str | Path) -> dict[str, Any]:
    """Parse TOML text, or the file at a `Path`; raise SpecError for tables that no spec has."""
    prefix = f"{source}: " if isinstance(source, Path) else ""
    try:
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        tables = tomllib.loads(text)
    except OSError as error:
        raise SpecError(f"{source} cannot be read ({error.strerror}). Check the path.") from error
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{prefix}Byte {error.start} is not UTF-8 text. Save the file as UTF-8."
        ) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError(
            f"{prefix}The text is not valid TOML: {error}. Correct that line."
        ) from error
    kinds = {"preset": str} | dict.fromkeys(TABLES, dict)
    for name, value in tables.items():
        if not isinstance(value, kinds.get(name, ())):
            raise SpecError(
                f"{prefix}Unexpected entry {name!r}. {suggest_name(name, kinds)} The preset is a "
                "string; network, run and augment are tables."
            )
    return tables


class Spec(Options):
    """Base class of the specs, each of which is one table of a TOML file."""

    __slots__ = ()
    table: ClassVar[str]
    title: ClassVar[str] = "Options"  # on the command line

    def to_toml(self) -> str:
        """Return the spec as one TOML table.

        Returns
        -------
        str
            A table named `network`, `run` or `augment`, without the options that are None.
        """
        text = tomli_w.dumps({self.table: self.to_dict()})
        return ARRAY_OF_NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())[:-1]}]", text)

    @classmethod
    def from_toml(cls, source: str | Path) -> Self:
        """Read the spec from its table in TOML text or in a file.

        Parameters
        ----------
        source : str or pathlib.Path
            TOML text, or the path of a TOML file.

        Returns
        -------
        Spec
            The spec; options that the table does not have are the default.

        Raises
        ------
        SpecError
            If the file cannot be read, is not TOML, or has an option that is not valid.
        """
        return cls.from_dict(read_toml(source).get(cls.table, {}))
