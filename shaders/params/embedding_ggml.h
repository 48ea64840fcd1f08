// Embedding gather from GGML-quantized rows: its parameter struct. Included by the shader and by C++;
// Python's dataclass is compared with it field by field.
#ifndef METALANE_PARAMS_EMBEDDING_GGML_H
#define METALANE_PARAMS_EMBEDDING_GGML_H

#include <metalane/params_abi.h>

METALANE_PARAMS_BEGIN

struct EmbeddingGgmlParams {
  uint32_t vocab_size;
  uint32_t embed_dim;
  uint32_t n_tokens;
  uint32_t ggml_type;
};

METALANE_PARAMS_END

#endif
