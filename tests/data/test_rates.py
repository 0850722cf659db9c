"""How fast images are imported and augmented, beside bare loops and a peer in the same run.

Rates are for an idle machine: `python -m pytest -m slow tests/data/test_rates.py -s`. All 60,000
images of CIFAR-10 are imported where RESCNET_CIFAR10 names a folder of them as PNG files, in
train/CLASS/ and test/CLASS/; else as many made-up ones. The peer comes with the extra `bench`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from PIL import Image
from scipy.ndimage import zoom

from rescnet_dist import AugmentSpec, open_dataset
from rescnet_dist.cluster import available_cores
from rescnet_dist.data.importing import import_dataset
from rescnet_dist.kernels import augment_images
from rescnet_dist.reduce import blas_threads

pytestmark = pytest.mark.slow

IMPORT_BAR = 0.75  # of what all cores would do in bare loops
AUGMENT_BAR = 8_000  # images per second and core
LOOKED_AT = 12_000  # images of the bare loop


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60,000 PNG files of 32×32 in color, in folders by split and class."""
    given = os.environ.get("RESCNET_CIFAR10")
    if given:
        return Path(given)
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    coarse = rng.integers(0, 256, (60_000, 8, 8, 3)).astype(np.float32)
    for start in range(0, 60_000, 1000):
        smooth = zoom(coarse[start : start + 1000], (1, 4, 4, 1), order=1)
        noisy = np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
        for number, image in enumerate(noisy, start=start):
            split = "train" if number < 50_000 else "test"
            location = folder / split / f"class {number % 10}"
            location.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(location / f"{number:05d}.png")
    return folder


def best_rate(images: int, action: Callable[[], Any], times: int = 3) -> float:
    """Images per second in the best of some tries, by the time of this process's cores."""
    best = 0.0
    for _ in range(times):
        began = time.perf_counter()
        action()
        best = max(best, images / (time.perf_counter() - began))
    return best


def decode_bare(paths: list[Path]) -> None:
    """What anybody would write."""
    for path in paths:
        with Image.open(path) as image:
            np.asarray(image)


def test_import_keeps_all_cores_decoding(pictures: Path, tmp_path: Path) -> None:
    """From folder to Zarr, with listing, compression and writing, on worker processes that run."""
    paths = list(islice((pictures / "train").rglob("*.png"), LOOKED_AT))
    decode_bare(paths)  # which are in the page cache from now on, for both
    cores = available_cores()
    with (
        LocalCluster(n_workers=cores, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.run(lambda: __import__("rescnet_dist.data.importing"))
        ratios = []
        for attempt in range(2):
            bare = best_rate(len(paths), lambda: decode_bare(paths), times=1)
            began = time.perf_counter()
            found = import_dataset(pictures, tmp_path / f"{attempt}.zarr", client)
            rate = sum(found.splits.values()) / (time.perf_counter() - began)
            ratios.append(rate / (cores * bare))
            print(
                f"\n{sum(found.splits.values()):,} images: {rate:,.0f}/s imported, {bare:,.0f}/s "
                f"decoded by a bare loop on one core: {ratios[-1]:.2f} of {cores} cores"
            )
    images = open_dataset(tmp_path / "0.zarr")["images"]
    np.testing.assert_array_equal(
        images[0].to_numpy(), np.asarray(Image.open(sorted((pictures / "train").rglob("*.png"))[0]))
    )
    assert max(ratios) >= IMPORT_BAR


def test_copies_are_made_fast_enough() -> None:
    """Mirrored, shifted and cropped, 32×32 in color, on one core; beside Albumentations."""
    images = np.random.default_rng(0).integers(0, 256, (8_000, 32, 32, 3), dtype=np.uint8)
    index, copy = np.arange(len(images)), 1 + np.arange(len(images)) % 2
    spec = AugmentSpec(copies=2, flip=True, shift=4, crop=0.8)
    with blas_threads(1):
        ours = best_rate(len(images), lambda: augment_images(images, index, copy, spec, 0))
    print(f"\n{ours:,.0f} images/s on one core", end="")
    if (theirs := albumentations_rate(images)) is not None:
        print(f"; Albumentations {theirs:,.0f} images/s; {ours / theirs:.1f} ×")
    else:
        print("; Albumentations is not installed")
    assert ours >= AUGMENT_BAR


def albumentations_rate(images: np.ndarray[Any, Any]) -> float | None:
    """Images per second of the same work, image by image as that library has it."""
    try:
        import albumentations as A
        import cv2
    except ImportError:
        return None
    cv2.setNumThreads(1)
    change = A.Compose(
        [
            A.HorizontalFlip(p=0.5),
            A.Affine(translate_px=(-4, 4), p=1.0),
            A.RandomResizedCrop(size=(32, 32), scale=(0.64, 1.0), ratio=(1.0, 1.0), p=1.0),
        ],
        seed=0,
    )

    def run() -> None:
        for image in images[:2000]:
            change(image=image)

    return best_rate(2000, run)
