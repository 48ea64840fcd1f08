// What sources that copy asynchronously within a simdgroup call: functions of Apple's compiler that no header
// declares. The copy is made when it is asked for, by the first lane; waiting is a barrier of the simdgroup.
#ifndef METALANE_STDLIB_ASYNC_COPY_H
#define METALANE_STDLIB_ASYNC_COPY_H

#include "simdgroup.h"
#include "vec.h"

METALANE_STDLIB_BEGIN
namespace detail {

// The event, a pointer to a type that the source declares.
struct finished_copy {
  template <class T>
  constexpr operator T*() const {
    return nullptr;
  }
};

inline bool first_lane() { return current_group()->current_thread % METALANE_SIMD_WIDTH == 0; }

inline void copy_bytes(uint8_t* to, const uint8_t* from, ulong bytes) {
  for (ulong i = 0; i < bytes; ++i) to[i] = from != nullptr ? from[i] : 0;
}

}  // namespace detail
METALANE_STDLIB_END

inline metal::detail::finished_copy __metal_simdgroup_async_copy_1d(ulong size, ulong, void* to,
                                                                    const void* from, ulong count) {
  if (metal::detail::first_lane())
    metal::detail::copy_bytes(static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), size * count);
  return {};
}

// Rows of `to` beyond the tile of `from` are zero (clamp 0) or repeat its edge (clamp 1).
inline metal::detail::finished_copy __metal_simdgroup_async_copy_2d(ulong size, ulong, void* to, ulong to_row,
                                                                    ulong, metal::ulong2 to_tile,
                                                                    const void* from, ulong from_row, ulong,
                                                                    metal::ulong2 from_tile, metal::long2,
                                                                    int clamp) {
  if (!metal::detail::first_lane()) return {};
  for (ulong y = 0; y < to_tile.y; ++y) {
    for (ulong x = 0; x < to_tile.x; ++x) {
      const ulong column = x < from_tile.x ? x : from_tile.x - 1, row = y < from_tile.y ? y : from_tile.y - 1;
      const bool there = (column == x && row == y) || (clamp == 1 && from_tile.x != 0 && from_tile.y != 0);
      const uint8_t* element =
          there ? static_cast<const uint8_t*>(from) + size * (row * from_row + column) : nullptr;
      metal::detail::copy_bytes(static_cast<uint8_t*>(to) + size * (y * to_row + x), element, size);
    }
  }
  return {};
}

template <class Event>
void __metal_wait_simdgroup_events(metal::detail::site place, int, Event**) {
  metal::simdgroup_barrier(place, metal::mem_flags::mem_threadgroup);
}

#endif
