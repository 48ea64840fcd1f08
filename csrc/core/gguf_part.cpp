// The grammar of the format: header, metadata, tensors, each size checked before it is used.
#include "core/gguf_part.h"

#include <metalane/error.h>

#include <bit>
#include <limits>

#include "core/gguf_value.h"

namespace metalane::core {
namespace {

constexpr std::uint32_t magic = 0x46554747;  // "GGUF"
constexpr std::uint64_t most_bytes = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
// Of the least entry (empty key, type, one byte) and the least tensor (empty name, one dimension).
constexpr std::uint64_t least_entry_bytes = 8 + 4 + 1;
constexpr std::uint64_t least_tensor_bytes = 8 + 4 + 8 + 4 + 8;

GgufValueType read_value_type(GgufHeader& header, const GgufField& field, std::string_view member) {
  const auto type = header.number<std::uint32_t>(field, member);
  if (type > static_cast<std::uint32_t>(GgufValueType::float64)) {
    header.fail(field, member, "is " + std::to_string(type) + ", which is no type of value");
  }
  return static_cast<GgufValueType>(type);
}

void check_booleans(const GgufHeader& header, const GgufField& field, const std::uint8_t* bytes,
                    std::uint64_t count) {
  const auto* const wrong = std::find_if(bytes, bytes + count, [](std::uint8_t byte) { return byte > 1; });
  if (wrong == bytes + count) return;
  header.fail(field, "value", "holds a boolean of " + std::to_string(*wrong) + "; there are 0 and 1");
}

// Moves over a value and checks everything that later reads of it rely on. `depth`: arrays around it.
void skip_value(GgufHeader& header, const GgufField& field, GgufValueType type, std::uint32_t depth) {
  constexpr std::uint64_t any = std::numeric_limits<std::uint64_t>::max();
  if (type == GgufValueType::string) {
    header.string(field, "length", any);
    return;
  }
  if (type != GgufValueType::array) {
    const std::uint64_t size = size_of(type);
    const std::uint8_t* const bytes = header.take(size, field, "value");
    if (type == GgufValueType::boolean) check_booleans(header, field, bytes, 1);
    return;
  }
  if (depth == GgufLimits::array_depth) {
    header.fail(field, "value",
                "has arrays nested more than " + std::to_string(GgufLimits::array_depth) + " deep");
  }
  const GgufValueType element = read_value_type(header, field, "element_type");
  const std::uint64_t count = header.count(field, "length", least_size(element), any);
  if (const std::uint64_t size = size_of(element); size != 0) {
    const std::uint8_t* const bytes = header.take(count * size, field, "value");  // count() has bounded it
    if (element == GgufValueType::boolean) check_booleans(header, field, bytes, count);
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) skip_value(header, field, element, depth + 1);
}

std::string_view read_name(GgufHeader& header, GgufField& field, std::string_view member) {
  const std::string_view name = header.string(field, member, GgufLimits::name_bytes);
  if (!is_utf8(name)) header.fail(field, member, "is not UTF-8: " + quoted(name));
  field.name = name;
  return name;
}

}  // namespace

GgufPart::GgufPart(const std::string& path, std::uint64_t metadata_left)
    : file(std::make_shared<GgufPartFile>(path)), header(*file, metadata_left) {
  const GgufField whole;
  if (const auto given = header.number<std::uint32_t>(whole, "magic"); given != magic) {
    header.fail(whole, "magic", "is not \"GGUF\"");
  }
  version = header.number<std::uint32_t>(whole, "version");
  if (version != 2 && version != 3) {
    const bool swapped = __builtin_bswap32(version) >= 1 && __builtin_bswap32(version) <= 3;
    header.fail(whole, "version",
                swapped ? std::string("is of a big-endian file; only little-endian ones are read")
                        : "is " + std::to_string(version) + "; versions 2 and 3 are read");
  }
  const std::uint64_t tensor_count =
      header.count(whole, "tensor_count", least_tensor_bytes, GgufLimits::tensors);
  const std::uint64_t entry_count =
      header.count(whole, "metadata_kv_count", least_entry_bytes, GgufLimits::keys);
  read_entries(entry_count);
  read_tensors(tensor_count);
  place_tensors();
  header.finish();
  pages = file->map();
}

void GgufPart::read_entries(std::uint64_t count) {
  entries.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    GgufField field{"metadata", i, {}};
    const std::string_view key = read_name(header, field, "key");
    const GgufValueType type = read_value_type(header, field, "type");
    // The header's pieces are read into one reservation, so that the value lies behind the cursor when it is
    // read.
    const std::uint8_t* const bytes = header.take(0, field, "value");
    skip_value(header, field, type, 0);
    entries.push_back({key, GgufValue(type, bytes)});
    if (key != "general.alignment") continue;
    if (type != GgufValueType::uint32) {
      header.fail(field, "type", "is " + std::string(name_of(type)) + "; an alignment is a uint32");
    }
    alignment_ = GgufValue(type, bytes).as_uint();
    if (!std::has_single_bit(alignment_) || alignment_ > GgufLimits::alignment) {
      header.fail(field, "value",
                  "is " + std::to_string(alignment_) + "; an alignment is a power of two up to " +
                      std::to_string(GgufLimits::alignment));
    }
  }
  entry_order = sorted_by_name(entries, key_of);
  const auto same_key = [this](std::uint32_t a, std::uint32_t b) { return entries[a].key == entries[b].key; };
  const auto twice = std::adjacent_find(entry_order.begin(), entry_order.end(), same_key);
  if (twice != entry_order.end()) {
    header.fail({"metadata", *twice, entries[*twice].key}, "key", "is there twice");
  }
}

void GgufPart::read_dimensions(const GgufField& field, GgufTensor& tensor) {
  const auto rank = header.number<std::uint32_t>(field, "n_dims");
  if (rank == 0 || rank > GgufLimits::dimensions) {
    header.fail(field, "n_dims",
                "is " + std::to_string(rank) + "; there are 1 to " + std::to_string(GgufLimits::dimensions));
  }
  std::uint64_t dims[GgufLimits::dimensions];
  std::uint64_t product = 1;  // of all but zeros, so that every stride fits
  for (std::uint32_t i = 0; i < rank; ++i) {
    const auto dim = header.number<std::uint64_t>(field, "ne");
    if (__builtin_mul_overflow(product, std::max<std::uint64_t>(dim, 1), &product) || product > most_bytes) {
      header.fail(field, "ne", "multiplies to 2^63 or more");
    }
    dims[rank - 1 - i] = dim;
  }
  tensor.shape = Shape(std::span<const std::uint64_t>(dims, rank));
}

GgufTensor GgufPart::read_tensor(std::uint64_t index) {
  GgufField field{"tensors", index, {}};
  GgufTensor tensor = {};
  tensor.name = read_name(header, field, "name");
  read_dimensions(field, tensor);
  const auto number = header.number<std::uint32_t>(field, "type");
  const GgmlTypeInfo* const info = find_ggml_type(static_cast<GgmlType>(number));
  if (info == nullptr) {
    header.fail(field, "type", "is " + std::to_string(number) + ", which is no known type");
  }
  tensor.ggml_type = info->type;
  const std::uint64_t row = tensor.shape[tensor.shape.rank() - 1];
  if (row % info->block_length != 0) {
    header.fail(field, "ne",
                "starts with " + std::to_string(row) + ", which is no whole number of blocks of " +
                    std::to_string(info->block_length) + " (" + std::string(info->name) + ")");
  }
  std::uint64_t blocks = 1;  // as the dimensions: zeros count as one
  for (const std::uint64_t dim : tensor.shape.dims()) blocks *= std::max<std::uint64_t>(dim, 1);
  blocks = std::max<std::uint64_t>(blocks / info->block_length, 1);
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(blocks, std::uint64_t{info->block_bytes}, &bytes) || bytes > most_bytes) {
    header.fail(field, "ne", "makes 2^63 bytes or more");
  }
  tensor.byte_len = tensor.shape.elements() == 0 ? 0 : bytes;
  tensor.offset = header.number<std::uint64_t>(field, "offset");
  if (tensor.offset % alignment_ != 0) {
    header.fail(field, "offset",
                "is " + std::to_string(tensor.offset) + ", no multiple of the alignment " +
                    std::to_string(alignment_));
  }
  return tensor;
}

void GgufPart::read_tensors(std::uint64_t count) {
  tensors.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) tensors.push_back(read_tensor(i));
}

// From offsets in the data to offsets in the file, once the data's begin is known; no two tensors share a
// byte.
void GgufPart::place_tensors() {
  const std::uint64_t data_begin = (header.position() + alignment_ - 1) & ~(alignment_ - 1);
  for (std::uint64_t i = 0; i < tensors.size(); ++i) {
    GgufTensor& tensor = tensors[i];
    std::uint64_t end = 0;
    if (__builtin_add_overflow(tensor.offset, data_begin, &tensor.offset) ||
        __builtin_add_overflow(tensor.offset, tensor.byte_len, &end) || end > file->size()) {
      header.fail({"tensors", i, tensor.name}, "offset",
                  "puts the end of the tensor's " + std::to_string(tensor.byte_len) +
                      " bytes past the end of the file (" + std::to_string(file->size()) + " bytes)");
    }
  }
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::erase_if(order, [this](std::uint32_t at) { return tensors[at].byte_len == 0; });
  std::sort(order.begin(), order.end(),
            [this](std::uint32_t a, std::uint32_t b) { return tensors[a].offset < tensors[b].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = tensors[order[i - 1]];
    const GgufTensor& tensor = tensors[order[i]];
    if (before.offset + before.byte_len > tensor.offset) {
      header.fail({"tensors", order[i], tensor.name}, "offset",
                  "puts it over the bytes of tensor " + quoted(before.name));
    }
  }
}

}  // namespace metalane::core
