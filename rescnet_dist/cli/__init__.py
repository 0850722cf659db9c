"""The command line."""

from rescnet_dist.cli.commands import main

__all__ = ["main"]
