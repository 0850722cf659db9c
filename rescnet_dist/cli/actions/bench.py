"""What `rescnet bench` does."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import Any

import click
from rich.console import Console

from rescnet_dist.cli.clusters import show_status
from rescnet_dist.cli.files import open_atomic
from rescnet_dist.errors import RescnetError, suggest_name


def bench(
    cases: tuple[str, ...], quick: bool, output: str | None, chart: str | None, compare: str | None
) -> None:
    """Benchmark training and prediction on this machine."""
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
            raise RescnetError(f"There is no case {name!r}. {suggest_name(name, known)}")
    earlier = _read_earlier(compare, quick) if compare else {}
    for flag, path in (("--chart", chart), ("--output", output)):
        if path and not os.path.isdir(os.path.dirname(path) or "."):
            raise RescnetError(f"The folder of {flag} {path} does not exist. Create it first.")
    if chart and find_spec("matplotlib") is None:
        raise RescnetError(NO_CHART)
    keep_memory()
    results = []
    if not cases:
        gpus = Backend("cupy").available()
        cases = tuple(case.name for case in CASES if gpus or not case.on_gpu)
    for name in cases:
        with show_status(f"timing {name}"):
            results += known[name].run(quick)
    Console().print(table(results))
    if compare:
        lines = compare_results(results, earlier)
        click.echo("\n".join(lines) or "no ratio has changed by more than 10 %")
    if output:
        with open_atomic(output) as file:
            record = {"machine": machine(), "quick": quick}
            record["results"] = [result.to_dict() for result in results]
            json.dump(record, file, indent=1)
    if chart:
        draw_chart(results, chart)


def _read_earlier(path: str, quick: bool) -> dict[str, Any]:
    """Read the results of an earlier benchmark; raise RescnetError if they are not comparable."""
    try:
        with open(path) as file:
            earlier = json.load(file)
        was_quick = bool(earlier["quick"])
        earlier["results"] = [result for result in earlier["results"] if "name" in result]
    except (OSError, ValueError, KeyError, TypeError):
        raise RescnetError(
            f"--compare {path} is not a file that `rescnet bench -o` has written. Check the path."
        ) from None
    if was_quick != quick:
        kind = "a quick run" if was_quick else "a full run"
        raise RescnetError(
            f"--compare {path} is of {kind}, whose numbers are not comparable. "
            + ("Leave --quick out." if quick else "Add --quick, or compare with a full run.")
        )
    return dict(earlier)
