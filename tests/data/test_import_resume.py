"""Interrupted imports are resumed with the same result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from distributed import Client
from import_helpers import (
    BAD_IMAGES,
    CHUNK,
    read_arrays,
    read_pixels,
    read_tree,
    save_image,
    wait_until_idle,
)

import rescnet_dist as rd
from rescnet_dist.data import importing
from rescnet_dist.data.importing import import_dataset
from rescnet_dist.data.inspect import inspect_dataset
from rescnet_dist.errors import DataError, StoreError, StoreReadError


@pytest.mark.parametrize("limit", [0, 1, 3, 7])
def test_resume_killed_import(
    client: Client, photos: Path, tmp_path: Path, limit_tasks: Callable[..., list[int]], limit: int
) -> None:
    """Finished tasks are not repeated, and the result has the same bits.

    Until it is complete, readers get an error, and other programs find nothing.
    """
    limit_tasks()
    import_dataset(photos, tmp_path / "whole", client, chunk_images=CHUNK)
    out, before = tmp_path / "out", limit_tasks(limit)
    with pytest.raises(RuntimeError, match="killed"):
        import_dataset(photos, out, client, chunk_images=CHUNK)
    wait_until_idle(client)
    assert len(before) == limit
    for read in (rd.open_dataset, inspect_dataset, lambda url: import_dataset(url, "x", client)):
        with pytest.raises(DataError, match=r"is an unfinished import\. Run the same"):
            read(str(out))
    with pytest.raises(FileNotFoundError):
        zarr.open_group(out, mode="r")
    seen: list[tuple[int, int]] = []
    after = limit_tasks()
    import_dataset(photos, out, client, chunk_images=CHUNK, progress=lambda *now: seen.append(now))
    assert sorted(before + after) == list(range(0, 30, CHUNK))
    assert seen[0] == (min(30, limit * CHUNK), 30)
    assert seen[-1] == (30, 30)
    assert read_tree(out) == read_tree(tmp_path / "whole")


def test_resume_with_partial_record(
    client: Client, photos: Path, tmp_path: Path, limit_tasks: Callable[..., list[int]]
) -> None:
    """As left by a worker that was killed while it wrote the record."""
    limit_tasks(2)
    with pytest.raises(RuntimeError, match="killed"):
        import_dataset(photos, tmp_path / "out", client, chunk_images=CHUNK)
    wait_until_idle(client)
    (tmp_path / "out" / "import" / "000000000004.json.0a1b.partial").write_text("[4,")
    limit_tasks()
    import_dataset(photos, tmp_path / "out", client, chunk_images=CHUNK)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(rd.open_dataset(tmp_path / "out").images, read_pixels(photos))


def test_resume_with_files_that_no_import_writes(
    client: Client, photos: Path, tmp_path: Path, limit_tasks: Callable[..., list[int]]
) -> None:
    """A file among the records of tasks is ignored; a damaged list of images is an error."""
    out = tmp_path / "out"
    limit_tasks(2)
    with pytest.raises(RuntimeError, match="killed"):
        import_dataset(photos, out, client, chunk_images=CHUNK)
    wait_until_idle(client)
    limit_tasks()
    (out / "import" / "notes.json").write_text("[]")
    (out / "import-skipped.json").write_text('[[0, "a.png"]]')
    with pytest.raises(StoreReadError, match=r"import-skipped\.json is damaged \(the list\[0\] is"):
        import_dataset(photos, out, client, chunk_images=CHUNK)
    (out / "import-skipped.json").unlink()
    import_dataset(photos, out, client, chunk_images=CHUNK)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(rd.open_dataset(out).images, read_pixels(photos))


@pytest.mark.parametrize("name", ["labels", "zarr.json", "import", "import.json"])
def test_resume_import_killed_at_its_end(
    client: Client,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Before labels, before the metadata of the group, and during the cleanup."""
    import_dataset(photos, tmp_path / "whole", client, chunk_images=CHUNK)
    out, location = tmp_path / "out", type(importing.Location("x"))

    def fail_at_name(method: str) -> Callable[..., Any]:
        original = getattr(location, method)

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            if self.url == f"{out}/{name}" and (out / "images" / "c").exists():
                raise RuntimeError("killed")
            return original(self, *arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for method in ("create_array", "write_json", "remove"):
            patch.setattr(location, method, fail_at_name(method))
        with pytest.raises(RuntimeError, match="killed"):
            import_dataset(photos, out, client, chunk_images=CHUNK)
    with pytest.raises(DataError, match="is an unfinished import"):
        rd.open_dataset(out)
    import_dataset(photos, out, client, chunk_images=CHUNK)
    assert read_tree(out) == read_tree(tmp_path / "whole")


@pytest.mark.parametrize("limit", [9, 11, 13, 14])
def test_resume_import_with_skipped_images(
    client: Client,
    bad_photos: Path,
    tmp_path: Path,
    limit_tasks: Callable[..., list[int]],
    limit: int,
) -> None:
    """Killed while rows move up; rows that have moved are not written again."""
    limit_tasks()
    import_dataset(tmp_path / "clean", tmp_path / "expected", client, chunk_images=CHUNK)
    before = limit_tasks(limit)
    with pytest.raises(RuntimeError, match="killed"):
        import_dataset(bad_photos, tmp_path / "out", client, chunk_images=CHUNK, on_error="skip")
    wait_until_idle(client)
    after = limit_tasks()
    import_dataset(bad_photos, tmp_path / "out", client, chunk_images=CHUNK, on_error="skip")
    assert len(before) == limit
    assert len(after) == 8 + 7 - limit  # 8 tasks find bad images, 7 write the others
    assert read_arrays(tmp_path / "out") == read_arrays(tmp_path / "expected")


def test_resume_with_on_error_changed(
    client: Client, bad_photos: Path, tmp_path: Path, limit_tasks: Callable[..., list[int]]
) -> None:
    """An import with `on_error="skip"` that was killed is resumed without it."""
    out = tmp_path / "out"
    limit_tasks(12)
    with pytest.raises(RuntimeError, match="killed"):
        import_dataset(bad_photos, out, client, chunk_images=CHUNK, on_error="skip")
    wait_until_idle(client)
    limit_tasks()
    with pytest.raises(DataError, match="4 of 30 images cannot be used"):
        import_dataset(bad_photos, out, client, chunk_images=CHUNK)
    for number, name in enumerate(BAD_IMAGES):
        save_image(bad_photos / name, np.full((8, 6, 3), number, np.uint8))
    import_dataset(bad_photos, out, client, chunk_images=CHUNK)
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(rd.open_dataset(out).images, read_pixels(bad_photos))


def test_resume_with_other_source_or_options(
    client: Client, bad_photos: Path, tmp_path: Path
) -> None:
    """The error names the differences."""
    out = tmp_path / "out"
    with pytest.raises(DataError):
        import_dataset(bad_photos, out, client, chunk_images=CHUNK)
    before = read_tree(out)
    clean, gray = tmp_path / "clean", {"resize": (4, 9), "channels": "gray"}
    for source, options, change in (
        (clean, {}, f"its source was {bad_photos} and is {clean} now"),
        (bad_photos, {"chunk_images": 5}, "chunk_images was 4 and is 5 now"),
        (bad_photos, {"resize": (8, 6)}, "resize was none and is 8×6 now"),
        (bad_photos, gray, "resize was none and is 4×9 now, and channels was none and is gray now"),
    ):
        reason = (
            rf"unfinished import, and {change}\. Finish it with its original options, remove it, or"
        )
        with pytest.raises(StoreError, match=reason):
            import_dataset(source, out, client, **{"chunk_images": CHUNK} | options)
        assert read_tree(out) == before
    first = (bad_photos / "train/cat/00.png").read_bytes()
    save_image(bad_photos / "train/cat/00.png", np.zeros((9, 6, 3), np.uint8))
    with pytest.raises(StoreError, match=r"the shape of its images was 8×6×3 and is 9×6×3 now\."):
        import_dataset(bad_photos, out, client, chunk_images=CHUNK)
    (bad_photos / "train/cat/00.png").write_bytes(first)
    save_image(bad_photos / "train/cat/98.png", np.zeros((8, 6, 3), np.uint8))
    with pytest.raises(
        StoreError, match=r"unfinished import, and its files have changed\. Finish it"
    ):
        import_dataset(bad_photos, out, client, chunk_images=CHUNK)
    (bad_photos / "train/cat/98.png").unlink()
    (out / "import.json").write_text("{}")
    with pytest.raises(StoreError, match=r"and it was started by another version\. Finish it"):
        import_dataset(bad_photos, out, client, chunk_images=CHUNK)
    (out / "import.json").write_bytes(before["import.json"])
    (bad_photos / "train/cat/notes.txt").write_text("which are ignored")
    result = import_dataset(bad_photos, out, client, chunk_images=CHUNK, on_error="skip")
    assert result.passed_over == ("train/cat/notes.txt",)
