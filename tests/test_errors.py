"""The classes of errors, and the error of an unfitted classifier."""

from __future__ import annotations

from pathlib import Path

import pytest
from sklearn.exceptions import NotFittedError

import rescnet_dist as rd
from rescnet_dist import DataError, ResCNetClassifier, RescnetError, SpecError, StoreError

X, Y = (array[:20] for array in rd.load_digits())


@pytest.mark.parametrize(
    "method",
    [
        "predict",
        "predict_proba",
        "decision_function",
        "score",
        "staged_score",
        "staged_predict",
        "save",
    ],
)
def test_unfitted_classifier_raises_not_fitted_error(method: str, tmp_path: Path) -> None:
    """The error of scikit-learn, for all methods."""
    arguments = {"save": (tmp_path / "network",), "score": (X, Y), "staged_score": (X, Y)}
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(ResCNetClassifier(), method)(*arguments.get(method, (X,)))
    assert list(tmp_path.iterdir()) == []


def test_all_errors_are_value_errors() -> None:
    """scikit-learn and users catch them like other errors of input."""
    for error in (DataError, SpecError, StoreError):
        assert issubclass(error, RescnetError)
        assert issubclass(error, ValueError)


def test_long_values_are_shortened_in_messages() -> None:
    """The message still has the remedy, and can be read."""
    with pytest.raises(rd.SpecError, match=r"is not a feature extractor\. Give") as raised:
        rd.NetworkSpec(features=[[{"name": "second-order", "block": 4}] * 300])
    assert len(str(raised.value)) < 500
    with pytest.raises(rd.SpecError, match="is not a whole number") as raised:
        rd.NetworkSpec(filters="x" * 5000)
    assert len(str(raised.value)) < 500
