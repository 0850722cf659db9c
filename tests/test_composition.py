"""Test how a network is composed: text, tables, flat options and what they take over."""

from __future__ import annotations

import pytest
from sklearn.base import clone

from rescnet_dist import NetworkSpec, ResCNetClassifier, SpecError
from rescnet_dist.composition import (
    apply_shorthands,
    bank_shorthands,
    format_bank,
    make_bank,
    paper_bank,
)
from rescnet_dist.model import BankPart
from rescnet_dist.model.features.second_order import SecondOrder
from rescnet_dist.model.filters.dct import DCT
from rescnet_dist.model.filters.pca import PCA
from rescnet_dist.model.filters.stacked_lda import StackedLDA
from rescnet_dist.model.heads.classify import Classify
from rescnet_dist.model.heads.kernel_ridge import KernelRidge
from rescnet_dist.model.heads.leave_one_out import LeaveOneOut
from rescnet_dist.model.heads.regress import Regress
from rescnet_dist.model.views.contrast import Contrast
from rescnet_dist.model.views.image import Image


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("dct", [BankPart(DCT())]),
        (
            " pca : 0.5 , dct:0.5 @ contrast",
            [BankPart(PCA(), 0.5), BankPart(DCT(), 0.5, "contrast")],
        ),
        ("pca:0.5, dct:0.5", [BankPart(PCA(), 0.5), BankPart(DCT(), 0.5)]),
        ("pca:2,dct@contrast", [BankPart(PCA(), 2.0), BankPart(DCT(), 1.0, "contrast")]),
        (
            "pca+whiten=0.1+center, dct:2 @ contrast + whiten = 1e-2",
            [
                BankPart(PCA(), center=True, whiten=0.1),
                BankPart(DCT(), 2.0, "contrast", whiten=0.01),
            ],
        ),
        ({"name": "pca", "whiten": 0.1}, [BankPart(PCA(), whiten=0.1)]),
        (PCA(), [BankPart(PCA())]),
        ([PCA(), BankPart(DCT(), 3)], [BankPart(PCA()), BankPart(DCT(), 3)]),
        (
            [{"name": "stacked-lda", "share": 0.5, "draws": 4}, "pca"],
            [BankPart(StackedLDA(draws=4), 0.5), BankPart(PCA())],
        ),
    ],
)
def test_bank_in_all_forms(given, expected):
    """Text, learners, parts and tables."""
    spec = NetworkSpec(bank=given)
    assert spec.bank == tuple(expected)
    assert NetworkSpec(bank=format_bank(spec.bank)).replace(bank=spec.bank) == spec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bank": "pcaa"}, r"Unknown filter learner 'pcaa'\. Did you mean 'pca'\?"),
        ({"bank": "pca:x"}, r"share 'x', which is not a number.*pca:0\.5,stacked-lda:0\.5"),
        ({"bank": "pca,"}, r"part '' of the bank cannot be read.*name:share@view"),
        (
            {"bank": "pca@contrast:1"},
            r"'pca@contrast:1' of the bank cannot be read.*name:share@view",
        ),
        ({"head": Regress}, r"is not a head\..* an object of its class"),
        ({"bank": [{"name": "pca", "shar": 1}]}, r"PCA has no option 'shar'\. There are none"),
        ({"bank": "pca:-1"}, r"share=-1\.0 is out of range.*at least 0"),
        ({"bank": "pca@up"}, r"Unknown view 'up'\. Known: contrast, gcn, image, zca"),
        ({"bank": "pca+whiten=x"}, r"whiten 'x', which is not a number"),
        ({"bank": "pca+whiten=0"}, r"whiten=0\.0 is out of range.*greater than 0"),
        ({"bank": "pca:0@contrast"}, r"bank=pca:0@contrast has no part with a share above 0"),
        ({"bank": "pca@gcn", "local_contrast": True}, r"parts that see the image, .* has none"),
        (
            {"views": "image,contrast"},
            r"views has contrast, but no part of bank=.* sees it\. Add @",
        ),
        (
            {"contrast_sigma": 3.0},
            r"contrast_sigma is an option of the view contrast, but .* image",
        ),
        ({"bank": "pca:0,dct:0"}, r"no part with a share above 0"),
        ({"bank": [{"share": 1}]}, r"has no name\. Add name, one of cca, dct"),
        ({"bank": 3}, r"3 is not a filter learner"),
        ({"bank": [3]}, r"3 is not a filter learner"),
        ({"bank": "pca+ech"}, r"part 'pca\+ech' of the bank cannot be read.*\+each, \+center and"),
        ({"bank": "pca+each,dct", "max_layers": 2}, r"only some filters of the view image"),
        ({"bank": "pca+each"}, r"more than 65,536 maps\. Use max_layers of at most 2"),
        ({"features": "second-oder"}, r"Unknown feature extractor.*Did you mean 'second-order'"),
        ({"features": []}, r"features is empty"),
        ({"head": "clasify"}, r"Unknown head 'clasify'\. Did you mean 'classify'\?"),
        ({"head": {"name": "regress", "sigma": 2}}, r"Regress has no option 'sigma'"),
        (
            {"head": "regress", "sigma": 2},
            r"sigma is an option of the head classify or classify-leave-one-out, but .*regress",
        ),
        ({"bank": "dct", "lda_draws": 4}, r"lda_draws is .* learner stacked-lda, but .* dct"),
        ({"bank": "dct", "lda_fraction": 0.5}, r"lda_fraction=0\.5 is for banks of pca and"),
        ({"lda_draws": 0}, r"lda_draws=0 is out of range\. It must be at least 1"),
        ({"residual": "regress"}, r"'residual' of .* has been renamed\. Use head='regress'"),
        ({"blok": 3}, r"NetworkSpec has no option 'blok'\. Did you mean 'block'\?"),
    ],
)
def test_bad_compositions_raise_spec_error(options, message):
    """The message has the value and the remedy."""
    with pytest.raises(SpecError, match=message):
        NetworkSpec(**options)


def test_a_component_given_by_name_takes_over_what_was_set():
    """Options that both have stay; a table or an object says all."""
    spec = NetworkSpec(ridge=0.3, target=0.7, sigma=4.0)
    assert spec.replace(head="regress").head == Regress(ridge=0.3, target=0.7)
    assert spec.replace(head={"name": "regress"}).head == Regress()
    assert spec.replace(head=Regress()).head == Regress()
    assert spec.replace(head={"sigma": 8.0}).head == Classify(ridge=0.3, target=0.7, sigma=8.0)
    assert NetworkSpec(lda_draws=4).replace(bank="stacked-lda").lda_draws == 4


def test_options_on_another_scale_are_not_taken_over():
    """The ridge of a kernel is relative to 1, those of other heads to variances of features."""
    spec = NetworkSpec(ridge=0.3, target=0.7)
    replaced = spec.replace(head="kernel-ridge")
    assert replaced.head == KernelRidge(target=0.7)
    assert spec.replace(head="kernel-ridge", ridge=0.3).head == KernelRidge(ridge=0.3, target=0.7)
    changed = replaced.replace(ridge=0.5, width=2.0)
    assert changed.replace(head="kernel-ridge").head == changed.head
    assert changed.replace(head="leave-one-out").head == LeaveOneOut(target=0.7)


def test_flat_options_are_for_all_components_that_have_them():
    """Two extractors of one kind get the same block."""
    spec = NetworkSpec(features=[SecondOrder(stride=2), SecondOrder(stride=8)], block=8)
    assert [(e.block, e.stride) for e in spec.features] == [(8, 2), (8, 8)]
    height = width = 32
    counts = [e.count(height, width, (50,)) for e in spec.features]
    assert spec.architecture((height, width, 3), 10).features == sum(counts)


@pytest.mark.parametrize(
    "text",
    [
        "pca:1",
        "pca:0.5@contrast+each+center+whiten=0.1,dct:2+whiten=1e-05",
        "pca:0.3333333333333333,dct:0.1234567,gaussian:12345678",
    ],
)
def test_text_of_a_bank_is_read_back_exactly(text):
    """With all digits of shares and ridges, so that a logged bank can be trained again."""
    bank = make_bank(text, ())
    assert format_bank(bank) == text
    assert make_bank(format_bank(bank), ()) == bank


def test_parts_can_be_applied_to_each_map_and_centered():
    """By text, by tables and by objects, and back."""
    spec = NetworkSpec(filters=[4, 3], bank="pca:0.5 + each+center,dct:0.5+each", max_layers=2)
    assert format_bank(spec.bank) == "pca:0.5+each+center,dct:0.5+each"
    assert spec.bank[0] == BankPart(PCA(), 0.5, channels="each", center=True)
    assert NetworkSpec.from_toml(spec.to_toml()) == NetworkSpec.from_stored(spec.to_dict()) == spec
    architecture = spec.architecture((9, 9, 2), 2)
    assert [architecture.map_count(layer) for layer in (1, 2)] == [4, 3 * (4 + 2)]
    (tower,) = architecture.towers(2)
    assert tower.is_each
    assert [(learner.name, group.filters) for learner, group in tower.groups] == [
        ("pca", range(6)),
        ("dct", range(6, 18)),
    ]


def test_any_bank_can_have_two_towers():
    """Each part is there once for each view, with half of its share."""
    spec = NetworkSpec(bank="dct", local_contrast=True, filters=8)
    assert format_bank(spec.bank) == "dct:0.5,dct:0.5@contrast"
    assert spec.architecture((9, 9, 1), 2).tower_maps(1) == (4, 4)
    assert spec.replace(local_contrast=True) == spec
    assert spec.replace(local_contrast=False) == NetworkSpec(bank="dct", filters=8)


def test_stored_specs_of_flat_options_are_read():
    """Options of components that the network does not have were stored too."""
    flat = {"filters": 8, "residual": "regress", "sigma": 2.0, "ridge": 0.3, "lda_fraction": 0.25}
    flat |= {"local_contrast": True, "cells": "centre", "levels": [2, 1], "probability": "softmax"}
    expected = NetworkSpec(
        filters=8, head="regress", ridge=0.3, lda_fraction=0.25, local_contrast=True, levels=(2, 1)
    )
    assert NetworkSpec.from_stored(flat) == expected


def test_parameters_by_flat_and_nested_names():
    """As GridSearchCV sets them."""
    clf = ResCNetClassifier(NetworkSpec(filters=8))
    clf = clone(clf).set_params(spec__ridge=0.5, spec__head__sigma=4.0, spec__block=8)
    assert (clf.spec.head.ridge, clf.spec.head.sigma) == (0.5, 4.0)
    assert clf.get_params()["spec__block"] == 8


@pytest.mark.parametrize("local_contrast", [False, True])
def test_shorthands_are_read_back_exactly(local_contrast):
    """Any fraction is that of the bank that it gives."""
    for thousandths in range(1001):
        given = {"local_contrast": local_contrast, "lda_fraction": thousandths / 1000}
        assert bank_shorthands(apply_shorthands(paper_bank(), given)) == given
    for fraction in (0.0, 0.001, 0.7, 1.0):
        spec = NetworkSpec(lda_fraction=fraction, local_contrast=local_contrast)
        assert (spec.lda_fraction, spec.local_contrast) == (fraction, local_contrast)


def test_component_and_its_options_together():
    """As a grid over heads and their ridge gives them."""
    spec = NetworkSpec().set_params(head="regress", head__ridge=3.0, bank="dct", filters=4)
    assert (spec.head, spec.bank, spec.filters) == (Regress(ridge=3.0), (BankPart(DCT()),), 4)


def test_stored_components_may_have_old_values():
    """As the options of a spec themselves."""
    stored = NetworkSpec().to_dict()
    stored["features"][0]["cells"] = "centre"
    assert NetworkSpec.from_stored(stored) == NetworkSpec()


def test_limits_of_learners():
    """Filters beyond a limit go to another learner with room, else the message has the limit."""
    spec = NetworkSpec(bank="pca:0.6,dct:0.4", filters=50)
    groups = spec.architecture((9, 9, 3), 2).groups(1)
    assert [group.count for _, group in groups] == [27, 23]
    with pytest.raises(SpecError, match=r"filters=60 PCA and DCT .* 54 directions.* at most 54"):
        spec.replace(filters=60).architecture((9, 9, 3), 2).towers(1)


def test_local_contrast_removes_no_part_that_was_named():
    """A bank that has towers of its own stays; one without counterparts is not halved."""
    spec = NetworkSpec(bank="pca,dct@contrast", local_contrast=True)
    assert format_bank(spec.bank) == "pca:1,dct:1@contrast"
    with pytest.raises(
        SpecError, match=r"local_contrast=False would remove parts of bank=pca:1,dct"
    ):
        spec.replace(local_contrast=False)


def test_views_are_those_that_the_bank_names():
    """With the options that are given, flat or in tables; those of other views are dropped."""
    spec = NetworkSpec(bank="dct@contrast,pca", contrast_sigma=3.0, filters=8)
    assert spec.views == (Image(), Contrast(sigma=3.0))
    table = {"name": "contrast", "sigma": 3.0}
    assert NetworkSpec(bank="pca,dct@contrast", views=[table], filters=8).views == spec.views
    assert spec.contrast_sigma == 3.0
    assert NetworkSpec.from_toml(spec.to_toml()) == spec
    assert NetworkSpec.from_stored(spec.to_dict()) == spec
    assert spec.set_params(views__1__floor=0.5).views[1] == Contrast(3.0, 0.5)
    assert spec.replace(bank="pca").views == (Image(),)
    assert NetworkSpec(bank="pca,dct:0@contrast").views == (Image(),)


def test_stored_specs_without_views_have_their_defaults():
    """Earlier releases stored none."""
    spec = NetworkSpec(local_contrast=True)
    stored = spec.to_dict()
    del stored["views"]
    assert NetworkSpec.from_stored(stored) == spec
