"""Accuracies of training images that are left out are named so, wherever they are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from distributed import Client

from rescnet_dist import AugmentSpec, ResCNetClassifier
from rescnet_dist.dashboard.figures import Plots
from rescnet_dist.dashboard.notebook import NotebookProgress, show_run
from rescnet_dist.dashboard.plots import AccuracyPlot
from rescnet_dist.dashboard.render import render_report
from rescnet_dist.dashboard.report import make_report
from rescnet_dist.dashboard.summary import describe_html
from rescnet_dist.dashboard.view import StoredRun
from rescnet_dist.events import RunStarted
from tests.dashboard.conftest import RUN, SPEC, X, Y

NAME = "training (leave-one-out, with copies)"


@pytest.fixture(scope="module")
def left_out(threads_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of a head whose training accuracies are of images left out, with copies."""
    store = tmp_path_factory.mktemp("runs") / "left-out"
    spec = SPEC.replace(head="leave-one-out", max_layers=2)
    augment = AugmentSpec(copies=1, shift=1)
    with Client(threads_cluster):
        ResCNetClassifier(spec, store=store, run=RUN, augment=augment).fit(X, Y)
    return str(store)


def test_dashboard_and_notebook(left_out: str) -> None:
    """The legend and the tooltips of the plot, and the summary."""
    view = StoredRun(left_out).view()
    plot = AccuracyPlot(lambda: [view])
    plot.update()
    assert plot.lines.data["label"] == ["validation", NAME]
    assert set(plot.points.data["kind"]) == {"validation", NAME}
    several = AccuracyPlot(lambda: [view, replace(view, url="runs/other")])
    several.update()
    assert several.lines.data["label"][3] == f"other {NAME}"
    assert f", {NAME} " in describe_html(view)
    assert f">{NAME}<" in show_run(view)


def test_notebook_without_access_to_the_run() -> None:
    """What is known of a run is in its events."""
    shown = NotebookProgress()
    shown(RunStarted("missing", 9, 2, 0, (), copies=1, leave_one_out=True))
    assert shown._view is not None
    assert shown._view.train_suffix == " (leave-one-out, with copies)"


def test_report(left_out: str) -> None:
    """The legend of the chart and the title of the column, in each format."""
    report = make_report(left_out, pictures=False)
    title = NAME.replace("training", "training %")
    page, text = (render_report(report, form) for form in ("html", "markdown"))
    assert f"{NAME}</" in page
    assert f">{title}<" in page
    assert f"| {title} |" in text
    assert json.loads(render_report(report, "json"))["leave_one_out"] is True


def test_figure(left_out: str) -> None:
    """The label of the curve."""
    (axes,) = Plots.load(left_out).accuracy().axes
    assert "train (leave-one-out, with copies)" in [line.get_label() for line in axes.get_lines()]


def test_other_heads_have_no_note(digits_run: str) -> None:
    """Their training accuracies are those of the training images."""
    report = make_report(digits_run, pictures=False)
    assert "| training % |" in render_report(report, "markdown")
    (axes,) = Plots.load(digits_run).accuracy().axes
    assert "train" in [line.get_label() for line in axes.get_lines()]
