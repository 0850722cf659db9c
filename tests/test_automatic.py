"""Settings that are chosen for the images: what they are, and that they do not collapse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client

import rescnet_dist as rd
from rescnet_dist import NetworkSpec, ResCNetClassifier, RunSpec, SpecError
from rescnet_dist.automatic import describe_choice
from rescnet_dist.cli import main
from rescnet_dist.events import AccuracyCollapsed, Event
from rescnet_dist.runs import describe_run

X, Y = (array[:120] for array in rd.load_digits())
X = X[:, ::2, ::2]
RUN = RunSpec(validation=0, solve_threads=1)
SHAPES = [(28, 28, 1), (32, 32, 3), (64, 64, 3), (224, 160, 3), (8, 8, 1), (3, 3, 1), (2, 5, 4)]


def test_digits_get_their_preset() -> None:
    """So `rescnet train` on the embedded digits trains the network of the results."""
    assert NetworkSpec.auto((28, 28, 1), 6000, 10) == NetworkSpec.preset("digits")


@pytest.mark.parametrize("head", ["regress", "classify"])
@pytest.mark.parametrize("images", [20, 5_000, 60_000])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_settings_fit_images_of_any_size(
    shape: tuple[int, int, int], images: int, head: str
) -> None:
    """Filters and blocks are never larger than the images."""
    spec = NetworkSpec.auto(shape, images, 10, head=head)
    spec.check_images(*shape)
    assert spec.head.name == head


def test_more_images_get_more_filters_and_a_smaller_ridge() -> None:
    """The ridge of few images is the largest."""
    specs = [NetworkSpec.auto((32, 32, 3), n, 10) for n in (500, 5_000, 50_000)]
    assert [spec.ridge for spec in specs] == [3, 1, 1]
    assert [spec.filters for spec in specs] == [16, 16, 24]


def test_given_options_take_precedence() -> None:
    """Single ones, and nested ones; a head other than the default gets settings of its own."""
    spec = NetworkSpec.auto((32, 32, 3), 4000, 10, filters=8, head__ridge=0.5, bank="dct")
    assert (spec.filters, spec.ridge, spec.bank[0].learner.name) == (8, 0.5, "dct")
    spec = NetworkSpec.auto((28, 28, 1), 6000, 10, head="classify", learning_rate=0.1)
    assert (spec.head.name, spec.sigma, spec.learning_rate) == ("classify", 2, 0.1)
    spec = NetworkSpec.auto((28, 28, 1), 6000, 10, head="classify-leave-one-out")
    assert (spec.head.name, spec.sigma, spec.learning_rate) == ("classify-leave-one-out", 2, 0.2)
    with pytest.raises(SpecError, match=r"Unknown head 'clasify'\. Did you mean 'classify'\?"):
        NetworkSpec.auto((28, 28, 1), 6000, 10, head="clasify")
    for given, ridge in ({}, 0.15), ({"ridge": 0.3}, 0.3):
        spec = NetworkSpec.auto((14, 14, 1), 300, 10, head="kernel-ridge", **given)
        assert (spec.head.name, spec.ridge) == ("kernel-ridge", ridge)
    with pytest.raises(SpecError, match=r"no option 'filter'\. Did you mean 'filters'\?"):
        NetworkSpec.auto((32, 32, 3), 4000, 10, filter=8)


def test_choice_is_described_on_one_line() -> None:
    """With what it was made for and what was chosen."""
    size = (32, 32, 3), 4000, 10
    text = describe_choice(NetworkSpec.auto(*size).rows(), *size)
    assert text.startswith("settings chosen for 4,000 images of 32×32×3 and 10 classes: filters=16")
    assert "\n" not in text
    assert "head=regress" in text


class Collapses:
    """A listener that keeps the events of collapses."""

    def __init__(self) -> None:
        self.found: list[AccuracyCollapsed] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, AccuracyCollapsed):
            self.found.append(event)


def test_collapse_is_published_and_warned_about_once(client: Client) -> None:
    """The paper's head on few images; the remedy is the other head."""
    paper = NetworkSpec(filters=4, block=5, stride=3, max_layers=4, stop_at_zero_error=False)
    collapses = Collapses()
    clf = ResCNetClassifier(paper, run=RUN, listeners=[collapses])
    with pytest.warns(UserWarning, match=r'after layer 2\..*head="regress"') as caught:
        clf.fit(X, Y)
    assert len([w for w in caught if "has fallen" in str(w.message)]) == 1
    (event,) = collapses.found
    assert event.layer == 2
    assert event.train < 0.8 * event.best
    assert event.reason in {str(w.message) for w in caught}


@pytest.mark.filterwarnings("error:The training accuracy has fallen")
@pytest.mark.parametrize("head", ["regress", "classify"])
def test_automatic_settings_do_not_collapse(
    client: Client, head: str, rng: np.random.Generator
) -> None:
    """On digits, and on noise with two images per class."""
    noise = rng.integers(0, 256, (40, 10, 10, 3), np.uint8)
    for images, labels in ((X, Y), (noise, np.arange(40) % 20)):
        collapses = Collapses()
        clf = ResCNetClassifier(
            {"head": head, "filters": 4, "max_layers": 4}, run=RUN, listeners=[collapses]
        )
        clf.fit(images, labels)
        assert not collapses.found
        accuracies = [layer["train"] for layer in clf.accuracies_]
        assert min(accuracies[1:]) > 0.9 * accuracies[0]


def test_command_and_classifier_choose_the_same(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints the choice, flags change single options, and the run stores it."""
    np.savez(tmp_path / "data.npz", x_train=X, y_train=Y)
    monkeypatch.chdir(tmp_path)
    small: list[Any] = ["--filters", 4, "--max-layers", 1, "--solve-threads", 1]
    command = ["train", "data.npz", "--store", "run", *small]
    result = CliRunner().invoke(main, [str(word) for word in command])
    assert result.exit_code == 0, result.output
    assert "settings chosen for 120 images of 14×14×1 and 10 classes: filters=4" in result.stderr
    clf = ResCNetClassifier({"filters": 4, "max_layers": 1}, run=RunSpec(solve_threads=1))
    clf.fit(X, Y)
    found = describe_run(tmp_path / "run")
    assert NetworkSpec.from_stored(found["network"]) == clf.network_.spec
    assert found["run"]["validation"] == 0.1
    assert found["layers"][0]["validation"] == clf.accuracies_[0]["validation"]
