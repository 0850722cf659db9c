"""Imports: contents, determinism, options and errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client, LocalCluster
from import_helpers import BAD_IMAGES, CHUNK, read_pixels, read_tree, run_command, save_image
from PIL import Image

import rescnet_dist as rd
from rescnet_dist.data import import_record, importing
from rescnet_dist.data.importing import ImportResult, import_dataset
from rescnet_dist.data.sources import Samples
from rescnet_dist.errors import DataError, SpecError, StoreError


def test_import_contents(client: Client, photos: Path, tmp_path: Path) -> None:
    """Pixels, labels, class names and splits are imported; plain xarray reads them."""
    result = import_dataset(photos, tmp_path / "out", client, chunk_images=CHUNK)
    assert result == ImportResult(
        str(tmp_path / "out"), {"train": 20, "test": 10}, ("cat", "dog"), (8, 6, 3), "|u1"
    )
    with dask.config.set(scheduler="sync"):
        data = rd.open_dataset(tmp_path / "out")
        source = rd.open_dataset(photos).compute()
        xr.testing.assert_identical(data.compute(), source.drop_vars("file"))
        assert source["file"][0] == "train/cat/00.png"
        np.testing.assert_array_equal(data.images, read_pixels(photos))
    plain = xr.open_zarr(tmp_path / "out", consolidated=False, chunks=None)
    np.testing.assert_array_equal(plain.images, read_pixels(photos))
    assert plain.images.dims == ("image", "y", "x", "channel")
    assert plain.labels.to_numpy()[:11].tolist() == [0] * 10 + [1]
    assert plain.attrs["splits"] == {"train": [0, 20], "test": [20, 30]}
    assert zarr.open_array(tmp_path / "out" / "images").chunks == (CHUNK, 8, 6, 3)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("images", "labels", "zarr.json"),
    ]


@pytest.fixture(scope="module")
def one_thread_client() -> Iterator[Client]:
    """A client of a cluster of another size."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_import_is_deterministic(
    client: Client,
    one_thread_client: Client,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On any cluster, with tasks of any size, the same source gives the same bits."""
    import_dataset(photos, tmp_path / "a", client, chunk_images=CHUNK)
    expected = read_tree(tmp_path / "a")
    for name, tasks, chosen in (("b", 4, client), ("c", 1, client), ("d", 3, one_thread_client)):
        monkeypatch.setattr(import_record, "MAX_TASK_CHUNKS", tasks)
        import_dataset(photos, tmp_path / name, chosen, chunk_images=CHUNK)
        assert read_tree(tmp_path / name) == expected


def test_import_between_file_systems(client: Client, tmp_path: Path) -> None:
    """From a NumPy file to memory://, and from there to a folder."""
    images, labels = rd.load_digits()
    np.savez(tmp_path / "a.npz", x_train=images[:50], y_train=labels[:50])
    import_dataset(tmp_path / "a.npz", "memory://test-import/a.zarr", client, chunk_images=20)
    import_dataset("memory://test-import/a.zarr", tmp_path / "b", client, chunk_images=7)
    with dask.config.set(scheduler="sync"):
        data = rd.open_dataset(tmp_path / "b").compute()
    np.testing.assert_array_equal(data.images, images[:50])
    np.testing.assert_array_equal(np.take(data.class_names, data.labels), labels[:50])


def test_task_size_of_large_images(tmp_path: Path) -> None:
    """A task has several chunks only if these are small."""
    shape = (4000, 6000, 3)
    job = importing.Job(
        importing.Location(str(tmp_path)), importing.DecodeOptions(), shape, "|u1", 1
    )
    assert job.task == 1
    small = importing.Job(job.dest, job.options, (32, 32, 3), "|u1", 600)
    assert small.task == 600 * import_record.MAX_TASK_CHUNKS


def test_encoded_images_are_read_lazily(
    client: Client, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of many large photos that are resized holds one of them at a time."""
    held, peak = [0], [0]
    decode = importing.decode

    def decode_and_count(samples: Any, *arguments: Any) -> Any:
        def count_held() -> Iterator[Any]:
            for item in samples.images:
                held[0] += 1
                peak[0] = max(peak[0], held[0])
                yield item
                held[0] -= 1

        assert not isinstance(samples.images, list)
        return decode(Samples(count_held(), samples.names), *arguments)

    monkeypatch.setattr(importing, "decode", decode_and_count)
    import_dataset(photos, tmp_path / "out", client, resize=(2, 2))
    assert peak[0] <= 2  # one per thread


def test_find_missing_and_altered_chunks(client: Client, tmp_path: Path) -> None:
    """Zarr reads zeros for a missing chunk; a chunk of black images exists."""
    images = np.zeros((12, 4, 4, 1), np.uint8)
    images[8:] = np.arange(64, dtype=np.uint8).reshape(4, 4, 4, 1)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(12) % 2)
    out = tmp_path / "out"
    import_dataset(tmp_path / "a.npz", out, client, chunk_images=CHUNK)
    np.testing.assert_array_equal(rd.open_dataset(out)["images"], images)
    chunks = sorted(path for path in (out / "images/c").rglob("*") if path.is_file())
    assert len(chunks) == 3
    chunks[0].rename(tmp_path / "lost")
    with pytest.raises(DataError, match=r"lost 1 of its 3 chunks of images\. Import"):
        rd.open_dataset(out)
    assert "images, chunk 0: the chunk is missing." in run_command("check", out).output
    (tmp_path / "lost").rename(chunks[0])
    assert run_command("check", out).exit_code == 0
    whole = bytearray(chunks[2].read_bytes())
    whole[len(whole) // 2] ^= 1
    chunks[2].write_bytes(whole)
    with pytest.raises(DataError, match=r"Rows 8 to 12 of images.*`rescnet check` lists"):
        rd.open_dataset(out)["images"].compute()
    found = run_command("check", out)
    assert found.exit_code == 1
    assert found.output.startswith("images, chunk 2: Rows 8 to 12 of images are missing or altered")
    found = run_command("data", "info", out)
    assert found.exit_code == 2
    assert "rescnet check" in found.output


def test_import_starts_a_cluster(photos: Path, tmp_path: Path) -> None:
    """If there is no client."""
    assert rd.import_dataset(photos, tmp_path / "out").splits == {"train": 20, "test": 10}


def test_resize_and_convert_on_import(client: Client, bad_photos: Path, tmp_path: Path) -> None:
    """Images of other sizes or channels are then no error; broken images still are."""
    options = ("--resize", "4x6", "--channels", "gray")
    command = ("data", "import", bad_photos, tmp_path / "out", *options)
    result = run_command(*command)
    assert result.exit_code == 2
    assert "2 of 30 images cannot be used" in result.output
    result = run_command(*command, "--on-error", "skip", "--json")
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout)
    assert outcome["image_shape"] == [4, 6, 1]
    assert outcome["splits"] == {"train": 19, "test": 9}
    assert [name for name, _ in outcome["skipped"]] == [
        f"{bad_photos}/{BAD_IMAGES[0]}",
        f"{bad_photos}/{BAD_IMAGES[3]}",
    ]
    with Image.open(bad_photos / "train/cat/00.png") as image:
        expected = np.asarray(image.convert("L").resize((6, 4), Image.Resampling.BILINEAR))
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(rd.open_dataset(tmp_path / "out").images[0, ..., 0], expected)


def test_command_prints_summary_and_next_step(
    client: Client, bad_photos: Path, tmp_path: Path
) -> None:
    """With the images that were left out."""
    result = run_command("data", "import", bad_photos, tmp_path / "out", "--on-error", "skip")
    assert result.exit_code == 0, result.output
    for part in (
        *("17 to train, 9 to test", "8×6×3", "2 classes", "skipped   4", BAD_IMAGES[0]),
        f"next      rescnet data info {tmp_path / 'out'}",
    ):
        assert part in result.output


def test_command_prints_unsupported_files(client: Client, photos: Path, tmp_path: Path) -> None:
    """With their number and one of them; all of them in JSON."""
    (photos / "train/cat/x.bmp").write_bytes(b"BM")
    result = run_command("data", "import", photos, tmp_path / "a")
    assert result.exit_code == 0, result.output
    line = "ignored   1 file that is no PNG, JPEG or WebP image, such as train/cat/x.bmp\n"
    assert line in result.output
    (photos / "test/dog/y.gif").write_bytes(b"GIF")
    result = run_command("data", "import", photos, tmp_path / "b")
    line = "ignored   2 files that are no PNG, JPEG or WebP images, such as test/dog/y.gif\n"
    assert line in result.output
    outcome = json.loads(run_command("data", "import", photos, tmp_path / "c", "--json").stdout)
    assert outcome["passed_over"] == ["test/dog/y.gif", "train/cat/x.bmp"]
    assert outcome["splits"] == {"train": 20, "test": 10}


@pytest.mark.parametrize("size", ["0", "x", "3x", "20000"])
def test_invalid_resize_option(client: Client, photos: Path, tmp_path: Path, size: str) -> None:
    """The error names the flag and the value."""
    result = run_command("data", "import", photos, tmp_path / "out", "--resize", size)
    assert result.exit_code == 2
    assert size in result.output
    assert not (tmp_path / "out").exists()


def test_existing_data_is_not_overwritten(client: Client, photos: Path, tmp_path: Path) -> None:
    """A finished import, also with damaged attributes, other files, or another Zarr group."""
    out = tmp_path / "out"
    import_dataset(photos, out, client)
    shutil.copytree(out, tmp_path / "damaged")
    zarr.open_group(tmp_path / "damaged", mode="r+").attrs["splits"] = {"train": 3}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    zarr.open_group(tmp_path / "foreign", mode="w").attrs["format"] = "another"
    finished = rf"a finished import of {photos} with 30 images\. Use it, or choose another URL\."
    for dest, content in (
        (out, finished),
        (tmp_path / "other", r"something else\. Choose another URL\."),
        (tmp_path / "damaged", r"something else\. Choose another URL\."),
        (tmp_path / "foreign", r"something else\. Choose another URL\."),
    ):
        before = read_tree(dest)
        with pytest.raises(StoreError, match=f"{dest} already holds {content}$"):
            import_dataset(photos, dest, client)
        assert read_tree(dest) == before


def test_invalid_options(client: Client, photos: Path, tmp_path: Path) -> None:
    """They are rejected before anything is written."""
    for options in ({"resize": (0, 4)}, {"resize": (20_000, 4)}, {"channels": "blue"}):
        with pytest.raises(SpecError, match=r"resize|channels"):
            import_dataset(photos, tmp_path / "out", client, **options)
    assert not (tmp_path / "out").exists()


def test_transient_read_errors_are_retried(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """An image that a server did not send at once is not bad, and is not skipped."""
    fs, good = fsspec.filesystem("memory"), rng.integers(0, 256, (3, 5, 5), np.uint8)
    for number, pixels in enumerate(good):
        save_image(tmp_path / "a.png", pixels)
        fs.pipe_file(
            f"/test-transient/c{number % 2}/{number}.png", (tmp_path / "a.png").read_bytes()
        )
    original, failures = type(fs).cat_file, [ConnectionResetError("reset")] * 3

    def fail_three_times(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("2.png") and failures:
            raise failures.pop()
        return original(self, path, *arguments, **options)

    monkeypatch.setattr(type(fs), "cat_file", fail_three_times)
    result = import_dataset("memory://test-transient", tmp_path / "out", client, on_error="skip")
    assert result.splits == {"train": 3}
    assert not failures
