"""Reads of a Mach-O file of 64 bits what says how it is linked: kind, names, libraries, symbols."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

# <mach-o/loader.h>, <mach-o/nlist.h>
MAGIC = 0xFEEDFACF
ARM64 = 0x0100000C
OBJECT, EXECUTE, DYLIB = 1, 2, 6
LC_SYMTAB, LC_LOAD_DYLIB, LC_ID_DYLIB, LC_BUILD_VERSION = 0x02, 0x0C, 0x0D, 0x32
PLATFORM_MACOS = 1
STAB, PRIVATE_EXTERNAL, TYPE, EXTERNAL = 0xE0, 0x10, 0x0E, 0x01
UNDEFINED = 0
ALTERNATE_ENTRY = 0x0200


@dataclass
class Symbol:
    name: str
    defined: bool
    exported: bool
    alternate_entry: bool
    value: int


@dataclass
class MachO:
    processor: int
    kind: int
    install_name: str = ""
    libraries: list[str] = field(default_factory=list)
    minimum_macos: tuple[int, int] = (0, 0)
    symbols: dict[str, Symbol] = field(default_factory=dict)


def text_at(data: bytes, offset: int) -> str:
    return data[offset : data.index(0, offset)].decode()


def read(path: Path) -> MachO:
    data = path.read_bytes()
    magic, processor, _, kind, command_count = struct.unpack_from("<5I", data)
    assert magic == MAGIC, f"{path} is no Mach-O file of 64 bits"
    found = MachO(processor, kind)
    at = 32
    for _ in range(command_count):
        command, nbytes = struct.unpack_from("<2I", data, at)
        if command in (LC_ID_DYLIB, LC_LOAD_DYLIB):
            name = text_at(data, at + struct.unpack_from("<I", data, at + 8)[0])
            if command == LC_ID_DYLIB:
                found.install_name = name
            else:
                found.libraries.append(name)
        elif command == LC_BUILD_VERSION:
            platform, minimum = struct.unpack_from("<2I", data, at + 8)
            assert platform == PLATFORM_MACOS
            found.minimum_macos = (minimum >> 16, minimum >> 8 & 0xFF)
        elif command == LC_SYMTAB:
            table, count, strings, _ = struct.unpack_from("<4I", data, at + 8)
            for offset in range(table, table + 16 * count, 16):
                name_at, kinds, _, description, value = struct.unpack_from("<IBBHQ", data, offset)
                if kinds & STAB:
                    continue
                name = text_at(data, strings + name_at)
                defined = kinds & TYPE != UNDEFINED
                exported = defined and kinds & EXTERNAL != 0 and not kinds & PRIVATE_EXTERNAL
                alternate = bool(description & ALTERNATE_ENTRY)
                found.symbols[name] = Symbol(name, defined, exported, alternate, value)
        at += nbytes
    return found
