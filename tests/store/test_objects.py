"""Test that arrays are encoded as Zarr writes them."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from rescnet_dist.store.objects import encode_arrays

GROUP = "layers/0007"


@pytest.mark.parametrize("dtype", ["float32", ">f8", "float16", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (5, 7), (700, 1100)])
@pytest.mark.parametrize("known", [True, False], ids=["known codecs", "other codecs"])
def test_objects_are_those_of_zarr(
    dtype: str,
    shape: tuple[int, ...],
    known: bool,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The largest array has several chunks, of which the last are padded."""
    if not known:
        monkeypatch.setattr("rescnet_dist.store.objects._zstd_level", lambda metadata: None)
    values = np.asarray(10 * rng.normal(size=shape)).astype(dtype)
    dims, attributes = ("row", "column")[: len(shape)], {"crc32c": 7, "scale": 0.5}
    encoded: dict[str, zarr.abc.buffer.Buffer] = {}
    zarr.create_group(MemoryStore(encoded), path=GROUP, zarr_format=3)
    array = zarr.create_array(
        MemoryStore(encoded),
        name=f"{GROUP}/values",
        data=values,
        dimension_names=dims,
        attributes=attributes,
        config={"write_empty_chunks": True},
    )
    assert array.nchunks > 1 or shape != (700, 1100)
    expected = {key: value.to_bytes() for key, value in encoded.items() if "/" in key}
    assert encode_arrays(GROUP, {"values": (dims, values, attributes)}) == expected


def test_known_groups_are_left_out() -> None:
    """Only the objects of new groups are encoded."""
    arrays = {"x": (("row",), np.arange(3), {})}
    own = {f"{GROUP}/x/zarr.json", f"{GROUP}/x/c/0"}
    groups = {"layers/zarr.json", f"{GROUP}/zarr.json"}
    assert set(encode_arrays(GROUP, arrays)) == own | groups
    assert set(encode_arrays(GROUP, arrays, [GROUP])) == own | {f"{GROUP}/zarr.json"}
    assert set(encode_arrays(GROUP, arrays, [])) == own
