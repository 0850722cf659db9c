"""Compiled kernel: a small matrix product whose sums stay in the registers of the processor.

LLVM's vectorizer does not keep the sums of a matrix product in registers, so the loop is written
in LLVM's vector instructions. Each sum is that of its products in their order, every one added with
a single rounding where the processor can (FMA): how sums are divided into tiles, and how wide
vectors are, does not change a bit.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from rescnet_dist.kernels.arrays import Array
from rescnet_dist.kernels.cpu.jit import compile_kernel

TILE_ROWS = 6  # of sums: with the widest tile, they take 24 of 32 registers
SIGNATURE_ARRAYS = (0, 2, 6, 10)  # arguments of a tile that are arrays


IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


def choose_lanes(is_x86: bool, name: str | None, features: set[str]) -> int:
    """Return the floats of a vector of a processor, by LLVM's name of it and its features."""
    if not is_x86:
        return 4
    if name == "x86-64-v4" or "avx512f" in features:
        return 16
    return 8 if name == "x86-64-v3" or "avx2" in features else 4


def _vector_lanes() -> int:
    """Return the floats of a vector of the processor that Numba compiles for.

    They follow from the name and the features that Numba's cache on disk has as a key.
    """
    settings: Any = config
    if settings.CPU_FEATURES is None:
        host = llvmlite.binding.get_host_cpu_features()
        features = {feature for feature, is_there in host.items() if is_there}
    else:
        enabled = settings.CPU_FEATURES.split(",")
        features = {part[1:] for part in enabled if part.startswith("+")}
    return choose_lanes(IS_X86, settings.CPU_NAME, features)


LANES = _vector_lanes()
# Vectors of a tile: as many as leave registers for the factors. x86 has 32 with AVX-512, else 16.
MAX_VECTORS = 2 if IS_X86 and LANES < 16 else 4


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
        array = context.make_array(signature.args[index])(context, builder, values[index])
        values[index] = array.data
    a, a_start, rows, rows_start, a_outer, a_inner = values[:6]
    b, b_start, b_outer, b_inner, c, c_start, c_row, outer, inner = values[6:]
    integer, element = ir.IntType(64), context.get_value_type(signature.args[0].dtype)
    vector, float_bytes = ir.VectorType(element, LANES), 4 if element == ir.FloatType() else 8
    name = f"llvm.fmuladd.v{LANES}f{8 * float_bytes}"
    multiply_add = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(vector, [vector] * 3), name
    )
    undefined = ir.Constant(vector, ir.Undefined)
    first_lane = ir.Constant(ir.IntType(32), 0)
    all_lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)

    def constant(value: int) -> Any:
        return ir.Constant(integer, value)

    def locate(pointer: Any, index: int) -> Any:
        part = builder.gep(pointer, [constant(index * LANES)])
        return builder.bitcast(part, vector.as_pointer())

    def load(pointer: Any, index: int) -> Any:
        loaded = builder.load(locate(pointer, index))
        loaded.align = float_bytes
        return loaded

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
    kinds = [vector] * len(sums)

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
        value = builder.load(builder.gep(a_rows[row], [a_place]))
        value = builder.insert_element(undefined, value, first_lane)
        value = builder.shuffle_vector(value, undefined, all_lanes)
        for index in range(vectors):
            total = sums[row * vectors + index]
            added.append(builder.call(multiply_add, [value, factors[index], total]))
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
            stored = builder.store(added[row * vectors + index], locate(c_rows[row], index))
            stored.align = float_bytes
    return context.get_dummy_value()


_add_1, _add_2, _add_3, _add_4 = (_make_tile(vectors) for vectors in range(1, 5))


@compile_kernel
def split_vectors(vectors: int) -> Array:
    """Divide vectors evenly into parts of at most MAX_VECTORS; return the vectors of each."""
    count = (vectors + MAX_VECTORS - 1) // MAX_VECTORS
    parts = np.empty(count, np.int64)
    for part in range(count):
        parts[part] = (part + 1) * vectors // count - part * vectors // count
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
