"""Imports: the same bits however they went, nothing half to be seen; and looks at what there is."""

from __future__ import annotations

import csv
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import dask
import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from click.testing import CliRunner, Result
from distributed import Client, LocalCluster
from PIL import Image

import rescnet_dist as rd
from rescnet_dist.cli import main
from rescnet_dist.data import importing
from rescnet_dist.data.importing import Imported, import_dataset
from rescnet_dist.data.inspect import inspect_dataset
from rescnet_dist.data.named import DATASETS
from rescnet_dist.data.sources import Samples
from rescnet_dist.errors import DataError, SpecError, StoreError

CHUNK = 4  # images
BUSY = ("ready", "executing", "cancelled")  # the last are carried to their end
WRITE = importing._write_rows
Files = dict[str, bytes]


def run(*arguments: Any) -> Result:
    """Run `rescnet` in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def photo(path: Path, pixels: Any) -> None:
    """Write an image file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def photos(tmp_path: Path, rng: np.random.Generator) -> Path:
    """30 PNG files of 8×6 in color: two splits, two classes; `train` has 20."""
    folder = tmp_path / "photos"
    for split, count in (("train", 20), ("test", 10)):
        for number in range(count):
            name = f"{split}/{('cat', 'dog')[number % 2]}/{number:02}.png"
            photo(folder / name, rng.integers(0, 256, (8, 6, 3), np.uint8))
    return folder


def pixels_of(folder: Path) -> Any:
    """The images of a folder in the order that they are imported in, by Pillow alone."""
    files = [path for split in ("train", "test") for path in sorted(folder.glob(f"{split}/*/*"))]
    return np.stack([np.asarray(Image.open(path)) for path in files])


def tree(folder: Path) -> Files:
    """All files below a folder, but who may write to it."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "claims")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def tasks_left(dask_worker: Any) -> int:
    """Tasks that a worker has to do; their futures may be cancelled already."""
    return sum(task.state in BUSY for task in dask_worker.state.tasks.values())


def quiet(client: Client) -> None:
    """Wait until nothing runs that an import has left behind, nor waits to: what is cancelled may
    be on its way to a worker, where nobody sees it for a moment."""
    seen = 0
    while seen < 20:
        busy = client.run_on_scheduler(tasks_waiting) or any(client.run(tasks_left).values())
        seen = 0 if busy else seen + 1
        time.sleep(0.01)


def tasks_waiting(dask_scheduler: Any) -> int:
    """Tasks that a scheduler knows and that are not done."""
    done = {"memory", "erred", "released", "forgotten"}
    return sum(task.state not in done for task in dask_scheduler.tasks.values())


# the images -------------------------------------------------------------------------------------


def test_an_import_has_all_that_the_source_has(
    client: Client, photos: Path, tmp_path: Path
) -> None:
    """Pixels, labels, class names and splits; and plain xarray reads it."""
    found = import_dataset(photos, tmp_path / "out", client, chunk_images=CHUNK)
    assert found == Imported(
        str(tmp_path / "out"), {"train": 20, "test": 10}, ("cat", "dog"), (8, 6, 3), "|u1"
    )
    with dask.config.set(scheduler="sync"):
        data = rd.open_dataset(tmp_path / "out")
        source = rd.open_dataset(photos).compute()
        xr.testing.assert_identical(data.compute(), source.drop_vars("file"))
        assert source["file"][0] == "train/cat/00.png"
        np.testing.assert_array_equal(data.images, pixels_of(photos))
    plain = xr.open_zarr(tmp_path / "out", consolidated=False, chunks=None)
    np.testing.assert_array_equal(plain.images, pixels_of(photos))
    assert plain.images.dims == ("image", "y", "x", "channel")
    assert plain.labels.to_numpy()[:11].tolist() == [0] * 10 + [1]
    assert plain.attrs["splits"] == {"train": [0, 20], "test": [20, 30]}
    assert zarr.open_array(tmp_path / "out" / "images").chunks == (CHUNK, 8, 6, 3)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("images", "labels", "zarr.json"),
    ]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[Client]:
    """A cluster of another size."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_the_same_source_gives_the_same_bits(
    client: Client,
    one_thread: Client,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At any time, on any cluster, with tasks of any size."""
    import_dataset(photos, tmp_path / "a", client, chunk_images=CHUNK)
    expected = tree(tmp_path / "a")
    for name, tasks, where in (("b", 4, client), ("c", 1, client), ("d", 3, one_thread)):
        monkeypatch.setattr(importing, "TASK_CHUNKS", tasks)
        import_dataset(photos, tmp_path / name, where, chunk_images=CHUNK)
        assert tree(tmp_path / name) == expected


def test_any_source_and_place_will_do(client: Client, tmp_path: Path) -> None:
    """From a NumPy file into memory://, and from there into a folder."""
    images, labels = rd.load_digits()
    np.savez(tmp_path / "a.npz", x_train=images[:50], y_train=labels[:50])
    import_dataset(tmp_path / "a.npz", "memory://test-import/a.zarr", client, chunk_images=20)
    import_dataset("memory://test-import/a.zarr", tmp_path / "b", client, chunk_images=7)
    with dask.config.set(scheduler="sync"):
        data = rd.open_dataset(tmp_path / "b").compute()
    np.testing.assert_array_equal(data.images, images[:50])
    np.testing.assert_array_equal(np.take(data.class_names, data.labels), labels[:50])


def test_large_images_are_decoded_few_at_a_time(tmp_path: Path) -> None:
    """A task holds several chunks only where these are small."""
    shape = (4000, 6000, 3)
    job = importing.Job(importing.Location(str(tmp_path)), importing.Wanted(), shape, "|u1", 1)
    assert job.task == 1
    small = importing.Job(job.dest, job.wanted, (32, 32, 3), "|u1", 600)
    assert small.task == 600 * importing.TASK_CHUNKS


def test_encoded_images_are_not_held_all_at_once(
    client: Client, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When large photos are made small, a task has many of them."""
    held, most = [0], [0]
    decode = importing.decode

    def watched(samples: Any, *arguments: Any) -> Any:
        def counted() -> Iterator[Any]:
            for item in samples.images:
                held[0] += 1
                most[0] = max(most[0], held[0])
                yield item
                held[0] -= 1

        assert not isinstance(samples.images, list)
        return decode(Samples(counted(), samples.names), *arguments)

    monkeypatch.setattr(importing, "decode", watched)
    import_dataset(photos, tmp_path / "out", client, resize=(2, 2))
    assert most[0] <= 2  # one for each thread


# kills ------------------------------------------------------------------------------------------


class Fate:
    """What becomes of the tasks of an import: they are noted, and die after so many."""

    lock = threading.Lock()
    starts: ClassVar[list[int]] = []  # of those that were not killed
    left = 0


def fated(job: Any, pieces: Any, start: int) -> Any:
    """`_write_rows`, until the end has come."""
    with Fate.lock:
        if not Fate.left:
            raise RuntimeError("killed")
        Fate.left -= 1
        Fate.starts.append(start)
    return WRITE(job, pieces, start)


def test_lost_and_altered_chunks_are_found(client: Client, tmp_path: Path) -> None:
    """Zarr takes a chunk that is not there for zeros; one of black images is there."""
    images = np.zeros((12, 4, 4, 1), np.uint8)
    images[8:] = np.arange(64, dtype=np.uint8).reshape(4, 4, 4, 1)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(12) % 2)
    out = tmp_path / "out"
    import_dataset(tmp_path / "a.npz", out, client, chunk_images=CHUNK)
    np.testing.assert_array_equal(rd.open_dataset(out)["images"], images)
    chunks = sorted(path for path in (out / "images/c").rglob("*") if path.is_file())
    assert len(chunks) == 3
    chunks[0].rename(tmp_path / "lost")
    with pytest.raises(DataError, match=r"lost 1 of its 3 chunks of images: import"):
        rd.open_dataset(out)
    assert "images, chunk 0: it is missing" in run("check", out).output
    (tmp_path / "lost").rename(chunks[0])
    assert run("check", out).exit_code == 0
    whole = bytearray(chunks[2].read_bytes())
    whole[len(whole) // 2] ^= 1
    chunks[2].write_bytes(whole)
    with pytest.raises(DataError, match=r"rows 8 to 12 of images.*`rescnet check` lists"):
        rd.open_dataset(out)["images"].compute()
    found = run("check", out)
    assert found.exit_code == 1
    assert found.output.startswith("images, chunk 2: rows 8 to 12 of images are missing or altered")
    found = run("data", "info", out)
    assert found.exit_code == 2
    assert "rescnet check" in found.output


def test_an_import_brings_its_own_cluster(photos: Path, tmp_path: Path) -> None:
    """Where there is none."""
    assert rd.import_dataset(photos, tmp_path / "out").splits == {"train": 20, "test": 10}


@pytest.fixture
def fate(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Sets how many tasks may still be done; gives the list of those that are, by first row."""
    monkeypatch.setattr(importing, "_write_rows", fated)
    monkeypatch.setattr(importing, "TASK_CHUNKS", 1)

    def decide(left: int = 10**9) -> list[int]:
        Fate.left, Fate.starts = left, []
        return Fate.starts

    return decide


@pytest.mark.parametrize("left", [0, 1, 3, 7])
def test_an_import_that_was_killed_goes_on(
    client: Client, photos: Path, tmp_path: Path, fate: Callable[..., list[int]], left: int
) -> None:
    """Until it is whole readers are told so, others find nothing; what was done is not done again,
    and all bits are those of an import that was left alone."""
    fate()
    import_dataset(photos, tmp_path / "whole", client, chunk_images=CHUNK)
    out, before = tmp_path / "out", fate(left)
    with pytest.raises(RuntimeError, match="killed"):
        import_dataset(photos, out, client, chunk_images=CHUNK)
    quiet(client)
    assert len(before) == left
    for read in (rd.open_dataset, inspect_dataset, lambda url: import_dataset(url, "x", client)):
        with pytest.raises(DataError, match=r"not been imported to the end.*run the same"):
            read(str(out))
    with pytest.raises(FileNotFoundError):
        zarr.open_group(out, mode="r")
    seen: list[tuple[int, int]] = []
    after = fate()
    import_dataset(photos, out, client, chunk_images=CHUNK, progress=lambda *now: seen.append(now))
    assert sorted(before + after) == list(range(0, 30, CHUNK))
    assert seen[0] == (min(30, left * CHUNK), 30)
    assert seen[-1] == (30, 30)
    assert tree(out) == tree(tmp_path / "whole")


def test_a_record_that_was_half_written_is_no_obstacle(
    client: Client, photos: Path, tmp_path: Path, fate: Callable[..., list[int]]
) -> None:
    """As it is where a worker is killed in that very moment."""
    fate(2)
    with pytest.raises(RuntimeError, match="killed"):
        import_dataset(photos, tmp_path / "out", client, chunk_images=CHUNK)
    quiet(client)
    (tmp_path / "out" / "import" / "000000000004.json.0a1b.partial").write_text("[4,")
    fate()
    import_dataset(photos, tmp_path / "out", client, chunk_images=CHUNK)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(rd.open_dataset(tmp_path / "out").images, pixels_of(photos))


@pytest.mark.parametrize("name", ["labels", "zarr.json", "import", "import.json"])
def test_the_end_of_an_import_may_be_killed_too(
    client: Client,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Before labels, before what makes it a data set, and while it is tidied up."""
    import_dataset(photos, tmp_path / "whole", client, chunk_images=CHUNK)
    out, location = tmp_path / "out", type(importing.Location("x"))

    def dying(method: str) -> Callable[..., Any]:
        real = getattr(location, method)

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            if self.url == f"{out}/{name}" and (out / "images" / "c").exists():
                raise RuntimeError("killed")
            return real(self, *arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for method in ("create_array", "write_json", "remove"):
            patch.setattr(location, method, dying(method))
        with pytest.raises(RuntimeError, match="killed"):
            import_dataset(photos, out, client, chunk_images=CHUNK)
    with pytest.raises(DataError, match="not been imported to the end"):
        rd.open_dataset(out)
    import_dataset(photos, out, client, chunk_images=CHUNK)
    assert tree(out) == tree(tmp_path / "whole")


# what cannot be used ----------------------------------------------------------------------------

BAD = ["train/cat/02.png", "train/dog/03.png", "train/dog/19.png", "test/dog/09.png"]


@pytest.fixture
def spoiled(photos: Path, tmp_path: Path) -> Path:
    """The photos, of which four cannot be used; `clean` has the others only."""
    for path in photos.rglob("*.png"):
        name = str(path.relative_to(photos))
        if name not in BAD:
            (tmp_path / "clean" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "clean" / name).write_bytes(path.read_bytes())
    (photos / BAD[0]).write_bytes(b"no image")
    photo(photos / BAD[1], np.zeros((9, 6, 3), np.uint8))
    photo(photos / BAD[2], np.zeros((8, 6), np.uint8))
    (photos / BAD[3]).write_bytes((photos / BAD[3]).read_bytes()[:60])
    return photos


def bits(folder: Path) -> Files:
    """All files of an import but that with its attributes, which name the source."""
    return {name: content for name, content in tree(folder).items() if name != "zarr.json"}


def test_images_that_cannot_be_used_are_listed(
    client: Client, spoiled: Path, tmp_path: Path
) -> None:
    """With path, reason and remedy; all of them, and not one is left out."""
    with pytest.raises(DataError) as refusal:
        import_dataset(spoiled, tmp_path / "out", client, chunk_images=CHUNK)
    said = str(refusal.value)
    assert "4 of 30 images cannot be used" in said
    for name, reason in zip(BAD, ("no PNG", "9×6", "1 channels", "no image"), strict=True):
        assert any(f"{spoiled}/{name}" in line and reason in line for line in said.split("\n"))
    for remedy in ("--on-error skip", "--resize", "Mend them", str(tmp_path / "out")):
        assert remedy in said
    with pytest.raises(DataError, match="not been imported to the end"):
        rd.open_dataset(tmp_path / "out")


def test_images_that_cannot_be_used_are_left_out_on_request(
    client: Client, spoiled: Path, tmp_path: Path
) -> None:
    """They are counted, and the others are imported as if those were not there; the same where the
    import was refused before."""
    import_dataset(tmp_path / "clean", tmp_path / "expected", client, chunk_images=CHUNK)
    with pytest.raises(DataError):
        import_dataset(spoiled, tmp_path / "after", client, chunk_images=CHUNK)
    for name in ("at once", "after"):
        found = import_dataset(
            spoiled, tmp_path / name, client, chunk_images=CHUNK, on_error="skip"
        )
        assert found.splits == {"train": 17, "test": 9}
        assert [where for where, _ in found.skipped] == [f"{spoiled}/{bad}" for bad in BAD]
        assert bits(tmp_path / name) == bits(tmp_path / "expected")
        attributes = zarr.open_group(tmp_path / name, mode="r").attrs
        assert attributes["skipped"] == 4
        assert [tuple(entry) for entry in attributes["skipped_images"]] == list(found.skipped)
        assert attributes["splits"] == {"train": [0, 17], "test": [17, 26]}


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_values_that_are_not_finite_are_no_image(
    client: Client, tmp_path: Path, rng: np.random.Generator, kind: str
) -> None:
    """They are listed and left out as others are; also where the first image has them."""
    images = rng.random((20, 4, 3, 1)).astype(kind)
    images[0, 3, 2], images[7, 0, 0], images[8, 1, 1] = np.nan, np.inf, -np.inf
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(20) % 2)
    with pytest.raises(DataError, match="3 of 20 images cannot be used") as refusal:
        import_dataset(tmp_path / "a.npz", tmp_path / "out", client, chunk_images=CHUNK)
    names = [f"{tmp_path}/a.npz, train image {number}" for number in (0, 7, 8)]
    for name in names:
        assert f"{name}: it has values that are not finite" in str(refusal.value)
    found = import_dataset(
        tmp_path / "a.npz", tmp_path / "out", client, chunk_images=CHUNK, on_error="skip"
    )
    assert [name for name, _ in found.skipped] == names
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(
            rd.open_dataset(tmp_path / "out").images, np.delete(images, [0, 7, 8], axis=0)
        )
        with pytest.raises(DataError, match=r"image 0: it has values.*can leave such images out"):
            rd.open_dataset(tmp_path / "a.npz").images.compute()


@pytest.mark.parametrize("left", [9, 11, 13, 14])
def test_an_import_that_leaves_images_out_goes_on_too(
    client: Client, spoiled: Path, tmp_path: Path, fate: Callable[..., list[int]], left: int
) -> None:
    """Killed after all was decoded once, while rows move up; what has moved is not moved again."""
    fate()
    import_dataset(tmp_path / "clean", tmp_path / "expected", client, chunk_images=CHUNK)
    before = fate(left)
    with pytest.raises(RuntimeError, match="killed"):
        import_dataset(spoiled, tmp_path / "out", client, chunk_images=CHUNK, on_error="skip")
    quiet(client)
    after = fate()
    import_dataset(spoiled, tmp_path / "out", client, chunk_images=CHUNK, on_error="skip")
    assert len(before) == left
    assert len(after) == 8 + 7 - left  # 8 tasks find what is bad, 7 write the others
    assert bits(tmp_path / "out") == bits(tmp_path / "expected")


def test_mended_images_are_imported(client: Client, spoiled: Path, tmp_path: Path) -> None:
    """As the refusal says; also after they were left out in an import that was killed."""
    out = tmp_path / "out"
    with pytest.raises(DataError):
        import_dataset(spoiled, out, client, chunk_images=CHUNK)
    for number, name in enumerate(BAD):
        photo(spoiled / name, np.full((8, 6, 3), number, np.uint8))
    found = import_dataset(spoiled, out, client, chunk_images=CHUNK)
    assert found.splits == {"train": 20, "test": 10}
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(rd.open_dataset(out).images, pixels_of(spoiled))


def test_nothing_is_left_out_after_a_change_of_mind(
    client: Client, spoiled: Path, tmp_path: Path, fate: Callable[..., list[int]]
) -> None:
    """An import that was to leave images out, was killed, and goes on without being told to."""
    out = tmp_path / "out"
    fate(12)
    with pytest.raises(RuntimeError, match="killed"):
        import_dataset(spoiled, out, client, chunk_images=CHUNK, on_error="skip")
    quiet(client)
    fate()
    with pytest.raises(DataError, match="4 of 30 images cannot be used"):
        import_dataset(spoiled, out, client, chunk_images=CHUNK)
    for number, name in enumerate(BAD):
        photo(spoiled / name, np.full((8, 6, 3), number, np.uint8))
    import_dataset(spoiled, out, client, chunk_images=CHUNK)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(rd.open_dataset(out).images, pixels_of(spoiled))


def test_a_folder_without_a_good_image_is_refused(client: Client, tmp_path: Path) -> None:
    """Even where bad ones are left out."""
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / "bad" / name).parent.mkdir(parents=True)
        (tmp_path / "bad" / name).write_bytes(b"x")
    for how in ("error", "skip"):
        with pytest.raises(DataError, match=r"no image among the first that can be read.*1\.png"):
            import_dataset(tmp_path / "bad", tmp_path / "out", client, on_error=how)
    assert not (tmp_path / "out").exists()


# options, places and the command line -----------------------------------------------------------


def test_sizes_and_channels_are_made_equal_on_request(
    client: Client, spoiled: Path, tmp_path: Path
) -> None:
    """What is of another size or color is then no error; what is no image still is."""
    command = ("data", "import", spoiled, tmp_path / "out", "--resize", "4x6", "--channels", "gray")
    result = run(*command)
    assert result.exit_code == 2
    assert "2 of 30 images cannot be used" in result.output
    result = run(*command, "--on-error", "skip", "--json")
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout)
    assert outcome["image_shape"] == [4, 6, 1]
    assert outcome["splits"] == {"train": 19, "test": 9}
    assert [name for name, _ in outcome["skipped"]] == [
        f"{spoiled}/{BAD[0]}",
        f"{spoiled}/{BAD[3]}",
    ]
    with Image.open(spoiled / "train/cat/00.png") as image:
        expected = np.asarray(image.convert("L").resize((6, 4), Image.Resampling.BILINEAR))
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(rd.open_dataset(tmp_path / "out").images[0, ..., 0], expected)


def test_the_command_tells_what_it_did_and_what_next(
    client: Client, spoiled: Path, tmp_path: Path
) -> None:
    """And what it has left out."""
    result = run("data", "import", spoiled, tmp_path / "out", "--on-error", "skip")
    assert result.exit_code == 0, result.output
    for words in (
        *("17 to train, 9 to test", "8×6×3", "2 classes", "skipped   4", BAD[0]),
        f"next      rescnet data info {tmp_path / 'out'}",
    ):
        assert words in result.output


def test_files_that_are_passed_over_are_told(client: Client, photos: Path, tmp_path: Path) -> None:
    """With how many there are and one of them; all of them in JSON."""
    (photos / "train/cat/x.bmp").write_bytes(b"BM")
    result = run("data", "import", photos, tmp_path / "a")
    assert result.exit_code == 0, result.output
    said = "ignored   1 file that is no PNG, JPEG or WebP image, such as train/cat/x.bmp\n"
    assert said in result.output
    (photos / "test/dog/y.gif").write_bytes(b"GIF")
    result = run("data", "import", photos, tmp_path / "b")
    said = "ignored   2 files that are no PNG, JPEG or WebP images, such as test/dog/y.gif\n"
    assert said in result.output
    outcome = json.loads(run("data", "import", photos, tmp_path / "c", "--json").stdout)
    assert outcome["passed_over"] == ["test/dog/y.gif", "train/cat/x.bmp"]
    assert outcome["splits"] == {"train": 20, "test": 10}


@pytest.mark.parametrize("size", ["0", "x", "3x", "20000"])
def test_sizes_that_are_none_are_refused(
    client: Client, photos: Path, tmp_path: Path, size: str
) -> None:
    """With the flag and the value."""
    result = run("data", "import", photos, tmp_path / "out", "--resize", size)
    assert result.exit_code == 2
    assert size in result.output
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_overwritten(client: Client, photos: Path, tmp_path: Path) -> None:
    """A finished import, a run, or anything else; the unfinished import of something else, or with
    other options."""
    out = tmp_path / "out"
    import_dataset(photos, out, client)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    zarr.open_group(tmp_path / "foreign", mode="w").attrs["format"] = "another"
    finished = f"a finished import of {photos} with 30 images: use it, or choose another URL"
    for taken, what in (
        (out, finished),
        (tmp_path / "other", "something: choose another URL"),
        (tmp_path / "foreign", "something: choose another URL"),
    ):
        before = tree(taken)
        with pytest.raises(StoreError, match=f"{taken} already holds {what}$"):
            import_dataset(photos, taken, client)
        assert tree(taken) == before


def test_an_import_of_something_else_does_not_go_on(
    client: Client, spoiled: Path, tmp_path: Path
) -> None:
    """Other images, or other options; it is told in what they differ."""
    out = tmp_path / "out"
    with pytest.raises(DataError):
        import_dataset(spoiled, out, client, chunk_images=CHUNK)
    before = tree(out)
    clean, gray = tmp_path / "clean", {"resize": (4, 9), "channels": "gray"}
    for source, options, change in (
        (clean, {}, f"its source was {spoiled} and is {clean} now"),
        (spoiled, {"chunk_images": 5}, "chunk_images was 4 and is 5 now"),
        (spoiled, {"resize": (8, 6)}, "resize was none and is 8×6 now"),
        (spoiled, gray, "resize was none and is 4×9 now, and channels was none and is gray now"),
    ):
        told = f"was not finished, and {change}: finish it as it was begun, remove it, or choose"
        with pytest.raises(StoreError, match=told):
            import_dataset(source, out, client, **{"chunk_images": CHUNK} | options)
        assert tree(out) == before
    first = (spoiled / "train/cat/00.png").read_bytes()
    photo(spoiled / "train/cat/00.png", np.zeros((9, 6, 3), np.uint8))
    with pytest.raises(StoreError, match="the shape of its images was 8×6×3 and is 9×6×3 now:"):
        import_dataset(spoiled, out, client, chunk_images=CHUNK)
    (spoiled / "train/cat/00.png").write_bytes(first)
    photo(spoiled / "train/cat/98.png", np.zeros((8, 6, 3), np.uint8))
    with pytest.raises(StoreError, match="not finished, and its files have changed: finish it as"):
        import_dataset(spoiled, out, client, chunk_images=CHUNK)
    (spoiled / "train/cat/98.png").unlink()
    (out / "import.json").write_text("{}")
    with pytest.raises(StoreError, match="and it was begun by another version: finish it as"):
        import_dataset(spoiled, out, client, chunk_images=CHUNK)
    (out / "import.json").write_bytes(before["import.json"])
    (spoiled / "train/cat/notes.txt").write_text("which are passed over")
    found = import_dataset(spoiled, out, client, chunk_images=CHUNK, on_error="skip")
    assert found.passed_over == ("train/cat/notes.txt",)


def test_options_that_are_none_are_refused(client: Client, photos: Path, tmp_path: Path) -> None:
    """Before anything is written."""
    for options in ({"resize": (0, 4)}, {"resize": (20_000, 4)}, {"channels": "blue"}):
        with pytest.raises(SpecError, match=r"resize|channels"):
            import_dataset(photos, tmp_path / "out", client, **options)
    assert not (tmp_path / "out").exists()


def test_a_place_that_fails_in_passing_is_waited_for(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """An image that a server did not give at once is no bad image, and is not left out."""
    fs, good = fsspec.filesystem("memory"), rng.integers(0, 256, (3, 5, 5), np.uint8)
    for number, pixels in enumerate(good):
        photo(tmp_path / "a.png", pixels)
        fs.pipe_file(f"/test-passing/c{number % 2}/{number}.png", (tmp_path / "a.png").read_bytes())
    real, failures = type(fs).cat_file, [ConnectionResetError("reset")] * 3

    def failing(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("2.png") and failures:
            raise failures.pop()
        return real(self, path, *arguments, **options)

    monkeypatch.setattr(type(fs), "cat_file", failing)
    found = import_dataset("memory://test-passing", tmp_path / "out", client, on_error="skip")
    assert found.splits == {"train": 3}
    assert not failures


# looking at data sets ---------------------------------------------------------------------------


def test_info_tells_numbers_and_what_to_be_wary_of(
    client: Client, tmp_path: Path, rng: np.random.Generator
) -> None:
    """Splits, classes, chunks, bytes; copies within and between splits, imbalance, constant images;
    the same in JSON and in words, of the source and of its import."""
    source, out = tmp_path / "a", tmp_path / "out"
    images = rng.integers(0, 256, (40, 8, 8), np.uint8)
    images[7], images[31], images[32] = images[3], images[3], images[4]
    images[11] = 128
    for number, pixels in enumerate(images):
        split, label = "train" if number < 30 else "test", "dog" if number in (0, 30) else "cat"
        photo(source / split / label / f"{number:02}.png", pixels)
    import_dataset(source, out, client, chunk_images=16)
    found = json.loads(run("data", "info", out, "--json").stdout)
    assert found["images"] == 40
    assert found["image_shape"] == [8, 8, 1]
    assert found["dtype"] == "uint8"
    assert found["chunk_images"] == 16
    assert found["decoded_bytes"] == 40 * 64
    assert found["stored_bytes"] == sum(map(len, tree(out).values()))
    assert found["splits"] == {"train": 30, "test": 10}
    assert found["classes"] == {"cat": {"train": 29, "test": 9}, "dog": {"train": 1, "test": 1}}
    assert found["warnings"] == [
        "1 images of train are copies of others of train",
        "2 images of test are also in train (the first is image 30): accuracy on them says nothing",
        "train has 29 images of 'cat' and 1 of 'dog': more than 10 times as many",
        "1 images have one color only (the first is image 10)",
    ]
    assert json.loads(run("data", "info", source, "--json").stdout)["warnings"] == found["warnings"]
    words = run("data", "info", out).output
    for part in (*found["warnings"], "40 of 8×8×1, uint8", "of 16 images", "cat", "29", "MiB"):
        assert part in words


def test_info_tells_what_was_left_out(
    client: Client, spoiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many images, and name and reason of the first, of which so many are kept."""
    monkeypatch.setattr(importing, "MOST_NAMED", 3)
    import_dataset(spoiled, tmp_path / "out", client, on_error="skip")
    words = run("data", "info", tmp_path / "out").output
    assert "skipped   4 images, such as\n" in words
    assert f"          {spoiled}/{BAD[0]}: it is no PNG, JPEG or WebP image\n" in words
    found = json.loads(run("data", "info", tmp_path / "out", "--json").stdout)
    assert found["skipped"] == 4
    assert [name for name, _ in found["skipped_images"]] == [f"{spoiled}/{bad}" for bad in BAD[:3]]
    import_dataset(tmp_path / "clean", tmp_path / "clean.zarr", client)
    assert "skipped" not in run("data", "info", tmp_path / "clean.zarr").output


def test_info_has_nothing_to_say_against_good_images(client: Client, photos: Path) -> None:
    """No warning without a reason."""
    assert inspect_dataset(str(photos)).warnings == []


def test_info_of_images_without_classes_or_splits(tmp_path: Path, rng: Any) -> None:
    """A Zarr group that someone else has made."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array(
        "images", data=rng.integers(0, 9, (6, 4, 4, 1), np.uint8), chunks=(3, 4, 4, 1)
    )
    group.create_array("labels", data=np.array([5, 7, 7, 5, 7, 7]))
    found = inspect_dataset(tmp_path / "a.zarr")
    assert found.classes == {"5": {"all": 2}, "7": {"all": 4}}
    assert found.splits == {"all": 6}


def test_sheets_in_python_are_those_of_the_commands() -> None:
    """Ten images of each class, or images beside their copies; of a Dataset, too."""
    data = rd.open_dataset("digits").isel(image=slice(0, 300))
    side = 2 * 28 + 4
    assert rd.sheet(data, images=3).size == (120 + 3 * side + 4, 10 * side + 4)
    augment = rd.AugmentSpec(copies=2, shift=1)
    copies = rd.sheet(data, augment, images=4, seed=1)
    assert copies.size == (120 + 3 * side + 4, 4 * side + 4)
    assert copies != rd.sheet(data, augment, images=4)
    with pytest.raises(DataError, match="nothing to show: give copies"):
        rd.sheet(data, rd.AugmentSpec())
    with pytest.raises(DataError, match="images=0 shows nothing"):
        rd.sheet("digits", images=0)


def test_sheets_show_samples_and_copies(client: Client, photos: Path, tmp_path: Path) -> None:
    """PNG files: a row for each class with ten samples, and a row for each image with its copies;
    the first of them is the original."""
    result = run("data", "info", photos, "--sheet", tmp_path / "samples.png")
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "samples.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 10 * 48
        assert 2 * 64 <= sheet.height < 3 * 64 + 20
    sheet = tmp_path / "copies.png"
    options = ("--copies", 3, "--flip", "--shift", 1, "--images", 5, "-o", sheet)
    result = run("data", "preview", photos, *options)
    assert result.exit_code == 0, result.output
    pixels = np.asarray(Image.open(sheet))
    assert pixels.shape[0] > 5 * 64
    with Image.open(photos / "train/cat/00.png") as image:
        first = np.asarray(image)
    scale = 64 // 8
    left, top = 120, 4
    shown = pixels[top : top + 64 : scale, left : left + 6 * scale : scale]
    np.testing.assert_array_equal(shown, first)
    assert run("data", "preview", photos, "-o", sheet).exit_code == 2  # no copies to show
    missing = f"a.png cannot be written: {tmp_path / 'none'} does not exist. Create that folder"
    for command in (("preview", photos, *options[:-1]), ("info", photos, "--sheet")):
        result = run("data", *command, tmp_path / "none" / "a.png")
        assert result.exit_code == 2
        assert missing in result.output
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "pixels",
    [
        np.linspace(-1, 1, 4 * 8 * 8, dtype=np.float32).reshape(4, 8, 8, 1),
        np.arange(4 * 200 * 300, dtype=np.uint16).reshape(4, 200, 300, 1),
        np.zeros((4, 8, 8, 4), np.uint8),
        np.zeros((4, 8, 8, 7), np.int32),
    ],
    ids=["float", "large and 16 bits", "four channels", "seven channels"],
)
def test_sheets_show_pixels_of_any_kind(tmp_path: Path, pixels: Any) -> None:
    """Over their range, and large images small."""
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(4) % 2)
    result = run("data", "info", tmp_path / "a.npz", "--sheet", tmp_path / "a.png")
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "a.png") as sheet:
        assert sheet.width < 500


def test_names_are_listed() -> None:
    """All that are known, with where they come from and are kept."""
    words = run("data", "names").output
    assert all(name in words for name in ("digits", *DATASETS))
    assert "downloaded to" in words
    assert json.loads(run("data", "names", "--json").stdout).keys() == DATASETS.keys()


def test_what_is_no_data_set_is_named(client: Client, tmp_path: Path) -> None:
    """Without a traceback, with exit code 2, by all commands."""
    copies = ["--copies", 1, "--flip"]
    for command, options in (("import", [tmp_path / "out"]), ("info", []), ("preview", copies)):
        result = run("data", command, tmp_path / "none", *options)
        assert result.exit_code == 2, result.output
        assert str(tmp_path / "none") in result.output
        result = run("data", command, "cifar-10", *options)
        assert "Did you mean 'cifar10'?" in result.output


# training ---------------------------------------------------------------------------------------

SMALL = ("--preset", "digits", "--filters", 4, "--max-layers", 1, "--block", 14, "--stride", 14)


@pytest.fixture(scope="module")
def digit_store(tmp_path_factory: pytest.TempPathFactory, threads_cluster: Any) -> Path:
    """An import of a folder of digits: 200 to train, 40 to validate, 50 to test; by name."""
    folder = tmp_path_factory.mktemp("digits")
    names, (images, labels) = ["zero", "one", "two", "three", "four"], rd.load_digits()
    chosen = np.flatnonzero(labels < 5)
    first = 0
    for split, count in (("train", 200), ("val", 40), ("test", 50)):
        for number in chosen[first : first + count]:
            path = folder / "png" / split / names[labels[number]] / f"{number:05}.png"
            photo(path, images[number, ..., 0])
        first += count
    with Client(threads_cluster) as client:
        import_dataset(folder / "png", folder / "out", client, chunk_images=64)
    return folder / "out"


def test_networks_refer_to_imported_images(
    client: Client, digit_store: Path, tmp_path: Path
) -> None:
    """A run has no copy of them; it has the train split, and the val split to validate on. Test
    accuracy is that of the test split, and predictions have class names."""
    url = tmp_path / "run"
    result = run("train", digit_store, "--store", url, "--json", *SMALL)
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout)
    attributes = zarr.open_group(url, mode="r").attrs.asdict()
    assert attributes["images"] == {"url": str(digit_store), "path": "images", "start": 0}
    assert not (url / "data" / "images").exists()
    network = rd.load(url)
    assert network.classes_.tolist() == ["four", "one", "three", "two", "zero"]
    info = json.loads(run("info", url, "--json").stdout)
    assert info["images"] == 240
    with dask.config.set(scheduler="sync"):
        data = rd.open_dataset(digit_store).compute()
    names = np.take(data.class_names, data.labels)
    for split, told in (("train", "train"), ("val", "validation"), ("test", None)):
        rows = (data.split == split).to_numpy()
        accuracy = network.score(data.images.to_numpy()[rows], names[rows])
        assert accuracy == pytest.approx(outcome["layers"][0][told] if told else outcome["test"])
        of_split = run("evaluate", url, digit_store, "--split", split, "--json")
        assert json.loads(of_split.stdout)["accuracy"] == pytest.approx(accuracy)
        one_split = data.isel(image=rows).chunk()
        assert network.score(one_split) == pytest.approx(accuracy)
    result = run("predict", url, digit_store, "-o", tmp_path / "labels.csv")
    assert result.exit_code == 0, result.output
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    predicted = [row[-1] for row in rows[-50:]]
    assert set(predicted) <= set(network.classes_.tolist())
    assert len(rows) in (50, 51)


def test_labels_of_a_folder_of_images_are_predicted_by_file(
    client: Client, digit_store: Path, tmp_path: Path
) -> None:
    """They need no classes; with none, they are not trained on or imported."""
    url, folder = tmp_path / "run", tmp_path / "new"
    assert run("train", digit_store, "--store", url, *SMALL).exit_code == 0
    with dask.config.set(scheduler="sync"):
        images = rd.open_dataset(digit_store)["images"][:7, :, :, 0].to_numpy()
    for number, image in enumerate(images):
        photo(folder / f"{number}.png", image)
    result = run("predict", url, folder, "-o", tmp_path / "labels.csv")
    assert (result.exit_code, result.stderr) == (0, f"wrote 7 labels to {tmp_path}/labels.csv\n")
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [f"{number}.png" for number in range(7)]
    assert [row["label"] for row in rows] == rd.load(url).predict(images).tolist()
    for command in (["train", folder, "--preset", "digits"], ["data", "import", folder, "x.zarr"]):
        result = run(*command)
        assert result.exit_code == 2
        assert "has no" in result.output
        assert "labels" in result.output or "train" in result.output


def test_a_part_of_the_images_is_referred_to_as_well(
    client: Client, digit_store: Path, tmp_path: Path
) -> None:
    """With a share of the train split held out in place of the val split."""
    url = tmp_path / "run"
    result = run("train", digit_store, "--store", url, "--validation", 0.2, *SMALL)
    assert result.exit_code == 0, result.output
    assert "test" in result.output
    info = json.loads(run("info", url, "--json").stdout)
    assert info["images"] == 200
    assert not (url / "data" / "images").exists()


def test_estimators_take_the_splits_of_a_store(client: Client, digit_store: Path) -> None:
    """`fit` trains on the train split and validates on val, `score` and `predict` take test."""
    spec = rd.NetworkSpec.preset("digits").replace(filters=4, max_layers=1, block=14, stride=14)
    network = rd.ResCNetClassifier(spec).fit(str(digit_store))
    with dask.config.set(scheduler="sync"):
        data = rd.open_dataset(digit_store).compute()
        is_test = data.split == "test"
        predicted = np.asarray(network.predict(str(digit_store)))
        expected = network.predict(data.images[is_test].to_numpy())
    np.testing.assert_array_equal(predicted, expected)
    truth = np.take(data.class_names, data.labels[is_test])
    assert network.score(str(digit_store)) == pytest.approx(np.mean(predicted == truth))
