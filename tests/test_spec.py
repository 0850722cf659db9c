"""Specs: validation and its messages, TOML form, presets and schedules."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescnet_dist import AugmentSpec, NetworkSpec, RunSpec, SpecError
from rescnet_dist.model.heads.classify import Classify
from rescnet_dist.options import declared_options
from rescnet_dist.spec import PRESETS, read_toml
from tests.presets import IMAGES

CHOICES = {
    name: option.choices
    for kind in (NetworkSpec, RunSpec, AugmentSpec)
    for name, option in declared_options(kind).items()
    if option.choices
}
WHOLE = st.integers(1, 10**6)
FRACTION = st.floats(0, 1)
NOT_NEGATIVE = st.floats(0, 1e6) | st.integers(0, 100)
POSITIVE = st.floats(0, 1e6, exclude_min=True)


def network_spec(pairs: str, patience: int | None, **fields: Any) -> NetworkSpec:
    """Return a spec with `pairs` if it has two towers that are large enough.

    It has `patience` if it has a head in every layer.
    """
    spec = NetworkSpec(patience=patience if fields["heads"] == "every" else None, **fields)
    return spec.replace(pairs=pairs) if spec.local_contrast and spec.filters > 3 else spec


NETWORK_SPECS = st.builds(
    network_spec,
    filters=st.integers(2, 500),
    rectify=st.booleans(),
    local_contrast=st.booleans(),
    filter_size=WHOLE,
    first_filter_size=WHOLE,
    lda_fraction=FRACTION,
    lda_positives=WHOLE,
    lda_negatives=WHOLE,
    lda_tolerance=NOT_NEGATIVE,
    lda_ridge=POSITIVE,
    lda_draws=WHOLE,
    block=st.integers(2, 1000),
    stride=WHOLE,
    power=st.booleans(),
    levels=st.lists(WHOLE, min_size=1, max_size=5).map(tuple),
    ridge=NOT_NEGATIVE,
    sigma=POSITIVE,
    beta=POSITIVE,
    target=FRACTION,
    learning_rate=st.floats(0.5, 1e6),
    decay=FRACTION,
    decay_every=WHOLE,
    rate_floor=st.floats(0, 0.5),
    max_layers=WHOLE,
    patience=st.none() | WHOLE,
    stop_at_zero_error=st.booleans(),
    **{k: st.sampled_from(v) for k, v in CHOICES.items() if k in NetworkSpec().get_params()},
)
RUN_SPECS = st.builds(
    RunSpec,
    seed=st.integers(0, 2**63 - 1),
    validation=st.floats(0, 0.9),
    chunk_images=st.none() | WHOLE,
    accumulators=st.none() | WHOLE,
    split_every=st.integers(2, 100),
    solve_threads=st.none() | WHOLE,
    keep_maps=st.sampled_from(CHOICES["keep_maps"]),
    codec=st.sampled_from(CHOICES["codec"]),
)

# immutability and replacement -------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "name"), [(NetworkSpec(), "filters"), (RunSpec(), "seed")])
def test_specs_are_frozen(spec, name):
    """A spec that a run has started with cannot change."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(spec, name, 3)
    assert spec == type(spec)()


def test_replace_changes_only_the_named_fields():
    """Other fields and the original stay the same, and None is no value."""
    spec = NetworkSpec(patience=5)
    other = spec.replace(filters=7, levels=[2, 1], patience=None)
    assert (other.filters, other.levels, other.patience) == (7, (2, 1), None)
    assert other.replace(filters=50, levels=(4, 2, 1), patience=5) == spec
    assert spec.filters == 50
    assert hash(other.replace(filters=50, levels=(4, 2, 1), patience=5)) == hash(spec)


def test_replace_rejects_invalid_values():
    """An invalid value raises the same error as in the constructor."""
    with pytest.raises(SpecError, match=r"ridge=-1 is out of range. It must be at least 0"):
        NetworkSpec().replace(ridge=-1)
    with pytest.raises(SpecError, match=r"split_every=1 is out of range. It must be at least 2"):
        RunSpec().replace(split_every=1)


@pytest.mark.parametrize(
    ("make", "wrong", "nearest"),
    [
        (NetworkSpec().replace, "fliters", "filters"),
        (NetworkSpec().replace, "learning_rat", "learning_rate"),
        (RunSpec().replace, "chunk_image", "chunk_images"),
    ],
)
def test_unknown_option_suggests_the_closest(make, wrong, nearest):
    """The error for a misspelled option names the one that was probably meant."""
    with pytest.raises(SpecError, match=rf"no option '{wrong}'\. Did you mean '{nearest}'\?"):
        make(**{wrong: 3})


# TOML -------------------------------------------------------------------------------------------


@given(spec=NETWORK_SPECS)
@settings(max_examples=100, deadline=None)
def test_network_spec_round_trips_through_toml(spec):
    """from_toml(to_toml(spec)) = spec, for every valid value."""
    assert NetworkSpec.from_toml(spec.to_toml()) == spec
    assert NetworkSpec.from_dict(spec.to_dict()) == spec


@given(spec=RUN_SPECS)
@settings(max_examples=100, deadline=None)
def test_run_spec_round_trips_through_toml(spec):
    """from_toml(to_toml(spec)) = spec, for every valid value."""
    assert RunSpec.from_toml(spec.to_toml()) == spec
    assert RunSpec.from_dict(spec.to_dict()) == spec


def test_numpy_numbers_round_trip_through_toml():
    """A ridge from np.logspace, as in a parameter search, is a number like any other."""
    spec = NetworkSpec(ridge=np.logspace(-2, 0, 5)[1], target=np.float64(0.75))
    assert NetworkSpec.from_toml(spec.to_toml()) == spec


@pytest.mark.parametrize(
    ("name", "value", "plain"),
    [
        ("filters", np.int64(8), 8),
        ("ridge", np.float32(0.5), 0.5),
        ("power", np.True_, True),
        ("levels", tuple(np.array([4, 2])), (4, 2)),
    ],
)
def test_numpy_values_become_python_values(name, value, plain):
    """A spec prints, compares and is stored the same wherever its numbers come from."""
    spec = NetworkSpec(**{name: value})
    assert spec == NetworkSpec(**{name: plain})
    assert repr(getattr(spec, name)) == repr(plain)


def test_array_instead_of_a_number_raises_spec_error():
    """The error is not one of NumPy."""
    with pytest.raises(SpecError, match=r"ridge=.* is not a number"):
        NetworkSpec(ridge=np.array([0.1, 1.0]))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_round_trip_through_toml(name):
    """Every preset has a TOML form."""
    assert NetworkSpec.from_toml(NetworkSpec.preset(name).to_toml()) == NetworkSpec.preset(name)


def test_one_file_has_both_specs(tmp_path):
    """Each spec reads its own table, and missing options keep their default."""
    network, run = NetworkSpec(filters=8), RunSpec(seed=4)
    path = tmp_path / "spec.toml"
    path.write_text('preset = "mnist"\n' + network.to_toml() + run.to_toml())
    assert NetworkSpec.from_toml(path) == network
    assert RunSpec.from_toml(path) == run
    assert read_toml(path)["preset"] == "mnist"
    assert RunSpec.from_toml(network.to_toml()) == RunSpec()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[network]\nfilter = 3", r"no option 'filter'\. Did you mean 'filters'\?"),
        ("[netwrok]\nfilters = 3", r"Unexpected entry 'netwrok'\. Did you mean 'network'\?"),
        ("network = 3", r"Unexpected entry 'network'"),
        ("[network]\nfilters = ", r"not valid TOML"),
        ('[network]\nfilters = "8"', r"filters='8' is not a whole number"),
        ("[network]\nlevels = [4, 2.5]", r"levels=.*is not a list of whole numbers"),
    ],
)
def test_invalid_toml_raises_spec_error(text, message, tmp_path):
    """The same error for text and for a file."""
    with pytest.raises(SpecError, match=message):
        NetworkSpec.from_toml(text)
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        NetworkSpec.from_toml(path)


def test_missing_file_raises_spec_error(tmp_path):
    """The message has the path."""
    with pytest.raises(SpecError, match=r"absent\.toml cannot be read"):
        NetworkSpec.from_toml(tmp_path / "absent.toml")


# ranges -----------------------------------------------------------------------------------------

AT_LEAST_1 = (
    *("filters", "filter_size", "first_filter_size", "lda_positives", "lda_negatives"),
    *("lda_draws", "stride", "decay_every", "max_layers", "patience"),
)
LIMITS = [
    *((NetworkSpec, name, value, "at least 1") for name in AT_LEAST_1 for value in (0, -3)),
    *((NetworkSpec, "block", value, "at least 2") for value in (1, 0)),
    *(
        (NetworkSpec, name, -0.5, "at least 0")
        for name in ("lda_tolerance", "ridge", "learning_rate", "rate_floor")
    ),
    *(
        (NetworkSpec, name, value, "at least 0 and at most 1")
        for name in ("lda_fraction", "target", "decay")
        for value in (-0.1, 1.01)
    ),
    *(
        (NetworkSpec, name, value, "greater than 0")
        for name in ("lda_ridge", "sigma", "beta")
        for value in (0, -2.0)
    ),
    (RunSpec, "seed", -1, f"at least 0 and at most {2**63 - 1}"),
    *((RunSpec, "validation", value, "at least 0 and at most 0.9") for value in (-0.1, 0.95)),
    *((RunSpec, name, 0, "at least 1") for name in ("chunk_images", "accumulators")),
    (RunSpec, "solve_threads", 0, "at least 1"),
    (RunSpec, "split_every", 1, "at least 2"),
]


@pytest.mark.parametrize(("kind", "name", "value", "limit"), LIMITS)
def test_value_out_of_range_raises_spec_error(kind, name, value, limit):
    """The message has the field, the value and the limit."""
    with pytest.raises(SpecError) as caught:
        kind(**{name: value})
    assert str(caught.value) == f"{name}={value!r} is out of range. It must be {limit}."


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (NetworkSpec, "block", 2),
        *((NetworkSpec, name, 1) for name in AT_LEAST_1 if name != "filters"),
        *((NetworkSpec, name, 0) for name in ("lda_tolerance", "ridge", "learning_rate")),
        *((NetworkSpec, name, v) for name in ("lda_fraction", "target", "decay") for v in (0, 1)),
        (RunSpec, "seed", 0),
        (RunSpec, "validation", 0.9),
        (RunSpec, "split_every", 2),
        (RunSpec, "chunk_images", 1),
    ],
)
def test_limit_itself_is_valid(kind, name, value):
    """The limit in the message is a valid value."""
    assert getattr(kind(**{name: value}), name) == value


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["ridge", "sigma", "learning_rate", "target", "lda_tolerance"])
def test_numbers_must_be_finite(name, value):
    """NaN and infinity are out of every range."""
    with pytest.raises(SpecError, match=rf"{name}={value} is out of range"):
        NetworkSpec(**{name: value})


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        (NetworkSpec, "filters", 2.5, "a whole number or a list of whole numbers"),
        (NetworkSpec, "filters", True, "a whole number or a list of whole numbers"),
        (NetworkSpec, "max_layers", True, "a whole number"),
        (NetworkSpec, "ridge", "1", "a number"),
        (NetworkSpec, "ridge", True, "a number"),
        (NetworkSpec, "power", 1, "true or false"),
        (NetworkSpec, "levels", 4, "a list of whole numbers"),
        (NetworkSpec, "levels", (4, "2"), "a list of whole numbers"),
        (NetworkSpec, "patience", 1.5, "a whole number or nothing"),
        (NetworkSpec, "pool", 3, "one of max, mean"),
        (RunSpec, "chunk_images", 1.5, "a whole number or nothing"),
        (RunSpec, "keep_maps", None, "one of last, all, none"),
    ],
)
def test_value_of_wrong_type_raises_spec_error(kind, name, value, expected):
    """The message has the field, the value and the expected type."""
    with pytest.raises(SpecError) as caught:
        kind(**{name: value})
    assert str(caught.value) == f"{name}={value!r} is not {expected}."


@pytest.mark.parametrize("name", CHOICES)
def test_unknown_choice_suggests_the_closest_and_lists_all(name):
    """For example "maxx" for pool: Did you mean 'max'?"""
    kind = next(k for k in (NetworkSpec, RunSpec, AugmentSpec) if name in declared_options(k))
    needed = {"local_contrast": True} if name == "pairs" else {}
    if name.startswith("first_order_"):
        needed = {"features": "first-order"}
    if name.startswith("root_"):
        needed = {"features": "covariance-root"}
    if name.startswith("hash_"):
        needed = {"features": "binary-hash", "filters": 8, "hash_levels": (2,)}
    for choice in CHOICES[name]:
        assert getattr(kind(**{name: choice}, **needed), name) == choice
        with pytest.raises(SpecError) as caught:
            kind(**{name: f"{choice}x"}, **needed)
        listing = ", ".join(sorted(CHOICES[name]))
        assert str(caught.value) == (
            f"{name}='{choice}x' is not a choice. Did you mean '{choice}'? Known: {listing}."
        )


@pytest.mark.parametrize("levels", [(), (2, 0), (-1,)])
def test_levels_must_be_positive_and_not_empty(levels):
    """A pyramid without levels has no features."""
    with pytest.raises(SpecError, match=r"Give at least one level, each at least 1") as caught:
        NetworkSpec(levels=levels)
    assert f"levels={levels!r}" in str(caught.value)


def test_one_filter_needs_the_diagonal():
    """One channel has no correlation; zscore="block" keeps its variance."""
    with pytest.raises(SpecError, match=r'filters=1 .* at least 2 filters, or zscore="block"'):
        NetworkSpec(filters=1)
    assert NetworkSpec(filters=1, zscore="block").filters == 1


# presets ----------------------------------------------------------------------------------------

COMMON = {
    "filter_size": 3,
    "levels": (4, 2, 1),
    "target": 0.8,
    "minmax": "global",
    "lda_positives": 2,
    "lda_negatives": 32,
    "lda_tolerance": 0,
    "lda_ridge": 1e-2,
    "cells": "center",
    "pool": "max",
    "zscore": "channel",
    "power": False,
}
SIGMOID = {"first_filter_size": 3, "lda_fraction": 0.5, "probability": "sigmoid", "sigma": 16}
PAPER_PRESETS = {  # the table of algorithm.md
    "mnist": {
        **{"filters": 60, "first_filter_size": 13, "lda_fraction": 0, "block": 7, "stride": 4},
        **{"probability": "softmax", "beta": 0.001, "learning_rate": 1, "decay": 0},
        "max_layers": 231,
    },
    "cifar10": {
        **SIGMOID,
        **{"filters": 50, "block": 16, "stride": 1, "learning_rate": 0.4, "decay": 0},
        "max_layers": 937,
    },
    "cifar100": {
        **SIGMOID,
        **{"filters": 50, "block": 16, "stride": 4, "learning_rate": 1, "decay": 0.1},
        **{"decay_every": 10, "rate_floor": 0.387, "max_layers": 436},
    },
    "tiny-imagenet": {
        **SIGMOID,
        **{"filters": 40, "block": 32, "stride": 8, "learning_rate": 1, "decay": 0.1},
        **{"decay_every": 10, "rate_floor": 0.478, "max_layers": 512},
    },
}


@pytest.mark.parametrize("name", PAPER_PRESETS)
def test_preset_has_the_values_of_the_paper(name):
    """Filters, bank, pooling, probabilities, rate and depth as printed."""
    spec = NetworkSpec.preset(name)
    expected = COMMON | PAPER_PRESETS[name]
    assert isinstance(spec.head, Classify)
    assert {field: getattr(spec, field) for field in expected} == expected


def test_pcanet_has_the_values_of_its_publication():
    """40 filters of 5×5 pixels, then 8 on each map, and 21 histograms of 256 codes of each."""
    spec = NetworkSpec.preset("pcanet")
    architecture = spec.architecture((32, 32, 3), 10)
    assert [architecture.map_count(layer) for layer in (1, 2)] == [40, 320]
    assert architecture.features == 21 * 40 * 256
    assert (spec.hash_block, spec.hash_stride, spec.hash_levels) == (8, 4, (4, 2, 1))
    assert (spec.filter_size, spec.first_filter_size, spec.first_head) == (5, 5, 2)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_fits_its_images(name):
    """Every preset can be trained on the images it is named after."""
    NetworkSpec.preset(name).check_images(*IMAGES[name])


@pytest.mark.parametrize(
    "changes",
    [
        {"filters": (24, 8)},
        {"first_filter_size": 7},
        {"bank": "pca:0.5+each+center,gaussian:0.5+each+center"},
    ],
)
def test_pcanet_on_gray_images_names_remedies_that_fit(changes):
    """Not lda_fraction, which is for banks of PCA and stacked-LDA filters."""
    spec = NetworkSpec.preset("pcanet")
    with pytest.raises(
        SpecError,
        match=r"filters=40 PCA .* 24 directions .* Use filters of at most 24 in layer 1, "
        r"first_filter_size of at least 7, or a learner without this limit in the bank, such as "
        r"gaussian\.$",
    ):
        spec.check_images(28, 28, 1)
    spec.replace(**changes).check_images(28, 28, 1)
    with pytest.raises(SpecError, match="the 35 directions"):
        spec.replace(first_filter_size=6).check_images(28, 28, 1)


def test_unknown_preset_suggests_the_closest():
    """The message lists all presets."""
    with pytest.raises(
        SpecError, match=r"Unknown preset 'cifar-10'\. Did you mean 'cifar10'\?"
    ) as e:
        NetworkSpec.preset("cifar-10")
    assert all(name in str(e.value) for name in PRESETS)


# schedules --------------------------------------------------------------------------------------


def test_rate_decays_by_a_tenth_every_ten_layers_to_its_floor():
    """1, 0.9, 0.81, … down to 0.387 for CIFAR-100."""
    rate = NetworkSpec.preset("cifar100").learning_rate_at
    assert [rate(layer) for layer in (1, 10)] == [1, 1]
    assert [rate(layer) for layer in (11, 20)] == pytest.approx([0.9, 0.9])
    assert rate(21) == pytest.approx(0.81)
    assert rate(91) == pytest.approx(0.9**9)
    assert rate(101) == rate(436) == 0.387


def test_rate_is_constant_without_decay():
    """The preset for CIFAR-10 has no decay."""
    rate = NetworkSpec.preset("cifar10").learning_rate_at
    assert {rate(layer) for layer in range(1, 938)} == {0.4}


@given(spec=NETWORK_SPECS, layer=st.integers(1, 1000))
@settings(max_examples=60, deadline=None)
def test_rate_equals_oracle_and_never_increases(spec, layer):
    """For all schedules."""
    spec = spec.replace(decay_every=spec.decay_every % 30 + 1)
    assert spec.learning_rate_at(layer) == pytest.approx(oracle.learning_rate(layer, spec))
    assert spec.learning_rate_at(layer + 1) <= spec.learning_rate_at(layer)


@given(
    filters=st.integers(2, 100),
    fraction=st.floats(0, 1),
    size=st.integers(1, 7),
    channels=st.integers(1, 9),
    layer=st.integers(1, 3),
)
@settings(max_examples=100, deadline=None)
def test_bank_sizes_equal_oracle(filters, fraction, size, channels, layer):
    """There are at most as many PCA filters as directions; stacked-LDA filters are the rest."""
    other = size % 7 + 1
    first, later = (size, other) if layer == 1 else (other, size)
    spec = NetworkSpec(
        filters=filters, lda_fraction=fraction, first_filter_size=first, filter_size=later
    )
    assert spec.filter_size_at(layer) == size
    maps = filters if layer > 1 else 0
    architecture = spec.architecture((9, 9, channels), 2)
    if fraction == 0 and filters > size * size * (maps + channels):
        with pytest.raises(SpecError, match="lda_fraction above 0"):
            architecture.towers(layer)
        return
    (tower,) = architecture.towers(layer)
    assert tower.channels == tuple(range(maps + channels))
    assert tower.filters == range(filters)
    counts = {learner.name: group.count for learner, group in tower.groups}
    pca, lda, channels = counts.get("pca", 0), counts.get("stacked-lda", 0), maps + channels
    assert (pca, lda) == oracle.bank_sizes(filters, fraction, size * size * channels)
    assert pca + lda == filters
    assert 0 <= pca <= size * size * channels


@pytest.mark.parametrize(
    ("filters", "fraction", "channels", "bank"),
    [
        (50, 0.5, 3, (25, 25)),  # 27 directions are just enough
        (50, 0.5, 1, (9, 41)),  # 9 directions
        (5, 0.5, 3, (2, 3)),  # half rounds up
        (8, 0.0, 3, (8, 0)),
        (8, 1.0, 3, (0, 8)),
    ],
)
def test_bank_is_split_by_lda_fraction(filters, fraction, channels, bank):
    """More filters are stacked-LDA if a patch has too few directions for PCA."""
    spec = NetworkSpec(filters=filters, lda_fraction=fraction)
    groups = spec.architecture((9, 9, channels), 2).groups(1)
    counts = {learner.name: group.count for learner, group in groups}
    assert (counts.get("pca", 0), counts.get("stacked-lda", 0)) == bank


def test_two_towers_divide_filters_and_channels():
    """With local contrast, each tower sees its own maps and its own view of the images."""
    spec = NetworkSpec(filters=5, local_contrast=True)
    architecture = spec.architecture((9, 9, 3), 2)
    assert architecture.input_channels(1) == 6
    assert architecture.input_channels(2) == 11
    first = [(t.channels, t.filters) for t in architecture.towers(1)]
    assert first == [((0, 1, 2), range(2)), ((3, 4, 5), range(2, 5))]
    later = [(t.channels, t.filters) for t in architecture.towers(2)]
    assert later == [((0, 1, 5, 6, 7), range(2)), ((2, 3, 4, 8, 9, 10), range(2, 5))]


def test_filters_can_differ_by_layer():
    """The last number is for all later layers; a list of one number is that number."""
    spec = NetworkSpec(filters=[40, 8], concatenate=False)
    assert NetworkSpec.from_toml(spec.to_toml()) == spec
    architecture = spec.architecture((9, 9, 3), 2)
    assert [architecture.map_count(layer) for layer in (0, 1, 2, 3)] == [0, 40, 8, 8]
    assert [architecture.input_channels(layer) for layer in (1, 2, 3)] == [3, 40, 8]
    assert spec.replace(concatenate=True).architecture((9, 9, 3), 2).input_channels(2) == 43
    assert architecture.max_maps == 40
    assert NetworkSpec(filters=[8]) == NetworkSpec(filters=8)
    with pytest.raises(SpecError, match="Each item must be at least 1"):
        NetworkSpec(filters=[4, 0])
    with pytest.raises(SpecError, match="filters is empty"):
        NetworkSpec(filters=[])


def test_two_towers_need_two_filters():
    """A tower without filters raises SpecError with the remedy."""
    with pytest.raises(
        SpecError, match=r"filters=1 with 2 towers \(local_contrast.* at least 2 filters"
    ):
        NetworkSpec(filters=1, zscore="block", local_contrast=True)


def test_tower_pairs_need_two_towers_of_two_filters():
    """Otherwise there are no pairs within a tower."""
    with pytest.raises(SpecError, match=r'pairs="tower" is for .* two towers.* local_contrast'):
        NetworkSpec(pairs="tower")
    with pytest.raises(SpecError, match=r"filters=3 leaves no feature of a tower .* at least 4"):
        NetworkSpec(filters=3, pairs="tower", local_contrast=True)
    spec = NetworkSpec(filters=5, pairs="tower", local_contrast=True)
    count = spec.architecture((9, 9, 3), 2).tower_maps(1)
    assert count == (2, 3)
    cells = 3  # one block is in one cell of each level
    assert spec.features[0].count(16, 16, (2, 3)) == cells * (1 + 3)


# images -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_channels_first_images_are_recognized(shape: tuple[int, int, int]) -> None:
    """The remedy is another order of axes, not a smaller block."""
    message = r"block=16 is larger than .*\. The array looks channels-first; pass images\.transpose"
    with pytest.raises(SpecError, match=message):
        NetworkSpec(block=16).check_images(*shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block": 13}, r"block=13 is larger than the image \(20×12 pixels\)\. .* at most 12"),
        (
            {"filter_size": 14},
            r"filter_size=14 is larger .*20×12.*\. Use filter_size of at most 12",
        ),
        ({"first_filter_size": 13}, r"first_filter_size=13 is larger .*20×12.* at most 12"),
        (
            {"filters": 19, "lda_fraction": 0.0},
            r"filters=19 PCA filters .* 18 directions .* layer 1\. .* at most 18, .*"
            r"first_filter_size of at least 4, or lda_fraction above 0",
        ),
        (
            {"filters": 15, "lda_fraction": 0.0, "filter_size": 1, "first_filter_size": 2},
            r"filters=15 PCA filters .* 8 directions .* layer 1",
        ),
    ],
)
def test_images_that_are_too_small_raise_spec_error(changes, message):
    """Images of 20×12 pixels and 2 channels: the message has value, limit and remedy."""
    spec = NetworkSpec(block=12, filters=8).replace(**changes)
    with pytest.raises(SpecError, match=message):
        spec.check_images(20, 12, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"block": 12, "filter_size": 12, "first_filter_size": 12},
        {"filters": 18, "lda_fraction": 0.0},
        {"filters": 90, "lda_fraction": 0.01},  # stacked-LDA fills up
    ],
)
def test_images_that_just_fit_are_accepted(changes):
    """The limits themselves are valid."""
    NetworkSpec(block=12, filters=8).replace(**changes).check_images(20, 12, 2)


def test_toml_table_updates_its_preset():
    """The same file means the same on the command line."""
    text = 'preset = "cifar10"\n[network]\nfilters = 9\n'
    assert NetworkSpec.from_toml(text) == NetworkSpec.preset("cifar10").replace(filters=9)


@pytest.mark.parametrize(
    ("fields", "fragment"),
    [
        ({"maps": "memory", "keep_maps": "all"}, "Leave one of them out"),
        ({"maps": "memory", "tile_features": 64}, "Leave one of them out"),
        ({"array_backend": "cupy", "tile_features": 64}, "Leave one of them out"),
        ({"checkpoint_every": 0}, "at least 1"),
        ({"array_backend": "cuda"}, "Did you mean 'cupy'"),
        ({"matmul_precision": "tf32"}, "'float32'"),
    ],
)
def test_contradicting_run_options_raise_spec_error(fields: dict[str, Any], fragment: str) -> None:
    """The error is raised by the constructor."""
    with pytest.raises(SpecError, match=fragment):
        RunSpec(**fields)
