"""Command line: ``python -m metalane devices``, ``doctor``, ``cache``, ``inspect``, ``check``, ``trace``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import metalane
from metalane import check_command, cpu, doctor, inspect, trace_command


def cmake_dir() -> Path:
    """The folder of the CMake package, for ``find_package(metalane)``: pass it as ``metalane_DIR``."""
    return Path(metalane.__file__).parent / "lib" / "cmake" / "metalane"


def list_devices() -> None:
    for info in metalane.devices():
        print(f"{info.kind}\t{info.name}")


def megabytes(text: str) -> int:
    """Bytes of a size given in megabytes."""
    try:
        size = float(text) * 1e6
    except ValueError:
        size = -1
    if not 0 <= size < 1 << 63:
        raise argparse.ArgumentTypeError(f"expected a number of megabytes, got '{text}'")
    return int(size)


def show_cache(clear: bool, prune: int | None) -> None:
    """The disk cache of kernels compiled for the CPU device, after emptying or shrinking it where asked."""
    if clear:
        print(f"deleted\t{cpu.clear_kernel_cache()} kernels")
    elif prune is not None:
        print(f"deleted\t{cpu.prune_kernel_cache(prune)} kernels")
    info = cpu.kernel_cache_info()
    print(f"folder\t{info.directory or 'none: this user has no home folder'}")
    print(f"kernels\t{info.entries}")
    print(f"size\t{info.nbytes / 1e6:.1f} MB of at most {info.limit_bytes / 1e6:.1f} MB")


def show_gguf(path: str, json: bool) -> int:
    """What a GGUF file holds; 1 where it cannot be read."""
    try:
        with metalane.GgufFile(path) as file:
            text = inspect.as_json(file) if json else inspect.as_text(file)
    except (metalane.GgufError, metalane.OutOfMemoryError) as error:
        print(f"metalane: {inspect.printable(str(error))}", file=sys.stderr)
        return 1
    # Names may hold characters that the terminal's encoding does not.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="metalane", description=metalane.__doc__)
    parser.add_argument("--version", action="version", version=metalane.__version__)
    parser.add_argument(
        "--cmake-dir", action="store_true", help="print the folder of the CMake package and stop"
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("devices", help="list the devices of this machine, the default one first")
    cache = commands.add_parser("cache", help="show the disk cache of kernels compiled for the CPU device")
    smaller = cache.add_mutually_exclusive_group()
    smaller.add_argument("--clear", action="store_true", help="delete every compiled kernel first")
    smaller.add_argument(
        "--prune",
        type=megabytes,
        metavar="MB",
        help="delete the least recently used kernels first, until at most this many megabytes are left",
    )
    shown = commands.add_parser("inspect", help="show the metadata and tensors of a GGUF file")
    shown.add_argument("file", help="the file, or the first part of a split one")
    shown.add_argument("--json", action="store_true", help="print JSON, values whole")
    check_command.add_parser(commands)
    trace_command.add_parser(commands)
    doctor.add_parser(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.cmake_dir:
        print(cmake_dir())
    elif options.command == "devices":
        list_devices()
    elif options.command == "cache":
        show_cache(options.clear, options.prune)
    elif options.command == "inspect":
        return show_gguf(options.file, options.json)
    elif options.command == "check":
        return check_command.run(options)
    elif options.command == "trace":
        return trace_command.run(options)
    elif options.command == "doctor":
        return doctor.run(options)
    else:
        parser.print_usage(sys.stderr)
        return 2
    return 0


def _run() -> int:
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


if __name__ == "__main__":
    sys.exit(_run())
