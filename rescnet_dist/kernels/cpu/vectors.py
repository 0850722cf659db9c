"""Vectors of the processor: how many floats they have, and LLVM's instructions on them.

A product and a sum are rounded once where the processor can (FMA), so that the width of vectors
does not change a bit.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import config

TILE_ROWS = 6  # of sums that are in registers at a time, each of some vectors
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
# Vectors of a row of sums: as many as leave registers for the factors. With AVX-512 and on Arm,
# sums then take 24 of 32 registers, on other x86 processors 12 of 16.
MAX_VECTORS = 2 if IS_X86 and LANES < 16 else 4


def get_data(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    """Return the pointer to the first float of an array of Numba."""
    return context.make_array(array_type)(context, builder, array).data


def load_vector(builder: Any, pointer: Any, element: Any) -> Any:
    """Return the vector at a pointer to its first float, of the LLVM type `element`."""
    vector = ir.VectorType(element, LANES)
    loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    loaded.align = _count_bytes(element)
    return loaded


def store_vector(builder: Any, vector: Any, pointer: Any) -> None:
    """Write a vector to a pointer to its first float."""
    stored = builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()))
    stored.align = _count_bytes(vector.type.element)


def spread(builder: Any, value: Any) -> Any:
    """Return a vector with a float in every lane."""
    integer = ir.IntType(32)
    vector = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    all_lanes = ir.Constant(ir.VectorType(integer, LANES), [0] * LANES)
    vector = builder.insert_element(vector, value, ir.Constant(integer, 0))
    return builder.shuffle_vector(vector, vector, all_lanes)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c of vectors."""
    name = f"llvm.fmuladd.v{LANES}f{8 * _count_bytes(a.type.element)}"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(a.type, [a.type] * 3), name
    )
    return builder.call(function, [a, b, c])


def _count_bytes(element: Any) -> int:
    """Return the bytes of a float, which is the only alignment that loads and stores may assume."""
    return 4 if isinstance(element, ir.FloatType) else 8
