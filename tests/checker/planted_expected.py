"""What the repaired twins of the planted faults compute, by NumPy: arrays by argument, for each kernel pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
Expected = dict[str, np.ndarray]


def _f64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def _one(value: Any) -> np.ndarray:
    return np.array([value])


def _normalised(x: np.ndarray) -> np.ndarray:
    centred = _f64(x) - _f64(x).mean()
    return centred / np.sqrt((centred**2).mean() + 1e-5)


def _byte_pairs(x: np.ndarray) -> np.ndarray:
    return np.append(np.stack([x, x + 1], axis=1).reshape(-1), 0)  # the last byte belongs to no pair


def _blocks(x: np.ndarray) -> np.ndarray:
    return np.append(x[:96] + np.repeat(np.arange(3), 32), 0)


def _neighbour_sums(x: np.ndarray) -> np.ndarray:
    padded = np.pad(_f64(x), 1)
    return padded[:-2] + padded[2:]


def _after(x: np.ndarray) -> np.ndarray:
    return np.append(x[0], np.diff(x))


def _quads(x: np.ndarray, n: int) -> np.ndarray:
    return np.add.reduceat(_f64(x[:n]), np.arange(0, n, 4))


def _in_rounds(x: np.ndarray) -> np.ndarray:
    return np.pad(_f64(x), (0, 128 - len(x))).reshape(2, 64).sum(axis=0)


def _by_simdgroups(x: np.ndarray) -> np.ndarray:
    return np.concatenate([np.full(len(part), part.sum()) for part in (_f64(x)[:32], _f64(x)[32:])])


def _mask(places: np.ndarray, n: int) -> np.ndarray:
    return np.where(np.isin(np.arange(n), places), 255, 0)


def _listed_positions(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, np.arange(len(x)), 0)


def _padded(x: np.ndarray, n: int) -> np.ndarray:
    return np.pad(_f64(x), (0, n - len(x)))


def _left_shares(x: np.ndarray) -> np.ndarray:
    return np.repeat(np.cumsum(_f64(x)[:4]), 8)


def _where_multiple_of_4(x: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(x)) % 4 == 0, 0, np.roll(x, 1))


def _alternating(x: np.ndarray) -> np.ndarray:
    places = np.arange(len(x))
    return np.where(places % 2 == 0, x, -x)[places ^ 1]


def _but_one_of_four(x: np.ndarray) -> np.ndarray:
    return 6 - x % 4


def _with_upper_half(x: np.ndarray) -> np.ndarray:
    return _f64(x)[::-1] + np.where(np.arange(64) % 32 < 16, np.roll(_f64(x), -16), 0)


def _first_eight_turned(x: np.ndarray) -> np.ndarray:
    places = np.arange(len(x))
    return np.where(places < 8, x, -x)[places ^ 1]


# By the fault's name: from the values that the kernel was given to those it leaves.
EXPECTED: dict[str, Callable[[Arrays], Expected]] = {
    # race
    "tree": lambda a: {"out": _one(_f64(a["x"]).sum())},
    "scan": lambda a: {"out": np.cumsum(_f64(a["x"]))},
    "histogram": lambda a: {"out": np.bincount(a["x"] % 8, minlength=8)},
    "device_exchange": lambda a: {"out": 2 * a["x"][::-1], "scratch": 2 * a["x"]},
    "reused_scratch": lambda a: {"out": _normalised(a["x"])},
    "counted_plainly": lambda a: {"out": _one((a["x"] > 0).sum()), "count": _one((a["x"] > 0).sum())},
    "byte_pairs": lambda a: {"out": _byte_pairs(a["x"])},
    "foreign_tile": lambda a: {"out": np.roll(a["x"], 32)},
    # race-threadgroups
    "total": lambda a: {"total": _one(_f64(a["x"]).sum())},
    "overlapping_blocks": lambda a: {"out": _blocks(a["x"])},
    "last_arrival": lambda a: {
        "out": _one((a["x"] > 0).sum()),
        "partial": np.array([(a["x"] > 0).sum(), 0, 0, 0]),
        "arrived": _one(4),
    },
    "transpose": lambda a: {"a": a["a"].T.reshape(-1)},
    "smooth": lambda a: {"out": 0.5 * _neighbour_sums(a["x"])},
    "wrong_position": lambda a: {"out": np.exp(_f64(a["x"]))},
    "wrong_stride": lambda a: {"x": 2 * a["x"]},
    # bounds
    "grid_tail": lambda a: {"out": a["x"]},
    "left_neighbour": lambda a: {"out": _after(a["x"])},
    "vector_tail": lambda a: {"out": _quads(a["x"], a["n"])},
    "byte_stride": lambda a: {"out": a["rows"][:, 0]},
    "inclusive_loop": lambda a: {"out": np.full(4, _f64(a["x"]).sum())},
    "atomic_bin": lambda a: {"bins": np.bincount(a["x"][a["x"] < 10], minlength=10)},
    "threadgroup_array": lambda a: {"out": np.append(a["x"][1:], a["x"][-1])},
    "dynamic_memory": lambda a: {"out": a["x"] + 1},
    "unset_pointer": lambda a: {"out": a["x"][:32]},
    "matrix_tile": lambda a: {"out": _padded(a["a"], 64)},
    "cast_input": lambda a: {"out": 0.5 * _f64(a["x"]) + 1},
    "count_in_constant": lambda a: {"out": _one((a["x"][8:] > 0).sum())},
    # uninitialised
    "half_filled": lambda a: {"out": a["x"][::-1]},
    "accumulate": lambda a: {"fresh": a["x"]},
    "tile_rim": lambda a: {"out": _neighbour_sums(a["x"])},
    "few_partials": lambda a: {"out": _one(_f64(a["x"]).sum())},
    "unset_counter": lambda a: {"out": _one((a["x"] > 0).sum())},
    "sparse_list": lambda a: {
        "fresh": _listed_positions(a["x"]),
        "out": _one(_listed_positions(a["x"]).sum()),
    },
    "forgotten_field": lambda a: {
        "fresh": np.stack([a["x"].view(np.uint32), np.arange(16, dtype=np.uint32)], axis=1).reshape(-1),
        "out": np.arange(16),
    },
    "missing_byte": lambda a: {"fresh": a["x"], "out": a["x"].view("<u4")},
    "half_of_pair": lambda a: {"out": 2 * _f64(a["x"].astype(np.float16))[::-1]},
    # divergence
    "early_return": lambda a: {"out": _padded(a["x"][:40][::-1], 64)},
    "inside_branch": lambda a: {"out": _padded(a["x"][32:], 64)},
    "both_branches": lambda a: {"out": _alternating(a["x"])},
    "uneven_loop": lambda a: {"out": _in_rounds(a["x"])},
    "found_break": lambda a: {"out": np.where(np.arange(64) == 7, 1, 4)},
    "one_simdgroup": lambda a: {"out": np.where(np.arange(64) < 32, a["x"][np.arange(64) ^ 1], a["x"])},
    "switch_case": lambda a: {"out": _where_multiple_of_4(a["x"])},
    # simdgroup-barrier
    "lower_half": lambda a: {"out": _padded(a["x"][16:], 32)},
    "uneven_turns": lambda a: {"out": _padded(a["x"], 64).reshape(2, 32).sum(axis=0)},
    "left_out_turn": lambda a: {"out": _but_one_of_four(a["x"])},
    "two_of_them": lambda a: {"out": _alternating(a["x"])},
    "ahead_of_it": lambda a: {"out": _with_upper_half(a["x"])},
    "called_twice": lambda a: {"out": _first_eight_turned(a["x"])},
    "finder_leaves": lambda a: {"out": np.full(32, 4)},
    # shuffle
    "past_the_end": lambda a: {"out": np.roll(a["x"], -1)},
    "other_branch": lambda a: {"out": np.where(np.arange(32) >= 16, a["x"][0], 0)},
    "wide_broadcast": lambda a: {"out": np.full(32, a["x"][8])},
    "quad_index": lambda a: {"out": a["x"][np.arange(32) // 4 * 4 + (a["from"] & 3)]},
    "short_simdgroup": lambda a: {"out": _by_simdgroups(a["x"])},
    "returned_lane": lambda a: {"out": _padded((a["x"] - a["x"][19])[:20], 32)},
    "left_loop": lambda a: {"out": _left_shares(a["x"])},
    # same-value
    "found_flag": lambda a: {"found": _one(1)},
    "shared_length": lambda a: {"out": a["x"][0] + np.arange(64)},
    "sum_by_all": lambda a: {"out": _f64(a["x"]).reshape(3, 32).sum(axis=1)},
    "overlapping_clear": lambda a: {"out": np.zeros(256)},
    "mark_ids": lambda a: {"mask": _mask(a["ids"], a["n"])},
    "header_by_groups": lambda a: {"header": _one(96), "out": a["x"]},
    # lockstep
    "last_levels": lambda a: {"out": _one(_f64(a["x"]).sum())},
    "after_a_sum": lambda a: {
        "out": np.full(32, _f64(a["x"]).sum() if _f64(a["x"]).sum() > a["x"][0] else 0)
    },
    "lane_scan": lambda a: {"out": a["x"] + np.append(0, a["x"][:-1])},
    "device_turn": lambda a: {
        "scratch": _f64(a["x"]) ** 2,
        "out": _f64(a["x"])[::-1] ** 2 / _f64(a["x"]).sum(),
    },
    "tile_elements": lambda a: {"out": a["a"][:32] + a["a"][32:]},
    "moved_head": lambda a: {"out": a["x"]},
}
