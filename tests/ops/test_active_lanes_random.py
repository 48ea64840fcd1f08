"""Random programs of branches, loops, early ends and calls round simd_ functions, against an interpreter in NumPy that
runs each statement for a mask of lanes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from ops.stdlib_case import run_kernel

import metalane
from counts import count

THREADS, GROUP, WIDTH = 200, 80, 32  # threadgroups of 80, 80 and 40: simdgroups of 32, 32, 16 and of 32, 8
BATCH = 12  # programs in one kernel

Mask = np.ndarray
Lanes = np.ndarray
Value = Callable[["Frame"], Lanes]
ValueOfMask = Callable[["Frame", Mask], Lanes]


@dataclass
class Frame:
    """One call of a function: its variables, and the lanes that have left it, or left what they were in."""

    variables: dict[str, Lanes]
    returned: Mask
    result: Lanes
    broken: list[Mask] = field(default_factory=list)  # for each loop round, the innermost last
    continued: list[Mask] = field(default_factory=list)

    def running(self, mask: Mask) -> Mask:
        away = self.returned.copy()
        for left in (*self.broken[-1:], *self.continued[-1:]):
            away |= left
        return mask & ~away


class Program:
    """Functions f0, f1, ...; each calls only those before it. Written as text, and as Python closures."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.rng = rng
        self.name = f"p{number}"
        self.budget = 0
        self.counters = 0
        self.texts: list[str] = []
        self.bodies: list[Block] = []
        for _ in range(rng.randint(1, 3)):
            self.budget = 14
            body = self.block(0, ["x", "s"], 0)
            text = f"uint {self.name}_f{len(self.bodies)}(uint x) {{\n  uint s = x % 5;\n{body.text}  return s;\n}}"
            self.texts.append(text)
            self.bodies.append(body)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def call(self, number: int, x: Lanes, mask: Mask) -> Lanes:
        frame = Frame({"x": x, "s": x % 5}, np.zeros_like(mask), np.zeros_like(x))
        self.bodies[number].run(frame, mask)
        return np.where(frame.returned, frame.result, frame.variables["s"])

    # ---- expressions: text and value; all are unsigned and wrap

    def value(self, names: list[str]) -> tuple[str, Value]:
        name, factor, term = self.rng.choice(names), self.rng.randint(1, 7), self.rng.randint(0, 9)
        return (
            f"({name} * {factor}u + {term}u)",
            lambda f: f.variables[name] * np.uint32(factor) + np.uint32(term),
        )

    def condition(self, names: list[str]) -> tuple[str, Value]:
        name, modulus = self.rng.choice(names), self.rng.randint(2, 5)
        least, term = self.rng.randint(1, modulus - 1), self.rng.randint(0, 3)
        return (
            f"({name} + {term}u) % {modulus}u >= {least}u",
            lambda f: (f.variables[name] + np.uint32(term)) % np.uint32(modulus) >= least,
        )

    def collective(self, names: list[str]) -> tuple[str, ValueOfMask]:
        """A call that lanes meet at; its value for the lanes of a mask."""
        operand, of = self.value(names)
        kind = self.rng.randint(0, 3)
        if kind == 0 and self.bodies:
            number = self.rng.randrange(len(self.bodies))
            return f"{self.name}_f{number}({operand})", lambda f, m: self.call(number, of(f), m)
        if kind == 1:
            return f"simd_prefix_inclusive_sum({operand})", lambda f, m: np.cumsum(
                np.where(m, of(f), 0), dtype=np.uint32
            )
        if kind == 2:
            return f"simd_max({operand})", lambda f, m: np.full_like(of(f), of(f)[m].max() if m.any() else 0)
        return f"simd_sum({operand})", lambda f, m: np.full_like(of(f), of(f)[m].sum(dtype=np.uint32))

    # ---- statements

    def block(self, depth: int, names: list[str], loops: int) -> Block:
        kinds = ["add", "add", "if", "for", "do", "choose", "and", "leave"]
        statements = []
        for _ in range(self.rng.randint(1, 4)):
            self.budget -= 1
            kind = self.rng.choice(kinds) if depth < 4 and self.budget > 0 else "add"
            statements.append(getattr(self, f"{kind}_statement")(depth, names, loops))
        return Block(statements, "  " * (depth + 1))

    def add_statement(self, depth: int, names: list[str], loops: int) -> Statement:
        text, of = self.collective(names)

        def run(frame: Frame, mask: Mask) -> None:
            frame.variables["s"] = np.where(
                mask, frame.variables["s"] * np.uint32(3) + of(frame, mask), frame.variables["s"]
            )

        return Statement(f"s = s * 3u + {text};", run)

    def if_statement(self, depth: int, names: list[str], loops: int) -> Statement:
        text, holds = self.condition(names)
        inside, other = self.block(depth + 1, names, loops), self.block(depth + 1, names, loops)
        two = self.rng.random() < 0.5

        def run(frame: Frame, mask: Mask) -> None:
            chosen = holds(frame)
            inside.run(frame, mask & chosen)
            if two:
                other.run(frame, mask & ~chosen)

        return Statement(f"if ({text}) {inside.braced}" + (f" else {other.braced}" if two else ""), run)

    def for_statement(self, depth: int, names: list[str], loops: int) -> Statement:
        self.counters += 1
        counter, modulus = f"k{self.counters}", self.rng.randint(1, 4)
        name = self.rng.choice(["x", *names[2:]])
        fixed = self.rng.random() < 0.4
        bound = f"{modulus}" if fixed else f"1 + {name} % {modulus}u"
        inside = self.block(depth + 1, [*names, counter], loops + 1)

        def run(frame: Frame, mask: Mask) -> None:
            most = np.full_like(frame.variables["x"], modulus)
            if not fixed:
                most = 1 + frame.variables[name] % np.uint32(modulus)
            for k in range(modulus):
                frame.variables[counter] = np.full_like(frame.variables["x"], k)
                self.iterate(frame, inside, mask & (k < most), k == 0)
            frame.broken.pop()

        return Statement(f"for (uint {counter} = 0; {counter} < {bound}; ++{counter}) {inside.braced}", run)

    def do_statement(self, depth: int, names: list[str], loops: int) -> Statement:
        self.counters += 1
        counter, modulus = f"k{self.counters}", self.rng.randint(1, 3)
        inside = self.block(depth + 1, [*names, counter], loops + 1)
        text, of = self.collective(["x", counter])

        def run(frame: Frame, mask: Mask) -> None:
            for k in range(modulus):
                frame.variables[counter] = np.full_like(frame.variables["x"], k)
                self.iterate(frame, inside, mask, k == 0)
                # The condition: all lanes of the loop meet, those that went on early as well.
                mask = mask & ~frame.broken[-1] & ~frame.returned
                frame.variables[counter] = np.full_like(frame.variables["x"], k + 1)
                if k + 1 < modulus:
                    mask = mask & (of(frame, mask) % np.uint32(3) != 0)
            frame.broken.pop()

        condition = f"++{counter} < {modulus}u && {text} % 3u != 0"
        return Statement(f"uint {counter} = 0; do {inside.braced} while ({condition});", run)

    @staticmethod
    def iterate(frame: Frame, inside: Block, mask: Mask, first: bool) -> None:
        if first:
            frame.broken.append(np.zeros_like(mask))
        frame.continued.append(np.zeros_like(mask))
        inside.run(frame, mask & ~frame.broken[-1])
        frame.continued.pop()

    def choose_statement(self, depth: int, names: list[str], loops: int) -> Statement:
        condition, holds = self.condition(names)
        (a, of_a), (b, of_b) = self.collective(names), self.collective(names)

        def run(frame: Frame, mask: Mask) -> None:
            chosen = holds(frame)
            left, right = of_a(frame, mask & chosen), of_b(frame, mask & ~chosen)
            frame.variables["s"] = np.where(
                mask, frame.variables["s"] + np.where(chosen, left, right), frame.variables["s"]
            )

        return Statement(f"s += {condition} ? {a} : {b};", run)

    def and_statement(self, depth: int, names: list[str], loops: int) -> Statement:
        condition, holds = self.condition(names)
        text, of = self.collective(names)

        def run(frame: Frame, mask: Mask) -> None:
            chosen = mask & holds(frame)
            chosen &= of(frame, chosen) % np.uint32(2) == 1
            frame.variables["s"] = frame.variables["s"] + np.where(chosen, np.uint32(1000), np.uint32(0))

        return Statement(f"if ({condition} && {text} % 2u == 1u) s += 1000u;", run)

    def leave_statement(self, depth: int, names: list[str], loops: int) -> Statement:
        condition, holds = self.condition(names)
        word = self.rng.choice(["return s;", "break;", "continue;"] if loops else ["return s;"])

        def run(frame: Frame, mask: Mask) -> None:
            left = mask & holds(frame)
            if word == "return s;":
                frame.result = np.where(left, frame.variables["s"], frame.result)
                frame.returned |= left
            else:
                (frame.broken if word == "break;" else frame.continued)[-1] |= left

        return Statement(f"if ({condition}) {word}", run)


@dataclass
class Statement:
    text: str
    run: Callable[[Frame, Mask], None]


@dataclass
class Block:
    statements: list[Statement]
    indent: str

    @property
    def text(self) -> str:
        return "".join(f"{self.indent}{statement.text}\n" for statement in self.statements)

    @property
    def braced(self) -> str:
        return f"{{\n{self.text}{self.indent[2:]}}}"

    def run(self, frame: Frame, mask: Mask) -> None:
        for statement in self.statements:
            statement.run(frame, frame.running(mask))


def simdgroups() -> list[slice]:
    found = []
    for start in range(0, THREADS, GROUP):
        end = min(start + GROUP, THREADS)
        found += [slice(first, min(first + WIDTH, end)) for first in range(start, end, WIDTH)]
    return found


def check_batch(device: metalane.Device, first: int) -> None:
    programs = [Program(first + k, random.Random(first + k)) for k in range(BATCH)]
    calls = [f"out[{k} * n + i] = {p.name}_f{len(p.bodies) - 1}(t % 32);" for k, p in enumerate(programs)]
    got = run_kernel(
        device,
        f"random_programs_{first}",
        "\n".join(program.text for program in programs),
        {},
        {"out": (BATCH * THREADS, "uint")},
        calls,
        threads=THREADS,
        threads_per_threadgroup=GROUP,
        attributes="uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]",
    )["out"].reshape(BATCH, THREADS)
    for program, row in zip(programs, got, strict=True):
        for threads in simdgroups():
            lane = np.arange(threads.stop - threads.start, dtype=np.uint32)
            expected = program.call(len(program.bodies) - 1, lane, np.ones(len(lane), bool))
            np.testing.assert_array_equal(row[threads], expected, f"{threads}:\n{program.text}")


def test_random_programs(device: metalane.Device) -> None:
    with np.errstate(over="ignore"):
        for batch in range(count("active_lanes_random") // BATCH):
            check_batch(device, batch * BATCH)
