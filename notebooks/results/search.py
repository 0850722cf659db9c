"""Search settings on held-out training images by successive halving, within a budget of minutes.

Every candidate is trained to a few layers; the best half is resumed to twice as many, and so on.
Each trial is a line of one table. Test images are never opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
from distributed import Client
from environment import get_commit, get_environment
from make import describe_data, explain_resuming, format_machine, name_of_data
from rich.console import Console

from rescnet_dist.cli.clusters import cluster
from rescnet_dist.cli.common import HELP_SETTINGS, cluster_options, pop_cluster_options
from rescnet_dist.cli.files import check_folder
from rescnet_dist.cli.flag_table import declared_flags
from rescnet_dist.cli.group import exit_codes
from rescnet_dist.cli.options import spec_options
from rescnet_dist.cli.resolve import AnySpec, resolve_specs
from rescnet_dist.cli.signals import raise_on_signal
from rescnet_dist.dashboard.progress import TerminalProgress
from rescnet_dist.data import TrainingSet, training_set
from rescnet_dist.errors import RescnetError, SpecError, pluralize, suggest_name
from rescnet_dist.events import PassDone
from rescnet_dist.events.classes import Listener
from rescnet_dist.lifecycle import begin_or_resume, check_run
from rescnet_dist.lifecycle.match import is_incomplete
from rescnet_dist.lifecycle.resume import Changes, resume_run
from rescnet_dist.options import declared_options
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.runs import describe_run
from rescnet_dist.spec import AugmentSpec, NetworkSpec, RunSpec
from rescnet_dist.store import Location, RunStore

HERE = Path(__file__).parent
TABLE = HERE / "trials" / "search.jsonl"
TRIAL_VERSION = 1  # changes when an entry is renamed, removed, or means something else
FIXED = ("seed", "validation")  # they choose the held-out images, the same for all candidates
# what a trial is looked up by, apart from the network, the copies and the data
RUN_OPTIONS = ("seed", "validation", "class_weight", "array_backend", "matmul_precision")
HEAD = ("candidate", "data", "held out", "seed", "layers", "best %", "at", "s", "machine", "commit")

Trial = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings to be tried: those of the base with changes. `key` identifies them and the data."""

    name: str
    changes: dict[str, Any]
    network: NetworkSpec
    run: RunSpec
    augment: AugmentSpec
    key: str = ""


@dataclass(frozen=True, slots=True)
class Search:
    """What all trials of a search have in common."""

    base: str
    source: str
    training: TrainingSet
    data: dict[str, Any]
    table: Path
    runs: Location
    first_layers: int
    budget_seconds: float


@click.command(**HELP_SETTINGS)
@click.argument("candidates", required=False)
@click.option("--data", help="the data, as for `rescnet train`; only the split train is opened")
@click.option("--budget-minutes", type=float, help="minutes of training for all trials together")
@click.option("--layers", default=4, show_default=True, help="layers of the first rung")
@click.option("--store", default="runs/search", show_default=True, help="URL of the runs' folder")
@click.option("--into", default=str(TABLE), help="the table of trials  [default: trials/]")
@click.option("--table", "as_table", is_flag=True, help="print the table of trials")
@cluster_options
@spec_options(declared_flags(RunSpec))
def main(
    candidates: str | None,
    data: str | None,
    budget_minutes: float | None,
    layers: int,
    store: str,
    into: str,
    as_table: bool,
    **flags: Any,
) -> None:
    """Try the settings in the TOML file CANDIDATES and append each trial to the table.

    The file names a base, which is a settings file, and has a table [[candidates]] for each
    candidate: its name, and the options that it changes. The same command continues a search that
    was stopped; with more minutes, it goes further.

    \b
    Example:
      python search.py candidates/digits.toml --data digits --budget-minutes 5
      python search.py --table
    """
    with exit_codes(), raise_on_signal():
        if as_table:
            click.echo(format_trials(read_trials(Path(into))))
            return
        if not (candidates and data and budget_minutes):
            raise RescnetError("Give a file of candidates, --data and --budget-minutes.")
        if layers < 1:
            raise SpecError(f"--layers {layers} is out of range. Give at least 1.")
        check_folder(into)
        cluster_flags = pop_cluster_options(flags)
        given = {key: value for key, value in flags.items() if value is not None}
        base, tried = read_candidates(Path(candidates), data, given)
        training = training_set(data, None)
        described = {
            "name": name_of_data(data),
            **describe_data(training.images[0].array, training.codes[0]),
        }
        setup = Search(
            base, data, training, described, Path(into), Location.of(store), layers,
            60 * budget_minutes,
        )  # fmt: skip
        with cluster(cluster_flags, gpus=get_backend(tried[0].run).on_gpu) as client:
            trials = search(setup, tried, client)
        click.echo(format_trials(trials))


# candidates -------------------------------------------------------------------------------------


def read_candidates(
    path: Path, data: str, given: dict[str, Any]
) -> tuple[str, tuple[Candidate, ...]]:
    """Return the name of the base and the candidates of a TOML file, which `given` overrides.

    Raise SpecError for a candidate that cannot be compared with the others.
    """
    try:
        tables = tomllib.loads(path.read_text())
        base, entries = tables["base"], tables["candidates"]
        changes = {entry.pop("name"): entry for entry in entries}
    except OSError as error:
        raise SpecError(f"{path} cannot be read ({error.strerror}). Check the path.") from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(
            f'{path} is not a list of candidates ({error}). It needs base = "FILE.toml" and tables '
            "[[candidates]] with a name each."
        ) from error
    if len(changes) < max(1, len(entries)):
        raise SpecError(f"{path} has no candidates, or two of one name. Give each its own name.")
    config = str(path.parent / base)
    return base, tuple(
        resolve_candidate(name, config, data, changed, given) for name, changed in changes.items()
    )


def resolve_candidate(
    name: str, config: str, data: str, changes: dict[str, Any], given: dict[str, Any]
) -> Candidate:
    """Return the candidate with these changes of a settings file."""
    known = {
        key for spec in (NetworkSpec, RunSpec, AugmentSpec) for key in declared_options(spec)
    } - {*FIXED}
    for option in changes:
        if option in FIXED:
            raise SpecError(
                f"Candidate {name!r} changes {option}, on which the held-out images depend. Give "
                "it for all candidates, on the command line or in the base."
            )
        if option not in known:
            raise SpecError(
                f"Candidate {name!r} changes {option!r}, which is no option. "
                f"{suggest_name(option, known)}"
            )
    network, run, augment = resolve_specs(None, config, data, given)

    def change(spec: AnySpec) -> AnySpec:
        names = declared_options(type(spec)).keys() & changes.keys()
        return spec.replace(**{key: changes[key] for key in names})

    network, run, augment = change(network), change(run), change(augment)
    if run.validation == 0:
        raise SpecError("validation=0.0 holds no images out. Give a fraction above 0.")
    # the rungs decide how deep a candidate gets
    return Candidate(name, changes, network.replace(patience=None), run, augment)


def identify(candidate: Candidate, setup: Search) -> Candidate:
    """Return the candidate with the digest of everything that its accuracies depend on."""
    fraction = setup.training.held_out_fraction(candidate.run.validation)
    run = candidate.run.replace(validation=fraction)
    network, options = candidate.network.to_dict(), run.to_dict()
    content = {
        "network": {key: network[key] for key in network if key != "max_layers"},
        "run": {key: options.get(key) for key in RUN_OPTIONS},
        "augment": candidate.augment.to_dict(),
        "data": setup.data["sha256"],
    }
    text = json.dumps(content, sort_keys=True)
    return replace(candidate, run=run, key=hashlib.sha256(text.encode()).hexdigest()[:12])


# successive halving -----------------------------------------------------------------------------


def search(
    setup: Search,
    candidates: Sequence[Candidate],
    client: Client,
    listeners: Sequence[Listener] = (),
) -> list[Trial]:
    """Train the candidates rung by rung until the budget is spent; return all their trials.

    Trials in the table are not repeated. Their seconds count, so a search that is continued has the
    budget that is left.
    """
    candidates = [identify(candidate, setup) for candidate in candidates]
    keys = {candidate.key for candidate in candidates}
    stored = read_trials(setup.table, missing_ok=True)
    known = {(t["key"], t["target_layers"]): t for t in stored if t["key"] in keys}
    trials, rung, remaining = dict[tuple[str, int], Trial](), 1, list(candidates)
    environment, commit = get_environment(client), get_commit()
    while remaining:
        for candidate in remaining:
            # of this rung, those in the table come first: they are spent already
            if found := known.get((candidate.key, layers_of(rung, candidate, setup))):
                trials[candidate.key, rung] = found
                continue
            spent = sum(trial["seconds"]["trial"] for trial in trials.values())
            if spent >= setup.budget_seconds:
                click.echo(f"The budget is spent: {spent:.0f} s. More minutes continue it.")
                return list(trials.values())
            before = trials.get((candidate.key, rung - 1))
            with explain_resuming():
                trial = try_candidate(candidate, rung, before, setup, client, listeners)
            trial |= {"commit": commit, "environment": environment}
            append_trial(setup.table, trial)
            trials[candidate.key, rung] = trial
            report(trial, spent, setup.budget_seconds)
        remaining = choose_survivors(remaining, rung, trials, setup)
        rung += 1
    return list(trials.values())


def choose_survivors(
    tried: Sequence[Candidate], rung: int, trials: dict[tuple[str, int], Trial], setup: Search
) -> list[Candidate]:
    """Return the better half of a rung's candidates, and fewer if the budget is too small for it.

    A candidate that has all layers of its settings is left out. Seconds of the next rung are
    estimated by those of this one; the choice depends on the trials up to this rung alone.
    """
    ranked = sorted(
        tried, key=lambda c: -trials[c.key, rung]["accuracy"]
    )  # stable: first of equals
    half = ranked[: (len(ranked) + 1) // 2]
    growing = [c for c in half if layers_of(rung + 1, c, setup) > layers_of(rung, c, setup)]
    spent = sum(trial["seconds"]["trial"] for trial in trials.values())
    left, survivors = setup.budget_seconds - spent, list[Candidate]()
    for candidate in growing:
        last = trials[candidate.key, rung]
        more = layers_of(rung + 1, candidate, setup) - last["layers"]
        left -= more * last["seconds"]["trial"] / max(1, last["layers"] - last["layers_before"])
        if left < 0:
            click.echo(f"The budget is too small for {candidate.name} at twice the layers.")
            break
        survivors.append(candidate)
    return survivors


def layers_of(rung: int, candidate: Candidate, setup: Search) -> int:
    """Return the layers of a candidate in a rung, at most those of its settings."""
    return min(setup.first_layers * 2 ** (rung - 1), candidate.network.max_layers)


def try_candidate(
    candidate: Candidate,
    rung: int,
    before: Trial | None,
    setup: Search,
    client: Client,
    listeners: Sequence[Listener],
) -> Trial:
    """Train or resume a candidate to the layers of a rung and return the record of the trial.

    Its seconds are those of all passes over the images, without the start of the cluster, and of
    layers that a call which was stopped had committed.
    """
    layers, first = layers_of(rung, candidate, setup), before["layers"] if before else 0
    run = RunStore(setup.runs / f"{candidate.name}-{candidate.key}")
    exists = run.location.exists() and not is_incomplete(run.location)
    done = describe_run(run.url)["layers"] if exists else []
    evaluated = [layer for layer in done if layer["validation"] is not None]
    passes = list[float]()

    def listen(event: Any) -> None:
        if isinstance(event, PassDone):
            passes.append(event.seconds)

    if len(evaluated) < layers:  # else another search has trained it
        grow(run, candidate, layers, setup, client, [listen, *listeners], exists=exists)
    found = describe_run(run.url)
    grown = [layer for layer in found["layers"] if layer["validation"] is not None][:layers]
    curve, seconds = ([layer[key] for layer in grown] for key in ("validation", "seconds"))
    depth = 1 + int(np.argmax(curve))
    held_out = int(np.count_nonzero(run.data_array("train")[...] == 0))
    return {
        "version": TRIAL_VERSION,
        "key": candidate.key,
        "name": candidate.name,
        "base": os.path.basename(setup.base),
        "changes": candidate.changes,
        "data": setup.data | {"held_out": held_out},
        "seed": candidate.run.seed,
        "rung": rung,
        "target_layers": layers,
        "layers_before": first,
        "layers": len(curve),
        "depth": depth,
        "accuracy": curve[depth - 1],
        "curve": curve,
        "seconds": {"trial": sum(passes) + sum(seconds[first : len(done)]), "layers": seconds},
        "stopped_by": found["reason"],
        "spec": {kind: found[kind] for kind in ("network", "run", "augment")},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def grow(
    run: RunStore,
    candidate: Candidate,
    layers: int,
    setup: Search,
    client: Client,
    listeners: Sequence[Listener],
    *,
    exists: bool,
) -> None:
    """Train a candidate to a number of layers: begin its run, or resume it after its last layer."""
    known = run.attributes()["network"]["max_layers"] if exists else layers
    network = candidate.network.replace(max_layers=known)
    training = replace(setup.training, augment=candidate.augment)
    checked = check_run(
        run.url, network, candidate.run, training, source=setup.source, or_resume=True
    )
    with TerminalProgress(Console(stderr=True)) as progress:
        if exists:
            changes = replace(Changes.to(candidate.run), max_layers=layers)
            resume_run(run, client, [progress, *listeners], changes=changes)
        else:
            begin_or_resume(checked, client, [progress, *listeners])


# the table ----------------------------------------------------------------------------------------


def append_trial(table: Path, trial: Trial) -> None:
    """Append a trial to the table as one line, after removing a line that was not finished."""
    if table.exists():
        content = table.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(table, content.rfind(b"\n") + 1)
    with table.open("a") as file:
        file.write(json.dumps(trial, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_trials(table: Path, *, missing_ok: bool = False) -> list[Trial]:
    """Read all trials of a table, except a last line that was not finished."""
    if not table.exists():
        if missing_ok:
            return []
        raise RescnetError(f"There is no table {table}. Name it with --into.")
    lines = table.read_text().split("\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise RescnetError(f"{table} is not a table of trials ({error}). Name another.") from None


def format_trials(trials: Sequence[Trial]) -> str:
    """Return trials as a Markdown table: the deepest first, the best of equal depth first."""
    lines = [HEAD, ("---",) * len(HEAD)]
    for trial in sorted(trials, key=lambda t: (-t["target_layers"], -t["accuracy"])):
        lines.append(
            (
                trial["name"],
                trial["data"]["name"],
                f"{trial['data']['held_out']} of {trial['data']['images']}",
                str(trial["seed"]),
                str(trial["layers"]),
                f"{100 * trial['accuracy']:.2f}",
                str(trial["depth"]),
                f"{trial['seconds']['trial']:.1f}",
                format_machine(trial),
                (trial["commit"] or "")[:7],
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report(trial: Trial, spent: float, budget: float) -> None:
    """Print the outcome of a trial and what is spent."""
    spent += trial["seconds"]["trial"]
    click.echo(
        f"rung {trial['rung']}: {trial['name']}, {pluralize(trial['layers'], 'layer')}, best "
        f"{100 * trial['accuracy']:.2f} % after {trial['depth']}; {spent:.0f} of {budget:.0f} s",
        err=True,
    )


if __name__ == "__main__":
    main()
