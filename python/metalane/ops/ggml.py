"""Operators on GGML-quantized weights: embedding gather, dense and expert-routed products.

Weights are packed rows as GGUF files hold them (`GgufFile.load_tensor`): dtype uint8, or the type's own dtype where it
is a plain number. Every operator checks dtype and size, at least what the call needs, and takes any contiguous shape.

An id past its bound raises where the host can see it: no recorded, captured or committed work writes the ids. Where it
cannot, the kernel writes a row of zeros for that id, and ``ticket.status`` says how many there were.

Block formats: GGML's, as PyPI's `gguf` decodes them.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from .._core import (
    Buffer,
    CommandEncoder,
    GgmlPlan,
    GgmlPolicy,
    GgmlRule,
    GgmlType,
    IdMmScratch,
    embedding_gather_ggml,
    quantized_matmul_batched_mv,
    quantized_matmul_ggml,
    quantized_matmul_id_ggml,
    quantized_matmul_id_ggml_pooled,
    quantized_matmul_id_ggml_pooled_pair,
    quantized_matmul_id_ggml_pooled_slotted,
)
from ..params import metal_struct, u32, u64

__all__ = [
    "EmbeddingGgmlParams",
    "EmbeddingQ2KParams",
    "GgmlPlan",
    "GgmlPolicy",
    "GgmlQuantizedMatmulIdParams",
    "GgmlQuantizedMatmulParams",
    "GgmlRule",
    "IdMmScratch",
    "embedding_gather_ggml",
    "embedding_gather_q2_k",
    "quantized_matmul_batched_mv",
    "quantized_matmul_ggml",
    "quantized_matmul_id_ggml",
    "quantized_matmul_id_ggml_pooled",
    "quantized_matmul_id_ggml_pooled_pair",
    "quantized_matmul_id_ggml_pooled_slotted",
    "quantized_matmul_q2_k_batched_mv",
]


# Python looks a member up in its enum with a call of its own.
_Q2_K = GgmlType.Q2_K


@metal_struct
class EmbeddingGgmlParams:
    """Of `embedding_gather_ggml`: ``output[t] = weight[ids[t]]`` (16 bytes).

    weight `vocab_size` rows of `embed_dim` packed elements, ids uint32 [n_tokens],
    output float32 [n_tokens, embed_dim].
    """

    vocab_size: Annotated[int, u32]
    embed_dim: Annotated[int, u32]
    """A whole number of the type's blocks."""
    n_tokens: Annotated[int, u32]
    ggml_type: Annotated[int, u32]


@metal_struct
class GgmlQuantizedMatmulParams:
    """Of `quantized_matmul_ggml`: ``output[i, r] = sum(input[i] * weight[r])`` (16 bytes).

    input float32 [m, k], weight `n` rows of `k` packed elements, output float32 [m, n].
    """

    m: Annotated[int, u32]
    n: Annotated[int, u32]
    k: Annotated[int, u32]
    """A whole number of the type's blocks."""
    ggml_type: Annotated[int, u32]


@metal_struct
class GgmlQuantizedMatmulIdParams:
    """Of the expert-routed products (40 bytes).

    Route ``r = token * top_k + slot`` multiplies ``input[token]`` (`..._slotted`: ``input[r]``) with the expert
    ``ids[r]``: input float32 [n_tokens, k], weight `n_experts` times `n` rows of `k` packed elements, ids uint32
    [n_tokens, top_k], output float32 [n_tokens * top_k, n].
    """

    n_tokens: Annotated[int, u32]
    top_k: Annotated[int, u32]
    n: Annotated[int, u32]
    k: Annotated[int, u32]
    """A whole number of the type's blocks."""
    n_experts: Annotated[int, u32]
    padding: Annotated[int, u32] = field(default=0, kw_only=True, repr=False)
    expert_stride: Annotated[int, u64]
    """Bytes from one expert's weight to the next one's."""
    ggml_type: Annotated[int, u32]
    padding_behind: Annotated[int, u32] = field(default=0, kw_only=True, repr=False)


def EmbeddingQ2KParams(vocab_size: int, embed_dim: int, n_tokens: int) -> EmbeddingGgmlParams:
    """`EmbeddingGgmlParams` of Q2_K."""
    return EmbeddingGgmlParams(vocab_size, embed_dim, n_tokens, _Q2_K)


def embedding_gather_q2_k(
    encoder: CommandEncoder, weight: Buffer, ids: Buffer, output: Buffer, params: Any
) -> None:
    """`embedding_gather_ggml` of Q2_K, with `EmbeddingQ2KParams`."""
    embedding_gather_ggml(encoder, weight, ids, output, params)


def quantized_matmul_q2_k_batched_mv(
    encoder: CommandEncoder,
    input: Buffer,
    weight: Buffer,
    output: Buffer,
    batches: int,
    m: int,
    n: int,
    k: int,
) -> None:
    """`quantized_matmul_batched_mv` of Q2_K."""
    quantized_matmul_batched_mv(encoder, input, weight, output, batches, m, n, k, _Q2_K)
