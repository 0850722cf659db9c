"""The start of a run: each check is made once, and a plan only if the number of rows is new."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from distributed import Client

from rescnet_dist import (
    AugmentSpec,
    NetworkSpec,
    ResCNetClassifier,
    RunSpec,
    StoreError,
    load_digits,
)
from rescnet_dist.cli import main
from rescnet_dist.cluster import check_versions
from rescnet_dist.data import training_set
from rescnet_dist.events import Event, PassStarted
from rescnet_dist.lifecycle import begin_or_resume, check_run
from rescnet_dist.planning import make_plan
from rescnet_dist.store import RunStore
from tests.commands import stored_digits

X, Y = (array[:120] for array in load_digits())
SPEC = NetworkSpec.preset("digits").replace(filters=4, max_layers=2, stop_at_zero_error=False)
OPTIONS = [
    *("--filters", "4", "--max-layers", "2", "--no-stop-at-zero-error"),
    *("--block", "14", "--stride", "14"),
]


class Calls:
    """Counts the calls of functions, wherever they are imported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: dict[str, int] = {}
        self._monkeypatch = monkeypatch

    def count(self, function: Callable[..., Any]) -> None:
        """Count the calls of a function from now on, by all modules of the package."""
        counted = self._counting(function)
        names = [name for name in sys.modules if name.startswith("rescnet_dist")]
        for module in (sys.modules[name] for name in names):
            for name, value in list(vars(module).items()):
                if value is function:
                    self._monkeypatch.setattr(module, name, counted)

    def count_method(self, cls: type, name: str) -> None:
        """Count the calls of a method in this thread, which is that of the driver."""
        driver, method = threading.get_ident(), getattr(cls, name)
        counted = self._counting(method)

        def call(*arguments: Any, **options: Any) -> Any:
            chosen = counted if threading.get_ident() == driver else method
            return chosen(*arguments, **options)

        self._monkeypatch.setattr(cls, name, call)

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        self.counts[name] = 0

        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            self.counts[name] += 1
            return function(*arguments, **options)

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Return the counts of the checks, the plans and the reads of the attributes."""
    import rescnet_dist.cli.actions.training  # imported on first use only

    assert rescnet_dist.cli.actions.training
    calls = Calls(monkeypatch)
    for function in (check_run, check_versions, make_plan):
        calls.count(function)
    calls.count_method(RunStore, "attributes")
    return calls


class FirstPass:
    """A listener that copies the counts when the first pass starts."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.counts: dict[str, int] | None = None

    def __call__(self, event: Event) -> None:
        """Copy the counts at the first pass."""
        if isinstance(event, PassStarted) and self.counts is None:
            self.counts = dict(self.calls.counts)


ONCE = {"check_run": 1, "check_versions": 1, "make_plan": 1, "attributes": 1}


@pytest.mark.parametrize(
    ("augment", "validation"),
    [(None, None), (None, 0.2), (AugmentSpec(copies=1, flip=True), 0)],
    ids=["plain", "validation", "copies"],
)
def test_fit_checks_once(
    client: Client, calls: Calls, augment: AugmentSpec | None, validation: float | None
) -> None:
    """The number of rows is known before the split; the driver reads the place of the images."""
    first = FirstPass(calls)
    clf = ResCNetClassifier(SPEC, augment=augment, listeners=[first])
    clf.fit(X, Y, validation)
    assert first.counts == ONCE
    later = {name: calls.counts[name] for name in ("check_run", "check_versions", "make_plan")}
    assert set(later.values()) == {1}


def test_split_with_copies_is_planned_for_its_rows(
    client: Client, calls: Calls, tmp_path: Path
) -> None:
    """How many images have copies is known after the split: only then the plan is made again."""
    first, store = FirstPass(calls), tmp_path / "run"
    clf = ResCNetClassifier(
        SPEC, store=store, augment=AugmentSpec(copies=3, flip=True), listeners=[first]
    )
    labels = Y.copy()
    labels[:7] = 0  # uneven classes, of which other numbers are held out than of all images
    clf.fit(X, labels, 0.15)
    attributes = RunStore.open(store).attributes()
    rows = attributes["rows"]["starts"][-1]
    assert attributes["plan"]["images"] == rows
    expected = training_set(X, labels, augment=AugmentSpec(copies=3, flip=True)).rows(0.15)
    assert rows != expected
    assert first.counts == ONCE | {"make_plan": 2}


def test_train_command_checks_once(client: Client, calls: Calls, tmp_path: Path) -> None:
    """A run that is started, and the same run when it is resumed, which needs no plan."""
    store, data = tmp_path / "run", stored_digits(tmp_path, 120, 60)
    command = ["train", data, "--preset", "digits", "--store", str(store), *OPTIONS, "--or-resume"]

    def train() -> tuple[int, ...]:
        before = dict(calls.counts)
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
        names = ("check_run", "check_versions", "make_plan")
        return tuple(calls.counts[name] - before[name] for name in names)

    assert train() == (1, 1, 1)
    assert train() == (1, 0, 0)  # a finished run needs no worker
    (store / "result.json").unlink()
    (store / "commits/0002.json").unlink()
    assert train() == (1, 1, 0)


def test_attributes_are_read_once_before_and_once_after_the_claim(
    client: Client, calls: Calls, tmp_path: Path
) -> None:
    """The third read is that of the driver, which looks up where the images are."""
    url, data, run_spec = tmp_path / "run", training_set(X, Y), RunSpec()
    run = begin_or_resume(check_run(url, SPEC, run_spec, data), client)
    (url / "result.json").unlink()
    (url / "commits/0002.json").unlink()
    first, before = FirstPass(calls), calls.counts["attributes"]
    checked = check_run(url, SPEC, run_spec, data, or_resume=True)
    assert calls.counts["attributes"] == before + 1
    assert begin_or_resume(checked, client, [first]) == run
    assert first.counts is not None
    assert first.counts["attributes"] == before + 3


def test_file_that_appears_after_the_check_is_kept(client: Client, tmp_path: Path) -> None:
    """The store is checked again once it is claimed, and nothing is removed."""
    url = tmp_path / "run"
    checked = check_run(url, SPEC, RunSpec(), training_set(X, Y))
    (url / "data").mkdir(parents=True)
    (url / "data/notes.txt").write_text("kept")
    with pytest.raises(StoreError, match="already holds another run"):
        begin_or_resume(checked, client)
    assert (url / "data/notes.txt").read_text() == "kept"
