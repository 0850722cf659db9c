"""The command `rescnet bench`."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import Any

import click
from rich.console import Console

from rescnet_dist.cli.clusters import working
from rescnet_dist.cli.files import finished_file
from rescnet_dist.cli.options import SHOW
from rescnet_dist.errors import RescnetError, suggest_name


@click.command("bench", **SHOW)
@click.argument("cases", nargs=-1)
@click.option("--quick", is_flag=True, help="in reduced form: that it works, not how fast")
@click.option("--output", "-o", help="JSON file to write")
@click.option("--chart", help="PNG file to draw bars to")
@click.option("--compare", type=click.Path(exists=True), help="JSON file of another day")
def bench_command(
    cases: tuple[str, ...], quick: bool, output: str | None, chart: str | None, compare: str | None
) -> None:
    """How fast this machine runs the passes, beside peers and beside its own limit.

    CASES are all of them by default, those for a GPU where there is one. Peers are those that are
    installed (`pip install -e ".[bench]"`). Ratios are taken within one run, on all cores; the
    machine should be idle.

    \b
    Example:
      rescnet bench features layer -o today.json --chart today.png
      rescnet bench --compare yesterday.json
    """
    from rescnet_dist.bench import (
        CASES,
        NO_CHART,
        compare_results,
        draw_chart,
        keep_memory,
        machine,
        table,
    )
    from rescnet_dist.kernels import Backend

    known = {case.name: case for case in CASES}
    for name in cases:
        if name not in known:
            raise RescnetError(f"there is no case {name!r}: {suggest_name(name, known)}")
    before = _earlier(compare, quick) if compare else {}
    for flag, path in (("--chart", chart), ("--output", output)):
        if path and not os.path.isdir(os.path.dirname(path) or "."):
            raise RescnetError(f"there is no folder for {flag} {path}: make it first")
    if chart and find_spec("matplotlib") is None:
        raise RescnetError(NO_CHART)
    keep_memory()
    results = []
    if not cases:
        gpus = Backend("cupy").available()
        cases = tuple(case.name for case in CASES if gpus or not case.on_gpu)
    for name in cases:
        with working(f"timing {name}"):
            results += known[name].run(quick)
    Console().print(table(results))
    if compare:
        lines = compare_results(results, before)
        click.echo("\n".join(lines) or "no ratio has changed by more than 10 %")
    if output:
        with finished_file(output) as file:
            found = {"machine": machine(), "quick": quick}
            json.dump(found | {"results": [result.to_dict() for result in results]}, file, indent=1)
    if chart:
        draw_chart(results, chart)


def _earlier(path: str, quick: bool) -> dict[str, Any]:
    """The results of another day, which must be comparable."""
    try:
        with open(path) as file:
            found = json.load(file)
        was_quick = bool(found["quick"])
        found["results"] = [result for result in found["results"] if "name" in result]
    except (OSError, ValueError, KeyError, TypeError):
        raise RescnetError(
            f"--compare {path} is not a file that `rescnet bench -o` has written"
        ) from None
    if was_quick != quick:
        kind = "a quick run" if was_quick else "a full run"
        raise RescnetError(
            f"--compare {path} is of {kind}, whose figures mean something else: "
            + ("leave --quick out" if quick else "run with --quick, or compare with a full run")
        )
    return dict(found)
