"""Output of `rescnet train` and `resume`: listeners during the run, and its outcome."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import click
from distributed import Client
from distributed.comm.addressing import unparse_host_port
from rich.console import Console

from rescnet_dist.cli.json_lines import JsonLines
from rescnet_dist.cli.log_lines import LogLines
from rescnet_dist.cli.progress_file import ProgressFile
from rescnet_dist.cli.retry import PROGRESS_VARIABLE
from rescnet_dist.cli.signals import Terminated
from rescnet_dist.cli.status import show_status
from rescnet_dist.dashboard import (
    MLflowWriter,
    PrometheusExporter,
    SchedulerPage,
    TensorBoardWriter,
)
from rescnet_dist.dashboard.progress import TerminalProgress, describe_accuracy
from rescnet_dist.data import has_test_split, select_split
from rescnet_dist.errors import (
    RescnetError,
    SpecError,
    StoreUnreachableError,
    mask_secrets,
    pluralize,
)
from rescnet_dist.events import EVENTS_VERSION, Accuracy, Listener
from rescnet_dist.formatting import format_bytes, train_suffix
from rescnet_dist.lifecycle import check_resume
from rescnet_dist.logs import use_json_logs
from rescnet_dist.network import BaseNetwork, load_network
from rescnet_dist.planning.backend import get_available_backend
from rescnet_dist.runs import describe_run
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store import RunStore, last_saved

OUTCOME_FIELDS = (  # of `describe_run`
    *("url", "state", "reason", "depth", "copies", "leave_one_out", "layers"),
)
MAX_PORT = 65535
LARGE_MAPS_BYTES = 64 * 2**20  # of maps whose size is worth a remark
MORE_LAYERS = 4  # that the printed `rescnet resume` command adds

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of the output of a run.

    Attributes
    ----------
    quiet : bool, default False
        Print no progress.
    as_json : bool, default False
        Print the outcome as JSON.
    json_lines : bool, default False
        Print each event and the outcome as a line of JSON.
    tensorboard : str or None, default None
        Folder for TensorBoard.
    mlflow : str or None, default None
        Tracking URI of MLflow.
    mlflow_models : bool, default False
        Log the network to MLflow too.
    metrics_address : tuple of (str, int) or None, default None
        Host and port at which metrics are served for Prometheus.
    log_format : {"text", "json"}, default "text"
        Form of progress, warnings and errors.
    """

    quiet: bool = False
    as_json: bool = False
    json_lines: bool = False
    tensorboard: str | None = None
    mlflow: str | None = None
    mlflow_models: bool = False
    metrics_address: tuple[str, int] | None = None
    log_format: str = "text"

    @property
    def is_silent(self) -> bool:
        """Whether no progress is printed."""
        return self.quiet or self.json_lines


def pop_report_options(flags: dict[str, Any]) -> ReportOptions:
    """Remove the output options from all flags and return them; raise SpecError for bad ones."""
    given = {field.name: flags.pop(field.name) for field in fields(ReportOptions)}
    options = ReportOptions(**given | {"metrics_address": _parse_address(given["metrics_address"])})
    if options.json_lines and options.log_format == "json":
        raise SpecError(
            "--json-lines prints every event, and --log-format json logs the passes. Give one of "
            "them."
        )
    if options.as_json and options.json_lines:
        raise SpecError(
            "--json prints one record, but --json-lines prints a line for each event and the "
            "outcome. Give one of them."
        )
    if options.tensorboard == "":
        raise SpecError("--tensorboard is empty. Give the folder to write to.")
    if options.mlflow == "":
        raise SpecError("--mlflow is empty. Give the URI to log to, such as sqlite:///mlflow.db.")
    if options.mlflow_models and options.mlflow is None:
        raise SpecError("--mlflow-models needs the URI to log to. Add --mlflow URI.")
    if options.log_format == "json":
        use_json_logs()
    return options


def _parse_address(address: str | None) -> tuple[str, int] | None:
    """Return host and port of an address, as Dask understands it.

    A port alone is of loopback, and the host of one after a colon is empty: all addresses.
    """
    if address is None:
        return None
    if "/" in address:
        server = address.partition("//")[2].partition("/")[0]
        found = server.rpartition("@")[2] or "127.0.0.1:9464"
        raise SpecError(
            f"--metrics-address {address} is a URL. Use the address to listen on, such as {found}; "
            "metrics are served at its path /metrics."
        )
    host, colon, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise SpecError(
            f"--metrics-address {address} has no port from 0 to {MAX_PORT}. Use 9464, :9464 or an "
            "address such as 127.0.0.1:9464."
        )
    return host.strip("[]") if colon else "127.0.0.1", int(port)


@dataclass(slots=True)
class Reporter:
    """The listeners of a run that the options ask for, and the output of its outcome."""

    options: ReportOptions
    lines: JsonLines | None = None
    listeners: list[Listener] = field(default_factory=list)

    def write_outcome(self, record: dict[str, Any]) -> None:
        """Print the outcome as JSON; with --json-lines as the last event, else log it."""
        if self.lines:
            head = {"event": "outcome", "version": EVENTS_VERSION, "time": time.time()}
            self.lines.write(head | record)
        elif self.options.as_json:
            click.echo(json.dumps(record))
        else:
            fields = {key: value for key, value in record.items() if key != "layers"}
            logger.info("outcome", extra={"fields": fields})


@contextmanager
def open_reporter(options: ReportOptions) -> Iterator[Reporter]:
    """Yield the reporter of a run, from before its start until its outcome is printed."""
    with ExitStack() as stack:
        reporter = Reporter(options)
        if options.json_lines:
            reporter.lines = stack.enter_context(JsonLines(sys.stdout))
            reporter.listeners.append(reporter.lines)
        if options.metrics_address is not None:
            host, port = options.metrics_address
            exporter = stack.enter_context(PrometheusExporter(port, host))
            reporter.listeners.append(exporter)
            if not options.is_silent:
                address = unparse_host_port(host, exporter.port)
                click.echo(f"metrics: http://{address}/metrics", err=True)
        if options.tensorboard is not None:
            writer = stack.enter_context(TensorBoardWriter(options.tensorboard))
            reporter.listeners.append(writer)
        if options.mlflow is not None:
            # MLflow logs each table that it creates.
            logging.getLogger("mlflow.store").setLevel(logging.WARNING)
            with show_status("opening MLflow", quiet=options.is_silent):
                tracker = stack.enter_context(
                    MLflowWriter(tracking_uri=options.mlflow, log_models=options.mlflow_models)
                )
            reporter.listeners.append(tracker)
        yield reporter


@contextmanager
def open_listeners(url: str, reporter: Reporter, client: Client) -> Iterator[list[Listener]]:
    """Yield all listeners of a run, progress included; add a hint to resume to interruptions."""
    try:
        with ExitStack() as stack:
            page = SchedulerPage(client)
            listeners: list[Listener] = [page, *reporter.listeners]
            if path := os.environ.get(PROGRESS_VARIABLE):
                listeners.append(ProgressFile(path))
            quiet = reporter.options.quiet
            if reporter.options.log_format == "json":
                listeners.append(LogLines(quiet=quiet))
            elif not reporter.lines:
                progress = TerminalProgress(Console(stderr=True), page, quiet=quiet)
                listeners.append(stack.enter_context(progress))
            yield listeners
    except Terminated:
        raise Terminated(resume_hint(url)) from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(resume_hint(url)) from None


def program_name() -> str:
    """Return how to call this program: by name if it is on the path, else as it was called."""
    if shutil.which("rescnet"):
        return "rescnet"
    is_module = Path(sys.argv[0]).name == "__main__.py"
    return f"{sys.executable} -m rescnet_dist" if is_module else sys.argv[0]


def resume_hint(url: str) -> str:
    """Return the command that resumes an interrupted run, and the layers it computes again."""
    comment = ""
    try:
        run = RunStore.open(url)
        check_resume(run, take_over=True)
        commits = run.commits()
        stored, last = last_saved(commits), len(commits) - 1
        first = 1 + (stored if run.has_maps(stored) else 0)
        if first <= last:
            layers = f"layer {last} is" if first == last else f"layers {first} to {last} are"
            comment = f"    # {layers} run forward again, because maps are not in the store"
    except StoreUnreachableError:
        pass
    except RescnetError:
        return "nothing was kept: run the same command again"
    return f"resume with: {program_name()} resume {mask_secrets(url)}{comment}"


def report_outcome(run: RunStore, source: str | None, test: str | None, reporter: Reporter) -> None:
    """Print how a run ended, its test accuracy if there is a test set, and the next commands."""
    description = describe_run(run.url)
    depth, grown = description["depth"], len(description["layers"])
    data = test or (source if has_test_split(source) else None)
    accuracy, is_logged = None, reporter.options.log_format == "json"
    if data:
        with show_status("test accuracy", quiet=reporter.options.is_silent):
            name = get_available_backend(RunSpec.from_stored(description["run"]))
            accuracy, images = compute_accuracy(load_network(run.url).on(name), data)
        test_record = {"data": mask_secrets(data), "images": images, "accuracy": accuracy}
        run.write_test(test_record | {"depth": depth, "layers": grown})
    if reporter.options.as_json or reporter.options.json_lines or is_logged:
        record = {key: description[key] for key in OUTCOME_FIELDS}
        reporter.write_outcome(record | {"test": accuracy})
        return
    url, chosen = description["url"], description["layers"][depth - 1]
    click.echo(f"depth     {depth} of {pluralize(grown, 'layer')} ({description['reason']})")
    line = describe_accuracy(
        Accuracy(depth, chosen["train"], chosen["validation"]),
        train_suffix(description["copies"], description["leave_one_out"]),
    )
    click.echo(f"accuracy  {line}" + ("" if accuracy is None else f", test {100 * accuracy:.2f} %"))
    click.echo(f"run       {url}")
    click.echo(f"size      {describe_size(description['bytes'])}")
    click.echo(f"next      {program_name()} info {url}")
    has_last_head = NetworkSpec.from_stored(description["network"]).heads == "last"
    if depth == grown and not has_last_head:  # more layers may still help
        click.echo(f"          {program_name()} resume {url} --max-layers {depth + MORE_LAYERS}")


def describe_size(sizes: Mapping[str, int]) -> str:
    """Return the size of a run in words, of which the maps take most if they are kept.

    >>> describe_size({"data": 2**20, "maps": 2**28, "layers": 2**20})
    '258 MiB; 256 MiB are feature maps, which `resume` continues from (--keep-maps none: not kept)'
    """
    total, maps = format_bytes(sum(sizes.values())), sizes["maps"]
    if maps < LARGE_MAPS_BYTES:
        return total
    kept = f"{format_bytes(maps)} are feature maps, which `resume` continues from"
    return f"{total}; {kept} (--keep-maps none: not kept)"


def compute_accuracy(network: BaseNetwork, data: str) -> tuple[float, int]:
    """Return the accuracy on the test split of a dataset, and its number of images.

    Scikit-learn is not imported.
    """
    part = select_split(data, None, "test", decoder=network.photo_decoder())
    correct = network.find_correct(part.images, part.labels)
    return float(correct.mean()), len(correct)
