"""The run store: the data, maps, scores, layers and commit records of a training run.

A Zarr v3 group, readable with plain xarray and zarr:

    zarr.json            attributes: format, specs, plan, rows, classes, shapes, provenance
    data/                images (or a reference to them in the attributes), labels, train, and
                         weights of a run with weights: (N, …)
    image_scale/         the normalization of the images
    views/               what views of the images have learned
    layers/0001/ …       small fitted arrays of each layer
    maps/0001, scores/0001   maps of a layer and the scores that entered it: one row per image and
                         copy, in the order of `data.rows`
    commits/0000.json …  one record per finished step, written last: 0 is the survey of the data
    checksums/           checksums of a step with very many chunks, which its record refers to
    claims/000001.json … the driver that may write to the run
    work/                features of the layer being fitted and the state of its solver, if that
                         works in tiles or by iterations; removed when the layer is committed
    result.json          the accuracies of all layers, and the chosen depth
    test.json            the accuracy on test images at the end, if `rescnet train` had any
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescnet_dist.errors import (
    CorruptDataError,
    RescnetError,
    SpecError,
    StoreError,
    StoreReadError,
)
from rescnet_dist.store.arrays import StoredArray
from rescnet_dist.store.checksums import Checksums, checksum_json
from rescnet_dist.store.claim import check_unclaimed
from rescnet_dist.store.formats import (
    FORMAT_VERSION,
    RUN_FORMAT,
    check_format,
    read_format,
    read_format_name,
)
from rescnet_dist.store.location import Location
from rescnet_dist.store.retry import limit_retries
from rescnet_dist.store.schema import (
    CommitRecord,
    FirstCommitRecord,
    GrownRecord,
    ProgressRecord,
    ResultRecord,
    TestRecord,
    find_type_error,
)

# Of features for conjugate gradients: Zarr compresses chunks of columns in threads of their own.
FEATURE_CHUNK_BYTES = 64 * 2**20
WORK_RECORDS = {"grown": GrownRecord, "progress": ProgressRecord}
MAX_RECORD_CHUNKS = 4096  # whose checksums are in a commit record
CHECKSUM_PREFIX = "checksums/"  # of the paths of files with the checksums of more chunks

IMAGE_DIMS = ("image", "y", "x", "channel")


@contextmanager
def translate_attribute_errors(location: Location) -> Iterator[None]:
    """Raise CorruptDataError if the body finds missing or invalid attributes of a store.

    Settings that are rejected stay a SpecError, which names the store, too: they may be those of
    another release, or need a package that is not installed here.
    """
    try:
        yield
    except SpecError as error:
        raise SpecError(
            f"The settings stored in {location.url} cannot be used: {error} If they are damaged, "
            "restore a copy of its zarr.json."
        ) from error
    except RescnetError:
        raise
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CorruptDataError(
            f"The attributes of {location.url} are damaged ({type(error).__name__}: {error}). "
            "Restore a copy of its zarr.json, or train again."
        ) from None


@dataclass(frozen=True, slots=True)
class RunStore:
    """A training run at a URL: its data, maps, scores and commit records.

    Transient errors of the store are retried, except in `open` and `check_free`: a store that does
    not answer there may have a wrong URL.
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

    @limit_retries(0)
    def check_free(self) -> None:
        """Raise StoreError if the location already holds something."""
        if not self.location.exists():
            self.location.check_bucket()
            return
        check_unclaimed(self.location)
        is_run = read_format_name(self.location) == RUN_FORMAT
        content = "another run" if is_run else "something that is not a run"
        remedies = (
            ", resume that run (or_resume=True, --or-resume), or overwrite it (overwrite=True, "
            "--overwrite)"
            if is_run
            else ""
        )
        raise StoreError(
            f"Store {self.location.url} already holds {content}. Choose another URL{remedies}."
        )

    @property
    def url(self) -> str:
        """The URL of the run."""
        return self.location.url

    def attributes(self) -> dict[str, Any]:
        """Read the attributes of the run."""
        return read_format(self.location, RUN_FORMAT)

    def update_attributes(self, **changes: Any) -> None:
        """Change some attributes of the run."""
        self.location.update_attributes(changes)

    # data ---------------------------------------------------------------------------------------

    def create_labels(
        self, count: int, block: int, *, groups: bool = False, weights: bool = False
    ) -> None:
        """Create the empty arrays of labels (N,) and of the training mask (N,).

        With `groups`, also create the array of groups (N,) in the work area; with `weights`, that
        of weights (N,), and that of the given ones in the work area.
        """
        for path, dtype in (("data/labels", "int32"), ("data/train", "bool")):
            self._create(path, (count,), dtype, block, ("image",), compress=True)
        if groups:
            self._create("work/groups", (count,), "int64", block, ("image",), compress=True)
        if weights:
            for path in ("data/weights", "work/weights"):
                self._create(path, (count,), "float64", block, ("image",), compress=True)

    def create_images(self, shape: tuple[int, ...], dtype: Any, chunk: int) -> None:
        """Create the empty array for a copy of the images (N, H, W, d)."""
        self._create("data/images", shape, dtype, chunk, IMAGE_DIMS, compress=True)

    def images(self) -> tuple[StoredArray, int]:
        """Return the array of the original images and the row of the first image.

        The array is in the run itself, or is the one that the run refers to.
        """
        reference = self.attributes().get("images")
        if reference:
            source = Location(reference["url"])
            return source.open_array(reference["path"]), reference.get("start", 0)
        return self._open("data/images"), 0

    @property
    def images_url(self) -> str:
        """URL of the original images, without secrets: of the run, or the data it refers to."""
        reference = self.attributes().get("images")
        return str(Location(reference["url"]) if reference else self.location)

    def _create(self, path: str, *arguments: Any, compress: bool) -> None:
        """Create an array of the run, replacing any; see `Location.create_array`."""
        self.location.create_array(path, *arguments, compress=compress)

    def _open(self, path: str, *, write: bool = False) -> StoredArray:
        """Open an array of the run."""
        return self.location.open_array(path, write=write)

    def data_array(self, name: str, *, write: bool = False) -> StoredArray:
        """Open `images` (N, H, W, d), `labels`, `train` or `weights`, (N,) each, of the run."""
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
        with_groups: bool = True,
    ) -> None:
        """Create the empty maps (N, H, W, f) and scores (N, C) of a layer, replacing any.

        `dtype` and `compress` are those of the maps. With `with_groups`, the groups of the maps and
        scores of all layers are written too.
        """
        for path, shape, kind, dims, is_compressed in (
            (maps_path(layer), maps, dtype, ("image", "y", "x", "filter"), compress),
            (f"scores/{layer:04d}", scores, "float32", ("image", "class"), False),
        ):
            self.location.create_array(
                path, shape, kind, chunk, dims, compress=is_compressed, with_groups=with_groups
            )

    def maps(self, layer: int, *, write: bool = False) -> StoredArray:
        """Open the maps (N, H, W, f) of a layer."""
        return self._open(maps_path(layer), write=write)

    def scores(self, layer: int, *, write: bool = False) -> StoredArray:
        """Open the scores (N, C) that are the input of a layer."""
        return self._open(f"scores/{layer:04d}", write=write)

    def remove_maps_except(self, *keep: int, among: Collection[int] | None = None) -> None:
        """Remove the maps and scores of all layers except the given ones.

        `among` are the layers that may have any. Without it they are listed, and some stores list
        the empty folders of all earlier layers.
        """
        kept_names = {f"{layer:04d}" for layer in keep}
        for kind in ("maps", "scores"):
            folder = self.location / kind
            names = folder.names() if among is None else [f"{layer:04d}" for layer in sorted(among)]
            for name in names:
                if name.isdigit() and name not in kept_names:
                    (folder / name).remove()

    def has_maps(self, layer: int) -> bool:
        """Return whether the arrays of maps and scores of a layer exist, whatever they contain."""
        try:
            self.maps(layer), self.scores(layer)
        except StoreReadError:
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

    def create_cg_work(
        self, images: int, features: int, targets: int, chunk: int, dtype: Any
    ) -> None:
        """Create the empty arrays of the work area for conjugate gradients, replacing any.

        These are features (N, D) of a dtype, which are compressed if they are integers, and two
        versions, of which one is written while the other is read, of weights (2, D, K), basis and
        directions (2, D, r) and the factor of the residual (2, r, K).
        """
        is_integer = np.dtype(dtype).kind in "iu"
        columns = -(-features // count_feature_chunks(chunk, features, dtype))
        rank = min(features, targets)
        self._create(
            "work/features",
            (images, features),
            dtype,
            (chunk, columns),
            ("image", "feature"),
            compress=is_integer,
        )
        for name, shape, dims in (
            ("solution", (features, targets), ("feature", "target")),
            ("basis", (features, rank), ("feature", "direction")),
            ("directions", (features, rank), ("feature", "direction")),
            ("factor", (rank, targets), ("direction", "target")),
        ):
            self._create(
                f"work/{name}", (2, *shape), "float64", (1, *shape), ("version", *dims),
                compress=False,
            )  # fmt: skip

    def work(self, name: str, *, write: bool = False) -> StoredArray:
        """Open an array of the work area, of the current layer or what the data need."""
        return self._open(f"work/{name}", write=write)

    def write_work_record(self, name: str, record: dict[str, Any]) -> None:
        """Write `grown` or `progress`, how far the layer in the work area is, replacing any."""
        (self.location / f"work/{name}.json").write_json(record)

    def read_work_record(self, name: str) -> dict[str, Any] | None:
        """Read the record `grown` or `progress` of the work area; None if there is none."""
        return _read_record(self.location / f"work/{name}.json", WORK_RECORDS[name])

    def remove_work(self) -> None:
        """Remove the work area, if there is one."""
        (self.location / "work").remove()

    # commits ------------------------------------------------------------------------------------

    def commit(self, step: int, record: dict[str, Any]) -> None:
        """Write the record that commits a step."""
        (self.location / f"commits/{step:04d}.json").write_json({"step": step, **record})

    def commits(self, known: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Read the records of the committed steps 0, 1, …, up to the first one that is missing.

        The `known` records are not read again, as long as the last of them is unchanged.
        """
        records, damage = self._read_commits(known)
        if damage:
            raise damage
        return records

    def undamaged_commits(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Read the records up to the first one that is missing or damaged; describe the damage."""
        records, damage = self._read_commits()
        return records, [str(damage)] if damage else []

    def _read_commits(
        self, known: Sequence[dict[str, Any]] = ()
    ) -> tuple[list[dict[str, Any]], CorruptDataError | None]:
        """Read the records up to the first one that is missing or damaged, and its error."""
        names = (self.location / "commits").names()
        # The last one is read again, as another run may have been started here since.
        records = list(known[:-1]) if f"{len(known) - 1:04d}.json" in names else []
        for name in names:
            if name != f"{len(records):04d}.json":
                continue
            try:
                records.append(self._read_commit(len(records)) or {})
            except CorruptDataError as error:
                return records, error
            if len(records) == len(known) and records[-1] != known[-1]:
                return self._read_commits()
        return records, None

    def last_commit(self) -> dict[str, Any] | None:
        """Read the record of the last committed step, without those before it."""
        names, step = (self.location / "commits").names(), 0
        while f"{step:04d}.json" in names:
            step += 1
        return self._read_commit(step - 1) if step else None

    def _read_commit(self, step: int) -> dict[str, Any] | None:
        """Read the record of a step; None if there is none."""
        kind = CommitRecord if step else FirstCommitRecord
        return _read_record(self.location / f"commits/{step:04d}.json", kind)

    def commits_from(self, step: int) -> list[str]:
        """Return the names of the records of this step and later ones."""
        names = (self.location / "commits").names()
        return [name for name in names if name >= f"{step:04d}.json"]

    def remove_commits(self, names: list[str]) -> None:
        """Remove records, the last one first, so that no gap is left if this is interrupted."""
        for name in sorted(names, reverse=True):
            (self.location / "commits" / name).remove()

    def checksums(self, step: int) -> dict[str, list[int]]:
        """Read the checksums committed with a step: those of the chunks of each array, by path."""
        record = self._read_commit(step)
        found = dict(record["checksums"]) if record else {}
        for path in [path for path in found if path.startswith(CHECKSUM_PREFIX)]:
            found |= self._read_checksum_file(step, path, found.pop(path))
        return found

    def store_checksums(self, step: int, checksums: Checksums) -> Checksums:
        """Return the checksums to commit with a step.

        Those of very many chunks are written to a file of their own, which has a checksum in their
        place: neither the commit record nor the driver gets larger with the number of chunks.
        """
        chunks = checksums.chunks
        if max(map(len, chunks.values()), default=0) <= MAX_RECORD_CHUNKS:
            return checksums
        crc = checksum_json(chunks)
        path = f"{CHECKSUM_PREFIX}{step:04d}-{crc:08x}.json"
        (self.location / path).write_json(chunks)
        return Checksums({**dict.fromkeys(chunks, ()), path: (crc,)})

    def _read_checksum_file(self, step: int, path: str, own: list[int]) -> dict[str, list[int]]:
        """Read checksums that `store_checksums` has written; `own` is that of the file, in a list.

        Raise CorruptDataError if the file does not have it.
        """
        found = (self.location / path).read_json()
        if not isinstance(found, dict) or [checksum_json(found)] != own:
            raise CorruptDataError(
                f"{self.location.url}/{path} is missing or damaged. Restore a copy of it. Without "
                f"one, remove commits/{step:04d}.json, then resume the run, which computes this "
                "step and later ones again."
            )
        return found

    def write_result(self, record: dict[str, Any]) -> None:
        """Write the result of the run."""
        (self.location / "result.json").write_json(record)

    def result(self) -> dict[str, Any] | None:
        """Read the result of the run; None if it has not ended."""
        return _read_record(self.location / "result.json", ResultRecord)

    def write_test(self, record: dict[str, Any]) -> None:
        """Write the accuracy on test images, and what it is of."""
        (self.location / "test.json").write_json(record)

    def test(self) -> dict[str, Any] | None:
        """Read the accuracy on test images, which may be that of fewer layers; None if unknown."""
        return _read_record(self.location / "test.json", TestRecord)


def count_feature_chunks(chunk: int, features: int, dtype: Any) -> int:
    """Return the number of chunks of columns that features (chunk, D) of a dtype are stored in.

    >>> count_feature_chunks(3125, 215_040, "uint8"), count_feature_chunks(100, 256, "uint8")
    (10, 1)
    """
    stored = chunk * features * np.dtype(dtype).itemsize
    return max(1, min(features, round(stored / FEATURE_CHUNK_BYTES)))


def maps_path(layer: int) -> str:
    """Return the path of the maps of a layer in its run, also the key of their checksums."""
    return f"maps/{layer:04d}"


def has_saved_maps(step: int, record: dict[str, Any]) -> bool:
    """Return whether the maps of a layer were stored with its commit, not only in memory."""
    return maps_path(step) in record["checksums"]


def last_saved(commits: Sequence[dict[str, Any]]) -> int:
    """Return the last layer whose maps were stored with its commit; 0 if there is none."""
    return max((n for n, record in enumerate(commits) if has_saved_maps(n, record)), default=0)


def calibration_records(
    commits: Sequence[dict[str, Any]], result: dict[str, Any] | None
) -> dict[int, dict[str, Any]]:
    """Return the committed calibrations by layer, in ascending order; older runs have none.

    The commit record of step i + 1 holds that of layer i, and the result those of all layers.
    """
    found: dict[int, dict[str, Any] | None] = {}
    if result:
        pairs = zip(result["accuracies"], result.get("calibrations", ()), strict=False)
        found = {accuracy["layer"]: record for accuracy, record in pairs}
    found |= {step - 1: record.get("calibration") for step, record in enumerate(commits) if step}
    return {layer: record for layer, record in sorted(found.items()) if record}


def _read_record(location: Location, kind: Any) -> dict[str, Any] | None:
    """Read the JSON record at a location; None if there is none.

    Raise CorruptDataError if it is not of its kind, a TypedDict of `schema`.
    """
    record = location.read_json()
    if record is None:
        return None
    error = find_type_error(record, kind)
    if not error and len({len(row) for row in record.get("counts", ())}) > 1:
        error = "counts has rows of different lengths"
    if error:
        raise CorruptDataError(
            f"{location.url} is damaged ({error}). It should have the entries "
            f"{', '.join(sorted(kind.__required_keys__))}; remove it, then resume the run, which "
            "writes it anew."
        )
    return dict(record)
