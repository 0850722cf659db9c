"""The run store: what a training run keeps, where, and which of it counts.

A Zarr v3 group, readable with plain xarray and zarr:

    zarr.json            attributes: format, specs, plan, classes, shapes, provenance
    data/                images (or a reference to them in the attributes), labels, train
    image_scale/         the normalisation of the images
    layers/0001/ …       small fitted arrays of each layer
    maps/0001, scores/0001   maps of a layer and the scores that entered it
    commits/0000.json …  one record per finished step, written last: 0 is the survey of the data
    result.json          how far the run went, how well it does and which depth was chosen
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import zarr

from rescnet_dist.errors import StoreError
from rescnet_dist.store.location import Array, Location

RUN_FORMAT = "rescnet-run"
NETWORK_FORMAT = "rescnet-network"
FORMAT_VERSION = 1

IMAGE_DIMS = ("image", "y", "x", "channel")


def check_format(place: Location, *formats: str) -> dict[str, Any]:
    """The attributes of the store at `place`; an error if it is not of one of these formats."""
    attributes = place.attributes()
    found, version = attributes.get("format"), attributes.get("format_version")
    if found not in formats:
        raise StoreError(
            f"{place.url} is not a {' or '.join(formats)} store (its format is {found!r}): "
            "check the URL"
        )
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise StoreError(
            f"{place.url} has format version {version}, and this release of rescnet_dist reads "
            f"versions up to {FORMAT_VERSION}: install a newer release"
        )
    return attributes


@dataclass(frozen=True, slots=True)
class RunStore:
    """A training run at a URL: its data, maps, scores and commit records."""

    place: Location

    @classmethod
    def create(cls, url: str | os.PathLike[str], attributes: dict[str, Any]) -> RunStore:
        """Make a new run; a place that holds anything is refused."""
        run = cls(Location.of(url))
        run.check_free()
        run.place.update_attributes(
            {"format": RUN_FORMAT, "format_version": FORMAT_VERSION, **attributes}
        )
        return run

    @classmethod
    def open(cls, url: str | os.PathLike[str]) -> RunStore:
        """An existing run; anything else, or a newer format, is refused."""
        run = cls(Location.of(url))
        check_format(run.place, RUN_FORMAT)
        return run

    def check_free(self) -> None:
        """Refuse a place that already holds something."""
        if not self.place.exists():
            return
        try:
            kind = self.place.attributes().get("format")
        except StoreError:
            kind = None
        what = "another run" if kind == RUN_FORMAT else "something that is not a run"
        raise StoreError(
            f"store {self.place.url} already holds {what}: choose another URL"
            + (", go on with it by resume, or remove it" if kind == RUN_FORMAT else "")
        )

    @property
    def url(self) -> str:
        """Where the run is."""
        return self.place.url

    def attributes(self) -> dict[str, Any]:
        """The run's attributes."""
        return check_format(self.place, RUN_FORMAT)

    def update_attributes(self, **changes: Any) -> None:
        """Change some attributes."""
        self.place.update_attributes(changes)

    # data ---------------------------------------------------------------------------------------

    def create_data(
        self, count: int, image_shape: tuple[int, int, int], dtype: Any, chunk: int, *, images: bool
    ) -> None:
        """Make the empty arrays of the data; without `images` where they are only referred to."""
        if images:
            shape = (count, *image_shape)
            self.place.create_array("data/images", shape, dtype, chunk, IMAGE_DIMS, compress=True)
        for name, kind in (("labels", "int32"), ("train", "bool")):
            self.place.create_array(
                f"data/{name}", (count,), kind, chunk, ("image",), compress=True
            )

    def images(self) -> zarr.Array[Any]:
        """Images (N, H, W, d) as they were given; of a reference, its array."""
        reference = self.attributes().get("images")
        if reference:
            return Location(reference["url"]).open_array(reference["path"])
        return self.place.open_array("data/images")

    def data_array(self, name: str, *, write: bool = False) -> zarr.Array[Any]:
        """`images`, `labels` (N,) or `train` (N,) of the run."""
        return self.place.open_array(f"data/{name}", write=write)

    # maps and scores ----------------------------------------------------------------------------

    def create_layer(
        self, layer: int, maps: tuple[int, ...], scores: tuple[int, ...], chunk: int
    ) -> None:
        """Make the empty maps (N, H, W, f) and scores (N, C) of a layer, in place of any."""
        self.place.create_array(
            f"maps/{layer:04d}", maps, "float32", chunk, ("image", "y", "x", "filter"),
            compress=False,
        )  # fmt: skip
        self.place.create_array(
            f"scores/{layer:04d}", scores, "float32", chunk, ("image", "class"), compress=False
        )

    def maps(self, layer: int, *, write: bool = False) -> zarr.Array[Any]:
        """Maps (N, H, W, f) of a layer."""
        return self.place.open_array(f"maps/{layer:04d}", write=write)

    def scores(self, layer: int, *, write: bool = False) -> zarr.Array[Any]:
        """Scores (N, C) that entered a layer."""
        return self.place.open_array(f"scores/{layer:04d}", write=write)

    def remove_maps_but(self, *keep: int) -> None:
        """Remove the maps and scores of all layers but these."""
        kept = {f"{layer:04d}" for layer in keep}
        for kind in ("maps", "scores"):
            for name in (self.place / kind).names():
                if name.isdigit() and name not in kept:
                    (self.place / kind / name).remove()

    # commits ------------------------------------------------------------------------------------

    def commit(self, step: int, record: dict[str, Any]) -> None:
        """Write the record that makes a step count."""
        (self.place / f"commits/{step:04d}.json").write_json({"step": step, **record})

    def commits(self) -> list[dict[str, Any]]:
        """The records of the steps 0, 1, … that count: up to the first one missing."""
        records: list[dict[str, Any]] = []
        for name in (self.place / "commits").names():
            if name != f"{len(records):04d}.json":
                continue
            record = (self.place / "commits" / name).read_json()
            records.append(record)
        return records

    def checksums(self, step: int) -> dict[str, list[int]]:
        """The checksums that were committed with a step: those of each array's chunks, by path."""
        record = (self.place / f"commits/{step:04d}.json").read_json()
        return dict(record["checksums"]) if record else {}

    def write_result(self, record: dict[str, Any]) -> None:
        """Write how the run ended."""
        (self.place / "result.json").write_json(record)

    def result(self) -> dict[str, Any] | None:
        """How the run ended, if it has."""
        record = (self.place / "result.json").read_json()
        return record if record is None else dict(record)


def write_region(array: zarr.Array[Any], start: int, values: Array) -> None:
    """Write whole chunks of rows; a region that cuts a chunk is refused, as writing it from two
    tasks would corrupt it silently."""
    chunk, stop = array.chunks[0], start + len(values)
    if start % chunk or (stop % chunk and stop != array.shape[0]):
        raise StoreError(
            f"rows {start} to {stop} of {array.path} cut its chunks of {chunk} rows: "
            "write whole chunks"
        )
    array[start:stop] = values
