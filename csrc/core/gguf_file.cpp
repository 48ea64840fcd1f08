// Open files: parts put together, look-ups, and tensors as buffers or copies.
#include <metalane/device.h>
#include <metalane/error.h>
#include <metalane/gguf.h>

#include <cstdio>
#include <cstring>

#include "core/device_state.h"
#include "core/ggml_decode.h"
#include "core/gguf_part.h"
#include "core/storage.h"

namespace metalane {

namespace core {

struct GgufState {
  explicit GgufState(const std::string& path);

  std::vector<std::string> paths;
  std::vector<std::unique_ptr<GgufPart>> parts;
  std::vector<GgufEntry> entries;
  std::vector<GgufTensor> tensors;
  std::vector<std::uint32_t> entry_order, tensor_order;

 private:
  void open(const std::string& path, std::uint64_t& metadata_left);
  void add_entries(const GgufPart& part);
  void add_tensors(std::uint32_t number);
};

namespace {

const GgufEntry* find_entry(const GgufPart& part, std::string_view key) {
  for (const GgufEntry& entry : part.entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

[[noreturn]] void fail_split(const GgufPart& part, std::string_view key, const std::string& problem) {
  throw GgufError(part.file->path(), GgufField{"metadata", 0, key}.str("value"), problem);
}

// A number of the split keys, which writers store as uint16 or int32.
std::optional<std::uint64_t> split_number(const GgufPart& part, std::string_view key) {
  const GgufEntry* const entry = find_entry(part, key);
  if (entry == nullptr) return std::nullopt;
  try {
    return entry->value.as_uint();
  } catch (const ArgumentError& error) {
    fail_split(part, key, error.what());
  }
}

std::string part_suffix(std::uint64_t number, std::uint64_t count) {
  char text[32];
  std::snprintf(text, sizeof text, "-%05u-of-%05u.gguf", static_cast<unsigned>(number),
                static_cast<unsigned>(count));
  return text;
}

// How many parts the file of this first part has.
std::uint64_t part_count(const GgufPart& first) {
  const std::uint64_t count = split_number(first, "split.count").value_or(1);
  if (count > GgufLimits::parts) {
    fail_split(
        first, "split.count",
        "is " + std::to_string(count) + "; at most " + std::to_string(GgufLimits::parts) + " are read");
  }
  if (count <= 1) return 1;
  const std::uint64_t number = split_number(first, "split.no").value_or(0);
  if (number != 0) {
    fail_split(first, "split.no",
               "says that this is part " + std::to_string(number + 1) + " of " + std::to_string(count) +
                   "; open the first one");
  }
  const std::string suffix = part_suffix(1, count);
  if (!first.file->path().ends_with(suffix)) {
    fail_split(first, "split.count",
               "is " + std::to_string(count) + ", so that the file's name must end in " + suffix);
  }
  return count;
}

void check_belongs(const GgufPart& part, std::uint64_t number, std::uint64_t count) {
  if (split_number(part, "split.count").value_or(0) != count) {
    fail_split(part, "split.count", "is not " + std::to_string(count) + " as in the first part");
  }
  if (split_number(part, "split.no").value_or(0) != number) {
    fail_split(part, "split.no", "is not " + std::to_string(number) + " as the file's name says");
  }
}

bool same_value(const GgufValue& a, const GgufValue& b) noexcept {
  return a.type() == b.type() && a.nbytes() == b.nbytes() &&
         std::memcmp(a.bytes(), b.bytes(), a.nbytes()) == 0;
}

}  // namespace

GgufState::GgufState(const std::string& path) {
  std::uint64_t metadata_left = GgufLimits::metadata_bytes;
  open(path, metadata_left);
  const std::uint64_t count = part_count(*parts.front());
  const std::string stem =
      count > 1 ? path.substr(0, path.size() - part_suffix(1, count).size()) : std::string();
  for (std::uint64_t number = 1; number < count; ++number) {
    open(stem + part_suffix(number + 1, count), metadata_left);
    check_belongs(*parts.back(), number, count);
  }
  entries = parts.front()->entries;
  entry_order = parts.front()->entry_order;
  for (std::uint32_t number = 0; number < parts.size(); ++number) {
    if (number != 0) add_entries(*parts[number]);
    add_tensors(number);
  }
  for (const std::unique_ptr<GgufPart>& part : parts) {
    const std::optional<std::uint64_t> total = split_number(*part, "split.tensors.count");
    if (count > 1 && total && *total != tensors.size()) {
      fail_split(*part, "split.tensors.count",
                 "is " + std::to_string(*total) + ", but all parts have " + std::to_string(tensors.size()) +
                     " tensors");
    }
  }
  tensor_order = sorted_by_name(tensors, tensor_name);
  for (std::size_t i = 1; i < tensor_order.size(); ++i) {
    const GgufTensor& tensor = tensors[tensor_order[i]];
    if (tensors[tensor_order[i - 1]].name != tensor.name) continue;
    throw GgufError(paths[tensor.part], GgufField{"tensors", 0, tensor.name}.str("name"), "is there twice");
  }
}

void GgufState::open(const std::string& path, std::uint64_t& metadata_left) {
  parts.push_back(std::make_unique<GgufPart>(path, metadata_left));
  paths.push_back(path);
  metadata_left -= parts.back()->header.position();
}

void GgufState::add_entries(const GgufPart& part) {
  const std::size_t before = entries.size();
  for (const GgufEntry& entry : part.entries) {
    const GgufEntry* const known = find_by_name(entries, entry_order, key_of, entry.key);
    if (known == nullptr) {
      entries.push_back(entry);
    } else if (entry.key != "split.no" && entry.key != "general.alignment" &&
               !same_value(known->value, entry.value)) {
      fail_split(part, entry.key, "differs from the first part's");
    }
  }
  if (entries.size() > GgufLimits::keys) {
    throw GgufError(part.file->path(), "metadata_kv_count",
                    "makes more than " + std::to_string(GgufLimits::keys) + " keys of all parts");
  }
  for (std::size_t i = before; i < entries.size(); ++i) entry_order.push_back(static_cast<std::uint32_t>(i));
  const auto less = [this](std::uint32_t a, std::uint32_t b) { return entries[a].key < entries[b].key; };
  const auto added = entry_order.begin() + static_cast<std::ptrdiff_t>(before);
  std::sort(added, entry_order.end(), less);
  std::inplace_merge(entry_order.begin(), added, entry_order.end(), less);
}

void GgufState::add_tensors(std::uint32_t number) {
  for (GgufTensor tensor : parts[number]->tensors) {
    tensor.part = number;
    tensors.push_back(tensor);
  }
  if (tensors.size() > GgufLimits::tensors) {
    throw GgufError(paths[number], "tensor_count",
                    "makes more than " + std::to_string(GgufLimits::tensors) + " tensors of all parts");
  }
}

namespace {

std::string data_field(const GgufTensor& tensor) { return GgufField{"tensors", 0, tensor.name}.str("data"); }

}  // namespace
}  // namespace core

DType GgufTensor::buffer_dtype() const noexcept {
  return find_ggml_type(ggml_type)->dtype.value_or(DType::uint8);
}

Shape GgufTensor::buffer_shape() const {
  const GgmlTypeInfo& info = *find_ggml_type(ggml_type);
  if (info.dtype) return shape;
  std::vector<std::uint64_t> dims(shape.dims().begin(), shape.dims().end());
  dims.back() = dims.back() / info.block_length * info.block_bytes;
  return Shape(dims);
}

GgufFile::GgufFile(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw ArgumentError("GgufFile", "path", "a path without a null character", core::quoted(path));
  }
  state_ = std::make_shared<const core::GgufState>(path);
}

std::uint32_t GgufFile::version() const noexcept { return state_->parts.front()->version; }
std::span<const std::string> GgufFile::paths() const noexcept { return state_->paths; }
std::span<const GgufEntry> GgufFile::metadata() const noexcept { return state_->entries; }
std::span<const GgufTensor> GgufFile::tensors() const noexcept { return state_->tensors; }

std::uint64_t GgufFile::file_bytes() const noexcept {
  std::uint64_t total = 0;
  for (const std::unique_ptr<core::GgufPart>& part : state_->parts) total += part->file->size();
  return total;
}

std::optional<GgufValue> GgufFile::find(std::string_view key) const noexcept {
  const GgufEntry* const entry = core::find_by_name(state_->entries, state_->entry_order, core::key_of, key);
  return entry != nullptr ? std::optional(entry->value) : std::nullopt;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const noexcept {
  return core::find_by_name(state_->tensors, state_->tensor_order, core::tensor_name, name);
}

const GgufTensor& GgufFile::tensor(std::string_view name) const {
  if (const GgufTensor* const found = find_tensor(name)) return *found;
  throw TensorNotFoundError(state_->paths.front() + ": there is no tensor " + core::quoted(name) +
                            " among its " + std::to_string(state_->tensors.size()));
}

Buffer GgufFile::load_tensor(std::string_view name, const Device& device) const {
  device.state()->check_process();
  const GgufTensor& tensor = this->tensor(name);
  core::GgufPart& part = *state_->parts[tensor.part];
  if (Buffer mapped = part.mapping.buffer_of(tensor, part, device.state())) {
    mapped.synchronize();  // throws where the file has shrunk
    return mapped;
  }
  if (const std::uint64_t most = device.state()->capabilities().max_buffer_bytes; tensor.byte_len > most) {
    throw OutOfMemoryError(part.file->path() + ": " + core::data_field(tensor) + ": " +
                           std::to_string(tensor.byte_len) + " bytes are more than the device's " +
                           std::to_string(most) + " a buffer");
  }
  const Buffer copy = device.empty(tensor.buffer_shape(), tensor.buffer_dtype());
  part.file->read(tensor.offset, {copy.storage()->address(), tensor.byte_len}, core::data_field(tensor));
  return Buffer(copy.storage(), 0, copy.nbytes(), copy.shape(), copy.dtype(), true, false);
}

void GgufFile::read_tensor(std::string_view name, std::span<std::uint8_t> out) const {
  const GgufTensor& tensor = this->tensor(name);
  if (out.size() != tensor.byte_len) {
    throw ArgumentError("GgufFile.read_tensor", "length of out",
                        std::to_string(tensor.byte_len) + ", the bytes of the tensor",
                        std::to_string(out.size()));
  }
  state_->parts[tensor.part]->file->read(tensor.offset, out, core::data_field(tensor));
}

void GgufFile::load_tensor_f32(std::string_view name, std::span<float> out) const {
  const GgufTensor& tensor = this->tensor(name);
  const GgmlTypeInfo& info = core::require_decodable("GgufFile.load_tensor_f32", tensor.ggml_type);
  if (out.size() != tensor.shape.elements()) {
    throw ArgumentError("GgufFile.load_tensor_f32", "length of out",
                        std::to_string(tensor.shape.elements()) + ", the elements of the tensor",
                        std::to_string(out.size()));
  }
  // By pieces that stay in the second-level cache, from a copy: mapped pages may go away while they are
  // decoded.
  const std::uint64_t blocks_a_piece = 256 * 1024 / info.block_bytes;
  std::vector<std::uint8_t> piece(blocks_a_piece * info.block_bytes);
  const core::GgufPartFile& file = *state_->parts[tensor.part]->file;
  const std::uint64_t block_count = tensor.byte_len / info.block_bytes;
  for (std::uint64_t at = 0; at < block_count; at += blocks_a_piece) {
    const std::uint64_t count = std::min(blocks_a_piece, block_count - at);
    file.read(tensor.offset + at * info.block_bytes, {piece.data(), count * info.block_bytes},
              core::data_field(tensor));
    core::decode_blocks(info.type, piece.data(), count, out.data() + at * info.block_length);
  }
}

std::vector<float> GgufFile::load_tensor_f32(std::string_view name) const {
  std::vector<float> out(tensor(name).shape.elements());
  load_tensor_f32(name, out);
  return out;
}

}  // namespace metalane
