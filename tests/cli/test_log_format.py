"""`--log-format json`: every line of a command is JSON with time, level, run and layer."""

from __future__ import annotations

import ast
import json
import logging
import os
import subprocess
import sys
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import rescnet_dist as rd
from rescnet_dist import logs
from rescnet_dist.cli.log_lines import LogLines
from rescnet_dist.events import (
    Accuracy,
    AccuracyCollapsed,
    ChunkRebuilt,
    PassDone,
    PassRetried,
    PassStarted,
    RunDone,
    RunStarted,
    RunStopped,
)
from tests.commands import run

FIELDS = {"time", "level", "logger", "message"}


def read_lines(text: str) -> list[dict[str, Any]]:
    """Return all lines as records; fail for a line that is not JSON or lacks a field."""
    records = [json.loads(line) for line in text.splitlines()]
    for record in records:
        assert record.keys() >= FIELDS
        assert datetime.fromisoformat(record["time"]).tzinfo
    return records


@pytest.fixture
def context() -> Any:
    """Remove the fields that a test sets."""
    yield
    logs.context.clear()


@pytest.mark.slow
def test_commands_log_json_only() -> None:
    """The command that fails, and the command that repeats it."""
    logged = ["--log-format", "json"]
    command = ["retry", "--tries", "1", *logged, "train", "--or-resume", *logged]
    done = subprocess.run(
        [sys.executable, "-m", "rescnet_dist", *command], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    records = read_lines(done.stderr)
    assert all({"run", "layer"} <= record.keys() for record in records)
    assert [(record["level"], record["message"]) for record in records] == [
        ("ERROR", "--or-resume needs the store of the run. Add --store URL."),
        ("ERROR", "try 1 of 1 ended with exit code 2; giving up"),
    ]


def test_records_and_exceptions_are_json() -> None:
    """Warnings of any logger, and exceptions that are not caught."""
    code = """
import logging
from rescnet_dist.logs import use_json_logs
use_json_logs()
log = logging.getLogger("distributed.scheduler")
log.info("a call of an embedded cluster")
log.warning("of Dask")
raise RuntimeError("a bug")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    dask, bug = read_lines(done.stderr)
    assert (dask["level"], dask["message"]) == ("WARNING", "of Dask")
    assert (bug["level"], bug["message"]) == ("CRITICAL", "RuntimeError: a bug")
    assert "Traceback" in bug["exception"]


def test_passes_are_logged(client: Client, tmp_path: Path, context: Any) -> None:
    """With the run, the layer, the speed and the accuracy of each."""
    images, labels = (array[:60] for array in rd.load_digits())
    spec = rd.NetworkSpec(filters=4, block=14, stride=14, max_layers=1)
    output = StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(logs.JsonFormatter())
    logger = logging.getLogger("rescnet_dist.run")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        rd.ResCNetClassifier(spec, store=tmp_path / "run", listeners=[LogLines()]).fit(
            images, labels
        )
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    records = read_lines(output.getvalue())
    assert {record["run"] for record in records} == {str(tmp_path / "run")}
    passed = [record for record in records if record["message"] == "pass done"]
    found = [(record["layer"], record["pass"]) for record in passed]
    assert found == [(0, "survey"), (1, "grow"), (1, "score")]
    assert passed[-1]["accuracy"]["layer"] == 1
    assert all(record["images_per_second"] > 0 for record in passed)
    assert records[-1]["depth"] == 1


def test_problems_are_warnings(caplog: pytest.LogCaptureFixture, context: Any) -> None:
    """With --quiet, they are all that is logged."""
    listener = LogLines(quiet=True)
    with caplog.at_level(logging.INFO, "rescnet_dist"):
        for event in (
            RunStarted("s3://bucket/run", 60, 5, 2, ()),
            PassStarted("grow", 3),
            ChunkRebuilt(2, 0, 30, "in memory", unexpected=False),
            ChunkRebuilt(2, 0, 30, "lost", unexpected=True),
            ChunkRebuilt(2, 30, 60, "lost", unexpected=True),
            PassRetried("grow", 3, "a worker died"),
            PassDone("grow", 3, 1.0, Accuracy(2, 0.5, None)),
            AccuracyCollapsed(2, 0.1, 0.5, "lower the rate"),
            RunDone("s3://bucket/run", 3, "max_layers"),
            RunStopped("s3://bucket/run", "interrupted"),
        ):
            listener(event)
    texts = [
        "computed again: lost",
        "retried: a worker died",
        "lower the rate",
        "stopped: interrupted",
    ]
    assert len(caplog.records) == len(texts)
    for record, text in zip(caplog.records, texts, strict=True):
        assert text in record.getMessage()
        assert record.levelname == "WARNING"
    assert logs.context == {"run": "s3://bucket/run", "layer": 3}


def test_stream_writes_whole_lines(context: Any) -> None:
    """Levels come from the prefixes that commands print; line breaks in messages are escaped."""
    output = StringIO()
    stream = logs.JsonStream(output)
    print("warning: a\nerror: b", file=stream)
    stream.write("begin ")
    stream.write("end")
    stream.flush()
    stream.flush()
    found = [(record["level"], record["message"]) for record in read_lines(output.getvalue())]
    assert found == [("WARNING", "a"), ("ERROR", "b"), ("INFO", "begin end")]


def test_dask_processes_log_json() -> None:
    """By the configuration that pods have in their environment, from the first line on."""
    literal = repr(logs.JSON_LOGGING)
    assert ast.literal_eval(literal) == logs.JSON_LOGGING
    code = (
        "import distributed, logging; log = logging.getLogger('distributed.scheduler');"
        "log.info('two\\nlines'); log.debug('no'); logging.getLogger('other').warning('yes')"
    )
    environment = os.environ | {"DASK_LOGGING": literal}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    records = read_lines(done.stderr)
    assert [record["message"] for record in records] == ["two\nlines", "yes"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--log-format", "xml"], "json"),
        (["--log-format", "json", "--json-lines"], "Give one of them"),
        (["--metrics-address", "here"], "has no port"),
        (["--metrics-address", "127.0.0.1:70000"], "has no port"),
        (["--metrics-address", "http://host:9464/metrics"], "such as host:9464; metrics are"),
        (["--metrics-address", "https://host"], "is a URL"),
    ],
)
def test_bad_options_are_errors(options: list[str], expected: str) -> None:
    """With exit code 2."""
    done = run("train", *options)
    assert done.exit_code == 2
    assert expected in done.output
