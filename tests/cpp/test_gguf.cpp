// The GGUF reader and the decoder: the C++ face, malformed bytes, devices of every kind, memory up to its
// last byte.
#include <metalane/metalane.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "check.h"
#include "core/gguf_mapping.h"
#include "core/storage.h"
#include "fake_backend.h"
#include "gguf_bytes.h"

using namespace metalane;
using gguf_bytes::Bytes;
using gguf_bytes::MemoryFile;
using gguf_bytes::Writer;

namespace {

constexpr std::uint64_t matrix_ne[] = {4, 3};
constexpr std::uint64_t block_ne[] = {256};

// Some of everything: numbers, text, arrays within arrays; a matrix of 0 to 11 and a block.
Bytes small_file() {
  Writer out;
  out.head(2, 7);
  out.key("u8", GgufValueType::uint8).number<std::uint8_t>(200);
  out.key("i64", GgufValueType::int64).number<std::int64_t>(-5);
  out.key("f64", GgufValueType::float64).number(1.5);
  out.key("yes", GgufValueType::boolean).number<std::uint8_t>(1);
  out.key("text", GgufValueType::string).text("hello");
  out.key("numbers", GgufValueType::array).array(GgufValueType::int16, 3);
  out.number<std::int16_t>(-1).number<std::int16_t>(0).number<std::int16_t>(1);
  out.key("nested", GgufValueType::array).array(GgufValueType::array, 2);
  out.array(GgufValueType::string, 2).text("a").text("");
  out.array(GgufValueType::boolean, 1).number<std::uint8_t>(0);
  out.tensor("matrix", matrix_ne, GgmlType::F32, 0);
  out.tensor("block", block_ne, GgmlType::Q2_K, 64);
  out.pad(32);
  for (int i = 0; i < 12; ++i) out.number(static_cast<float>(i));
  out.pad(32);
  for (int i = 0; i < 84; ++i) out.number(static_cast<std::uint8_t>(i));
  return out.bytes();
}

fake::Opened opened_with(std::uint64_t wrap_alignment) {
  auto backend = std::make_shared<fake::Device>(wrap_alignment);
  metalane::Device device(core::DeviceState::create(backend, DeviceOptions{}));
  return {backend, device};
}

}  // namespace

TEST_CASE(values_are_read_where_they_lie) {
  const MemoryFile memory(small_file());
  const GgufFile file(memory.path());
  CHECK_EQ(file.version(), 3u);
  CHECK_EQ(file.metadata().size(), 7u);
  CHECK_EQ(file.metadata()[4].key, "text");
  CHECK_EQ(file.find("u8")->as_uint(), 200u);
  CHECK_EQ(file.find("u8")->as_int(), 200);
  CHECK_EQ(file.find("i64")->as_int(), -5);
  CHECK_EQ(file.find("f64")->as_float(), 1.5);
  CHECK(file.find("yes")->as_bool());
  CHECK_EQ(file.find("text")->as_string(), "hello");
  CHECK(!file.find("nothing"));
  const GgufArray numbers = file.find("numbers")->as_array();
  CHECK_EQ(numbers.size(), 3u);
  std::int64_t expected = -1;
  for (const GgufValue& number : numbers) CHECK_EQ(number.as_int(), expected++);
  const GgufArray nested = file.find("nested")->as_array();
  auto inner = nested.begin();
  CHECK_EQ(inner->as_array().begin()->as_string(), "a");
  ++inner;
  CHECK(!inner->as_array().begin()->as_bool());
  ++inner;
  CHECK(inner == nested.end());
}

TEST_CASE(values_of_another_kind_are_refused) {
  const MemoryFile memory(small_file());
  const GgufFile file(memory.path());
  CHECK_THROWS(file.find("text")->as_uint(), DTypeError, "must be an integer, got a value of type string");
  CHECK_THROWS(file.find("u8")->as_float(), DTypeError, "a float");
  CHECK_THROWS(file.find("u8")->as_string(), DTypeError, "a string");
  CHECK_THROWS(file.find("u8")->as_bool(), DTypeError, "a boolean");
  CHECK_THROWS(file.find("text")->as_array(), DTypeError, "an array");
  CHECK_THROWS(file.find("i64")->as_uint(), ArgumentError, "must be not negative, got -5");
}

TEST_CASE(tensors_are_found_and_copied) {
  const MemoryFile memory(small_file());
  const GgufFile file(memory.path());
  const GgufTensor& matrix = file.tensor("matrix");
  CHECK_EQ(matrix.shape.str(), "[3, 4]");
  CHECK_EQ(matrix.byte_len, 48u);
  CHECK_EQ(matrix.offset % 32, 0u);
  const std::vector<float> values = file.load_tensor_f32("matrix");
  CHECK_EQ(values.size(), 12u);
  for (std::size_t i = 0; i < values.size(); ++i) CHECK_EQ(values[i], static_cast<float>(i));
  CHECK_EQ(file.tensor("block").buffer_shape().str(), "[84]");
  CHECK_THROWS(file.tensor("none"), TensorNotFoundError, "no tensor \"none\" among its 2");
  Bytes wrong(47);
  CHECK_THROWS(file.read_tensor("matrix", wrong), ArgumentError, "must be 48");
  std::vector<float> few(11);
  CHECK_THROWS(file.load_tensor_f32("matrix", few), ArgumentError, "must be 12");
}

TEST_CASE(a_handle_keeps_the_file) {
  const MemoryFile memory(small_file());
  std::optional<GgufFile> first(std::in_place, memory.path());
  const GgufFile second = *first;
  const GgufValue text = *second.find("text");
  first.reset();
  CHECK_EQ(text.as_string(), "hello");
}

// The device maps whole pages, single bytes, or nothing: the buffer holds the same bytes.
TEST_CASE(buffers_lie_on_the_file_where_the_device_maps_it) {
  const Bytes bytes = small_file();
  const MemoryFile memory(bytes);
  const GgufFile file(memory.path());
  for (const std::uint64_t alignment : {std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{1} << 30}) {
    fake::Opened opened = opened_with(alignment);
    for (const bool refuse : {false, true}) {
      opened.backend->refuse_wrap = refuse;
      for (const GgufTensor& tensor : file.tensors()) {
        const Buffer buffer = file.load_tensor(tensor.name, opened.device);
        CHECK(buffer.readonly());
        CHECK(buffer.shape() == tensor.buffer_shape());
        CHECK_EQ(buffer.nbytes(), tensor.byte_len);
        CHECK(std::memcmp(buffer.data(), bytes.data() + tensor.offset, buffer.nbytes()) == 0);
        const bool on_file = alignment <= 4096 && !refuse;
        CHECK_EQ(buffer.address() % 4096 == tensor.offset % 4096, on_file || tensor.offset == 0);
        CHECK_EQ(opened.backend->live_allocations.load(), 1);
      }
      CHECK_EQ(opened.backend->live_allocations.load(), 0);
    }
  }
}

// Against the fewest windows that dynamic programming finds, on the pages of Apple's systems.
TEST_CASE(segments_are_the_fewest_that_hold_each_tensor_whole) {
  constexpr std::uint64_t step = 16384, most = 5 * step;
  std::mt19937 random(3);
  const auto below = [&random](std::uint64_t end) { return random() % end; };
  for (int round = 0; round < 300; ++round) {
    std::vector<GgufTensor> tensors(1 + below(12));
    std::uint64_t offset = below(step);
    for (GgufTensor& tensor : tensors) {
      tensor.offset = offset;
      tensor.byte_len = below(10) == 0 ? below(2 * most) : below(2 * step);
      offset += tensor.byte_len + (below(4) == 0 ? below(most) : below(64));
    }
    std::vector<std::pair<std::uint64_t, std::uint64_t>> pages;  // of the tensors that can be mapped
    for (const GgufTensor& tensor : tensors) {
      const std::uint64_t begin = tensor.offset - tensor.offset % step;
      std::uint64_t end = begin;
      while (end < tensor.offset + tensor.byte_len) end += step;
      if (tensor.byte_len != 0 && end - begin <= most) pages.emplace_back(begin, end);
    }
    std::vector<std::size_t> fewest(pages.size() + 1, 0);  // for the first so many
    for (std::size_t count = 1; count <= pages.size(); ++count) {
      fewest[count] = count;
      for (std::size_t first = 0; first < count; ++first) {
        if (pages[count - 1].second - pages[first].first <= most)
          fewest[count] = std::min(fewest[count], fewest[first] + 1);
      }
    }
    std::shuffle(tensors.begin(), tensors.end(), random);
    const std::vector<core::GgufSegment> segments = core::plan_segments(tensors, step, most);
    CHECK_EQ(segments.size(), fewest.back());
    for (const core::GgufSegment& segment : segments) {
      CHECK(segment.begin % step == 0 && segment.end % step == 0);
      CHECK(segment.begin < segment.end && segment.end - segment.begin <= most);
    }
    for (const auto& [begin, end] : pages) {
      // As load_tensor looks: the last segment that begins in time.
      const core::GgufSegment* found = nullptr;
      for (const core::GgufSegment& segment : segments) {
        if (segment.begin <= begin) found = &segment;
      }
      CHECK(found != nullptr && end <= found->end);
    }
  }
}

TEST_CASE(buffers_outlive_the_file) {
  fake::Opened opened;
  Buffer buffer;
  {
    const MemoryFile memory(small_file());
    buffer = GgufFile(memory.path()).load_tensor("matrix", opened.device);
  }
  CHECK_EQ(static_cast<const float*>(buffer.data())[11], 11.0f);
}

TEST_CASE(a_file_that_shrinks_is_noticed) {
  fake::Opened opened;
  const MemoryFile memory(small_file());
  const GgufFile file(memory.path());
  const Buffer matrix = file.load_tensor("matrix", opened.device);
  const Buffer block = file.load_tensor("block", opened.device);
  memory.truncate(file.tensor("block").offset + 83);
  CHECK_THROWS(block.data(), GgufError, "shrunk");
  CHECK_THROWS(block.synchronize(), GgufError, "tensor data");
  CHECK_THROWS(file.load_tensor("block", opened.device), GgufError, "shrunk");
  CHECK_THROWS(file.load_tensor_f32("block"), GgufError, "tensors[\"block\"].data");
  CHECK_EQ(static_cast<const float*>(matrix.data())[11], 11.0f);
  CHECK_EQ(file.load_tensor_f32("matrix")[11], 11.0f);
  CHECK_EQ(file.find("text")->as_string(), "hello");
}

TEST_CASE(paths_that_cannot_be_opened) {
  CHECK_THROWS(GgufFile("/nonexistent/file.gguf"), GgufError, "No such file");
  CHECK_THROWS(GgufFile("/"), GgufError, "not a regular file");
  CHECK_THROWS(GgufFile(std::string("a\0b", 3)), ArgumentError, "null character");
#if defined(__linux__)  // files of the system that say another size than they have
  CHECK_THROWS(GgufFile("/proc/self/status"), GgufError, "magic");
  CHECK_THROWS(GgufFile("/sys/kernel/profiling"), GgufError, "");
#endif
}

TEST_CASE(a_file_cut_at_any_byte_is_refused) {
  const Bytes bytes = small_file();
  CHECK(gguf_bytes::read_everything(bytes));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CHECK(!gguf_bytes::read_everything({bytes.data(), length}));
  }
}

TEST_CASE(a_file_with_any_byte_changed_is_read_or_refused) {
  const Bytes bytes = small_file();
  int opened = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int mask : {0x01, 0x80, 0xff}) {
      Bytes changed = bytes;
      changed[at] ^= static_cast<std::uint8_t>(mask);
      opened += gguf_bytes::read_everything(changed);
    }
  }
  CHECK(opened > 0);
  CHECK(opened < static_cast<int>(3 * bytes.size()));
}

TEST_CASE(mutated_files_are_read_or_refused) {
  constexpr int files = 5000;
  constexpr std::uint64_t wild[] = {0, 1, 31, 255, 1ull << 31, 1ull << 32, 1ull << 61, 1ull << 63, ~0ull};
  std::mt19937_64 random(1);
  const Bytes bytes = small_file();
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int opened = 0;
  for (int i = 0; i < files; ++i) {
    Bytes changed = bytes;
    for (std::size_t n = 1 + below(3); n > 0; --n) {
      const std::size_t at = below(changed.size());
      const auto place = changed.begin() + static_cast<std::ptrdiff_t>(at);
      switch (below(4)) {
        case 0:
          changed[at] = static_cast<std::uint8_t>(random());
          break;
        case 1: {
          const std::uint64_t value = wild[below(std::size(wild))];
          const std::size_t size = std::min<std::size_t>(below(2) != 0 ? 8 : 4, changed.size() - at);
          std::memcpy(changed.data() + at, &value, size);
          break;
        }
        case 2:
          changed.insert(place, below(32), static_cast<std::uint8_t>(random()));
          break;
        case 3:
          if (changed.size() > 64)
            changed.erase(place,
                          place + static_cast<std::ptrdiff_t>(std::min(below(32), changed.size() - at)));
          break;
      }
    }
    opened += gguf_bytes::read_everything(changed);
  }
  CHECK(opened > files / 100);
  CHECK(opened < files);
}

TEST_CASE(the_table_is_consistent) {
  std::size_t decoding = 0;
  for (const GgmlTypeInfo& info : ggml_types()) {
    CHECK(find_ggml_type(info.type) == &info);
    CHECK(find_ggml_type(info.name) == &info);
    if (info.dtype) CHECK_EQ(size_of(*info.dtype), info.block_bytes);
    decoding += info.decodes;
  }
  CHECK_EQ(decoding, 16u);
  CHECK(find_ggml_type(static_cast<GgmlType>(9)) == nullptr);
  CHECK(find_ggml_type("q2_k") == nullptr);
}

// Blocks end where their memory ends, and so do results: a sanitizer sees what goes past.
TEST_CASE(blocks_are_decoded_up_to_their_last_byte) {
  std::mt19937 random(2);
  for (const GgmlTypeInfo& info : ggml_types()) {
    if (!info.decodes) continue;
    for (const std::size_t count : {1, 2, 5}) {
      const auto blocks = std::make_unique<std::uint8_t[]>(count * info.block_bytes);
      const auto out = std::make_unique<float[]>(count * info.block_length);
      for (std::size_t i = 0; i < count * info.block_bytes; ++i) {
        blocks[i] = static_cast<std::uint8_t>(random());
      }
      std::fill_n(out.get(), count * info.block_length, 12345.678f);
      dequantize({blocks.get(), count * info.block_bytes}, info.type, {out.get(), count * info.block_length});
      bool written = true;
      for (std::size_t i = 0; i < count * info.block_length; ++i) written = written && out[i] != 12345.678f;
      CHECK(written);
    }
  }
}

TEST_CASE(decode_refuses_wrong_arguments) {
  Bytes blocks(84);
  std::vector<float> out(256);
  CHECK_THROWS(dequantize({blocks.data(), 83}, GgmlType::Q2_K, out), ArgumentError, "multiple of 84");
  CHECK_THROWS(dequantize(blocks, GgmlType::Q2_K, {out.data(), 255}), ArgumentError, "must be 256");
  CHECK_THROWS(dequantize(blocks, GgmlType::I32, out), ArgumentError, "got I32");
  CHECK_THROWS(dequantize(blocks, static_cast<GgmlType>(99), out), ArgumentError, "got the number 99");
  CHECK_THROWS(dequantize({reinterpret_cast<std::uint8_t*>(out.data()), 84}, GgmlType::Q2_K, out),
               ArgumentError, "overlaps");
  dequantize({}, GgmlType::Q2_K, {});
}

TEST_CASE(halves_are_exact) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> out(halves.size());
  dequantize({reinterpret_cast<const std::uint8_t*>(halves.data()), 2 * halves.size()}, GgmlType::F16, out);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31), mantissa = static_cast<int>(i & 1023);
    double expected = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31 && mantissa == 0) expected = std::numeric_limits<double>::infinity();
    if ((i >> 15) != 0) expected = -expected;
    const bool is_nan = exponent == 31 && mantissa != 0;
    const bool right =
        is_nan ? std::isnan(out[i]) : out[i] == expected && std::signbit(out[i]) == std::signbit(expected);
    if (!right) ++wrong;
  }
  CHECK_EQ(wrong, 0u);
}

CHECK_MAIN()
