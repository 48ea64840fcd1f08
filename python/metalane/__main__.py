"""Command line: ``python -m metalane --cmake-dir``, ``--version``, ``devices``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import metalane


def cmake_dir() -> Path:
    """The folder of the CMake package, for ``find_package(metalane)``: pass it as ``metalane_DIR``."""
    return Path(metalane.__file__).parent / "lib" / "cmake" / "metalane"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="metalane", description=metalane.__doc__)
    parser.add_argument("--version", action="version", version=metalane.__version__)
    parser.add_argument(
        "--cmake-dir", action="store_true", help="print the folder of the CMake package and stop"
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("devices", help="list the devices of this machine, the default one first")
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.cmake_dir:
        print(cmake_dir())
        return 0
    if options.command == "devices":
        for info in metalane.devices():
            print(f"{info.kind}\t{info.name}")
        return 0
    parser.print_usage(sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
