"""CIFAR-10 and CIFAR-100: Python and binary batches, in a folder or a tar file."""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from rescnet_dist.data.sources.files import File, brief
from rescnet_dist.data.sources.source import (
    Array,
    NumberedReader,
    Reader,
    Samples,
    Source,
    coded,
    in_order,
)
from rescnet_dist.data.sources.tar import Member, members
from rescnet_dist.errors import DataError

PIXELS = 3072
PYTHON = {
    **{f"data_batch_{n}": "train" for n in range(1, 6)},
    **{"test_batch": "test", "train": "train", "test": "test"},
}
BINARY = {f"{name}.bin": split for name, split in PYTHON.items()}
NAMES = {
    "batches.meta": "label_names",
    "meta": "fine_label_names",
    "batches.meta.txt": None,
    "fine_label_names.txt": None,
}


def is_cifar(names: Sequence[str]) -> bool:
    """Whether files of these names are a CIFAR data set."""
    found = {name.rsplit("/", 1)[-1] for name in names}
    return bool(found & {"data_batch_1", "data_batch_1.bin", "test_batch", "test_batch.bin"}) or (
        {"train", "test", "meta"} <= found or {"train.bin", "test.bin"} <= found
    )


class CifarSource(Source):
    """Batches of rows of 3,072 bytes: the red, green and blue plane of an image of 32×32."""

    def __init__(self, url: str, files: Sequence[Member]) -> None:
        self.url = url
        by_name = {member.name.rsplit("/", 1)[-1]: member for member in files}
        self.batches: dict[str, list[tuple[Member, int]]] = {}
        labels: dict[str, list[Array]] = {}
        for name, split in (PYTHON | BINARY).items():
            if name in by_name:
                _, found = _batch(by_name[name])
                self.batches.setdefault(split, []).append((by_name[name], len(found)))
                labels.setdefault(split, []).append(found)
        if not labels:
            raise DataError(f"{url} has no CIFAR batches: check the URL")
        together = {split: np.concatenate(labels[split]) for split in in_order(labels)}
        self.classes, self.labels = coded(together, _class_names(by_name))
        self.splits = {split: len(found) for split, found in together.items()}

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Of the images."""
        pieces, first = [], 0
        for member, count in self.batches[split]:
            if first < stop and start < first + count:
                pieces.append((member, slice(max(start - first, 0), stop - first)))
            first += count
        return partial(_read, pieces, NumberedReader(f"{self.url}, {split}", start, stop))


def _read(pieces: list[tuple[Member, slice]], names: NumberedReader) -> Samples:
    planes = np.concatenate([_batch(member)[0][rows] for member, rows in pieces])
    images = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Samples(np.ascontiguousarray(images), names)


def cifar_in_tar(file: File) -> CifarSource:
    """The data set in a tar file, which may be gzipped."""
    return CifarSource(file.url, members(file))


@lru_cache(maxsize=2)
def _batch(member: Member) -> tuple[Array, Array]:
    """Images (n, 3072) and labels (n,) of a batch."""
    data, where = member.read(), f"{member.file.url}:{member.name}"
    if member.name.endswith(".bin"):
        fine = member.name.rsplit("/", 1)[-1] in ("train.bin", "test.bin")
        extra = 2 if fine else 1  # CIFAR-100 has a coarse label before the fine one
        if not data or len(data) % (PIXELS + extra):
            raise DataError(f"{where} has {len(data):,} bytes, no multiple of {PIXELS + extra}")
        rows = np.frombuffer(data, np.uint8).reshape(-1, PIXELS + extra)
        return rows[:, extra:], rows[:, extra - 1].astype(np.int64)
    record = _record(data, where)
    labels = record.get("labels", record.get("fine_labels"))
    images = record.get("data")
    right = isinstance(images, np.ndarray) and images.ndim == 2 and images.shape[1] == PIXELS
    if images is None or not right or not isinstance(labels, list) or not labels:
        raise DataError(f"{where} should have images (n, {PIXELS}) and n labels, and has not")
    if len(labels) != len(images):
        raise DataError(f"{where} should have images (n, {PIXELS}) and n labels, and has not")
    if not all(isinstance(label, int) and 0 <= label < 1000 for label in labels):
        raise DataError(f"{where} has labels that are no whole numbers from 0")
    return images, np.array(labels, np.int64)


def _class_names(files: dict[str, Member]) -> list[str] | None:
    for name, entry in NAMES.items():
        if name not in files:
            continue
        member = files[name]
        data = member.read()
        if entry is None:
            return data.decode(errors="replace").split()
        names = _record(data, f"{member.file.url}:{name}").get(entry)
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
    return None


# the files are pickled: read without running what is in them ------------------------------------


class _Array:
    """An array in the making: what `numpy.core.multiarray._reconstruct` stands for."""

    value: Array | None = None


class _Type:
    """A type in the making: what `numpy.dtype` stands for."""

    def __init__(self, name: Any) -> None:
        self.name = name


GLOBALS: dict[str, Callable[..., Any] | None] = {
    "_reconstruct": lambda *_: _Array(),
    "_frombuffer": lambda data, dtype, shape, *_: _array_of(data, dtype, shape),
    "ndarray": None,  # an argument of _reconstruct
    "dtype": lambda name, *_: _Type(name),
    "encode": lambda text, *_: text.encode("latin1"),
}
MOST_OPERATIONS = 2**21  # ten times as many as CIFAR-100 has
MARK = object()
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
IGNORED = {"PROTO", "FRAME", "STOP"}
STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
VALUES = {
    *("BININT", "BININT1", "BININT2", "INT", "LONG1", "LONG", "BINFLOAT", "FLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
PUT = {"BINPUT", "LONG_BINPUT", "PUT"}
GET = {"BINGET", "LONG_BINGET", "GET"}


def _record(data: bytes, where: str) -> dict[str, Any]:
    """The dictionary of lists, strings, numbers and arrays in a pickle; all else is refused, and
    nothing in it is ever called."""
    try:
        record = _interpreted(data)
    except Exception as error:  # damage can make of it whatever there is
        raise DataError(f"{where} is no CIFAR batch that can be read ({brief(error)})") from None
    if not isinstance(record, dict):
        raise DataError(f"{where} is no CIFAR batch: it holds no dictionary")
    found = {_text(key): value for key, value in record.items()}
    return {
        key: [_text(v) for v in value] if isinstance(value, list) else _finished(value)
        for key, value in found.items()
    }


def _interpreted(data: bytes) -> Any:
    """What a pickle's operations leave on its stack, of those that build plain data."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
        name = operation.name
        if count > MOST_OPERATIONS:
            raise ValueError(f"it has more than {MOST_OPERATIONS:,} operations")
        if name in IGNORED:
            continue
        if name in VALUES:
            stack.append(argument)
        elif name in STRINGS:
            stack.append(argument.encode("latin1") if isinstance(argument, str) else argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name in PUT:
            memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in GET:
            stack.append(memo[int(argument)])
        elif name == "MARK":
            stack.append(MARK)
        else:
            _build(name, argument, stack)
    return stack.pop()


def _build(name: str, argument: Any, stack: list[Any]) -> None:
    """One operation that puts together what is on the stack."""
    if name in ("GLOBAL", "STACK_GLOBAL"):
        if name == "STACK_GLOBAL":
            argument = " ".join((stack.pop(-2), stack.pop()))
        module, _, attribute = argument.partition(" ")
        if module.split(".")[0] not in ("numpy", "_codecs") or attribute not in GLOBALS:
            raise ValueError(f"it asks for {argument}")
        stack.append(GLOBALS[attribute])
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        size = int(name[-1])
        stack[-size:] = [tuple(stack[-size:])]
    elif name in ("TUPLE", "LIST", "DICT"):
        items = _since_mark(stack)
        stack.append(TOGETHER[name](items))
    elif name == "APPEND":
        stack[-2].append(stack.pop())
    elif name == "APPENDS":
        items = _since_mark(stack)
        stack[-1].extend(items)
    elif name == "SETITEM":
        items = stack[-2:]
        del stack[-2:]
        stack[-1].update(_pairs(items))
    elif name == "SETITEMS":
        items = _since_mark(stack)
        stack[-1].update(_pairs(items))
    elif name == "REDUCE":
        arguments, function = stack.pop(), stack.pop()
        stack.append(function(*arguments))
    elif name == "BUILD":
        state, target = stack.pop(), stack[-1]
        if isinstance(target, _Array):
            _, shape, dtype, fortran, raw = state
            if fortran:
                raise ValueError("an array is in Fortran order")
            target.value = _array_of(raw, dtype, shape)
    else:
        raise ValueError(f"it has the operation {name}")


def _since_mark(stack: list[Any]) -> list[Any]:
    items = []
    while (item := stack.pop()) is not MARK:
        items.append(item)
    return items[::-1]


def _pairs(items: list[Any]) -> dict[str | bytes, Any]:
    """Entries of a dictionary, whose keys are text: others may be nested too deeply to be used."""
    if not all(isinstance(key, str | bytes) for key in items[::2]):
        raise ValueError("it has keys that are no text")
    return dict(zip(items[::2], items[1::2], strict=True))


TOGETHER: dict[str, Callable[[list[Any]], Any]] = {"TUPLE": tuple, "LIST": list, "DICT": _pairs}


def _array_of(raw: Any, dtype: Any, shape: Any) -> Array:
    name = _text(dtype.name) if isinstance(dtype, _Type) else None
    if not isinstance(name, str) or name not in ("u1", "uint8", "|u1"):
        raise ValueError("an array is of another type than uint8")
    data = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.frombuffer(data, np.uint8).reshape(tuple(shape))


def _finished(value: Any) -> Any:
    return value.value if isinstance(value, _Array) else value


def _text(value: Any) -> Any:
    return value.decode("latin1") if isinstance(value, bytes) else value
