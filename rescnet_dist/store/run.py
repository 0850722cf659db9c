"""The run store: what a training run keeps, where, and which of it counts.

A Zarr v3 group, readable with plain xarray and zarr:

    zarr.json            attributes: format, specs, plan, rows, classes, shapes, provenance
    data/                images (or a reference to them in the attributes), labels, train: (N, …)
    image_scale/         the normalization of the images
    layers/0001/ …       small fitted arrays of each layer
    maps/0001, scores/0001   maps of a layer and the scores that entered it: one row per image and
                         copy, in the order of `data.rows`
    commits/0000.json …  one record per finished step, written last: 0 is the survey of the data
    claims/000001.json … who may write to the run
    work/                features and tiles of the layer being grown, where they are too large for
                         memory; nothing there outlives the layer's commit
    result.json          how far the run went, how well it does and which depth was chosen
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import zarr

from rescnet_dist.errors import CorruptDataError, RescnetError, StoreError, StoreUnreachableError
from rescnet_dist.store.claim import check_unclaimed
from rescnet_dist.store.location import Array, Location
from rescnet_dist.store.retry import with_retries

RUN_FORMAT = "rescnet-run"
NETWORK_FORMAT = "rescnet-network"
FORMAT_VERSION = 4  # from 4 on, commits may be of maps that are not stored
OLDEST_RUN = 2  # that can be gone on with

# entries that the records of a run must have, and their kinds
COMMIT: dict[str, type] = {"step": int, "checksums": dict}
FIRST_COMMIT: dict[str, type] = {"counts": list}
RESULT: dict[str, type] = {"depth": int, "accuracies": list}
ACCURACY = {"layer", "train", "validation"}

IMAGE_DIMS = ("image", "y", "x", "channel")


def check_format(location: Location, *formats: str) -> dict[str, Any]:
    """The attributes of the store at `location`; an error if it is not of one of these formats."""
    attributes = location.attributes()
    found, version = attributes.get("format"), attributes.get("format_version")
    if found not in formats:
        takers = "`rescnet evaluate`, `rescnet predict` and `rescnet_dist.load` take it; "
        raise StoreError(
            f"{location.url} is not a {' or '.join(formats)} store (its format is {found!r}): "
            f"{takers if found == NETWORK_FORMAT else ''}check the URL"
        )
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise StoreError(
            f"{location.url} has format version {version}, and this release of rescnet_dist reads "
            f"versions up to {FORMAT_VERSION}: install a newer release"
        )
    if found == RUN_FORMAT and version < OLDEST_RUN:
        raise StoreError(
            f"{location.url} has format version {version}, which had no augmentation: this release "
            f"goes on with runs of version {OLDEST_RUN} and later; use the release that made it"
        )
    return attributes


@contextmanager
def translate_attribute_errors(location: Location) -> Iterator[None]:
    """Say so where attributes that are read in the body lack something or hold something odd."""
    try:
        yield
    except RescnetError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(
            f"the attributes of {location.url} are damaged ({type(error).__name__}: {error}): put "
            "back a copy of its zarr.json, or train again"
        ) from None


@dataclass(frozen=True, slots=True)
class RunStore:
    """A training run at a URL: its data, maps, scores and commit records.

    Once it is open, a store that fails in passing is waited for.
    """

    location: Location

    def __str__(self) -> str:
        return str(self.location)

    @classmethod
    def create(cls, url: str | os.PathLike[str], attributes: dict[str, Any]) -> RunStore:
        """Make a new run; a place that holds anything is refused."""
        run = cls(Location.of(url))
        run.check_free()
        run.initialize(attributes)
        return run

    def initialize(self, attributes: dict[str, Any]) -> None:
        """Write the attributes that make this place a run."""
        self.update_attributes(format=RUN_FORMAT, format_version=FORMAT_VERSION, **attributes)

    @classmethod
    def open(cls, url: str | os.PathLike[str]) -> RunStore:
        """An existing run; anything else, or a newer format, is refused."""
        run = cls(Location.of(url))
        check_format(run.location, RUN_FORMAT)
        return run

    def check_free(self) -> None:
        """Refuse a place that already holds something."""
        if not self.location.exists():
            self.location.check_bucket()
            return
        check_unclaimed(self.location)
        try:
            kind = self.location.attributes().get("format")
        except StoreError:
            kind = None
        what = "another run" if kind == RUN_FORMAT else "something that is not a run"
        raise StoreError(
            f"store {self.location.url} already holds {what}: choose another URL"
            + (", go on with it by resume, or remove it" if kind == RUN_FORMAT else "")
        )

    @property
    def url(self) -> str:
        """Where the run is."""
        return self.location.url

    def attributes(self) -> dict[str, Any]:
        """The run's attributes."""
        return with_retries(lambda: check_format(self.location, RUN_FORMAT), f"reading {self}")

    def update_attributes(self, **changes: Any) -> None:
        """Change some attributes."""
        with_retries(lambda: self.location.update_attributes(changes), f"attributes of {self}")

    # data ---------------------------------------------------------------------------------------

    def create_labels(self, count: int, block: int, *, groups: bool = False) -> None:
        """Make the empty arrays for the labels (N,) of the images and for which are trained on and,
        in the work area, for their groups."""
        for path, kind in (("data/labels", "int32"), ("data/train", "bool")):
            self._create(path, (count,), kind, block, ("image",), compress=True)
        if groups:
            self._create("work/groups", (count,), "int64", block, ("image",), compress=True)

    def create_images(self, shape: tuple[int, ...], dtype: Any, chunk: int) -> None:
        """Make the empty array for copies of the images (N, H, W, d)."""
        self._create("data/images", shape, dtype, chunk, IMAGE_DIMS, compress=True)

    def images(self) -> tuple[zarr.Array[Any], int]:
        """The array with the images as they were given, the run's own or that which it refers to,
        and the row of the first."""
        reference = self.attributes().get("images")
        if reference:
            source = Location(reference["url"])
            array = with_retries(lambda: source.open_array(reference["path"]), f"reading {source}")
            return array, reference.get("start", 0)
        return self._open("data/images"), 0

    def _create(self, path: str, *shape_and_more: Any, compress: bool) -> None:
        """Make an array of the run, in place of any."""
        create = partial(self.location.create_array, path, *shape_and_more, compress=compress)
        with_retries(create, f"{path} of {self}")

    def _open(self, path: str, *, write: bool = False) -> zarr.Array[Any]:
        """An array of the run."""
        return with_retries(
            lambda: self.location.open_array(path, write=write), f"{path} of {self}"
        )

    def data_array(self, name: str, *, write: bool = False) -> zarr.Array[Any]:
        """`images` (N, H, W, d), `labels` (N,) or `train` (N,) of the run."""
        return self._open(f"data/{name}", write=write)

    # maps and scores ----------------------------------------------------------------------------

    def create_layer(
        self,
        layer: int,
        maps: tuple[int, ...],
        scores: tuple[int, ...],
        chunk: int,
        *,
        dtype: str = "float32",
        compress: bool = False,
    ) -> None:
        """Make the empty maps (N, H, W, f), of a dtype and compressed or not, and scores (N, C) of
        a layer, in place of any."""
        self._create(
            maps_path(layer), maps, dtype, chunk, ("image", "y", "x", "filter"),
            compress=compress,
        )  # fmt: skip
        self._create(
            f"scores/{layer:04d}", scores, "float32", chunk, ("image", "class"), compress=False
        )

    def maps(self, layer: int, *, write: bool = False) -> zarr.Array[Any]:
        """Maps (N, H, W, f) of a layer."""
        return self._open(maps_path(layer), write=write)

    def scores(self, layer: int, *, write: bool = False) -> zarr.Array[Any]:
        """Scores (N, C) that entered a layer."""
        return self._open(f"scores/{layer:04d}", write=write)

    def remove_maps_except(self, *keep: int) -> None:
        """Remove the maps and scores of all layers but these."""
        kept = {f"{layer:04d}" for layer in keep}
        for kind in ("maps", "scores"):
            for name in with_retries((self.location / kind).names, f"reading {kind} of {self}"):
                if name.isdigit() and name not in kept:
                    with_retries((self.location / kind / name).remove, f"removing {kind} of {self}")

    def has_maps(self, layer: int) -> bool:
        """Whether there are arrays, whatever is in them, for the maps and scores of a layer."""
        try:
            self.maps(layer), self.scores(layer)
        except StoreUnreachableError:
            raise
        except StoreError:
            return False
        return True

    # the work area ------------------------------------------------------------------------------

    def create_work(self, images: int, features: int, chunk: int, tile: int) -> None:
        """Make the empty arrays for features (N, D), and for their scatter matrix and its factor
        (D, D) in tiles, in place of any."""
        self._create(
            "work/features", (images, features), "float32", (chunk, tile), ("image", "feature"),
            compress=False,
        )  # fmt: skip
        for name in ("scatter", "factor"):
            self._create(
                f"work/{name}", (features, features), "float64", (tile, tile),
                ("feature", "other_feature"), compress=False,
            )  # fmt: skip

    def work(self, name: str, *, write: bool = False) -> zarr.Array[Any]:
        """`features`, `scatter` or `factor` of the layer being grown, or, before it, `groups`."""
        return self._open(f"work/{name}", write=write)

    def remove_work(self) -> None:
        """Remove the work area, if there is one."""
        with_retries((self.location / "work").remove, f"removing the work area of {self}")

    # commits ------------------------------------------------------------------------------------

    def commit(self, step: int, record: dict[str, Any]) -> None:
        """Write the record that makes a step count."""
        target = self.location / f"commits/{step:04d}.json"
        with_retries(lambda: target.write_json({"step": step, **record}), str(target))

    def commits(self, known: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """The records of the steps 0, 1, … that count: up to the first one missing. Those that are
        known are not read again, as long as the last of them is what it was."""
        return with_retries(lambda: self._commits(known), f"reading the commits of {self}")

    def _commits(self, known: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        names = (self.location / "commits").names()
        # the last one is read again, as another run may have been begun at this place since
        records = list(known[:-1]) if f"{len(known) - 1:04d}.json" in names else []
        for name in names:
            if name != f"{len(records):04d}.json":
                continue
            kinds = COMMIT if records else COMMIT | FIRST_COMMIT
            records.append(_checked(self.location / "commits" / name, kinds) or {})
            if len(records) == len(known) and records[-1] != known[-1]:
                return self._commits(())
        return records

    def last_commit(self) -> dict[str, Any] | None:
        """The record of the last step that counts, without those before it."""
        names = with_retries((self.location / "commits").names, f"reading the commits of {self}")
        step = 0
        while f"{step:04d}.json" in names:
            step += 1
        source = self.location / f"commits/{step - 1:04d}.json"
        return with_retries(lambda: _checked(source, COMMIT), f"reading {source}") if step else None

    def commits_from(self, step: int) -> list[str]:
        """The names of the records of this step and later ones."""
        names = with_retries((self.location / "commits").names, f"reading the commits of {self}")
        return [name for name in names if name >= f"{step:04d}.json"]

    def remove_commits(self, names: list[str]) -> None:
        """Remove records, the last one first, so that no gap is left if this is cut short."""
        for name in sorted(names, reverse=True):
            with_retries((self.location / "commits" / name).remove, f"removing {name} of {self}")

    def checksums(self, step: int) -> dict[str, list[int]]:
        """The checksums that were committed with a step: those of each array's chunks, by path."""
        source = self.location / f"commits/{step:04d}.json"
        record = with_retries(lambda: _checked(source, COMMIT), f"reading {source}")
        return dict(record["checksums"]) if record else {}

    def write_result(self, record: dict[str, Any]) -> None:
        """Write how the run ended."""
        target = self.location / "result.json"
        with_retries(lambda: target.write_json(record), str(target))

    def result(self) -> dict[str, Any] | None:
        """How the run ended, if it has."""
        source = self.location / "result.json"
        return with_retries(lambda: _checked(source, RESULT), f"reading {source}")


def maps_path(layer: int) -> str:
    """Where the maps of a layer are in their run, and what their checksums go by."""
    return f"maps/{layer:04d}"


def has_saved_maps(step: int, record: dict[str, Any]) -> bool:
    """Whether the maps of a layer were stored with its commit, or only kept in memory."""
    return maps_path(step) in record["checksums"]


def last_saved(commits: Sequence[dict[str, Any]]) -> int:
    """The last layer whose maps were stored with its commit; 0 where there is none."""
    return max((n for n, record in enumerate(commits) if has_saved_maps(n, record)), default=0)


def _checked(location: Location, kinds: dict[str, type]) -> dict[str, Any] | None:
    """The JSON record at a place, None where there is none; refused if it lacks any of the entries
    of these kinds."""
    record = location.read_json()
    if record is None:
        return None
    right = isinstance(record, dict) and all(
        isinstance(record.get(name), kind) for name, kind in kinds.items()
    )
    if not right or not _whole(record):
        raise StoreError(
            f"{location.url} is damaged: it should have the entries {', '.join(kinds)}; remove it, "
            "then resume the run, which makes it again"
        )
    return dict(record)


def _whole(record: dict[str, Any]) -> bool:
    """Whether what there is of accuracies, checksums and counts in a record is of its form."""
    accuracies = [record.get("accuracy"), *record.get("accuracies", ())]
    counts = record.get("counts", [])
    lists = [*record.get("checksums", {}).values(), *counts]
    return (
        all(a is None or (isinstance(a, dict) and a.keys() == ACCURACY) for a in accuracies)
        and all(isinstance(n, list) and all(isinstance(v, int) for v in n) for n in lists)
        and len({len(row) for row in counts}) <= 1
    )


def write_region(array: zarr.Array[Any], start: int, values: Array) -> None:
    """Write whole chunks of rows; a region that cuts a chunk is refused, as writing it from two
    tasks would corrupt it silently."""
    write_block(array, (start,), values)


def write_block(array: zarr.Array[Any], starts: tuple[int, ...], values: Array) -> None:
    """Write whole chunks from the given first row, column, …; refused like `write_region`."""
    block = tuple(
        slice(start, start + length) for start, length in zip(starts, values.shape, strict=False)
    )
    for part, chunk, length in zip(block, array.chunks, array.shape, strict=False):
        if part.start % chunk or (part.stop % chunk and part.stop != length):
            raise StoreError(
                f"rows {part.start} to {part.stop} of {array.path} cut its chunks of {chunk} rows: "
                "write whole chunks"
            )
    array[block] = values
