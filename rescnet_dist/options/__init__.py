"""Declared options: frozen dataclasses whose fields hold the range, the help and the default.

An option is declared once, by its field:

>>> from dataclasses import dataclass
>>> from typing import Literal
>>> @dataclass(frozen=True, slots=True)
... class StackedLDA(Options):
...     positives: int = option(2, help="patches of the class in each draw", low=1)
...     ridge: float = option(1e-2, help="ridge added to the covariance of a draw", above=0)
...     pool: Literal["max", "mean"] = option("max", help="pooling over the blocks of a cell")
>>> StackedLDA(positives=3).to_dict()
{'positives': 3, 'ridge': 0.01, 'pool': 'max'}

Validation, dicts, nested parameters for scikit-learn, HTML tables and the Attributes section of the
docstring follow from it. So do the flags of the command line and the tables of the book, which read
`declared_options`.

Why not a library: a validator of attrs is a function, from which no range can be read for flags
and tables, so the metadata would be our own anyway. pydantic declares ranges and descriptions, but
each of its errors would have to be translated to say what to do, and every worker would need its
compiled core. What is left to write is this package.
"""

from rescnet_dist.options.base import Options, declared_options, validate_option
from rescnet_dist.options.declaration import Option, option

__all__ = ["Option", "Options", "declared_options", "option", "validate_option"]
