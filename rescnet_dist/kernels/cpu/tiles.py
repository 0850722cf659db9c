"""A type of Numba for compiled kernels: tiles, which are vectors of the processor.

A tile has TILE_ROWS rows, each of which is a vector of LANES floats. A function of tiles is one
instruction for each row, so that loops keep tiles in registers, and rows are computed at the same
time. Of a product and a sum, the result is rounded once where the processor can (FMA): the width of
vectors does not change a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.jit import compile_kernel
from rescnet_dist.kernels.cpu.registers import LANES, TILE_ROWS

instruction: Any = intrinsic  # its functions have two parameters fewer when they are called
TILE_FLOATS = TILE_ROWS * LANES
TILE_SLACK = (
    2 * TILE_FLOATS
)  # floats after the last, which tiles that begin before it read or write


@compile_kernel
def allocate_zeros(count: int, like: Array) -> Array:
    """Allocate zeros of the type of `like`, and TILE_SLACK more, from where a vector may begin.

    Vectors that are parts of two lines of the cache take twice as long.
    """
    buffer = np.zeros(count + TILE_SLACK + LANES, like.dtype)
    skipped = -(buffer.ctypes.data // buffer.itemsize) % LANES
    return buffer[skipped : skipped + count + TILE_SLACK]


class TileType(types.Type):
    """The type of tiles of floats of a type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Tile({dtype}, {TILE_ROWS}, {LANES})")


@register_model(TileType)
class _TileModel(models.PrimitiveModel):
    """Rows are values of their own to LLVM, which keeps each in a register."""

    def __init__(self, manager: Any, kind: TileType) -> None:
        vector = ir.VectorType(manager.lookup(kind.dtype).get_value_type(), LANES)
        super().__init__(manager, kind, ir.ArrayType(vector, TILE_ROWS))


def _get_data(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    """Return the pointer to the first float of an array."""
    return context.make_array(array_type)(context, builder, array).data


def _join(context: Any, builder: Any, kind: Any, rows: list[Any]) -> Any:
    """Return the tile of some rows."""
    tile = ir.Constant(context.get_value_type(kind), ir.Undefined)
    for index, row in enumerate(rows):
        tile = builder.insert_value(tile, row, index)
    return tile


def _spread(builder: Any, value: Any) -> Any:
    """Return a vector with a float in every lane."""
    integer = ir.IntType(32)
    vector = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    all_lanes = ir.Constant(ir.VectorType(integer, LANES), [0] * LANES)
    vector = builder.insert_element(vector, value, ir.Constant(integer, 0))
    return builder.shuffle_vector(vector, vector, all_lanes)


def _locate(builder: Any, data: Any, start: Any, index: int = 0, step: Any = None) -> Any:
    """Return the pointer to data[start + index·step]."""
    if index:
        start = builder.add(start, builder.mul(step, ir.Constant(start.type, index)))
    return builder.gep(data, [start])


def _load_vector(builder: Any, pointer: Any) -> Any:
    """Return the vector at a pointer to its first float."""
    vector = ir.VectorType(pointer.type.pointee, LANES)
    loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    loaded.align = _float_bytes(pointer.type.pointee)
    return loaded


def _float_bytes(kind: Any) -> int:
    """Return the bytes of a float of an LLVM type."""
    return 4 if isinstance(kind, ir.FloatType) else 8


@instruction
def load_tile(typing_context: Any, array: Any, start: Any, step: Any) -> Any:
    """Return the tile of rows array[start + r·step : … + LANES] of a flat array."""
    kind = TileType(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = _get_data(context, builder, signature.args[0], values[0])
        rows = [
            _load_vector(builder, _locate(builder, data, values[1], row, values[2]))
            for row in range(TILE_ROWS)
        ]
        return _join(context, builder, signature.return_type, rows)

    return kind(array, types.int64, types.int64), generate


@instruction
def store_tile(typing_context: Any, array: Any, start: Any, step: Any, tile: Any) -> Any:
    """Write the rows of a tile to array[start + r·step : … + LANES] of a flat array."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = _get_data(context, builder, signature.args[0], values[0])
        for row in range(TILE_ROWS):
            vector = builder.extract_value(values[3], row)
            pointer = _locate(builder, data, values[1], row, values[2])
            stored = builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()))
            stored.align = _float_bytes(pointer.type.pointee)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, tile), generate


@instruction
def repeat_vector(typing_context: Any, array: Any, start: Any) -> Any:
    """Return the tile whose rows are all array[start : start + LANES] of a flat array."""
    kind = TileType(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = _get_data(context, builder, signature.args[0], values[0])
        vector = _load_vector(builder, _locate(builder, data, values[1]))
        return _join(context, builder, signature.return_type, [vector] * TILE_ROWS)

    return kind(array, types.int64), generate


@instruction
def spread_floats(typing_context: Any, array: Any, start: Any) -> Any:
    """Return the tile with array[start + r] of a flat array in all lanes of row r."""
    kind = TileType(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = _get_data(context, builder, signature.args[0], values[0])
        step = ir.Constant(values[1].type, 1)
        rows = [
            _spread(builder, builder.load(_locate(builder, data, values[1], row, step)))
            for row in range(TILE_ROWS)
        ]
        return _join(context, builder, signature.return_type, rows)

    return kind(array, types.int64), generate


@instruction
def fill_tile(typing_context: Any, value: Any) -> Any:
    """Return the tile with a float in all lanes of all rows."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows = [_spread(builder, values[0])] * TILE_ROWS
        return _join(context, builder, signature.return_type, rows)

    return TileType(value)(value), generate


def _by_row(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that generates the instructions of `compute` for each row of tiles."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows = [
            compute(builder, *(builder.extract_value(value, row) for value in values))
            for row in range(TILE_ROWS)
        ]
        return _join(context, builder, signature.return_type, rows)

    return generate


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Generate a·b + c of vectors."""
    suffix = 32 if isinstance(a.type.element, ir.FloatType) else 64
    name = f"llvm.fmuladd.v{LANES}f{suffix}"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(a.type, [a.type] * 3), name
    )
    return builder.call(function, [a, b, c])


def _maximum(builder: Any, a: Any, b: Any) -> Any:
    """Generate the larger of two vectors, b where either is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@instruction
def add(typing_context: Any, a: Any, b: Any) -> Any:
    """Return a + b of two tiles."""
    return a(a, b), _by_row(lambda builder, *rows: builder.fadd(*rows))


@instruction
def multiply(typing_context: Any, a: Any, b: Any) -> Any:
    """Return a·b of two tiles."""
    return a(a, b), _by_row(lambda builder, *rows: builder.fmul(*rows))


@instruction
def multiply_add(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c of three tiles."""
    return a(a, b, c), _by_row(_multiply_add)


@instruction
def subtract_product(typing_context: Any, c: Any, a: Any, b: Any) -> Any:
    """Return c − a·b of three tiles."""

    def compute(builder: Any, c: Any, a: Any, b: Any) -> Any:
        return _multiply_add(builder, builder.fneg(a), b, c)

    return c(c, a, b), _by_row(compute)


@instruction
def maximum(typing_context: Any, a: Any, b: Any) -> Any:
    """Return the larger of two tiles, lane by lane, and b where one is NaN."""
    return a(a, b), _by_row(_maximum)
