"""A type of Numba for compiled kernels: tiles, which are vectors of the processor.

A tile has TILE_ROWS rows, each of which is a vector of LANES floats. A function of tiles is one
instruction for each row, so that loops keep tiles in registers, and rows are computed at the same
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.aligned import aligned_zeros
from rescnet_dist.kernels.cpu.jit import compile_kernel
from rescnet_dist.kernels.cpu.vectors import (
    LANES,
    TILE_ROWS,
    get_data,
    load_vector,
    spread,
    store_vector,
)
from rescnet_dist.kernels.cpu.vectors import multiply_add as multiply_add_vectors

instruction: Any = intrinsic  # its functions have two parameters fewer when they are called
TILE_FLOATS = TILE_ROWS * LANES
# Floats after the last, which tiles that begin before it read or write
TILE_SLACK = 2 * TILE_FLOATS
compiled_zeros = compile_kernel(aligned_zeros)


@compile_kernel
def allocate_zeros(count: int, like: Array) -> Array:
    """Allocate zeros of the type of `like`, and TILE_SLACK more, from where a vector may begin."""
    return compiled_zeros(count + TILE_SLACK, LANES, like)


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


def _join(context: Any, builder: Any, kind: Any, rows: list[Any]) -> Any:
    """Return the tile of some rows."""
    tile = ir.Constant(context.get_value_type(kind), ir.Undefined)
    for index, row in enumerate(rows):
        tile = builder.insert_value(tile, row, index)
    return tile


def _locate(builder: Any, data: Any, start: Any, index: int = 0, step: Any = None) -> Any:
    """Return the pointer to data[start + index·step]."""
    if index:
        start = builder.add(start, builder.mul(step, ir.Constant(start.type, index)))
    return builder.gep(data, [start])


@instruction
def load_tile(typing_context: Any, array: Any, start: Any, step: Any) -> Any:
    """Return the tile of rows array[start + r·step : … + LANES] of a flat array."""
    kind = TileType(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = get_data(context, builder, signature.args[0], values[0])
        element = context.get_value_type(signature.args[0].dtype)
        rows = [
            load_vector(builder, _locate(builder, data, values[1], row, values[2]), element)
            for row in range(TILE_ROWS)
        ]
        return _join(context, builder, signature.return_type, rows)

    return kind(array, types.int64, types.int64), generate


@instruction
def store_tile(typing_context: Any, array: Any, start: Any, step: Any, tile: Any) -> Any:
    """Write the rows of a tile to array[start + r·step : … + LANES] of a flat array."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = get_data(context, builder, signature.args[0], values[0])
        for row in range(TILE_ROWS):
            vector = builder.extract_value(values[3], row)
            store_vector(builder, vector, _locate(builder, data, values[1], row, values[2]))
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, tile), generate


@instruction
def repeat_vector(typing_context: Any, array: Any, start: Any) -> Any:
    """Return the tile whose rows are all array[start : start + LANES] of a flat array."""
    kind = TileType(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = get_data(context, builder, signature.args[0], values[0])
        element = context.get_value_type(signature.args[0].dtype)
        vector = load_vector(builder, _locate(builder, data, values[1]), element)
        return _join(context, builder, signature.return_type, [vector] * TILE_ROWS)

    return kind(array, types.int64), generate


@instruction
def spread_floats(typing_context: Any, array: Any, start: Any) -> Any:
    """Return the tile with array[start + r] of a flat array in all lanes of row r."""
    kind = TileType(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = get_data(context, builder, signature.args[0], values[0])
        step = ir.Constant(values[1].type, 1)
        rows = [
            spread(builder, builder.load(_locate(builder, data, values[1], row, step)))
            for row in range(TILE_ROWS)
        ]
        return _join(context, builder, signature.return_type, rows)

    return kind(array, types.int64), generate


@instruction
def fill_tile(typing_context: Any, value: Any) -> Any:
    """Return the tile with a float in all lanes of all rows."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows = [spread(builder, values[0])] * TILE_ROWS
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
    return a(a, b, c), _by_row(multiply_add_vectors)


@instruction
def subtract_product(typing_context: Any, c: Any, a: Any, b: Any) -> Any:
    """Return c − a·b of three tiles."""

    def compute(builder: Any, c: Any, a: Any, b: Any) -> Any:
        return multiply_add_vectors(builder, builder.fneg(a), b, c)

    return c(c, a, b), _by_row(compute)


@instruction
def maximum(typing_context: Any, a: Any, b: Any) -> Any:
    """Return the larger of two tiles, lane by lane, and b where one is NaN."""
    return a(a, b), _by_row(_maximum)
