"""The command `rescnet`, as `python -m rescnet_dist`."""

from rescnet_dist.cli import main

main()
