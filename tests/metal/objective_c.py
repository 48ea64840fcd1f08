"""Objective-C as compilers leave it behind: selectors in object files, declarations in headers, type encodings."""

from __future__ import annotations

import json
import os
import re
import shlex
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

# What says how an argument is passed, not what it is: const, in, inout, out, bycopy, byref, oneway, atomic.
QUALIFIERS = "rnNoORVA"


def normalised(encoding: str) -> str:
    """A method's type encoding in the one form in which encodings are compared: `v32@0:8r^v16Q24` -> `v @ : ^v Q`.

    Offsets and qualifiers go, and so do the signatures of blocks. BOOL is `B` on Apple silicon, `C` with GNUstep and
    `c` on older systems: all become `B`, as nothing else in this interface is a lone char.
    """
    types = []
    at = 0
    while at < len(encoding):
        kind, at = read_type(encoding, at)
        types.append("B" if kind in ("C", "c") else kind)
        while at < len(encoding) and encoding[at].isdigit():
            at += 1
    return " ".join(types)


def read_type(encoding: str, at: int) -> tuple[str, int]:
    """The type at a place, without qualifiers, and the place behind it."""
    while encoding[at] in QUALIFIERS:
        at += 1
    if encoding[at] == "^":
        kind, end = read_type(encoding, at + 1)
        return "^" + kind, end
    if encoding.startswith("@?<", at):
        return "@?", closing(encoding, at + 2, "<>")
    if encoding.startswith("@?", at):
        return "@?", at + 2
    end = closing(encoding, at, "{}") if encoding[at] == "{" else at + 1
    return encoding[at:end], end


def closing(encoding: str, at: int, brackets: str) -> int:
    """The place behind the bracket that closes the one at `at`."""
    depth = 0
    for end in range(at, len(encoding)):
        depth += (encoding[end] == brackets[0]) - (encoding[end] == brackets[1])
        if depth == 0:
            return end + 1
    raise ValueError(f"a bracket is left open in {encoding!r}")


@dataclass(frozen=True)
class Selector:
    """A selector that an object file refers to, and the types with which it is sent, where the compiler knew them."""

    name: str
    types: str | None


def selectors(path: Path) -> set[Selector]:
    """The selector references of an ELF object file of GCC's Objective-C ABI.

    The compiler leaves an array `.objc_selector_list` of pairs of pointers (name, types), ended by nulls; relocations
    say to which strings they point.
    """
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a little-endian 64-bit ELF file")
    start, size, count = (*struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58))
    # type, offset, size, link, info of each section
    sections = [
        struct.unpack_from("<I", data, start + i * size + 4)
        + struct.unpack_from("<QQII", data, start + i * size + 24)
        for i in range(count)
    ]
    symbol_type, relocation_type = 2, 4
    symbols = []
    for kind, offset, length, link, _ in sections:
        if kind == symbol_type:
            names = sections[link][1]
            for at in range(offset, offset + length, 24):
                name, _, _, section, value, extent = struct.unpack_from("<IBBHQQ", data, at)
                symbols.append((text_at(data, names + name), section, value, extent))
    pointers = {}  # (section, offset in it) -> where in the file its string is
    for kind, offset, length, _, target in sections:
        if kind == relocation_type:
            for at in range(offset, offset + length, 24):
                place, info, addend = struct.unpack_from("<QQq", data, at)
                _, section, value, _ = symbols[info >> 32]
                if 0 < section < count:
                    pointers[target, place] = sections[section][1] + value + addend
    found = set()
    for name, section, value, extent in symbols:
        if re.fullmatch(r"\.objc_selector_list(\.\d+)?", name):
            for at in range(value, value + extent, 16):
                if (section, at) in pointers:
                    types = pointers.get((section, at + 8))
                    found.add(Selector(text_at(data, pointers[section, at]), types and text_at(data, types)))
    return found


def text_at(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def plain_environment() -> dict[str, str]:
    """For programs of their own: without the sanitizer's runtime and the played system that Python may have."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "LD_PRELOAD" and not name.startswith("METAL_DOUBLE_")
    }


@dataclass(frozen=True)
class Compiler:
    """The compiler of the Metal backend's Objective-C++, as its build called it."""

    command: list[str]

    @staticmethod
    def of(build: Path) -> tuple[Compiler, list[Path]]:
        """The compiler, and the object files of the backend."""
        entries = [
            entry
            for entry in json.loads((build / "compile_commands.json").read_text())
            if "/backends/metal/" in entry["file"] and entry["file"].endswith(".mm")
        ]
        words = shlex.split(entries[0]["command"])
        files = {"-o", words[words.index("-o") + 1], "-c", entries[0]["file"]}
        objects = [Path(entry["directory"], entry["output"]) for entry in entries]
        return Compiler([word for word in words if word not in files]), objects

    def call(self, source: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
        source.write_text(text)
        command = [*self.command, "-w", "-fno-color-diagnostics", *options, str(source)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=source.parent, env=plain_environment()
        )

    def run(self, source: Path, text: str, *options: str) -> str:
        done = self.call(source, text, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def errors(self, source: Path, text: str) -> list[str]:
        """What the compiler refuses, without the places."""
        done = self.call(source, text, "-fsyntax-only", "-ferror-limit=0")
        return re.findall(r" error: (.*)", done.stderr)

    def object(self, source: Path, text: str) -> Path:
        self.run(source, text, "-c", "-o", f"{source}.o")
        return Path(f"{source}.o")


@dataclass(frozen=True)
class Declarations:
    """What headers declare: members ("-" or "+" and selector) by type, and enumerators."""

    members: dict[str, set[str]]
    enumerators: list[str]

    @staticmethod
    def of(compiler: Compiler, source: Path, text: str, prefix: str) -> Declarations:
        dump = ("-fsyntax-only", "-Xclang", "-ast-dump")
        lines = compiler.run(source, text, *dump, "-Xclang", f"-ast-dump-filter={prefix}").splitlines()
        members: dict[str, set[str]] = {}
        enumerators = {}
        current = ""
        for line in lines:
            if found := re.match(r"ObjC(?:Protocol|Interface|Category)Decl .*?(\w+)$", line):
                current = found[1]
            elif found := re.match(r"[|`]-ObjCMethodDecl .*? ([-+]) (\S+) '", line):
                members.setdefault(current, set()).add(found[1] + found[2])
            elif found := re.match(rf"[|`]-EnumConstantDecl .*? ({prefix}\w+) '", line):
                enumerators[found[1]] = None
        return Declarations(members, list(enumerators))
