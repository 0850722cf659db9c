"""What `rescnet bench` does."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from rescnet_dist.bench import (
    CASES,
    NO_CHART,
    Result,
    compare_results,
    describe,
    describe_machine,
    draw_chart,
    keep_memory,
    machines_table,
    measure,
    name_file,
    table,
)
from rescnet_dist.cli.files import open_atomic
from rescnet_dist.cli.status import show_status
from rescnet_dist.errors import RescnetError, suggest_name
from rescnet_dist.kernels import Backend


def bench(
    cases: tuple[str, ...],
    quick: bool,
    output: str | None,
    chart: str | None,
    compare: str | None,
    machines: str | None,
) -> None:
    """Benchmark training and prediction on this machine."""
    if machines:
        Console().print(machines_table(_read_machines(machines)))
        return
    cases = cases or _list_cases()
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
    results: list[Result] = []
    for name in cases:
        with show_status(f"timing {name}"):
            results += measure(partial(known[name].run, quick), partial(click.echo, err=True))
    machine = describe_machine()
    click.echo(describe(machine))
    Console().print(table(results))
    if compare:
        lines = compare_results(results, earlier)
        click.echo("\n".join(lines) or "no ratio has changed by more than 10 %")
    if output:
        _write_record(output, machine, results, quick)
    if chart:
        draw_chart(results, chart)


def _list_cases() -> tuple[str, ...]:
    """Return the names of all cases that can run on this machine."""
    gpus = Backend("cupy").available()
    return tuple(case.name for case in CASES if gpus or not case.on_gpu)


def _write_record(
    output: str, machine: dict[str, Any], results: Sequence[Result], quick: bool
) -> None:
    """Write results to a file, or to the file of the machine in a folder.

    In a folder, earlier results of the same machine are kept: those of other cases, and those of an
    idle machine where the new one was busy.
    """
    today = datetime.date.today().isoformat()
    found = {result.name: result.to_dict() | {"date": today} for result in results}
    if os.path.isdir(output):
        output = os.path.join(output, name_file(machine))
        if os.path.exists(output):
            before = _read_record(output, "--output")
            if before["quick"] == quick:
                earlier = {entry["name"]: entry for entry in before["results"]}
                kept = _find_kept(earlier, results)
                found = earlier | found | {name: earlier[name] for name in kept}
                if any(result.is_disturbed for result in results):
                    machine = before["machine"]  # the rate of products was measured under load, too
                for name in kept:
                    click.echo(f"{name}: {output} keeps the earlier result, of an idle machine")
    with open_atomic(output) as file:
        record = {"machine": machine, "quick": quick, "results": list(found.values())}
        json.dump(record, file, indent=1)


def _find_kept(earlier: Mapping[str, Any], results: Sequence[Result]) -> list[str]:
    """Return the names of results of a busy machine whose earlier ones are of an idle machine."""
    return [
        result.name
        for result in results
        if result.is_disturbed
        and result.name in earlier
        and not Result.from_dict(earlier[result.name]).is_disturbed
    ]


def _read_machines(folder: str) -> list[dict[str, Any]]:
    """Read the records of all machines in a folder; raise RescnetError if there is none."""
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        raise RescnetError(
            f"--machines {folder} has no results. Write some with `rescnet bench -o {folder}`."
        )
    return [_read_record(str(path), "--machines") for path in paths]


def _read_record(path: str, flag: str) -> dict[str, Any]:
    """Read the results of a benchmark; raise RescnetError if the file has none."""
    try:
        with open(path) as file:
            record = json.load(file)
        bool(record["quick"])
        record["results"] = [result for result in record["results"] if "name" in result]
    except (OSError, ValueError, KeyError, TypeError):
        raise RescnetError(
            f"{flag} {path} is not a file that `rescnet bench -o` has written. Check the path."
        ) from None
    return dict(record)


def _read_earlier(path: str, quick: bool) -> dict[str, Any]:
    """Read the results of an earlier benchmark; raise RescnetError if they are not comparable."""
    earlier = _read_record(path, "--compare")
    if earlier["quick"] != quick:
        kind = "a quick run" if earlier["quick"] else "a full run"
        raise RescnetError(
            f"--compare {path} is of {kind}, whose numbers are not comparable. "
            + ("Leave --quick out." if quick else "Add --quick, or compare with a full run.")
        )
    return earlier
