"""The command line interface, `rescnet`."""

from rescnet_dist.cli.group import main

__all__ = ["main"]
