"""A synthetic target and drafter of real shapes, for serving_loop.py.

The target gathers the last token's embedding, passes it through layers of Q4_K products and a Q8_0 head; so its next
token depends on the last one only. The drafter knows the target's favourites, errs as often as it is told to, and is a
little surer where it is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

import metalane
from metalane import GgmlType, f32, u32

# ---------------------------------------------------------------------------------------------------------------------
# Kernels of our own, beside the operators
# ---------------------------------------------------------------------------------------------------------------------

SOURCE = """
#include <metal_stdlib>
using namespace metal;

// Threadgroup [256 columns of four, row]: squared ReLU, in place.
kernel void activate(device float4* x, constant uint& columns, uint2 group [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]]) {
  const uint column = 256 * group.x + thread_index;
  if (column >= columns) return;
  const float4 value = max(x[group.y * columns + column], float4(0.0f));
  x[group.y * columns + column] = value * value;
}

// Threadgroup [256 columns of four, row]: x += scale * y.
kernel void add(device float4* x, device const float4* y, constant uint& columns, constant float& scale,
                uint2 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  const uint column = 256 * group.x + thread_index;
  if (column < columns) x[group.y * columns + column] += scale * y[group.y * columns + column];
}

kernel void to_bfloat(device const float* x, device bfloat* y, uint i [[thread_position_in_grid]]) {
  y[i] = bfloat(x[i]);
}

// One thread a drafted position: what rows are chosen by. Whether a token that is drawn at random gets verified must
// not depend on which one it is: drafts verified only where they look good are no fair draw. Lanes that sample have
// the confidence that earlier steps had.
kernel void fair_confidence(device const float* confidence, device const float* temperature,
                            device const float* usual, device float* used, constant uint& positions,
                            uint i [[thread_position_in_grid]]) {
  used[i] = temperature[i / positions] > 0.0f ? usual[i % positions] : confidence[i];
}

struct Draft { uint lanes; uint positions; uint vocabulary; uint seed; uint step; float acceptance; };

// MurmurHash3's finalizer.
static uint mixed(uint x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

static float uniform_from(uint bits) { return float(bits >> 8) * 0x1p-24f; }

// One thread a drafted position: raises two tokens above the background of its row of logits, and takes back those of
// the step before. guesses has the anchor of each lane, then the first of the two at each position.
kernel void propose(device const uint* anchors, device const uint* favourites, device const float* background,
                    device float* logits, device uint* raised, device uint* guesses, constant Draft& draft,
                    uint i [[thread_position_in_grid]]) {
  const uint lane = i / draft.positions, position = i % draft.positions;
  const uint place = lane * (draft.positions + 1) + position + 1;
  uint token = anchors[lane];
  if (position == 0) guesses[place - 1] = token;
  for (uint p = 0; p <= position; ++p) token = favourites[token];

  uint bits = mixed(draft.seed ^ mixed(draft.step ^ mixed(i)));
  const bool right = uniform_from(bits) < draft.acceptance;
  const float sure = uniform_from(bits = mixed(bits + 1));
  const uint others = draft.vocabulary - 1;  // that are not the favourite
  const uint wrong = (token + 1 + (bits = mixed(bits + 1)) % others) % draft.vocabulary;
  const uint first = right ? token : wrong;
  const uint second = (token + 1 + mixed(bits + 1) % others) % draft.vocabulary;

  device float* row = logits + ulong(place) * draft.vocabulary;
  for (uint k = 0; k < 2; ++k) row[raised[2 * i + k]] = background[raised[2 * i + k]];
  row[second] = 8.0f;
  row[first] = right ? 9.5f + 6.0f * sure : 8.5f + 3.0f * sure * sure;
  raised[2 * i] = first;
  raised[2 * i + 1] = second;
  guesses[place] = first;
}
"""
TILE = 1024  # columns of a threadgroup of `activate` and `add`
LAYER_SCALE = 0.05  # of what a layer adds


@metalane.metal_struct
class Draft:
    """Of `propose`: the numbers that differ from step to step."""

    lanes: u32
    positions: u32
    vocabulary: u32
    seed: u32
    step: u32
    acceptance: f32


# ---------------------------------------------------------------------------------------------------------------------
# The models
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Of the models and of a step."""

    lanes: int = 3
    rows: int = 4
    """R: the anchor's row of a lane, and one a drafted token."""
    vocabulary: int = 32_768
    width: int = 1024
    hidden: int = 4096
    layers: int = 4

    @property
    def places(self) -> int:
        """Rows that one step can verify at most."""
        return self.lanes * self.rows

    def small(self) -> Shape:
        """Of toy size."""
        return replace(self, vocabulary=2048, width=256, hidden=512, layers=2)


def q8_0(values: np.ndarray) -> np.ndarray:
    """Packed blocks of 32: a half scale, then 32 signed bytes."""
    blocks = values.reshape(-1, 32)
    packed = np.empty((len(blocks), 34), np.uint8)
    scales = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    packed[:, :2] = scales.view(np.uint8)
    packed[:, 2:] = np.rint(blocks / scales.astype(np.float32)).astype(np.int8).view(np.uint8)
    return packed.ravel()


def random_q4_k(random: np.random.Generator, n: int, k: int) -> np.ndarray:
    """Packed weights without mean, of variance 1 / k."""
    blocks = random.integers(0, 256, (n * k // 256, 144), np.uint8)
    # A weight is d * scale * q - dmin * minimum, q of 4 bits, scale and minimum of 6: with dmin = 7.5 d and random
    # bits its mean is 0 and its standard deviation 258 d.
    blocks[:, :4] = np.array([1, 7.5] / np.sqrt(k) / 258, np.float16).view(np.uint8)
    return blocks.ravel()


class Weights:
    """Of target and drafter.

    The head's row of token favourites[t] leans towards the embedding of t, and that of another token towards it less:
    the target's argmax behind t is favourites[t] by a margin that no rounding reaches, as tests confirm.
    """

    SHARPNESS, SECOND = 14.0, 0.6  # the favourite's logit, the other token's share of it

    def __init__(self, device: metalane.Device, shape: Shape, seed: int) -> None:
        random = np.random.default_rng(seed)
        vocabulary, width, hidden = shape.vocabulary, shape.width, shape.hidden
        before, before_second = (np.empty(vocabulary, np.intp) for _ in range(2))
        cycle = random.permutation(vocabulary)  # one cycle through all tokens: no text repeats itself
        before[np.roll(cycle, -1)] = cycle
        before_second[np.roll(cycle, -2)] = cycle
        self.favourites = np.empty(vocabulary, np.uint32)
        self.favourites[cycle] = np.roll(cycle, -1)

        def packed(rows: Iterator[np.ndarray]) -> metalane.Buffer:
            buffer = device.empty((vocabulary * width // 32 * 34,), np.uint8)
            np.concatenate([q8_0(row) for row in rows], out=buffer.numpy())
            return buffer

        embedding = random.standard_normal((vocabulary, width), np.float32)
        parts = np.array_split(np.arange(vocabulary), 16)
        scale = np.float32(self.SHARPNESS / width)
        self.embedding = packed(embedding[part] for part in parts)
        self.head = packed(
            scale * (embedding[before[part]] + np.float32(self.SECOND) * embedding[before_second[part]])
            for part in parts
        )
        self.up, self.down = (
            [device.from_numpy(random_q4_k(random, n, k)) for _ in range(shape.layers)]
            for n, k in ((hidden, width), (width, hidden))
        )
        rank = metalane.DFLASH2_SELECTOR_RANK
        self.drafter = device.from_numpy(random_q4_k(random, rank, width))
        codebooks = random.standard_normal((2, vocabulary, rank), np.float32) / 8
        self.predecessor, self.successor = (
            device.from_numpy(codebook.astype(metalane.bfloat16)) for codebook in codebooks
        )
        self.background = random.standard_normal(vocabulary, np.float32)


class Target:
    """Logits of packed rows: embedding -> layers -> head."""

    @staticmethod
    def algorithm(rows: int) -> str:
        """Mat-vec, whose cost rises by eight rows at a time; above two times eight, tiles of mat-mat cost less."""
        return "mv" if rows <= 16 else "mm"

    def __init__(
        self, device: metalane.Device, kernels: metalane.CompiledSource, shape: Shape, w: Weights
    ) -> None:
        self.kernels, self.shape, self.weights = kernels, shape, w
        self.x = device.zeros((shape.places, shape.width), np.float32)
        self.h = device.zeros((shape.places, shape.hidden), np.float32)
        self.y = device.zeros((shape.places, shape.width), np.float32)
        self.logits = device.zeros((shape.places, shape.vocabulary), np.float32)

    def products(self, rows: int) -> list[metalane.GgmlQuantizedMatmulParams]:
        """up, down, head."""
        shape = self.shape
        return [
            metalane.GgmlQuantizedMatmulParams(rows, shape.hidden, shape.width, GgmlType.Q4_K),
            metalane.GgmlQuantizedMatmulParams(rows, shape.width, shape.hidden, GgmlType.Q4_K),
            metalane.GgmlQuantizedMatmulParams(rows, shape.vocabulary, shape.width, GgmlType.Q8_0),
        ]

    def rows_params(self) -> metalane.SpeculativeRowsParams:
        """Grids of the step, each counted on the device: up, down, head, scatter, activate, add."""
        shape = self.shape
        params = metalane.SpeculativeRowsParams.of(
            shape.lanes,
            shape.rows,
            self.products(shape.places),
            scatter=shape.vocabulary,
            algorithm=self.algorithm(shape.places),
        )
        tiles, rows, n = list(params.weight_tiles), list(params.input_rows), params.n_grids
        tiles[n : n + 2] = -(-shape.hidden // TILE), -(-shape.width // TILE)
        rows[n : n + 2] = 1, 1
        return replace(params, n_grids=n + 2, weight_tiles=tiles, input_rows=rows)

    def encode(
        self,
        encoder: metalane.CommandEncoder,
        tokens: metalane.Buffer,
        rows: int,
        grids: Sequence[metalane.Buffer | None],
    ) -> None:
        """`rows` is how many there are, or with `grids` the most that there can be."""
        shape, w = self.shape, self.weights
        up, down, head = self.products(rows)
        algorithm = self.algorithm(rows)
        on_up, on_down, on_head, _, on_activate, on_add = grids
        all_hidden, all_width = ((-(-columns // TILE), rows) for columns in (shape.hidden, shape.width))
        embedding = metalane.EmbeddingGgmlParams(shape.vocabulary, shape.width, rows, GgmlType.Q8_0)
        metalane.embedding_gather_ggml(encoder, w.embedding, tokens, self.x, embedding)
        for w_up, w_down in zip(w.up, w.down, strict=True):
            metalane.quantized_matmul_ggml(encoder, self.x, w_up, self.h, up, algorithm, grid=on_up)
            self.kernels.activate(
                self.h, shape.hidden // 4,
                threadgroups=on_activate or all_hidden, threads_per_threadgroup=TILE // 4, encoder=encoder,
            )  # fmt: skip
            metalane.quantized_matmul_ggml(encoder, self.h, w_down, self.y, down, algorithm, grid=on_down)
            self.kernels.add(
                self.x, self.y, shape.width // 4, LAYER_SCALE,
                threadgroups=on_add or all_width, threads_per_threadgroup=TILE // 4, encoder=encoder,
            )  # fmt: skip
        metalane.quantized_matmul_ggml(encoder, self.x, w.head, self.logits, head, algorithm, grid=on_head)


class Drafter:
    """Logits and projected hidden states of all positions, from each lane's anchor."""

    def __init__(
        self,
        device: metalane.Device,
        kernels: metalane.CompiledSource,
        shape: Shape,
        w: Weights,
        selection: metalane.DFlash2SelectorBuffers,
    ) -> None:
        self.kernels, self.shape, self.weights, self.selection = kernels, shape, w, selection
        self.favourites = device.from_numpy(w.favourites)
        self.background = device.from_numpy(w.background)
        self.raised = device.zeros((shape.lanes, shape.rows - 1, 2), np.uint32)
        self.guesses = device.zeros((shape.places,), np.uint32)
        self.x = device.zeros((shape.places, shape.width), np.float32)
        self.y = device.zeros((shape.places, metalane.DFLASH2_SELECTOR_RANK), np.float32)
        selection.logits.numpy()[:] = w.background

    def params(self, acceptance: float, seed: int, step: int) -> Draft:
        shape = self.shape
        return Draft(shape.lanes, shape.rows - 1, shape.vocabulary, seed, step, acceptance)

    def encode(self, encoder: metalane.CommandEncoder, anchors: metalane.Buffer) -> None:
        shape, rank = self.shape, metalane.DFLASH2_SELECTOR_RANK
        with encoder.label("propose"):
            self.kernels.propose(
                anchors, self.favourites, self.background, self.selection.logits, self.raised, self.guesses,
                self.params(0, 0, 0), threads=shape.lanes * (shape.rows - 1), encoder=encoder,
            )  # fmt: skip
        embedding = metalane.EmbeddingGgmlParams(shape.vocabulary, shape.width, shape.places, GgmlType.Q8_0)
        metalane.embedding_gather_ggml(encoder, self.weights.embedding, self.guesses, self.x, embedding)
        product = metalane.GgmlQuantizedMatmulParams(shape.places, rank, shape.width, GgmlType.Q4_K)
        metalane.quantized_matmul_ggml(encoder, self.x, self.weights.drafter, self.y, product)
        self.kernels.to_bfloat(
            self.y, self.selection.selector_hidden, threads=shape.places * rank, encoder=encoder
        )
