"""The run store: the data, maps, scores, layers and commit records of a training run.

A Zarr v3 group, readable with plain xarray and zarr:

    zarr.json            attributes: format, specs, plan, rows, classes, shapes, provenance
    data/                images (or a reference to them in the attributes), labels, train: (N, …)
    image_scale/         the normalization of the images
    layers/0001/ …       small fitted arrays of each layer
    maps/0001, scores/0001   maps of a layer and the scores that entered it: one row per image and
                         copy, in the order of `data.rows`
    commits/0000.json …  one record per finished step, written last: 0 is the survey of the data
    claims/000001.json … the driver that may write to the run
    work/                features and tiles of the layer being fitted, if they are too large for
                         memory; removed when the layer is committed
    result.json          the accuracies of all layers, and the chosen depth
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
FORMAT_VERSION = 4  # since version 4, the maps of a commit may not be stored
OLDEST_RUN_VERSION = 2  # that can be resumed

# The entries that the records of a run must have, and their types.
COMMIT_TYPES: dict[str, type] = {"step": int, "checksums": dict}
FIRST_COMMIT_TYPES: dict[str, type] = {"counts": list}
RESULT_TYPES: dict[str, type] = {"depth": int, "accuracies": list}
ACCURACY_FIELDS = {"layer", "train", "validation"}

IMAGE_DIMS = ("image", "y", "x", "channel")


def check_format(location: Location, *formats: str) -> dict[str, Any]:
    """Return the attributes of the store at `location`; raise StoreError if of another format."""
    attributes = location.attributes()
    found, version = attributes.get("format"), attributes.get("format_version")
    if found not in formats:
        usable_by = "`rescnet evaluate`, `rescnet predict` and `rescnet_dist.load` accept it. "
        raise StoreError(
            f"{location.url} is not a {' or '.join(formats)} store (its format is {found!r}). "
            f"{usable_by if found == NETWORK_FORMAT else ''}Check the URL."
        )
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise StoreError(
            f"{location.url} has format version {version}. This release of rescnet_dist reads "
            f"versions up to {FORMAT_VERSION}; install a newer release."
        )
    if found == RUN_FORMAT and version < OLDEST_RUN_VERSION:
        raise StoreError(
            f"{location.url} has format version {version}, which had no augmentation. This release "
            f"resumes runs of version {OLDEST_RUN_VERSION} and later; use the release that made it."
        )
    return attributes


@contextmanager
def translate_attribute_errors(location: Location) -> Iterator[None]:
    """Raise CorruptDataError if the body finds missing or invalid attributes of a store."""
    try:
        yield
    except RescnetError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(
            f"The attributes of {location.url} are damaged ({type(error).__name__}: {error}). "
            "Restore a copy of its zarr.json, or train again."
        ) from None


@dataclass(frozen=True, slots=True)
class RunStore:
    """A training run at a URL: its data, maps, scores and commit records.

    Once it is open, transient errors of the store are retried.
    """

    location: Location

    def __str__(self) -> str:
        return str(self.location)

    @classmethod
    def create(cls, url: str | os.PathLike[str], attributes: dict[str, Any]) -> RunStore:
        """Create a new run; raise StoreError if the location is not empty."""
        run = cls(Location.of(url))
        run.check_free()
        run.initialize(attributes)
        return run

    def initialize(self, attributes: dict[str, Any]) -> None:
        """Write the attributes that mark this location as a run."""
        self.update_attributes(format=RUN_FORMAT, format_version=FORMAT_VERSION, **attributes)

    @classmethod
    def open(cls, url: str | os.PathLike[str]) -> RunStore:
        """Open an existing run; raise StoreError if it is none, or of an unsupported version."""
        run = cls(Location.of(url))
        check_format(run.location, RUN_FORMAT)
        return run

    def check_free(self) -> None:
        """Raise StoreError if the location already holds something."""
        if not self.location.exists():
            self.location.check_bucket()
            return
        check_unclaimed(self.location)
        try:
            kind = self.location.attributes().get("format")
        except StoreUnreachableError:
            raise
        except StoreError:
            kind = None
        is_run = kind == RUN_FORMAT
        content = "another run" if is_run else "something that is not a run"
        remedies = ", resume that run, or remove it" if is_run else ""
        raise StoreError(
            f"Store {self.location.url} already holds {content}. Choose another URL{remedies}."
        )

    @property
    def url(self) -> str:
        """The URL of the run."""
        return self.location.url

    def attributes(self) -> dict[str, Any]:
        """Read the attributes of the run."""
        return with_retries(lambda: check_format(self.location, RUN_FORMAT), f"reading {self}")

    def update_attributes(self, **changes: Any) -> None:
        """Change some attributes of the run."""
        with_retries(lambda: self.location.update_attributes(changes), f"attributes of {self}")

    # data ---------------------------------------------------------------------------------------

    def create_labels(self, count: int, block: int, *, groups: bool = False) -> None:
        """Create the empty arrays of labels (N,) and of the training mask (N,).

        With `groups`, also create the array of groups (N,) in the work area.
        """
        for path, dtype in (("data/labels", "int32"), ("data/train", "bool")):
            self._create(path, (count,), dtype, block, ("image",), compress=True)
        if groups:
            self._create("work/groups", (count,), "int64", block, ("image",), compress=True)

    def create_images(self, shape: tuple[int, ...], dtype: Any, chunk: int) -> None:
        """Create the empty array for a copy of the images (N, H, W, d)."""
        self._create("data/images", shape, dtype, chunk, IMAGE_DIMS, compress=True)

    def images(self) -> tuple[zarr.Array[Any], int]:
        """Return the array of the original images and the row of the first image.

        The array is in the run itself, or is the one that the run refers to.
        """
        reference = self.attributes().get("images")
        if reference:
            source = Location(reference["url"])
            array = with_retries(lambda: source.open_array(reference["path"]), f"reading {source}")
            return array, reference.get("start", 0)
        return self._open("data/images"), 0

    def _create(self, path: str, *arguments: Any, compress: bool) -> None:
        """Create an array of the run, replacing any; see `Location.create_array`."""
        create = partial(self.location.create_array, path, *arguments, compress=compress)
        with_retries(create, f"{path} of {self}")

    def _open(self, path: str, *, write: bool = False) -> zarr.Array[Any]:
        """Open an array of the run."""
        return with_retries(
            lambda: self.location.open_array(path, write=write), f"{path} of {self}"
        )

    def data_array(self, name: str, *, write: bool = False) -> zarr.Array[Any]:
        """Open `images` (N, H, W, d), `labels` (N,) or `train` (N,) of the run."""
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
        """Create the empty maps (N, H, W, f) and scores (N, C) of a layer, replacing any.

        `dtype` and `compress` are those of the maps.
        """
        self._create(
            maps_path(layer), maps, dtype, chunk, ("image", "y", "x", "filter"), compress=compress
        )
        self._create(
            f"scores/{layer:04d}", scores, "float32", chunk, ("image", "class"), compress=False
        )

    def maps(self, layer: int, *, write: bool = False) -> zarr.Array[Any]:
        """Open the maps (N, H, W, f) of a layer."""
        return self._open(maps_path(layer), write=write)

    def scores(self, layer: int, *, write: bool = False) -> zarr.Array[Any]:
        """Open the scores (N, C) that are the input of a layer."""
        return self._open(f"scores/{layer:04d}", write=write)

    def remove_maps_except(self, *keep: int) -> None:
        """Remove the maps and scores of all layers except the given ones."""
        kept_names = {f"{layer:04d}" for layer in keep}
        for kind in ("maps", "scores"):
            for name in with_retries((self.location / kind).names, f"reading {kind} of {self}"):
                if name.isdigit() and name not in kept_names:
                    with_retries((self.location / kind / name).remove, f"removing {kind} of {self}")

    def has_maps(self, layer: int) -> bool:
        """Return whether the arrays of maps and scores of a layer exist, whatever they contain."""
        try:
            self.maps(layer), self.scores(layer)
        except StoreUnreachableError:
            raise
        except StoreError:
            return False
        return True

    # the work area ------------------------------------------------------------------------------

    def create_work(self, images: int, features: int, chunk: int, tile: int) -> None:
        """Create the empty arrays of the work area, replacing any.

        These are features (N, D), and their scatter matrix and its factor (D, D) in tiles.
        """
        self._create(
            "work/features",
            (images, features),
            "float32",
            (chunk, tile),
            ("image", "feature"),
            compress=False,
        )
        for name in ("scatter", "factor"):
            self._create(
                f"work/{name}",
                (features, features),
                "float64",
                (tile, tile),
                ("feature", "other_feature"),
                compress=False,
            )

    def work(self, name: str, *, write: bool = False) -> zarr.Array[Any]:
        """Open `features`, `scatter` or `factor` of the current layer, or `groups` of the data."""
        return self._open(f"work/{name}", write=write)

    def remove_work(self) -> None:
        """Remove the work area, if there is one."""
        with_retries((self.location / "work").remove, f"removing the work area of {self}")

    # commits ------------------------------------------------------------------------------------

    def commit(self, step: int, record: dict[str, Any]) -> None:
        """Write the record that commits a step."""
        target = self.location / f"commits/{step:04d}.json"
        with_retries(lambda: target.write_json({"step": step, **record}), str(target))

    def commits(self, known: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Read the records of the committed steps 0, 1, …, up to the first one that is missing.

        The `known` records are not read again, as long as the last of them is unchanged.
        """
        return with_retries(lambda: self._read_commits(known), f"reading the commits of {self}")

    def _read_commits(self, known: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Read the records of `commits` once."""
        names = (self.location / "commits").names()
        # The last one is read again, as another run may have been started here since.
        records = list(known[:-1]) if f"{len(known) - 1:04d}.json" in names else []
        for name in names:
            if name != f"{len(records):04d}.json":
                continue
            types = COMMIT_TYPES if records else COMMIT_TYPES | FIRST_COMMIT_TYPES
            records.append(_read_record(self.location / "commits" / name, types) or {})
            if len(records) == len(known) and records[-1] != known[-1]:
                return self._read_commits(())
        return records

    def last_commit(self) -> dict[str, Any] | None:
        """Read the record of the last committed step, without those before it."""
        names = with_retries((self.location / "commits").names, f"reading the commits of {self}")
        step = 0
        while f"{step:04d}.json" in names:
            step += 1
        source = self.location / f"commits/{step - 1:04d}.json"
        if not step:
            return None
        return with_retries(lambda: _read_record(source, COMMIT_TYPES), f"reading {source}")

    def commits_from(self, step: int) -> list[str]:
        """Return the names of the records of this step and later ones."""
        names = with_retries((self.location / "commits").names, f"reading the commits of {self}")
        return [name for name in names if name >= f"{step:04d}.json"]

    def remove_commits(self, names: list[str]) -> None:
        """Remove records, the last one first, so that no gap is left if this is interrupted."""
        for name in sorted(names, reverse=True):
            with_retries((self.location / "commits" / name).remove, f"removing {name} of {self}")

    def checksums(self, step: int) -> dict[str, list[int]]:
        """Read the checksums committed with a step: those of the chunks of each array, by path."""
        source = self.location / f"commits/{step:04d}.json"
        record = with_retries(lambda: _read_record(source, COMMIT_TYPES), f"reading {source}")
        return dict(record["checksums"]) if record else {}

    def write_result(self, record: dict[str, Any]) -> None:
        """Write the result of the run."""
        target = self.location / "result.json"
        with_retries(lambda: target.write_json(record), str(target))

    def result(self) -> dict[str, Any] | None:
        """Read the result of the run; None if it has not ended."""
        source = self.location / "result.json"
        return with_retries(lambda: _read_record(source, RESULT_TYPES), f"reading {source}")


def maps_path(layer: int) -> str:
    """Return the path of the maps of a layer in its run, also the key of their checksums."""
    return f"maps/{layer:04d}"


def has_saved_maps(step: int, record: dict[str, Any]) -> bool:
    """Return whether the maps of a layer were stored with its commit, not only in memory."""
    return maps_path(step) in record["checksums"]


def last_saved(commits: Sequence[dict[str, Any]]) -> int:
    """Return the last layer whose maps were stored with its commit; 0 if there is none."""
    return max((n for n, record in enumerate(commits) if has_saved_maps(n, record)), default=0)


def _read_record(location: Location, types: dict[str, type]) -> dict[str, Any] | None:
    """Read the JSON record at a location; None if there is none.

    Raise StoreError if it lacks an entry of `types`, or if its contents are invalid.
    """
    record = location.read_json()
    if record is None:
        return None
    has_entries = isinstance(record, dict) and all(
        isinstance(record.get(name), kind) for name, kind in types.items()
    )
    if not has_entries or not _is_valid_record(record):
        raise StoreError(
            f"{location.url} is damaged. It should have the entries {', '.join(types)}; remove "
            "it, then resume the run, which writes it anew."
        )
    return dict(record)


def _is_valid_record(record: dict[str, Any]) -> bool:
    """Return whether the accuracies, checksums and counts of a record, if any, are valid."""
    accuracies = [record.get("accuracy"), *record.get("accuracies", ())]
    counts = record.get("counts", [])
    lists = [*record.get("checksums", {}).values(), *counts]
    return (
        all(a is None or (isinstance(a, dict) and a.keys() == ACCURACY_FIELDS) for a in accuracies)
        and all(isinstance(n, list) and all(isinstance(v, int) for v in n) for n in lists)
        and len({len(row) for row in counts}) <= 1
    )


def write_region(array: zarr.Array[Any], start: int, values: Array) -> None:
    """Write whole chunks of rows from row `start`.

    Raise StoreError if the region covers part of a chunk only, as two tasks that write to the same
    chunk would corrupt it silently.
    """
    write_block(array, (start,), values)


def write_block(array: zarr.Array[Any], starts: tuple[int, ...], values: Array) -> None:
    """Write whole chunks from the given first row, column, …; see `write_region`."""
    block = tuple(
        slice(start, start + length) for start, length in zip(starts, values.shape, strict=False)
    )
    for part, chunk, length in zip(block, array.chunks, array.shape, strict=False):
        if part.start % chunk or (part.stop % chunk and part.stop != length):
            raise StoreError(
                f"Rows {part.start} to {part.stop} of {array.path} split its chunks of {chunk} "
                "rows. Write whole chunks."
            )
    array[block] = values
