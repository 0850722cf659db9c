"""Members of tar files, with random access, and WebDataset shards."""

from __future__ import annotations

import itertools
import json
import posixpath
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from rescnet_dist.data.archives import TAR_BLOCK_BYTES, BoundedStream
from rescnet_dist.data.sources.decode import IMAGE_SUFFIXES
from rescnet_dist.data.sources.files import File, summarize_error, translate_read_errors
from rescnet_dist.data.sources.source import (
    Encoded,
    Reader,
    Samples,
    Source,
    check_counts,
    encode_labels,
    infer_split,
    sort_splits,
)
from rescnet_dist.errors import DataError, url_word

LABEL_SUFFIXES = (".cls", ".json")
MAX_LABEL_BYTES = 2**16
CONCURRENT_SCANS = 8  # of shards
MAX_COMPRESSED_MEMBERS = 2**18  # in a gzipped tar file


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar file: its name, and the position of its bytes."""

    file: File
    name: str
    offset: int
    size: int

    def read(self) -> bytes:
        """Read the bytes of the member."""
        return self.file.read(self.offset, self.offset + self.size)


@lru_cache(maxsize=1)
def list_members(file: File) -> tuple[Member, ...]:
    """Return the regular files in a tar file, which may be gzipped, in their order."""
    limit = MAX_COMPRESSED_MEMBERS if file.is_gzipped else None
    members = tuple(itertools.islice(_scan_members(file), limit))
    if len(members) == limit:
        raise DataError(
            f"{file.url} has {limit:,} files or more, which is too many for a compressed tar file. "
            "Decompress it first."
        )
    return members


def _scan_members(file: File) -> Iterator[Member]:
    """Yield the regular files in a tar file."""
    tar: Any  # whose type stubs lack some attributes
    with file.open() as opened, translate_read_errors(file.url):
        stream: Any = BoundedStream(file.url, opened)
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            while (entry := tar.next()) is not None:
                tar.members.clear()  # It would hold all of them otherwise.
                if entry.isfile() and not entry.issparse():
                    yield Member(file, entry.name, entry.offset_data, entry.size)
        stream.seek(tar.offset)
        if stream.read(TAR_BLOCK_BYTES) != bytes(TAR_BLOCK_BYTES):  # tarfile stops at damage.
            raise DataError(f"{file.url} has no end mark. It is truncated or damaged.")


class WebDatasetSource(Source):
    """Tar shards with an image KEY.png, .jpg or .webp per sample.

    The class of a sample is the content of KEY.cls, or the entry "label", "cls" or "class" of
    KEY.json.
    """

    def __init__(self, url: str, shards: Sequence[str], names: Sequence[str] | None = None) -> None:
        self.url = url
        with ThreadPoolExecutor(CONCURRENT_SCANS) as pool:
            samples_by_shard = list(pool.map(_scan_shard, shards))
        self.images: dict[str, list[Member]] = {}
        values: dict[str, list[int | str]] = {}
        for shard, samples in zip(shards, samples_by_shard, strict=True):
            split = infer_split(shard[len(url) :] or shard.rsplit("/", 1)[-1])
            self.images.setdefault(split, []).extend(image for image, _ in samples)
            values.setdefault(split, []).extend(label for _, label in samples)
        self.splits = {split: len(self.images[split]) for split in sort_splits(self.images)}
        for split, count in self.splits.items():
            check_counts(url, split, count, len(values[split]))
        if all(isinstance(label, int) for labels in values.values() for label in labels):
            numbers = {split: np.array(values[split], np.int64) for split in self.splits}
            self.classes, self.labels = encode_labels(numbers, names)
        else:
            distinct = {str(label) for labels in values.values() for label in labels}
            self.classes = tuple(sorted(distinct))
            code = {name: number for number, name in enumerate(self.classes)}
            self.labels = {
                split: np.array([code[str(v)] for v in values[split]], np.int32)
                for split in self.splits
            }

    def files(self, split: str) -> list[str]:
        """Return the names of the images of a split, with their shards."""
        return [f"{member.file.name}:{member.name}" for member in self.images[split]]

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Return a reader of the bytes of the image members."""
        return partial(_read, self.images[split][start:stop])


def _read(images: list[Member]) -> Samples:
    """Return the bytes of image members, read lazily."""
    names = [f"{member.file.url}:{member.name}" for member in images]
    return Samples((_read_member(member) for member in images), names)


def _read_member(member: Member) -> Encoded:
    """Return the bytes of a member, or the error that reading it raised."""
    try:
        return member.read()
    except DataError as error:
        return error


def _scan_shard(url: str) -> list[tuple[Member, int | str]]:
    """Return the images of a shard and their labels."""
    samples: dict[str, dict[str, Member]] = {}
    for member in list_members(File.at(url)):
        key, suffix = _split_name(member.name)
        samples.setdefault(key, {})[suffix] = member
    found = []
    for key, members in samples.items():
        image = next((members[suffix] for suffix in IMAGE_SUFFIXES if suffix in members), None)
        if image is not None:
            found.append((image, _read_label(url, key, members)))
    if not found:
        raise DataError(
            f"{url} has no images ({', '.join(IMAGE_SUFFIXES)}). Check the {url_word(url)}."
        )
    return found


def _split_name(name: str) -> tuple[str, str]:
    """Return key and suffix of a member; as in WebDataset, the key ends at the first dot.

    >>> _split_name("a/0001.left.png")
    ('a/0001', '.png')
    """
    folder, base = posixpath.split(name)
    return posixpath.join(folder, base.split(".")[0]), posixpath.splitext(base)[1].lower()


def _read_label(url: str, key: str, members: dict[str, Member]) -> int | str:
    """Read the label of a sample from its members, by suffix."""
    suffix = next((suffix for suffix in LABEL_SUFFIXES if suffix in members), None)
    if suffix is None:
        raise DataError(f"{url} has no label for sample {key}. Add {key}.cls or {key}.json.")
    member = members[suffix]
    if member.size > MAX_LABEL_BYTES:
        raise DataError(
            f"{url}:{member.name} has {member.size:,} bytes, too many for a label. The limit is "
            f"{MAX_LABEL_BYTES:,} bytes."
        )
    text = member.read()
    try:
        value = json.loads(text) if suffix == ".json" else text.decode().strip()
        if isinstance(value, dict):
            value = next(value[name] for name in ("label", "cls", "class") if name in value)
        if isinstance(value, str) and value:
            value = int(value) if value.lstrip("-").isdecimal() else value
    except (ValueError, StopIteration, RecursionError) as error:
        raise DataError(f"{url}:{member.name} has no label ({summarize_error(error)}).") from None
    is_number = type(value) is int and abs(value) < 2**63
    if not is_number and not (isinstance(value, str) and value):
        raise DataError(
            f"{url}:{member.name} has no label, but {text[:40]!r}. Give an integer or a word."
        )
    return value
