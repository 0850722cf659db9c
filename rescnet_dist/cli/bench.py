"""The command `rescnet bench`: benchmarks of the passes."""

from __future__ import annotations

import click

from rescnet_dist.cli.common import HELP_SETTINGS
from rescnet_dist.cli.defer import defer


@click.command("bench", **HELP_SETTINGS)
@click.argument("cases", nargs=-1)
@click.option(
    "--quick", is_flag=True, help="small sizes, to check that the cases run; times mean little"
)
@click.option(
    "--output",
    "-o",
    help="JSON file to write, or a folder, where each machine has a file of its own",
)
@click.option("--chart", help="PNG file with a bar chart to write")
@click.option("--compare", type=click.Path(exists=True), help="JSON file of an earlier benchmark")
@click.option(
    "--machines",
    metavar="FOLDER",
    help="print the results of all machines in a folder side by side, and measure nothing",
)
@defer("bench")
def bench_command() -> None:
    """Benchmark training and prediction on this machine.

    They are compared with other libraries, and with the limit of the machine. CASES are all by
    default; those for a GPU only if there is one. Other libraries are those that are installed
    (`pip install -e ".[bench]"`). Ratios are measured in one run, on all cores. The machine should
    be idle: a case in which others use more than 5 % of it is measured again, three times at most,
    and has no verdict if they still do.

    \b
    Cases, in quotes if they have several words:
      scatter, products, scatter of large patches, features,
      features at stride 1, discriminants, filters, layer, factorization,
      iteration, starting, workers, cores, depth, images, stored maps,
      onnx, one image, prediction
    With a GPU, also:
      prediction on a gpu, gpu, gpu at stride 1, gpu with mirror images,
      copies on a gpu

    \b
    Example:
      rescnet bench features layer -o today.json --chart today.png
      rescnet bench "features at stride 1"
      rescnet bench --compare yesterday.json
      rescnet bench -o bench/ && rescnet bench --machines bench/
    """
