"""CIFAR-10 and CIFAR-100: Python and binary batches, in a folder or a tar file."""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from rescnet_dist.data.sources.files import File, summarize_error
from rescnet_dist.data.sources.source import (
    Array,
    NumberedNames,
    Reader,
    Samples,
    Source,
    encode_labels,
    sort_splits,
)
from rescnet_dist.data.sources.tar import Member, list_members
from rescnet_dist.errors import DataError, url_word

IMAGE_BYTES = 3072  # three planes of 32×32 pixels
MAX_LABEL = 999
PICKLE_BATCHES = {  # the split of each file
    **{f"data_batch_{n}": "train" for n in range(1, 6)},
    "test_batch": "test",
    "train": "train",
    "test": "test",
}
BINARY_BATCHES = {f"{name}.bin": split for name, split in PICKLE_BATCHES.items()}
CLASS_NAME_FILES = {  # with the entry of the pickled dictionary; None: a text file
    "batches.meta": "label_names",
    "meta": "fine_label_names",
    "batches.meta.txt": None,
    "fine_label_names.txt": None,
}


def is_cifar(names: Sequence[str]) -> bool:
    """Return whether files of these names are a CIFAR dataset."""
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
        for name, split in (PICKLE_BATCHES | BINARY_BATCHES).items():
            if name in by_name:
                _, batch_labels = _read_batch(by_name[name])
                self.batches.setdefault(split, []).append((by_name[name], len(batch_labels)))
                labels.setdefault(split, []).append(batch_labels)
        if not labels:
            raise DataError(f"{url} has no CIFAR batches. Check the {url_word(url)}.")
        joined = {split: np.concatenate(labels[split]) for split in sort_splits(labels)}
        self.classes, self.labels = encode_labels(joined, _read_class_names(by_name))
        self.splits = {split: len(codes) for split, codes in joined.items()}

    def reader(self, split: str, start: int, stop: int) -> Reader:
        """Return a reader of the images."""
        parts, first = [], 0
        for member, count in self.batches[split]:
            if first < stop and start < first + count:
                parts.append((member, slice(max(start - first, 0), stop - first)))
            first += count
        return partial(_read, parts, NumberedNames(f"{self.url}, {split}", start, stop))


def _read(parts: list[tuple[Member, slice]], names: NumberedNames) -> Samples:
    """Read images (n, 32, 32, 3), given as rows of batches."""
    planes = np.concatenate([_read_batch(member)[0][rows] for member, rows in parts])
    images = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Samples(np.ascontiguousarray(images), names)


def open_cifar_tar(file: File) -> CifarSource:
    """Return the dataset in a tar file, which may be gzipped."""
    return CifarSource(file.url, list_members(file))


@lru_cache(maxsize=2)
def _read_batch(member: Member) -> tuple[Array, Array]:
    """Read images (n, 3072) and labels (n,) of a batch."""
    data, name = member.read(), f"{member.file.url}:{member.name}"
    if member.name.endswith(".bin"):
        is_cifar100 = member.name.rsplit("/", 1)[-1] in ("train.bin", "test.bin")
        label_bytes = 2 if is_cifar100 else 1  # CIFAR-100: a coarse label before the fine one
        row_bytes = IMAGE_BYTES + label_bytes
        if not data or len(data) % row_bytes:
            raise DataError(
                f"{name} has {len(data):,} bytes, which is not a multiple of {row_bytes}."
            )
        rows = np.frombuffer(data, np.uint8).reshape(-1, row_bytes)
        return rows[:, label_bytes:], rows[:, label_bytes - 1].astype(np.int64)
    record = _read_pickle(data, name)
    labels: Any = record.get("labels", record.get("fine_labels"))
    images: Any = record.get("data")
    is_valid = (
        isinstance(images, np.ndarray)
        and images.ndim == 2
        and images.shape[1] == IMAGE_BYTES
        and isinstance(labels, list)
        and len(labels) == len(images) > 0
    )
    if not is_valid:
        raise DataError(f"{name} should have images (n, {IMAGE_BYTES}) and n labels, and does not.")
    if not all(isinstance(label, int) and 0 <= label <= MAX_LABEL for label in labels):
        raise DataError(f"{name} has labels that are not integers from 0 to {MAX_LABEL}.")
    return images, np.array(labels, np.int64)


def _read_class_names(files: dict[str, Member]) -> list[str] | None:
    """Read the class names from the files of a dataset, by name; None if there are none."""
    for name, entry in CLASS_NAME_FILES.items():
        if name not in files:
            continue
        member = files[name]
        data = member.read()
        if entry is None:
            return data.decode(errors="replace").split()
        names = _read_pickle(data, f"{member.file.url}:{name}").get(entry)
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
    return None


# a safe pickle reader: nothing in the file is ever called --------------------------------------


class _ArrayPlaceholder:
    """An array under construction: the result of `numpy.core.multiarray._reconstruct`."""

    value: Array | None = None


class _DtypePlaceholder:
    """The result of `numpy.dtype`."""

    def __init__(self, name: Any) -> None:
        self.name = name


ALLOWED_GLOBALS: dict[str, Callable[..., Any] | None] = {
    "_reconstruct": lambda *_: _ArrayPlaceholder(),
    "_frombuffer": lambda data, dtype, shape, *_: _make_array(data, dtype, shape),
    "ndarray": None,  # an argument of _reconstruct
    "dtype": lambda name, *_: _DtypePlaceholder(name),
    "encode": lambda text, *_: text.encode("latin1"),
}
MAX_PICKLE_OPERATIONS = 2**21  # ten times as many as CIFAR-100 has
MARK = object()
CONSTANT_OPCODES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY_OPCODES = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
IGNORED_OPCODES = {"PROTO", "FRAME", "STOP"}
STRING_OPCODES = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
VALUE_OPCODES = {
    *("BININT", "BININT1", "BININT2", "INT", "LONG1", "LONG", "BINFLOAT", "FLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
PUT_OPCODES = {"BINPUT", "LONG_BINPUT", "PUT"}
GET_OPCODES = {"BINGET", "LONG_BINGET", "GET"}


def _read_pickle(data: bytes, name: str) -> dict[str, Any]:
    """Return the dictionary of lists, strings, numbers and arrays in a pickle.

    Raise DataError if it has anything else. Nothing in the pickle is ever called.
    """
    try:
        record = _interpret(data)
    except Exception as error:  # Damaged data raise all kinds.
        raise DataError(
            f"{name} is not a readable CIFAR batch ({summarize_error(error)})."
        ) from None
    if not isinstance(record, dict):
        raise DataError(f"{name} is not a CIFAR batch: it holds no dictionary.")
    entries = {_to_text(key): value for key, value in record.items()}
    return {
        key: [_to_text(v) for v in value] if isinstance(value, list) else _resolve(value)
        for key, value in entries.items()
    }


def _interpret(data: bytes) -> Any:
    """Run the operations of a pickle that build plain data; return the top of the stack."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
        name = operation.name
        if count > MAX_PICKLE_OPERATIONS:
            raise ValueError(f"it has more than {MAX_PICKLE_OPERATIONS:,} operations")
        if name in IGNORED_OPCODES:
            continue
        if name in VALUE_OPCODES:
            stack.append(argument)
        elif name in STRING_OPCODES:
            stack.append(argument.encode("latin1") if isinstance(argument, str) else argument)
        elif name in CONSTANT_OPCODES:
            stack.append(CONSTANT_OPCODES[name])
        elif name in EMPTY_OPCODES:
            stack.append(EMPTY_OPCODES[name]())
        elif name in PUT_OPCODES:
            memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in GET_OPCODES:
            stack.append(memo[int(argument)])
        elif name == "MARK":
            stack.append(MARK)
        else:
            _build(name, argument, stack)
    return stack.pop()


def _build(name: str, argument: Any, stack: list[Any]) -> None:
    """Run one operation that combines objects on the stack."""
    if name in ("GLOBAL", "STACK_GLOBAL"):
        if name == "STACK_GLOBAL":
            argument = " ".join((stack.pop(-2), stack.pop()))
        module, _, attribute = argument.partition(" ")
        if module.split(".")[0] not in ("numpy", "_codecs") or attribute not in ALLOWED_GLOBALS:
            raise ValueError(f"it asks for {argument}")
        stack.append(ALLOWED_GLOBALS[attribute])
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        size = int(name[-1])
        stack[-size:] = [tuple(stack[-size:])]
    elif name in ("TUPLE", "LIST", "DICT"):
        items = _pop_to_mark(stack)
        stack.append(CONTAINER_TYPES[name](items))
    elif name == "APPEND":
        stack[-2].append(stack.pop())
    elif name == "APPENDS":
        items = _pop_to_mark(stack)
        stack[-1].extend(items)
    elif name == "SETITEM":
        items = stack[-2:]
        del stack[-2:]
        stack[-1].update(_make_dict(items))
    elif name == "SETITEMS":
        items = _pop_to_mark(stack)
        stack[-1].update(_make_dict(items))
    elif name == "REDUCE":
        arguments, function = stack.pop(), stack.pop()
        stack.append(function(*arguments))
    elif name == "BUILD":
        state, target = stack.pop(), stack[-1]
        if isinstance(target, _ArrayPlaceholder):
            _, shape, dtype, is_fortran, raw = state
            if is_fortran:
                raise ValueError("an array is in Fortran order")
            target.value = _make_array(raw, dtype, shape)
    else:
        raise ValueError(f"it has the operation {name}")


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    """Remove and return the items of a stack after its last mark."""
    items = []
    while (item := stack.pop()) is not MARK:
        items.append(item)
    return items[::-1]


def _make_dict(items: list[Any]) -> dict[str | bytes, Any]:
    """Return a dictionary of alternating keys and values.

    Keys must be text, as others may be nested too deeply to be hashed.
    """
    if not all(isinstance(key, str | bytes) for key in items[::2]):
        raise ValueError("it has keys that are not text")
    return dict(zip(items[::2], items[1::2], strict=True))


CONTAINER_TYPES: dict[str, Callable[[list[Any]], Any]] = {
    "TUPLE": tuple,
    "LIST": list,
    "DICT": _make_dict,
}


def _make_array(raw: Any, dtype: Any, shape: Any) -> Array:
    """Return an array of uint8 from its bytes; raise ValueError for another dtype."""
    name = _to_text(dtype.name) if isinstance(dtype, _DtypePlaceholder) else None
    if not isinstance(name, str) or name not in ("u1", "uint8", "|u1"):
        raise ValueError("an array is of another type than uint8")
    data = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.frombuffer(data, np.uint8).reshape(tuple(shape))


def _resolve(value: Any) -> Any:
    """Return the array of a placeholder; other values as they are."""
    return value.value if isinstance(value, _ArrayPlaceholder) else value


def _to_text(value: Any) -> Any:
    """Decode bytes; return other values as they are."""
    return value.decode("latin1") if isinstance(value, bytes) else value
