"""Measures mat-vec beside ggml and memory: every type, two shapes of a large layer and a large head, weights cold.

python benchmarks/mat_vec.py [--rounds 15] [--quick] [--only PATTERN]
"""

from __future__ import annotations

import harness
import numpy as np
from products import TYPES, WeightRing, measure_dense, others

import metalane

SHAPES = ((4096, 14336), (14336, 4096))  # n, k
HEAD = ("Q8_0", 262_144, 640)
QUICK_TYPES = ("F32", "Q8_0", "Q4_K", "Q6_K")


def wanted_cases(quick: bool) -> dict[str, tuple[str, int, int]]:
    if quick:
        wanted = [(name, 1024, 4096) for name in QUICK_TYPES]
    else:
        wanted = [(name, n, k) for name in TYPES for n, k in SHAPES]
        wanted.append(HEAD)
    return {f"{name} {n}x{k}": (name, n, k) for name, n, k in wanted}


def main() -> None:
    options = harness.Options.parse("Benchmark of mat-vec.", rounds=15)
    harness.check_reader()
    device = metalane.Device("cpu")
    cases: list[harness.Case] = []
    targets: list[harness.Target] = []
    body = [
        "Weights n x k, one input; a ratio is another's time by metalane's, so that above 1 metalane is faster. ggml "
        "is the faster of its builds; MLX has types of its own, nearest to Q4_1 and Q8_0.",
        "",
        "| type, n x k | median ms | 10-90 % | GB/s | of read bandwidth | times ggml | which ggml | times others |",
        "|---|---|---|---|---|---|---|---|",
    ]
    wanted = wanted_cases(options.quick)
    for name in options.chosen(wanted):
        ggml_type, n, k = wanted[name]
        ring = WeightRing(device, ggml_type, n, k, options.ring_bytes())
        case = measure_dense(device, ring, 1, options.rounds)
        cases.append(case)
        ours, share = case.seconds["metalane"], case.ratios["read"]
        body.append(
            harness.spread_row(
                name,
                ours,
                1e3,
                f"{ring.nbytes / ours.median / 1e9:.1f}",
                f"{100 * share:.0f} %",
                f"{case.times_ggml:.2f}",
                case.fastest_ggml,
                others(case),
            )
        )
        print(body[-1], flush=True)
        enough = max(case.times_ggml / 1.2, share / 0.85)
        targets += [
            harness.Target(f"{name}: times ggml", case.times_ggml, 1, "times", at_least=True),
            harness.Target(f"{name}: 1.2 times ggml or 85 % of bandwidth", enough, 1, "", at_least=True),
        ]
    read = float(np.median([case.nbytes / case.seconds["read"].median for case in cases]))
    roofs = {"bytes_per_second": read, "flops_per_second": harness.peak_flops()}
    body += [
        "",
        f"{harness.THREADS} threads read {read / 1e9:.1f} GB/s (median of the cases) and do "
        f"{roofs['flops_per_second'] / 1e9:.0f} GFLOP/s in float.",
    ]
    harness.write("mat_vec", f"Mat-vec, {device.name}", body, targets, cases, options.out, roofs)


if __name__ == "__main__":
    main()
