"""Networks of the PCANet family, through Dask and the run store, against a slow NumPy PCANet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pcanet_oracle

import rescnet_dist as rd
from rescnet_dist.store import RunStore

CLASSES, COUNT, TRAIN = 3, 36, 24
FILTERS = [4, 3]
SPEC = rd.NetworkSpec(
    filters=FILTERS,
    filter_size=2,
    first_filter_size=3,
    bank="pca+each+center",
    minmax="images",
    concatenate=False,
    block=4,
    stride=2,
    levels=(2, 1),
    head="regress",
    max_layers=2,
    stop_at_zero_error=False,
)


def make_images(channels: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 8, 9, d) of waves under noise, and labels of 3 classes.

    Training images are from 0 to 1, so that their normalization changes nothing.
    """
    rng = np.random.default_rng(4)
    y, x = np.mgrid[:8, :9]
    labels = np.arange(COUNT) % CLASSES
    along, across, phase = (rng.uniform(0, high, (CLASSES, channels, 1, 1)) for high in (1, 1, 6))
    waves = np.cos(along * x + across * y + phase).transpose(0, 2, 3, 1)[labels]
    noise = rng.normal(size=(COUNT, 9, 9, channels))
    images = waves * rng.uniform(0.5, 1.5, (COUNT, 1, 1, 1)) + noise[:, 1:] + 0.7 * noise[:, :-1]
    low, high = images[:TRAIN].min(), images[:TRAIN].max()
    images = (images - low) / (high - low)
    return images.astype(np.float32), labels


def fit(spec: rd.NetworkSpec, store: Path, client: Any, **run: Any) -> rd.ResCNetClassifier:
    """Train on images of `make_images`, of which the last ones are held out."""
    images, labels = make_images()
    run_spec = rd.RunSpec(validation=0, keep_maps="all", chunk_images=7, accumulators=2, **run)
    clf = rd.ResCNetClassifier(spec, store=store, run=run_spec)
    return clf.fit(images[:TRAIN], labels[:TRAIN], validation=(images[TRAIN:], labels[TRAIN:]))


def test_maps_equal_those_of_pcanet(tmp_path: Path, client: Any) -> None:
    """Filters of layer 2 are applied to each map, and patches have no mean."""
    clf = fit(SPEC, tmp_path / "run", client)
    run, images = RunStore.open(tmp_path / "run"), make_images()[0]
    expected = pcanet_oracle.stages(images, np.arange(COUNT) < TRAIN, (3, 2), FILTERS)
    for layer, reference in enumerate(expected, start=1):
        found = np.asarray(run.maps(layer)[...])
        assert found.shape == reference.shape
        np.testing.assert_allclose(found, reference, atol=1e-4 * np.abs(reference).max())
    bank = clf.network_.layers[1].bank
    assert np.count_nonzero(bank.filters.any(axis=(0, 1)).sum(axis=0) > 1) == 0
