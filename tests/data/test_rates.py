"""Rates of import and augmentation, next to plain loops and another library.

The rates are for an idle machine: `python -m pytest -m slow tests/data/test_rates.py -s`. All
60,000 images of CIFAR-10 are imported if RESCNET_CIFAR10 names a folder of them as PNG files, in
train/CLASS/ and test/CLASS/; else as many synthetic ones. The other library is in the extra
`bench`.
"""

from __future__ import annotations

import os
import sys
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

from rescnet_dist import open_dataset
from rescnet_dist.cluster import available_cores
from rescnet_dist.data.importing import import_dataset
from rescnet_dist.kernels import Augmentation, augment_images
from rescnet_dist.kernels.cpu.threads import blas_threads

pytestmark = pytest.mark.slow
MIN_IMPORT_FRACTION = 0.75  # of the rate of plain loops on all cores
MIN_AUGMENT_RATE = 8_000  # images per second and core
LOOP_IMAGES = 12_000  # of the plain loop


@pytest.fixture(scope="module")
def png_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
            class_folder = folder / split / f"class {number % 10}"
            class_folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(class_folder / f"{number:05d}.png")
    return folder


def measure_rate(images: int, action: Callable[[], Any], times: int = 3) -> float:
    """Return the images per second of the best of several runs."""
    best = 0.0
    for _ in range(times):
        started = time.perf_counter()
        action()
        best = max(best, images / (time.perf_counter() - started))
    return best


def decode_in_loop(paths: list[Path]) -> None:
    """Decode images in a plain loop."""
    for path in paths:
        with Image.open(path) as image:
            np.asarray(image)


def disable_imagecodecs() -> None:
    """Decode PNG files by Pillow, as without the extra `fast-png`; runs on workers."""
    decode: Any = sys.modules["rescnet_dist.data.sources.decode"]
    decode.imagecodecs = None


@pytest.mark.parametrize("decoder", ["pillow", "imagecodecs"])
def test_import_rate(png_folder: Path, tmp_path: Path, decoder: str) -> None:
    """The import from PNG files to Zarr is close to plain loops on all cores.

    It includes listing, compression and writing, on running worker processes.
    """
    paths = list(islice((png_folder / "train").rglob("*.png"), LOOP_IMAGES))
    decode_in_loop(paths)  # so that they are in the page cache for both
    cores = available_cores()
    with (
        LocalCluster(
            n_workers=cores, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(lambda: __import__("rescnet_dist.data.importing"))
        if decoder == "pillow":
            client.run(disable_imagecodecs)
        ratios = []
        for attempt in range(2):
            loop_rate = measure_rate(len(paths), lambda: decode_in_loop(paths), times=1)
            started = time.perf_counter()
            result = import_dataset(png_folder, tmp_path / f"{attempt}.zarr", client)
            rate = sum(result.splits.values()) / (time.perf_counter() - started)
            ratios.append(rate / (cores * loop_rate))
            print(
                f"\n{sum(result.splits.values()):,} images: {rate:,.0f}/s imported by {decoder}, "
                f"{loop_rate:,.0f}/s decoded by a plain loop on one core: "
                f"{ratios[-1]:.2f} of {cores} cores"
            )
    images = open_dataset(tmp_path / "0.zarr")["images"]
    np.testing.assert_array_equal(
        images[0].to_numpy(),
        np.asarray(Image.open(sorted((png_folder / "train").rglob("*.png"))[0])),
    )
    assert max(ratios) >= MIN_IMPORT_FRACTION


def test_augmentation_rate() -> None:
    """Flipped, shifted and cropped 32×32 images on one core, next to Albumentations."""
    images = np.random.default_rng(0).integers(0, 256, (8_000, 32, 32, 3), dtype=np.uint8)
    index, copy = np.arange(len(images)), 1 + np.arange(len(images)) % 2
    spec = Augmentation(flip=True, shift=4, crop=0.8)
    with blas_threads(1):
        our_rate = measure_rate(len(images), lambda: augment_images(images, index, copy, spec, 0))
    print(f"\n{our_rate:,.0f} images/s on one core", end="")
    if (their_rate := measure_albumentations(images)) is not None:
        print(f"; Albumentations {their_rate:,.0f} images/s; {our_rate / their_rate:.1f} ×")
    else:
        print("; Albumentations is not installed")
    assert our_rate >= MIN_AUGMENT_RATE


def measure_albumentations(images: np.ndarray[Any, Any]) -> float | None:
    """Return the images per second of the same work in Albumentations, image by image."""
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

    return measure_rate(2000, run)
