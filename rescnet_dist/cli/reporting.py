"""How `rescnet train` and `resume` tell of a run while it goes on, and of what came of it."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import click
from distributed import Client
from rich.console import Console

import rescnet_dist
from rescnet_dist.cli.clusters import working
from rescnet_dist.cli.json_lines import JsonLines
from rescnet_dist.cli.progress import TerminalProgress, describe_accuracy
from rescnet_dist.cli.signals import Terminated, terminated_by_signal
from rescnet_dist.dashboard import MLflowWriter, SchedulerPage, TensorBoardWriter
from rescnet_dist.data import has_test_split
from rescnet_dist.errors import (
    RescnetError,
    SpecError,
    StoreUnreachableError,
    mask_secrets,
    pluralize,
)
from rescnet_dist.kernels import Backend
from rescnet_dist.spec import RunSpec
from rescnet_dist.store import RunStore, last_saved
from rescnet_dist.train import EVENTS_VERSION, Accuracy, Listener, check_resume, describe_run

OUTCOME = ("url", "state", "reason", "depth", "copies", "layers")  # of what `describe_run` tells


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The options of how to tell of a run."""

    quiet: bool = False
    as_json: bool = False
    json_lines: bool = False
    tensorboard: str | None = None
    mlflow: str | None = None

    @property
    def silent(self) -> bool:
        """Whether no progress is shown."""
        return self.quiet or self.json_lines


def reporting_options(command: Any) -> Any:
    """A decorator that adds the options that `pop_report_options` reads."""
    tracker = "write the layers for MLflow at this URI too, such as sqlite:///mlflow.db"
    command = click.option("--mlflow", metavar="URI", help=tracker)(command)
    board = "write the layers for TensorBoard too, to FOLDER/NAME-OF-THE-RUN"
    command = click.option("--tensorboard", metavar="FOLDER", help=board)(command)
    lines = "print each event, then the outcome, as a line of JSON, and no progress"
    command = click.option("--json-lines", is_flag=True, help=lines)(command)
    command = click.option("--json", "as_json", is_flag=True, help="print the outcome as JSON")(
        command
    )
    quiet = "show no progress, but warnings, errors and the outcome"
    return click.option("--quiet", "-q", is_flag=True, help=quiet)(command)


def pop_report_options(flags: dict[str, Any]) -> ReportOptions:
    """Take the options of how to tell of a run out of all flags."""
    how = ReportOptions(**{field.name: flags.pop(field.name) for field in fields(ReportOptions)})
    if how.as_json and how.json_lines:
        raise SpecError(
            "--json prints one record, --json-lines a line for each event and the outcome: give "
            "one of them"
        )
    if how.tensorboard == "":
        raise SpecError("--tensorboard is empty: give the folder to write to")
    if how.mlflow == "":
        raise SpecError("--mlflow is empty: give the URI to write to, such as sqlite:///mlflow.db")
    return how


@dataclass(slots=True)
class Reporter:
    """Those who are told of a run, and where its outcome goes."""

    how: ReportOptions
    lines: JsonLines | None = None
    listeners: list[Listener] = field(default_factory=list)

    def outcome(self, record: dict[str, Any]) -> None:
        """Print the outcome for machines: with --json-lines as a last event."""
        if self.lines:
            head = {"event": "outcome", "version": EVENTS_VERSION, "time": time.time()}
            self.lines.write(head | record)
        else:
            click.echo(json.dumps(record))


@contextmanager
def telling(how: ReportOptions) -> Iterator[Reporter]:
    """Those who are told of a run from its start to its outcome, as the options say."""
    with ExitStack() as stack:
        teller = Reporter(how)
        if how.json_lines:
            teller.lines = stack.enter_context(JsonLines(sys.stdout))
            teller.listeners.append(teller.lines)
        if how.tensorboard is not None:
            board = stack.enter_context(TensorBoardWriter(how.tensorboard))
            teller.listeners.append(board)
        if how.mlflow is not None:
            logging.getLogger("mlflow.store").setLevel(logging.WARNING)  # not of tables it makes
            with working("opening MLflow", quiet=how.silent):
                tracker = stack.enter_context(MLflowWriter(tracking_uri=how.mlflow))
            teller.listeners.append(tracker)
        yield teller


@contextmanager
def watched(url: str, teller: Reporter, client: Client) -> Iterator[list[Listener]]:
    """Listeners of a run, those who show its progress too; an interruption says how to go on."""
    try:
        with terminated_by_signal(), ExitStack() as stack:
            page = SchedulerPage(client)
            listeners: list[Listener] = [page, *teller.listeners]
            if not teller.lines:
                progress = TerminalProgress(Console(stderr=True), page, quiet=teller.how.quiet)
                listeners.append(stack.enter_context(progress))
            yield listeners
    except Terminated:
        raise Terminated(resume_hint(url)) from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(resume_hint(url)) from None


def program() -> str:
    """How to call this program again: by name where that is found, else as it was called."""
    return "rescnet" if shutil.which("rescnet") else sys.argv[0]


def resume_hint(url: str) -> str:
    """What to type after an interruption, and what that will take."""
    again = ""
    try:
        run = RunStore.open(url)
        check_resume(run, take_over=True)
        commits = run.commits()
        stored, last = last_saved(commits), len(commits) - 1
        first = 1 + (stored if run.has_maps(stored) else 0)
        if first <= last:
            layers = f"layer {last} is" if first == last else f"layers {first} to {last} are"
            again = f"    # {layers} run forward once more, as maps were in memory"
    except StoreUnreachableError:
        pass
    except RescnetError:
        return "nothing was kept: run the same command again"
    return f"go on with: {program()} resume {mask_secrets(url)}{again}"


def report_outcome(run: RunStore, source: str | None, test: str | None, teller: Reporter) -> None:
    """Print how a run ended, its test accuracy where there is a test set, and what to type next."""
    found = describe_run(run.url)
    data = test or (source if has_test_split(source) else None)
    accuracy = None
    if data:
        with working("test accuracy", quiet=teller.how.silent):
            backend = Backend.of(RunSpec.from_stored(found["run"]))
            # it may be the workers that have GPUs
            name = backend.name if backend.available() else "numpy"
            accuracy = rescnet_dist.ResCNetClassifier.load(run.url, array_backend=name).score(data)
    if teller.how.as_json or teller.how.json_lines:
        teller.outcome({key: found[key] for key in OUTCOME} | {"test": accuracy})
        return
    chosen = found["layers"][found["depth"] - 1]
    layers = pluralize(len(found["layers"]), "layer")
    click.echo(f"depth     {found['depth']} of {layers} ({found['reason']})")
    judged = Accuracy(found["depth"], chosen["train"], chosen["validation"])
    line = describe_accuracy(judged, copies=found["copies"])
    click.echo(f"accuracy  {line}" + ("" if accuracy is None else f", test {100 * accuracy:.2f} %"))
    click.echo(f"run       {found['url']}")
    click.echo(f"next      {program()} info {found['url']}")
    if found["depth"] == len(found["layers"]):  # more layers may still help
        more = found["depth"] + 4
        click.echo(f"          {program()} resume {found['url']} --max-layers {more}")
