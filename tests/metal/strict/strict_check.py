"""What Metal's compiler would say to a shader, as far as Clang's C++ for OpenCL knows address spaces.

Three steps: Clang's preprocessor; ``opencl_text``, which rewrites the few things that C++ for OpenCL spells otherwise;
Clang again, which checks types and prints its syntax tree, in which ``syntax_tree`` looks for what Clang allows and
Metal does not. What that adds up to, and what stays unseen: docs/metal_strictness.md.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from .opencl_text import as_opencl
from .syntax_tree import SyntaxTree

HERE = Path(__file__).resolve().parent
CLANG = next((path for n in range(16, 30) if (path := shutil.which(f"clang++-{n}"))), None)
_FLAGS = [
    *("-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-nostdinc", "-fno-color-diagnostics", "-ferror-limit=0"),
    *("-Wno-unknown-attributes", "-Wno-unknown-pragmas", "-cl-single-precision-constant"),
    *("-Xclang", "-cl-ext=+cl_khr_fp16,-cl_khr_fp64,-__opencl_c_fp64"),
]  # fmt: skip
_SWIZZLES = "metal_strict_swizzles.h"
_OWN_HEADERS = ("metal_strict.h", "metal_strict_functions.h", _SWIZZLES)
# Names of Metal's headers; what they declare comes with metal_strict.h.
_METAL_HEADERS = [
    *("metal_stdlib", "metal_atomic", "metal_common", "metal_compute", "metal_geometric", "metal_integer"),
    *("metal_limits", "metal_math", "metal_matrix", "metal_pack", "metal_relational", "metal_simdgroup"),
    "metal_simdgroup_matrix",
]  # fmt: skip
_BEGIN = "#pragma strict_begin"


def check(text: str) -> list[str]:
    """The faults of a shader as Metal is given it, headers in place: each "file:line: what"; none where it is right."""
    with tempfile.TemporaryDirectory() as folder:
        for header in _METAL_HEADERS:
            Path(folder, header).touch()
        Path(folder, _SWIZZLES).write_text("".join(_swizzles(n) for n in (2, 3, 4)))
        source = Path(folder, "source.metal")
        source.write_text(f"{_BEGIN}\n{text}")
        headers = ["-I", folder, "-include", _SWIZZLES, "-include", str(HERE / "metal_strict.h")]
        expanded, errors = _clang(["-E", *headers, str(source)])
        if errors:
            return errors
        begin = expanded.index(_BEGIN)
        shader = as_opencl(expanded[begin:])
        source.write_text(expanded[:begin] + shader.text)
        dump, errors = _clang(["-fsyntax-only", "-Xclang", "-ast-dump", str(source)])
        tree = SyntaxTree(dump, _OWN_HEADERS)
        return shader.faults + errors + tree.faults() + tree.layout_faults(shader.records)


def _clang(arguments: list[str]) -> tuple[str, list[str]]:
    assert CLANG is not None
    result = subprocess.run([CLANG, *_FLAGS, *arguments], capture_output=True, text=True, timeout=300)
    errors = re.findall(r"^(\S+:\d+):\d+: (?:fatal )?error: (.*)$", result.stderr, re.MULTILINE)
    if result.returncode != 0 and not errors:
        raise RuntimeError(result.stderr)
    return result.stdout, [f"{place}: {what}" for place, what in errors]


def _swizzles(size: int) -> str:
    """The macro that declares all swizzles of a vector as its members."""
    members = []
    for letters, count in itertools.product(("xyzw", "rgba"), (2, 3, 4)):
        for chosen in itertools.product(letters[:size], repeat=count):
            assignable = str(len(set(chosen)) == count).lower()
            members.append(f"swizzle<vec<T, {count}>, {assignable}> {''.join(chosen)};")
    return f"#define STRICT_SWIZZLES_{size} {' '.join(members)}\n"
