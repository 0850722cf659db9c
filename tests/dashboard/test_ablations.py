"""The ablations of the paper: their networks, what was published, and the figure."""

from __future__ import annotations

from typing import Any

import pytest

from rescnet_dist import NetworkSpec, SpecError
from rescnet_dist.dashboard.ablations import ABLATIONS, PAPER_PRESET, find_ablation, plot_ablation

BASE = NetworkSpec.preset(PAPER_PRESET)


def make_record(published: bool) -> dict[str, Any]:
    """Return the record of two variants with three layers."""
    points = [{"layers": 100, "accuracy": 86.33, "reference": "a section"}] if published else []
    curve = [
        {"layer": n, "train": 0.9 + n / 50, "validation": None, "test": 0.8 + n / 50}
        for n in (1, 2, 3)
    ]
    variants = [{"label": label, "curve": curve, "published": points} for label in ("one", "other")]
    return {"title": "A title", "data": "digits", "curve": "test", "variants": variants}


@pytest.mark.parametrize("name", ABLATIONS)
def test_networks_differ_in_one_option_only(name: str) -> None:
    """And each variant has a run of its own."""
    ablation = ABLATIONS[name]
    rows = [{key: value for key, value, _ in s.rows()} for s in ablation.specs(BASE)]
    differing = {key for key in rows[0] if rows[0][key] != rows[1].get(key)}
    assert differing == {ablation.option}
    names = {ablation.run_name(variant) for variant in ablation.variants}
    assert len(names) == len(ablation.variants) == 2


def test_published_figures_are_those_of_the_paper() -> None:
    """Of its table of learning rates and its section on filters; it compares nothing else."""
    found = {
        (name, variant.value): [(p.layers, p.accuracy) for p in variant.published]
        for name, ablation in ABLATIONS.items()
        for variant in ablation.variants
    }
    assert found == {
        ("rate", 1.0): [(208, 87.02), (348, 86.91)],
        ("rate", 0.4): [(600, 87.09), (937, 87.54), (970, 87.41)],
        ("block", 8): [(100, 86.33)],
        ("block", 16): [(937, 87.54)],
        ("filters", 30): [(500, 86.33), (781, 86.28)],
        ("filters", 50): [(100, 86.33), (127, 86.28)],
        ("stacked-lda", 0.5): [],
        ("stacked-lda", 0.0): [],
        ("compensation", True): [],
        ("compensation", False): [],
    }


def test_other_values() -> None:
    """Those of the paper keep what was published; others have a label only."""
    ablation = find_ablation("filters").with_values(["4", "50"])
    assert [(v.value, v.label, len(v.published)) for v in ablation.variants] == [
        (4, "4 filters", 0),
        (50, "50 filters", 2),
    ]
    for name, values, message in (
        ("filters", ["4", "x"], r"--values 4,x are not whole numbers"),
        ("compensation", ["1"], r"compares with and without\. Leave out --values"),
    ):
        with pytest.raises(SpecError, match=message):
            find_ablation(name).with_values(values)
    with pytest.raises(SpecError, match=r"no ablation 'filter'\. Did you mean 'filters'"):
        find_ablation("filter")


def test_figure_of_training_accuracies() -> None:
    """Without other images, there is one line for each variant."""
    axes = plot_ablation(make_record(False) | {"curve": "train"}).axes[0]
    assert [line.get_label() for line in axes.lines] == ["one, train", "other, train"]


def test_figure_names_accuracies_of_images_left_out() -> None:
    """Only the curves of training images."""
    record = make_record(False)
    record["variants"][0] |= {"copies": 2, "leave_one_out": True}
    labels = [line.get_label() for line in plot_ablation(record).axes[0].lines]
    assert "one, train (leave-one-out, with copies)" in labels
    assert {"one, test", "other, train"} < set(labels)


@pytest.mark.parametrize("published", [True, False])
def test_figure_has_curves_and_points(published: bool) -> None:
    """A solid and a dashed line for each variant, and a point for each published accuracy."""
    axes = plot_ablation(make_record(published)).axes[0]
    lines = {str(line.get_label()): line for line in axes.lines}
    expected = ["one, test", "one, train", "other, test", "other, train"]
    points = ["one, paper (CIFAR-10)", "other, paper (CIFAR-10)"] if published else []
    assert sorted(lines) == sorted(expected + points)
    assert lines["one, test"].get_xydata()[:, 1].tolist() == pytest.approx([82, 84, 86])
    assert axes.get_xscale() == ("log" if published else "linear")
    for label in points:
        assert lines[label].get_xydata().tolist() == [[100, 86.33]]
        assert lines[label].get_linestyle() == "None"
