"""Compiled kernel: a small matrix product whose sums stay in the registers of the processor.

LLVM's vectorizer does not keep the sums of a matrix product in registers, so the loop is written
in LLVM's vector instructions. Each sum is that of its products in their order: how sums are divided
into tiles does not change a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.jit import compile_kernel, compile_part
from rescnet_dist.kernels.cpu.vectors import (
    LANES,
    MAX_VECTORS,
    TILE_ROWS,
    get_data,
    load_vector,
    multiply_add,
    spread,
    store_vector,
)

SIGNATURE_ARRAYS = (0, 2, 6, 10)  # arguments of a tile that are arrays


def _make_tile(vectors: int) -> Callable[..., None]:
    """Return the function `add_tile` for a number of vectors."""

    @intrinsic
    def add_tile(
        typing_context: Any,
        a: Any,
        a_start: Any,
        rows: Any,
        rows_start: Any,
        a_outer: Any,
        a_inner: Any,
        b: Any,
        b_start: Any,
        b_outer: Any,
        b_inner: Any,
        c: Any,
        c_start: Any,
        c_row: Any,
        outer: Any,
        inner: Any,
    ) -> Any:
        arguments = [a, a_start, rows, rows_start, a_outer, a_inner, b, b_start, b_outer]
        arguments += [b_inner, c, c_start, c_row, outer, inner]
        signature = types.void(
            *(
                argument if index in SIGNATURE_ARRAYS else types.int64
                for index, argument in enumerate(arguments)
            )
        )

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return _generate_tile(context, builder, signature, values, vectors)

        return signature, generate

    return add_tile


def _generate_tile(context: Any, builder: Any, signature: Any, values: Any, vectors: int) -> Any:
    """Generate the instructions of `add_tile`: two nested loops around the products of a tile."""
    values = list(values)
    for index in SIGNATURE_ARRAYS:
        values[index] = get_data(context, builder, signature.args[index], values[index])
    a, a_start, rows, rows_start, a_outer, a_inner = values[:6]
    b, b_start, b_outer, b_inner, c, c_start, c_row, outer, inner = values[6:]
    integer, element = ir.IntType(64), context.get_value_type(signature.args[0].dtype)

    def constant(value: int) -> Any:
        return ir.Constant(integer, value)

    def locate(pointer: Any, index: int) -> Any:
        return builder.gep(pointer, [constant(index * LANES)])

    def load(pointer: Any, index: int) -> Any:
        return load_vector(builder, locate(pointer, index), element)

    def add_phis(kinds: list[Any], before: list[Any], block: Any) -> list[Any]:
        phis = [builder.phi(kind) for kind in kinds]
        for phi, value in zip(phis, before, strict=True):
            phi.add_incoming(value, block)
        return phis

    def close_loop(phis: list[Any], after: list[Any], block: Any) -> None:
        for phi, value in zip(phis, after, strict=True):
            phi.add_incoming(value, block)

    a_rows, c_rows = [], []
    for row in range(TILE_ROWS):
        offset = builder.load(builder.gep(rows, [builder.add(rows_start, constant(row))]))
        a_rows.append(builder.gep(a, [builder.add(a_start, offset)]))
        offset = builder.mul(c_row, constant(row))
        c_rows.append(builder.gep(c, [builder.add(c_start, offset)]))
    sums = [load(row, index) for row in c_rows for index in range(vectors)]
    kinds = [total.type for total in sums]

    before = builder.block
    outer_begin = builder.append_basic_block("outer.begin")
    inner_body = builder.append_basic_block("inner")
    outer_end = builder.append_basic_block("outer.end")
    after = builder.append_basic_block("after")
    builder.branch(outer_begin)

    builder.position_at_end(outer_begin)
    outer_phis = add_phis([integer] * 3 + kinds, [constant(0), constant(0), b_start, *sums], before)
    i, a_line, b_line, *sums = outer_phis
    builder.branch(inner_body)

    builder.position_at_end(inner_body)
    inner_phis = add_phis([integer] * 3 + kinds, [constant(0), a_line, b_line, *sums], outer_begin)
    j, a_place, b_place, *sums = inner_phis
    b_pointer = builder.gep(b, [b_place])
    factors = [load(b_pointer, index) for index in range(vectors)]
    added = []
    for row in range(TILE_ROWS):
        value = spread(builder, builder.load(builder.gep(a_rows[row], [a_place])))
        for index in range(vectors):
            total = sums[row * vectors + index]
            added.append(multiply_add(builder, value, factors[index], total))
    next_j = builder.add(j, constant(1))
    next_places = [builder.add(a_place, a_inner), builder.add(b_place, b_inner)]
    close_loop(inner_phis, [next_j, *next_places, *added], inner_body)
    builder.cbranch(builder.icmp_signed("<", next_j, inner), inner_body, outer_end)

    builder.position_at_end(outer_end)
    next_i = builder.add(i, constant(1))
    next_lines = [builder.add(a_line, a_outer), builder.add(b_line, b_outer)]
    close_loop(outer_phis, [next_i, *next_lines, *added], outer_end)
    builder.cbranch(builder.icmp_signed("<", next_i, outer), outer_begin, after)

    builder.position_at_end(after)
    for row in range(TILE_ROWS):
        for index in range(vectors):
            store_vector(builder, added[row * vectors + index], locate(c_rows[row], index))
    return context.get_dummy_value()


_add_1, _add_2, _add_3, _add_4 = (_make_tile(vectors) for vectors in range(1, 5))


@compile_part
def part_vectors(vectors: int, part: int, count: int) -> int:
    """Return the vectors of one of `count` parts that are as even as possible."""
    return (part + 1) * vectors // count - part * vectors // count


@compile_kernel
def split_vectors(vectors: int) -> Array:
    """Divide vectors evenly into parts of at most MAX_VECTORS; return the vectors of each."""
    count = (vectors + MAX_VECTORS - 1) // MAX_VECTORS
    parts = np.empty(count, np.int64)
    for part in range(count):
        parts[part] = part_vectors(vectors, part, count)
    return parts


@compile_kernel
def add_tile(
    a: Array,
    a_start: int,
    rows: Array,
    rows_start: int,
    a_outer: int,
    a_inner: int,
    b: Array,
    b_start: int,
    b_outer: int,
    b_inner: int,
    c: Array,
    c_start: int,
    c_row: int,
    outer: int,
    inner: int,
    vectors: int,
) -> None:
    """Add a product of matrices to a tile: TILE_ROWS rows of sums, each of some vectors of floats.

    c[c_start + r·c_row + x] += Σᵢ Σⱼ a[a_start + rows[rows_start + r] + i·a_outer + j·a_inner] ·
    b[b_start + i·b_outer + j·b_inner + x], i < outer, j < inner, both at least 1. a, b and c are
    flat arrays in single precision; all places of whole vectors must be inside of them.
    """
    if vectors == 4:
        _add_4(
            a, a_start, rows, rows_start, a_outer, a_inner,
            b, b_start, b_outer, b_inner, c, c_start, c_row, outer, inner,
        )  # fmt: skip
    elif vectors == 3:
        _add_3(
            a, a_start, rows, rows_start, a_outer, a_inner,
            b, b_start, b_outer, b_inner, c, c_start, c_row, outer, inner,
        )  # fmt: skip
    elif vectors == 2:
        _add_2(
            a, a_start, rows, rows_start, a_outer, a_inner,
            b, b_start, b_outer, b_inner, c, c_start, c_row, outer, inner,
        )  # fmt: skip
    else:
        _add_1(
            a, a_start, rows, rows_start, a_outer, a_inner,
            b, b_start, b_outer, b_inner, c, c_start, c_row, outer, inner,
        )  # fmt: skip
