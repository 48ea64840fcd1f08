// The element types of GGML, once: shaders, C++ and tests instantiate from these lists.
//
//   X(name, id, block_length, block_bytes)
//
// id: as GGUF files store it. A block of block_length elements takes block_bytes bytes. Block layouts:
// csrc/core/ggml_decode.cpp.
#ifndef METALANE_GGML_TYPES_H
#define METALANE_GGML_TYPES_H

// What decodes to float32, and so can be a weight.
#define METALANE_GGML_WEIGHT_TYPES(X) \
  X(F32, 0, 1, 4)                     \
  X(F16, 1, 1, 2)                     \
  X(BF16, 30, 1, 2)                   \
  X(Q4_0, 2, 32, 18)                  \
  X(Q4_1, 3, 32, 20)                  \
  X(Q5_0, 6, 32, 22)                  \
  X(Q5_1, 7, 32, 24)                  \
  X(Q8_0, 8, 32, 34)                  \
  X(Q2_K, 10, 256, 84)                \
  X(Q3_K, 11, 256, 110)               \
  X(Q4_K, 12, 256, 144)               \
  X(Q5_K, 13, 256, 176)               \
  X(Q6_K, 14, 256, 210)               \
  X(IQ4_NL, 20, 32, 18)               \
  X(IQ4_XS, 23, 256, 136)             \
  X(MXFP4, 39, 32, 17)

// What tensors may hold besides: numbers, and block formats that are listed and loaded as raw bytes. Q8_1 (9)
// is left out: ggml (36 bytes a block) and the gguf package (40) disagree, and files do not hold it.
#define METALANE_GGML_OTHER_TYPES(X) \
  X(I8, 24, 1, 1)                    \
  X(I16, 25, 1, 2)                   \
  X(I32, 26, 1, 4)                   \
  X(I64, 27, 1, 8)                   \
  X(F64, 28, 1, 8)                   \
  X(Q8_K, 15, 256, 292)              \
  X(IQ2_XXS, 16, 256, 66)            \
  X(IQ2_XS, 17, 256, 74)             \
  X(IQ3_XXS, 18, 256, 98)            \
  X(IQ1_S, 19, 256, 50)              \
  X(IQ3_S, 21, 256, 110)             \
  X(IQ2_S, 22, 256, 82)              \
  X(IQ1_M, 29, 256, 56)              \
  X(TQ1_0, 34, 256, 54)              \
  X(TQ2_0, 35, 256, 66)              \
  X(NVFP4, 40, 64, 36)               \
  X(Q1_0, 41, 128, 18)

#endif
