// Rows of a GGML-quantized embedding table as floats: output[t] = weight[ids[t]].
//
//   weight [vocab_size, embed_dim] packed | ids u32 [n_tokens] | output f32 [n_tokens, embed_dim]
#include <metalane/lib/ggml_row_products.h>
#include <metalane/params/embedding_ggml.h>

#include <metal_stdlib>
using namespace metal;

// Thread (c, t) writes elements 16 * c to 16 * c + 15 of token t. An id past the vocabulary gives zeros and counts
// in `status_ids_out_of_range`.
template <typename Block>
kernel void embedding_gather(device const uchar* weight [[buffer(0)]], device const uint* ids [[buffer(1)]],
                             device float* output [[buffer(2)]], device atomic_uint* status_ids_out_of_range [[buffer(3)]],
                             constant EmbeddingGgmlParams& params [[buffer(4)]],
                             uint2 position [[thread_position_in_grid]]) {
  const uint id = ids[position.y];
  GgmlChunk values = {float4(0.0f), float4(0.0f), float4(0.0f), float4(0.0f)};
  if (id < params.vocab_size) {
    Block::unpack(weight + id * ggml_row_bytes<Block>(params.embed_dim), position.x, params.embed_dim, values);
  } else if (position.x == 0) {
    atomic_fetch_add_explicit(status_ids_out_of_range, 1u, memory_order_relaxed);
  }
  const uint first = 16 * position.x;
  device float* out = output + ulong(position.y) * params.embed_dim + first;
  if (first + 16 <= params.embed_dim) {
    for (ushort i = 0; i < 4; ++i) ((device packed_float4*)out)[i] = packed_float4(values[i]);
  } else {
    for (ushort i = 0; first + i < params.embed_dim; ++i) out[i] = values[i / 4][i % 4];
  }
}

#define INSTANTIATE(type, ...)                                                                                       \
  template [[host_name("embedding_gather_" #type)]] kernel decltype(embedding_gather<type>) embedding_gather<type>;

METALANE_GGML_WEIGHT_TYPES(INSTANTIATE)
