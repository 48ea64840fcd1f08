"""Command line: ``python -m metalane devices``, ``cache``, ``--cmake-dir``, ``--version``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import metalane
from metalane import cpu


def cmake_dir() -> Path:
    """The folder of the CMake package, for ``find_package(metalane)``: pass it as ``metalane_DIR``."""
    return Path(metalane.__file__).parent / "lib" / "cmake" / "metalane"


def list_devices() -> None:
    for info in metalane.devices():
        print(f"{info.kind}\t{info.name}")


def show_cache(clear: bool) -> None:
    """The disk cache of kernels compiled for the CPU device, after emptying it where asked."""
    if clear:
        print(f"deleted\t{cpu.clear_kernel_cache()} kernels")
    info = cpu.kernel_cache_info()
    print(f"folder\t{info.directory or 'none: this user has no home folder'}")
    print(f"kernels\t{info.entries}")
    print(f"size\t{info.nbytes / 1e6:.1f} MB of at most {info.limit_bytes / 1e6:.1f} MB")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="metalane", description=metalane.__doc__)
    parser.add_argument("--version", action="version", version=metalane.__version__)
    parser.add_argument(
        "--cmake-dir", action="store_true", help="print the folder of the CMake package and stop"
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("devices", help="list the devices of this machine, the default one first")
    cache = commands.add_parser("cache", help="show the disk cache of kernels compiled for the CPU device")
    cache.add_argument("--clear", action="store_true", help="delete every compiled kernel first")
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.cmake_dir:
        print(cmake_dir())
    elif options.command == "devices":
        list_devices()
    elif options.command == "cache":
        show_cache(options.clear)
    else:
        parser.print_usage(sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
