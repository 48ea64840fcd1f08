"""Makes README.md and plots out of the results in a folder.

python benchmarks/report.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ggml_library
import harness

TITLES = {
    "mat_vec": "Mat-vec",
    "mat_mat": "Mat-mat",
    "experts": "Expert products",
    "gather": "Embedding gather",
    "dflash2_selector": "DFlash2 selector",
    "serving_loop": "Serving loop",
    "threads": "Threads",
    "growth": "Growth",
    "dispatch": "Calls from Python",
    "event_loop": "Event loop",
    "graphs": "Graphs",
    "executor": "CPU executor",
    "checker": "Checker",
}


def read(out: Path) -> dict[str, dict[str, Any]]:
    """Results by subject."""
    return {
        stem: json.loads((out / f"{stem}.json").read_text())
        for stem in TITLES
        if (out / f"{stem}.json").exists()
    }


def overview(results: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| subject | targets met | load average at its end |", "|---|---|---|"]
    for stem, result in results.items():
        met = sum(target["passed"] for target in result["targets"])
        load = result["machine"]["load_average"]
        lines.append(f"| [{TITLES[stem]}]({stem}.md) | {met} of {len(result['targets'])} | {load:.1f} |")
    return lines


def missed(results: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    for stem, result in results.items():
        for target in result["targets"]:
            if not target["passed"]:
                sign = ">=" if target["at_least"] else "<="
                value = f"{target['value']:.3g} {target['unit']}"
                lines.append(f"| {TITLES[stem]} | {target['name']} | {value} | {sign} {target['bound']:g} |")
    if not lines:
        return ["Every target is met."]
    return [
        "Targets that are missed:",
        "",
        "| subject | target | measured | bound |",
        "|---|---|---|---|",
        *lines,
    ]


def times_ggml(case: dict[str, Any]) -> str:
    ratio = case["ratios"].get(case["fastest_ggml"])
    return "" if ratio is None else f"{ratio:.2f}"


def by_type(results: dict[str, dict[str, Any]]) -> list[str]:
    """One line a type: how many times faster than ggml in each shape, and mat-vec's share of read bandwidth."""
    columns: dict[str, dict[str, str]] = {}
    for stem, label in (
        ("mat_vec", "mat-vec {n}x{k}"),
        ("mat_mat", "mat-mat, m = {m}"),
        ("experts", "experts, {tokens} tokens"),
    ):
        for case in results.get(stem, {}).get("cases", []):
            name = label.format(**case["parameters"])
            text = times_ggml(case)
            if stem == "mat_vec":
                text += f" ({100 * case['ratios']['read']:.0f} %)"
            columns.setdefault(name, {})[case["parameters"]["type"]] = text
    if not columns:
        return []
    types = dict.fromkeys(name for column in columns.values() for name in column)
    return [
        "Times faster than the fastest build of ggml; in brackets the share of read bandwidth.",
        "",
        f"| type | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
        *(f"| {name} | {' | '.join(c.get(name, '') for c in columns.values())} |" for name in types),
        "",
    ]


def write(out: Path) -> None:
    results = read(out)
    if not results:
        raise SystemExit(f"{out} has no results")
    machine = {key: v for key, v in next(iter(results.values()))["machine"].items() if key != "load_average"}
    builds = ", ".join(f"{name}: {build.describe()}" for name, build in ggml_library.libraries().items())
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench`; medians of interleaved rounds. Machines differ and others share them: only ratios from "
        "one run count.",
        "",
        *(f"- {key.replace('_', ' ')}: {value}" for key, value in machine.items()),
        f"- builds of ggml: {builds}",
        "",
        *overview(results),
        "",
        *by_type(results),
        *missed(results),
    ]
    if harness.optional("matplotlib") is not None:
        import plots

        for title, file in plots.draw(results, out):
            lines += ["", f"![{title}]({file})"]
    (out / "README.md").write_text("\n".join(lines) + "\n")
    print(out / "README.md")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else harness.RESULTS)
