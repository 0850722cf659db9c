"""The command line."""

from rescnet_dist.cli.group import main

__all__ = ["main"]
