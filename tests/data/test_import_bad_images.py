"""Images that cannot be imported are listed or skipped."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest
import zarr
from distributed import Client
from import_helpers import BAD_IMAGES, CHUNK, read_arrays, read_pixels, save_image

import rescnet_dist as rd
from rescnet_dist.data.importing import import_dataset
from rescnet_dist.errors import DataError


def test_error_lists_bad_images(client: Client, bad_photos: Path, tmp_path: Path) -> None:
    """With path, reason and remedy for each of them."""
    with pytest.raises(DataError) as caught:
        import_dataset(bad_photos, tmp_path / "out", client, chunk_images=CHUNK)
    message = str(caught.value)
    assert "4 of 30 images cannot be used" in message
    for name, reason in zip(
        BAD_IMAGES, ("not a PNG", "9×6", "1 channels", "cannot be decoded"), strict=True
    ):
        assert any(
            f"{bad_photos}/{name}" in line and reason in line for line in message.split("\n")
        )
    for remedy in ("--on-error skip", "--resize", "Fix them", str(tmp_path / "out")):
        assert remedy in message
    with pytest.raises(DataError, match="is an unfinished import"):
        rd.open_dataset(tmp_path / "out")


def test_skip_bad_images(client: Client, bad_photos: Path, tmp_path: Path) -> None:
    """The other images are imported as if the bad ones did not exist, also after an error."""
    import_dataset(tmp_path / "clean", tmp_path / "expected", client, chunk_images=CHUNK)
    with pytest.raises(DataError):
        import_dataset(bad_photos, tmp_path / "after", client, chunk_images=CHUNK)
    for name in ("at once", "after"):
        result = import_dataset(
            bad_photos, tmp_path / name, client, chunk_images=CHUNK, on_error="skip"
        )
        assert result.splits == {"train": 17, "test": 9}
        assert [name for name, _ in result.skipped] == [f"{bad_photos}/{bad}" for bad in BAD_IMAGES]
        assert read_arrays(tmp_path / name) == read_arrays(tmp_path / "expected")
        attributes = zarr.open_group(tmp_path / name, mode="r").attrs
        assert attributes["skipped"] == 4
        assert [tuple(entry) for entry in attributes["skipped_images"]] == list(result.skipped)
        assert attributes["splits"] == {"train": [0, 17], "test": [17, 26]}


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_non_finite_values_are_bad(
    client: Client, tmp_path: Path, rng: np.random.Generator, kind: str
) -> None:
    """They are listed or skipped like others, also if the first image has them."""
    images = rng.random((20, 4, 3, 1)).astype(kind)
    images[0, 3, 2], images[7, 0, 0], images[8, 1, 1] = np.nan, np.inf, -np.inf
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(20) % 2)
    with pytest.raises(DataError, match="3 of 20 images cannot be used") as caught:
        import_dataset(tmp_path / "a.npz", tmp_path / "out", client, chunk_images=CHUNK)
    names = [f"{tmp_path}/a.npz, train image {number}" for number in (0, 7, 8)]
    for name in names:
        assert f"{name}: The image has values that are not finite" in str(caught.value)
    result = import_dataset(
        tmp_path / "a.npz", tmp_path / "out", client, chunk_images=CHUNK, on_error="skip"
    )
    assert [name for name, _ in result.skipped] == names
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(
            rd.open_dataset(tmp_path / "out").images, np.delete(images, [0, 7, 8], axis=0)
        )
        with pytest.raises(
            DataError, match=r"image 0: The image has values.*leaves such images out"
        ):
            rd.open_dataset(tmp_path / "a.npz").images.compute()


def test_import_fixed_images(client: Client, bad_photos: Path, tmp_path: Path) -> None:
    """After the error, fixed images are imported by the same call."""
    out = tmp_path / "out"
    with pytest.raises(DataError):
        import_dataset(bad_photos, out, client, chunk_images=CHUNK)
    for number, name in enumerate(BAD_IMAGES):
        save_image(bad_photos / name, np.full((8, 6, 3), number, np.uint8))
    result = import_dataset(bad_photos, out, client, chunk_images=CHUNK)
    assert result.splits == {"train": 20, "test": 10}
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(rd.open_dataset(out).images, read_pixels(bad_photos))


def test_no_usable_image(client: Client, tmp_path: Path) -> None:
    """It is an error even if bad images are skipped."""
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / "bad" / name).parent.mkdir(parents=True)
        (tmp_path / "bad" / name).write_bytes(b"x")
    for on_error in ("error", "skip"):
        with pytest.raises(DataError, match=r"no readable image among the first.*1\.png"):
            import_dataset(tmp_path / "bad", tmp_path / "out", client, on_error=on_error)
    assert not (tmp_path / "out").exists()
