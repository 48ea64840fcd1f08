"""Measures mat-mat beside ggml: every type, 8 to 512 inputs.

python benchmarks/mat_mat.py [--rounds 7] [--quick] [--only PATTERN]
"""

from __future__ import annotations

import harness
from products import TYPES, WeightRing, measure_dense, others

import metalane

INPUTS = (8, 32, 128, 512)


def main() -> None:
    options = harness.Options.parse("Benchmark of mat-mat.", rounds=7)
    harness.check_reader()
    device = metalane.Device("cpu")
    n = k = 1024 if options.quick else 4096
    types, inputs = (("F32", "Q4_K"), (8, 128)) if options.quick else (TYPES, INPUTS)
    cases: list[harness.Case] = []
    targets: list[harness.Target] = []
    body = [
        f"Weights {n} x {k}; a ratio is another's time by metalane's, so that above 1 metalane is faster. ggml is the "
        "faster of its builds; MLX has types of its own, nearest to Q4_1 and Q8_0.",
        "",
        "| type, inputs | median ms | 10-90 % | GFLOP/s | times ggml | which ggml | times others |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in types:
        chosen = [m for m in inputs if options.only.search(f"{name} m={m}")]
        if not chosen:
            continue
        ring = WeightRing(device, name, n, k, options.ring_bytes())
        for m in chosen:
            case = measure_dense(device, ring, m, options.rounds)
            cases.append(case)
            ours = case.seconds["metalane"]
            speed = f"{case.flops / ours.median / 1e9:.0f}"
            ratios = (f"{case.times_ggml:.2f}", case.fastest_ggml, others(case))
            body.append(harness.spread_row(f"{name}, {m}", ours, 1e3, speed, *ratios))
            print(body[-1], flush=True)
            targets.append(
                harness.Target(f"{name}, m = {m}: times ggml", case.times_ggml, 1, "times", at_least=True)
            )
    harness.write("mat_mat", f"Mat-mat, {device.name}", body, targets, cases, options.out)


if __name__ == "__main__":
    main()
