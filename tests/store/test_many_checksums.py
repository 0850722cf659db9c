"""Checksums of very many chunks: in a file next to the commit records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rescnet_dist import StoreError
from rescnet_dist.store import Checksums, RunStore
from rescnet_dist.store.run import MAX_RECORD_CHUNKS


def make_checksums(chunks: int) -> Checksums:
    """Return checksums of two arrays."""
    return Checksums({path: tuple(range(chunks)) for path in ("maps/0001", "scores/0001")})


@pytest.mark.parametrize("chunks", [MAX_RECORD_CHUNKS, MAX_RECORD_CHUNKS + 1])
def test_checksums_are_read_as_they_were_committed(tmp_path: Path, chunks: int) -> None:
    """A record is small whatever their number."""
    run, checksums = RunStore.create(tmp_path / "run", {}), make_checksums(chunks)
    stored = run.store_checksums(1, checksums)
    run.commit(1, {"checksums": stored.chunks})
    assert run.checksums(1) == {path: list(sums) for path, sums in checksums.chunks.items()}
    has_file = (tmp_path / "run/checksums").exists()
    assert has_file == (chunks > MAX_RECORD_CHUNKS)
    assert (len(json.dumps(stored.chunks)) < 1000) == has_file
    assert run.store_checksums(1, checksums) == stored  # by a task that is run again


def test_damaged_checksums_are_found(tmp_path: Path) -> None:
    """Missing or altered files raise an error with a remedy."""
    run, checksums = RunStore.create(tmp_path / "run", {}), make_checksums(MAX_RECORD_CHUNKS + 1)
    run.commit(1, {"checksums": run.store_checksums(1, checksums).chunks})
    (file,) = (tmp_path / "run/checksums").iterdir()
    path = f"checksums/{file.name}"
    for damaged in ([], [1, 2]):
        run.commit(2, {"checksums": {path: damaged}})
        with pytest.raises(StoreError, match=r"remove commits/0002\.json"):
            run.checksums(2)
    file.write_text(file.read_text().replace("17", "18", 1))
    with pytest.raises(StoreError, match=r"remove commits/0001\.json"):
        run.checksums(1)
    file.unlink()
    with pytest.raises(StoreError, match="missing or damaged"):
        run.checksums(1)
