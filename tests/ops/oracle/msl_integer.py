"""Functions of integers in metal_stdlib, on Python's integers of any size."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from ops.oracle.msl_real import DTYPES, Case

INTEGERS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
UNSIGNED = {"char": "uchar", "short": "ushort", "int": "uint", "long": "ulong"}


def bits(value: int, width: int) -> int:
    return value & ((1 << width) - 1)


def field(value: int, width: int, signed: bool) -> int:
    value = bits(value, width)
    return value - (1 << width) if signed and value >> (width - 1) else value


class Integer:
    """One integer type: its range, its functions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.signed = name in UNSIGNED
        self.width = DTYPES[name].itemsize * 8
        self.low = -(1 << (self.width - 1)) if self.signed else 0
        self.high = (1 << (self.width - self.signed)) - 1

    def wrap(self, value: int) -> int:
        return field(value, self.width, self.signed)

    def saturate(self, value: int) -> int:
        return min(max(value, self.low), self.high)

    def mul24(self, x: int, y: int) -> int:
        return field(x, min(24, self.width), self.signed) * field(y, min(24, self.width), self.signed)

    def rotate(self, x: int, y: int) -> int:
        n = y % self.width
        x = bits(x, self.width)
        return (x << n) | (x >> (self.width - n))

    def divide(self, x: int, y: int) -> int:
        """Metal leaves division by zero open; here it gives 0, and the dividend as remainder."""
        return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)

    def remainder(self, x: int, y: int) -> int:
        return x if y == 0 else x - y * self.divide(x, y)

    def insert(self, offset: int, count: int) -> Callable[[int, int], int]:
        offset = min(offset, self.width)
        mask = ((1 << min(count, self.width - offset)) - 1) << offset
        return lambda x, y: (bits(x, self.width) & ~mask) | ((bits(y, self.width) << offset) & mask)

    def extract(self, offset: int, count: int) -> Callable[[int], int]:
        count = min(count, self.width - offset)
        return lambda x: field(bits(x, self.width) >> offset, count, self.signed)

    def cases(self) -> list[Case]:
        return [*self.operators(), *self.common(), *self.bit_functions(), *self.arithmetic()]

    def operators(self) -> list[Case]:
        mask = self.width - 1
        return [
            Case("add", "decltype(x)(x + y)", 2, lambda x, y: x + y),
            Case("subtract", "decltype(x)(x - y)", 2, lambda x, y: x - y),
            Case("multiply", "decltype(x)(x * y)", 2, lambda x, y: x * y),
            Case("divide", "decltype(x)(x / y)", 2, self.divide),
            Case("remainder", "decltype(x)(x % y)", 2, self.remainder),
            Case("negate", "decltype(x)(-x)", 1, lambda x: -x),
            Case("and", "decltype(x)(x & y)", 2, lambda x, y: x & y),
            Case("or", "decltype(x)(x | y)", 2, lambda x, y: x | y),
            Case("xor", "decltype(x)(x ^ y)", 2, lambda x, y: x ^ y),
            Case("complement", "decltype(x)(~x)", 1, lambda x: ~x),
            Case(
                "shift_left", f"decltype(x)(x << (y & decltype(y)({mask})))", 2, lambda x, y: x << (y & mask)
            ),
            Case(
                "shift_right", f"decltype(x)(x >> (y & decltype(y)({mask})))", 2, lambda x, y: x >> (y & mask)
            ),
            Case("less", "x < y", 2, lambda x, y: x < y, result="bool"),
            Case("less_equal", "x <= y", 2, lambda x, y: x <= y, result="bool"),
            Case("greater", "x > y", 2, lambda x, y: x > y, result="bool"),
            Case("greater_equal", "x >= y", 2, lambda x, y: x >= y, result="bool"),
            Case("equal", "x == y", 2, lambda x, y: x == y, result="bool"),
            Case("not_equal", "x != y", 2, lambda x, y: x != y, result="bool"),
            Case("not", "!x", 1, lambda x: not x, result="bool"),
        ]

    def common(self) -> list[Case]:
        return [
            Case("min", "min(x, y)", 2, min),
            Case("max", "max(x, y)", 2, max),
            Case("min3", "min3(x, y, z)", 3, min),
            Case("max3", "max3(x, y, z)", 3, max),
            Case("median3", "median3(x, y, z)", 3, lambda x, y, z: sorted((x, y, z))[1]),
            Case("abs", "abs(x)", 1, abs),
            Case("clamp", "clamp(x, min(y, z), max(y, z))", 3, lambda x, y, z: sorted((x, y, z))[1]),
            Case("select", "select(x, y, z > decltype(z)(1))", 3, lambda x, y, z: y if z > 1 else x),
        ]

    def bit_functions(self) -> list[Case]:
        w = self.width
        return [
            Case("popcount", "popcount(x)", 1, lambda x: bits(x, w).bit_count()),
            Case("clz", "clz(x)", 1, lambda x: w - bits(x, w).bit_length()),
            Case("ctz", "ctz(x)", 1, lambda x: w if x == 0 else (x & -x).bit_length() - 1),
            Case("reverse_bits", "reverse_bits(x)", 1, lambda x: int(f"{bits(x, w):0{w}b}"[::-1], 2)),
            Case("rotate", "rotate(x, y)", 2, self.rotate),
            Case("extract_bits", "extract_bits(x, 2, 5)", 1, self.extract(2, 5)),
            Case("extract_none", "extract_bits(x, 0, 0)", 1, lambda x: 0),
            Case("extract_all", "extract_bits(x, 0, 64)", 1, lambda x: x),
            Case("extract_top", f"extract_bits(x, {w - 3}, 3)", 1, self.extract(w - 3, 3)),
            Case("insert_bits", "insert_bits(x, y, 3, 7)", 2, self.insert(3, 7)),
            Case("insert_top", f"insert_bits(x, y, {w - 2}, 2)", 2, self.insert(w - 2, 2)),
            Case("insert_all", f"insert_bits(x, y, 0, {w})", 2, self.insert(0, w)),
            Case("insert_none", "insert_bits(x, y, 4, 0)", 2, self.insert(4, 0)),
        ]

    def arithmetic(self) -> list[Case]:
        w = self.width
        return [
            Case("mulhi", "mulhi(x, y)", 2, lambda x, y: (x * y) >> w),
            Case("madhi", "madhi(x, y, z)", 3, lambda x, y, z: ((x * y) >> w) + z),
            Case("mul24", "mul24(x, y)", 2, self.mul24),
            Case("mad24", "mad24(x, y, z)", 3, lambda x, y, z: self.mul24(x, y) + z),
            Case("addsat", "addsat(x, y)", 2, lambda x, y: self.saturate(x + y)),
            Case("subsat", "subsat(x, y)", 2, lambda x, y: self.saturate(x - y)),
            Case("madsat", "madsat(x, y, z)", 3, lambda x, y, z: self.saturate(x * y + z)),
            Case("hadd", "hadd(x, y)", 2, lambda x, y: (x + y) >> 1),
            Case("rhadd", "rhadd(x, y)", 2, lambda x, y: (x + y + 1) >> 1),
            Case("absdiff", "absdiff(x, y)", 2, lambda x, y: abs(x - y), result=UNSIGNED.get(self.name, "")),
        ]

    def arguments(self) -> list[tuple[int, int, int]]:
        """Edge values against each other, and random ones."""
        values = [
            self.low,
            self.low + 1,
            self.high,
            self.high - 1,
            0,
            1,
            2,
            self.wrap(-1),
            1 << 3,
            self.high // 3,
        ]
        generator = np.random.default_rng(0)
        wild = generator.integers(self.low, self.high, (200, 3), DTYPES[self.name], endpoint=True)
        return [*itertools.product(values, repeat=3), *(tuple(int(v) for v in row) for row in wild)]

    def exact(self, case: Case) -> np.ndarray:
        """The oracle's results for `arguments()`, wrapped to the result's type."""
        result = case.result or self.name
        if result == "bool":
            return np.array([case.oracle(*row[: case.arity]) for row in self.arguments()], np.bool_)
        target = Integer(result)
        values = [target.wrap(case.oracle(*row[: case.arity])) for row in self.arguments()]
        return np.array(values, DTYPES[result])
