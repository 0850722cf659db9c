"""The command `rescnet`, as `python -m rescnet_dist`."""

import os

from rescnet_dist.cli import main
from rescnet_dist.cli.retry import PROGRAM_VARIABLE

main(prog_name=os.environ.get(PROGRAM_VARIABLE))
