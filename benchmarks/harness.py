"""What the benchmarks share: the machine, sides measured in turn, statistics, targets, result files.

A subject is one file beside this one, with cases. A case has sides: ours, and its peers. One round runs every side
once, so that whatever else the machine does meanwhile meets all of them; a ratio is the median over the rounds of the
two sides' quotient in one round.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results"
QUICK_RESULTS = HERE.parent / "build" / "bench-quick"
PEERS = ("ggml-python", "libggml-python", "llama-cpp-python", "torch", "mlx")
THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Options:
    """Of one run of a subject, from its command line."""

    rounds: int
    quick: bool
    """For development: few rounds of a few small cases; the figures mean little."""
    only: re.Pattern[str]
    out: Path

    @classmethod
    def parse(cls, description: str, rounds: int, quick_rounds: int = 3) -> Options:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--rounds", type=int, help=f"measurements of a side (default: {rounds})")
        parser.add_argument("--quick", action="store_true", help="few rounds of few and small cases")
        parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name it is found in")
        parser.add_argument("--out", type=Path, help="folder of the results (default: benchmarks/results)")
        given = parser.parse_args()
        # What means little must not lie where results are.
        out = given.out or (QUICK_RESULTS if given.quick else RESULTS)
        return cls(
            given.rounds or (quick_rounds if given.quick else rounds),
            given.quick,
            re.compile(given.only),
            out,
        )

    def chosen(self, names: Iterable[str]) -> Iterator[str]:
        return (name for name in names if self.only.search(name))

    def ring_bytes(self) -> int:
        """Bytes of inputs to go round in, so that each is cold again: 4 last-level caches, at least 1 GiB, at most a
        third of the free memory."""
        if self.quick:
            return 128 << 20
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(max(1 << 30, 4 * last_level_cache_bytes()), free // 3)


@dataclass
class Spread:
    """Median, 10th and 90th percentile, smallest of the rounds' values."""

    median: float
    p10: float
    p90: float
    smallest: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        p10, median, p90 = (float(v) for v in np.percentile(values, [10, 50, 90]))
        return cls(median, p10, p90, float(min(values)), len(values))


@dataclass
class Case:
    """One case of a subject, as its JSON has it."""

    parameters: dict[str, Any]
    nbytes: int
    """That must move between memory and processor."""
    flops: int
    seconds: dict[str, Spread]
    ratios: dict[str, float]
    """Each other side's time by metalane's: above 1 metalane is faster."""
    fastest_ggml: str
    """Whose ratio counts: the fastest build of ggml; empty: none is installed."""

    @property
    def times_ggml(self) -> float:
        return self.ratios.get(self.fastest_ggml, math.nan)


@dataclass
class Target:
    """One line of the pass/fail table; `value` at most (or at least) `bound` passes."""

    name: str
    value: float
    bound: float
    unit: str
    at_least: bool = False

    @property
    def passed(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


Samples = dict[str, list[float]]


def in_turn(
    sides: dict[str, Callable[[], float]], rounds: int, before: Callable[[], None] = lambda: None
) -> Samples:
    """What each side returns (seconds, mostly), once a round, after `before()`. A first round is not counted."""
    samples: Samples = {name: [] for name in sides}
    for counted in range(-1, rounds):
        for name, side in sides.items():
            before()
            value = side()
            if counted >= 0:
                samples[name].append(value)
    return samples


def ratio(samples: Samples, numerator: str, denominator: str) -> float:
    """Median over the rounds of one side's time by the other's."""
    return float(np.median(np.divide(samples[numerator], samples[denominator])))


def spreads(samples: Samples) -> dict[str, Spread]:
    return {name: Spread.of(values) for name, values in samples.items()}


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def settle() -> None:
    """Waits until the threads of OpenMP, which spin on behind a call, sleep: they would slow down who comes next."""
    time.sleep(0.01)


def optional(module: str) -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def compiler() -> str:
    return os.environ.get("CXX", "c++")


def compile_cpp(sources: Sequence[Path], output: Path, *flags: str) -> None:
    """Optimised for this machine, as whoever measures it would."""
    command = [compiler(), "-std=c++20", "-O3", "-march=native", "-pthread", *flags]
    subprocess.run([*command, *map(str, sources), "-o", str(output)], check=True)


def _function(name: str) -> Any:
    """Of <name>.cpp, compiled."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / f"{name}.so"
        compile_cpp([HERE / f"{name}.cpp"], library, "-shared", "-fPIC")
        return getattr(ctypes.CDLL(str(library)), name)


@cache
def _reader() -> Any:
    function = _function("read_bandwidth")
    function.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint, ctypes.POINTER(ctypes.c_double)
    ]  # fmt: skip
    function.restype = ctypes.c_uint64
    return function


def read_seconds(array: np.ndarray, threads: int = THREADS) -> float:
    """Seconds in which `threads` threads read the whole of `array` once, its start aligned to 64 bytes."""
    nbytes = array.nbytes // 64 * 64
    assert array.ctypes.data % 64 == 0
    seconds = ctypes.c_double()
    _reader()(array.ctypes.data, nbytes, 1, threads, ctypes.byref(seconds))
    return seconds.value


def check_reader() -> None:
    """The reader reads every byte: its sum is NumPy's."""
    words = np.random.default_rng(0).integers(0, 1 << 40, (1 << 20) + 72, dtype=np.uint64)
    words = words[-(words.ctypes.data % 64) // 8 % 8 :][: 1 << 20]
    seconds = (ctypes.c_double * 2)()
    total = _reader()(words.ctypes.data, words.nbytes // 2, 2, THREADS, seconds)
    if total != int(words.sum()):
        raise SystemExit("read_bandwidth.cpp did not read every byte")


def peak_flops() -> float:
    """Floating-point operations a second, multiplication and addition of floats with all threads: the best of five."""
    function = _function("peak_arithmetic")
    function.argtypes = [ctypes.c_uint, ctypes.c_size_t, ctypes.POINTER(ctypes.c_double)]
    function.restype = ctypes.c_double
    return max(function(THREADS, 5_000_000, ctypes.byref(ctypes.c_double())) for _ in range(5))


def version_of(package: str) -> str:
    """Empty: it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def last_level_cache_bytes() -> int:
    """Of one processor; 0 where the system does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0))
    return max(sizes, default=0)


def machine() -> dict[str, Any]:
    info: dict[str, Any] = {
        "system": platform.platform(),
        "architecture": platform.machine(),
        "threads": THREADS,
        "last_level_cache_bytes": last_level_cache_bytes(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "compiler": subprocess.run(
            [compiler(), "--version"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[0],
        "load_average": os.getloadavg()[0],
        "peers": ", ".join(f"{name} {version}" for name in PEERS if (version := version_of(name))),
    }
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        fields = dict(
            (part.strip() for part in line.split(":", 1))
            for line in cpuinfo.read_text().split("\n\n")[0].splitlines()
            if ":" in line
        )
        info["cpu"] = fields.get("model name", "unknown")
        flags = fields.get("flags", fields.get("Features", "")).split()
        shown = ("avx", "fma", "amx", "sve", "neon", "asimd", "f16c")
        info["flags"] = " ".join(flag for flag in flags if flag.startswith(shown))
    return info


def targets_table(targets: Sequence[Target]) -> list[str]:
    lines = ["| target | measured | bound | |", "|---|---|---|---|"]
    for target in targets:
        sign = ">=" if target.at_least else "<="
        verdict = "pass" if target.passed else "**FAIL**"
        lines.append(
            f"| {target.name} | {target.value:.3g} {target.unit} | {sign} {target.bound:g} | {verdict} |"
        )
    return lines


def spread_row(name: str, spread: Spread, scale: float, *more: str) -> str:
    median, p10, p90 = (scale * v for v in (spread.median, spread.p10, spread.p90))
    return f"| {name} | {median:.4g} | {p10:.4g} to {p90:.4g} | {' | '.join(more)} |"


def write(
    stem: str,
    title: str,
    body: Sequence[str],
    targets: Sequence[Target],
    cases: Any,
    out: Path,
    roofs: dict[str, float] | None = None,
) -> None:
    """results/<stem>.json and results/<stem>.md; prints the latter.

    `roofs` is what the machine could do at most, in the same run.
    """
    info = machine()
    out.mkdir(parents=True, exist_ok=True)
    result = {
        "machine": info,
        "targets": [{**asdict(target), "passed": target.passed} for target in targets],
        "cases": cases,
        "roofs": roofs or {},
    }
    (out / f"{stem}.json").write_text(json.dumps(result, indent=1, default=asdict) + "\n")
    text = [f"# {title}", "", *(f"- {key.replace('_', ' ')}: {value}" for key, value in info.items())]
    text += ["", *targets_table(targets), "", *body]
    (out / f"{stem}.md").write_text("\n".join(text) + "\n")
    print("\n".join(text), flush=True)
