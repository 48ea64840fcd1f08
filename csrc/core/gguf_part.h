// One part of a GGUF file, read and checked.
#pragma once

#include <metalane/gguf.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "core/gguf_header.h"
#include "core/gguf_mapping.h"

namespace metalane::core {

struct GgufPart {
  // Reads everything before the tensor data and maps the file. `metadata_left`: bytes that may be read of it.
  // Throws GgufError.
  GgufPart(const std::string& path, std::uint64_t metadata_left);

  const std::shared_ptr<GgufPartFile> file;
  std::shared_ptr<std::uint8_t> pages;  // of the whole file
  GgufHeader header;                    // what keys, values and names point into
  std::uint32_t version = 0;
  std::vector<GgufEntry> entries;
  std::vector<std::uint32_t> entry_order;  // by key
  std::vector<GgufTensor> tensors;         // as of part 0
  GgufMapping mapping;

 private:
  void read_entries(std::uint64_t count);
  void read_tensors(std::uint64_t count);
  GgufTensor read_tensor(std::uint64_t index);
  void read_dimensions(const GgufField& field, GgufTensor& tensor);
  void place_tensors();

  std::uint64_t alignment_ = 32;
};

// Positions of `items` in the order of what `name_of` gives. A sorted index finds names in bounded time
// whatever they are, which a hash table of a known function does not.
template <typename Item, typename Name>
std::vector<std::uint32_t> sorted_by_name(const std::vector<Item>& items, const Name& name_of_item) {
  std::vector<std::uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return name_of_item(items[a]) < name_of_item(items[b]);
  });
  return order;
}

// Null where no item has the name.
template <typename Item, typename Name>
const Item* find_by_name(const std::vector<Item>& items, const std::vector<std::uint32_t>& order,
                         const Name& name_of_item, std::string_view name) {
  const auto found = std::lower_bound(
      order.begin(), order.end(), name,
      [&](std::uint32_t at, std::string_view wanted) { return name_of_item(items[at]) < wanted; });
  if (found == order.end() || name_of_item(items[*found]) != name) return nullptr;
  return &items[*found];
}

inline std::string_view key_of(const GgufEntry& entry) noexcept { return entry.key; }
inline std::string_view tensor_name(const GgufTensor& tensor) noexcept { return tensor.name; }

}  // namespace metalane::core
