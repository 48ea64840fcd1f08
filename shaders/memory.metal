// Byte copies and fills: what CommandEncoder.copy and .fill launch.
#include <metal_stdlib>
using namespace metal;

// Thread i moves bytes [16 i, 16 i + 16) of nbytes.
kernel void metalane_copy(device const uchar* source [[buffer(0)]], device uchar* destination [[buffer(1)]],
                          constant ulong& nbytes [[buffer(2)]], uint thread_index [[thread_position_in_grid]]) {
  const ulong begin = ulong(thread_index) * 16;
  const ulong end = min(begin + 16, nbytes);
  for (ulong i = begin; i < end; ++i) destination[i] = source[i];
}

struct FillParams {
  ulong nbytes;
  uint element_bytes;
  uchar element[8];
  uint padding;
};

// Thread i writes bytes [16 i, 16 i + 16) of nbytes; the element repeats from byte 0.
kernel void metalane_fill(device uchar* destination [[buffer(0)]], constant FillParams& params [[buffer(1)]],
                          uint thread_index [[thread_position_in_grid]]) {
  const ulong begin = ulong(thread_index) * 16;
  const ulong end = min(begin + 16, params.nbytes);
  for (ulong i = begin; i < end; ++i) destination[i] = params.element[i % params.element_bytes];
}
