// Embedding gather: rows of a GGML-quantized table as floats.
#pragma once

#include <metalane/buffer.h>
#include <metalane/encoder.h>
#include <metalane/export.h>
#include <metalane/params/embedding_ggml.h>

namespace metalane {

// output[t] = weight[ids[t]]: weight vocab_size rows of embed_dim packed elements (u8, or the type's own
// dtype), ids u32 [n_tokens], output f32 [n_tokens, embed_dim]; each at least that long, in any shape. Throws
// ArgumentError or DTypeError before anything is encoded, also for an id past the vocabulary where the host
// can see the ids; where it cannot, such an id gives a row of zeros and a warning on the ticket.
METALANE_API void embedding_gather_ggml(CommandEncoder& encoder, const Buffer& weight, const Buffer& ids,
                                        const Buffer& output, const EmbeddingGgmlParams& params);

}  // namespace metalane
