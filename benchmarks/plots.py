"""Plots of the results as SVG: roofline, ratios to ggml, scaling over threads, growth over sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

Results = dict[str, dict[str, Any]]
# Text as text, and the same bytes from the same figures.
pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "metalane", "font.size": 8})


def draw(results: Results, out: Path) -> Iterator[tuple[str, str]]:
    """Writes each plot whose subjects have results; its title and file."""
    plots: list[tuple[str, tuple[str, ...], Callable[[Results], Any]]] = [
        ("roofline", ("mat_vec", "mat_mat"), roofline),
        ("ratios_to_ggml", ("mat_vec", "mat_mat", "experts"), ratios),
        ("threads", ("threads",), threads),
        ("growth", ("growth",), growth),
    ]
    for name, subjects, plot in plots:
        if all(subject in results for subject in subjects):
            figure = plot(results)
            figure.savefig(out / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
            pyplot.close(figure)
            yield name.replace("_", " "), f"{name}.svg"


def colours(types: list[str]) -> dict[str, Any]:
    palette = matplotlib.colormaps["tab20"]
    return {name: palette(index % 20) for index, name in enumerate(types)}


def roofline(results: Results) -> Any:
    """Speed over arithmetic intensity: a point a type and number of inputs; rings are the fastest ggml."""
    roofs = results["mat_vec"]["roofs"]
    cases = results["mat_vec"]["cases"] + results["mat_mat"]["cases"]
    types = list(dict.fromkeys(case["parameters"]["type"] for case in cases))
    colour = colours(types)
    figure, axes = pyplot.subplots(figsize=(8, 5))
    intensities = [case["flops"] / case["nbytes"] for case in cases]
    ends = [min(intensities) / 2, max(intensities) * 2]
    ridge = roofs["flops_per_second"] / roofs["bytes_per_second"]
    line = sorted([*ends, ridge])
    axes.plot(
        line,
        [min(i * roofs["bytes_per_second"], roofs["flops_per_second"]) / 1e9 for i in line],
        color="black",
        linewidth=1,
        label="read bandwidth, float multiply-add",
    )
    for name in types:
        mine = [case for case in cases if case["parameters"]["type"] == name]
        x = [case["flops"] / case["nbytes"] for case in mine]
        speed = [case["flops"] / case["seconds"]["metalane"]["median"] / 1e9 for case in mine]
        axes.scatter(x, speed, s=14, color=colour[name], label=name)
        peers = [
            (i, case["flops"] / case["seconds"][case["fastest_ggml"]]["median"] / 1e9)
            for i, case in zip(x, mine, strict=True)
            if case["fastest_ggml"]
        ]
        if peers:
            axes.scatter(
                *zip(*peers, strict=True), s=24, facecolors="none", edgecolors=colour[name], linewidths=0.7
            )
    axes.set(
        xscale="log", yscale="log", xlabel="FLOP a byte", ylabel="GFLOP/s", title="Roofline; rings: ggml"
    )
    axes.grid(alpha=0.3)
    axes.legend(ncols=2, fontsize=6)
    return figure


def ratios(results: Results) -> Any:
    """ggml's time by metalane's, by type and shape."""
    panels = (
        ("mat_vec", "mat-vec", lambda p: f"{p['n']}x{p['k']}"),
        ("mat_mat", "mat-mat", lambda p: f"m = {p['m']}"),
        ("experts", "expert products", lambda p: f"{p['tokens']} tokens"),
    )
    figure, all_axes = pyplot.subplots(len(panels), figsize=(9, 9))
    for axes, (stem, title, label) in zip(all_axes, panels, strict=True):
        cases = [case for case in results[stem]["cases"] if case["fastest_ggml"]]
        types = list(dict.fromkeys(case["parameters"]["type"] for case in cases))
        shapes = list(dict.fromkeys(label(case["parameters"]) for case in cases))
        width = 0.8 / max(1, len(shapes))
        for case in cases:
            shape = shapes.index(label(case["parameters"]))
            place = types.index(case["parameters"]["type"]) + width * (shape - (len(shapes) - 1) / 2)
            axes.bar(place, case["ratios"][case["fastest_ggml"]], width, color=f"C{shape}")
        for index, shape in enumerate(shapes):
            axes.bar(0, 0, color=f"C{index}", label=shape)
        axes.axhline(1, color="black", linewidth=1)
        if stem == "mat_vec":
            axes.axhline(1.2, color="black", linewidth=0.7, linestyle="--")
        axes.set_xticks(range(len(types)), types, rotation=30)
        axes.set(ylabel="times ggml", title=title)
        axes.legend(fontsize=6, ncols=len(shapes))
    figure.tight_layout()
    return figure


def threads(results: Results) -> Any:
    """Times faster than one thread, over threads."""
    scaling = results["threads"]["cases"]["scaling"]
    figure, axes = pyplot.subplots(figsize=(6, 4))
    most = 1
    for index, (name, seconds) in enumerate(scaling.items()):
        for prefix, style in (("", "o-"), ("read ", "x:")):
            points = sorted(
                (int(side.removeprefix(prefix)), spread["median"])
                for side, spread in seconds.items()
                if side.removeprefix(prefix).isdigit() and side.startswith(prefix)
            )
            if points:
                counts = [count for count, _ in points]
                most = max(most, *counts)
                label = name if not prefix else f"reading the bytes of {name}"
                axes.plot(
                    counts, [points[0][1] / s for _, s in points], style, color=f"C{index}", label=label
                )
    axes.plot([1, most], [1, most], color="grey", linewidth=0.7)
    axes.set(xlabel="threads", ylabel="times one thread", title="Scaling over threads")
    axes.legend(fontsize=6)
    return figure


def growth(results: Results) -> Any:
    """Time over size, beside lines that grow as bytes and as arithmetic do from the first point."""
    cases = results["growth"]["cases"]
    columns = 3
    rows = -(-len(cases) // columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(10, 2.6 * rows), squeeze=False)
    for axes in grid.flat[len(cases) :]:
        axes.remove()
    for axes, case in zip(grid.flat, cases, strict=False):
        seconds = [spread["median"] for spread in case["seconds"]]
        axes.plot(case["sizes"], [1e3 * s for s in seconds], "o-", markersize=3, label="time")
        for what, label, style in (("nbytes", "bytes", "--"), ("flops", "arithmetic", ":")):
            work = case[what]
            scaled = [1e3 * seconds[0] * value / work[0] for value in work]
            axes.plot(case["sizes"], scaled, style, color="grey", label=label)
        axes.set(xscale="log", yscale="log", xlabel=case["axis"], ylabel="ms")
        axes.minorticks_off()
        axes.set_xticks(case["sizes"], [f"{size:,}" for size in case["sizes"]], rotation=45)
        axes.set_title(case["name"], fontsize=7)
        axes.legend(fontsize=6)
    figure.tight_layout()
    return figure
