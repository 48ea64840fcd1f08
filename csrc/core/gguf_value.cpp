// Metadata values where they lie. Their sizes and types were checked when the file was opened.
#include "core/gguf_value.h"

#include <metalane/error.h>

#include <array>
#include <cstring>

namespace metalane {

namespace {

struct ValueTypeRow {
  std::string_view name;
  std::uint8_t size;  // 0: the file tells
};
constexpr std::array<ValueTypeRow, 13> value_types = {{{"uint8", 1},
                                                       {"int8", 1},
                                                       {"uint16", 2},
                                                       {"int16", 2},
                                                       {"uint32", 4},
                                                       {"int32", 4},
                                                       {"float32", 4},
                                                       {"bool", 1},
                                                       {"string", 0},
                                                       {"array", 0},
                                                       {"uint64", 8},
                                                       {"int64", 8},
                                                       {"float64", 8}}};

const ValueTypeRow& row_of(GgufValueType type) noexcept {
  return value_types[static_cast<std::size_t>(type)];
}

// The lengths before strings and, behind their element type, arrays.
constexpr std::uint64_t string_head = 8, array_head = 12;

template <typename T>
T load(const std::uint8_t* bytes) noexcept {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

[[noreturn]] void wrong_type(const char* op, const char* expected, GgufValueType type) {
  throw DTypeError(op, "value", expected, "a value of type " + std::string(name_of(type)));
}

// An integer value of any width: its bits, and whether they are below zero.
struct Integer {
  std::uint64_t bits;
  bool negative;
};

template <typename T>
Integer widened(const std::uint8_t* bytes) noexcept {
  const T value = load<T>(bytes);
  return {static_cast<std::uint64_t>(value), value < 0};
}

Integer integer_of(const char* op, const GgufValue& value) {
  switch (value.type()) {
    case GgufValueType::uint8:
      return {load<std::uint8_t>(value.bytes()), false};
    case GgufValueType::uint16:
      return {load<std::uint16_t>(value.bytes()), false};
    case GgufValueType::uint32:
      return {load<std::uint32_t>(value.bytes()), false};
    case GgufValueType::uint64:
      return {load<std::uint64_t>(value.bytes()), false};
    case GgufValueType::int8:
      return widened<std::int8_t>(value.bytes());
    case GgufValueType::int16:
      return widened<std::int16_t>(value.bytes());
    case GgufValueType::int32:
      return widened<std::int32_t>(value.bytes());
    case GgufValueType::int64:
      return widened<std::int64_t>(value.bytes());
    default:
      wrong_type(op, "an integer", value.type());
  }
}

}  // namespace

std::string_view name_of(GgufValueType type) noexcept {
  return static_cast<std::size_t>(type) < value_types.size() ? row_of(type).name : "unknown";
}

namespace core {

std::uint64_t size_of(GgufValueType type) noexcept { return row_of(type).size; }

std::uint64_t least_size(GgufValueType type) noexcept {
  if (type == GgufValueType::string) return string_head;
  return type == GgufValueType::array ? array_head : size_of(type);
}

}  // namespace core

std::uint64_t GgufValue::as_uint() const {
  const Integer integer = integer_of("GgufValue.as_uint", *this);
  if (integer.negative) {
    throw ArgumentError("GgufValue.as_uint", "value", "not negative",
                        std::to_string(static_cast<std::int64_t>(integer.bits)));
  }
  return integer.bits;
}

std::int64_t GgufValue::as_int() const {
  const Integer integer = integer_of("GgufValue.as_int", *this);
  if (!integer.negative && integer.bits >> 63 != 0) {
    throw ArgumentError("GgufValue.as_int", "value", "below 2^63", std::to_string(integer.bits));
  }
  return static_cast<std::int64_t>(integer.bits);
}

double GgufValue::as_float() const {
  if (type_ == GgufValueType::float32) return load<float>(bytes_);
  if (type_ == GgufValueType::float64) return load<double>(bytes_);
  wrong_type("GgufValue.as_float", "a float", type_);
}

bool GgufValue::as_bool() const {
  if (type_ != GgufValueType::boolean) wrong_type("GgufValue.as_bool", "a boolean", type_);
  return *bytes_ != 0;
}

std::string_view GgufValue::as_string() const {
  if (type_ != GgufValueType::string) wrong_type("GgufValue.as_string", "a string", type_);
  return {reinterpret_cast<const char*>(bytes_ + string_head), load<std::uint64_t>(bytes_)};
}

GgufArray GgufValue::as_array() const {
  if (type_ != GgufValueType::array) wrong_type("GgufValue.as_array", "an array", type_);
  return GgufArray(static_cast<GgufValueType>(load<std::uint32_t>(bytes_)), load<std::uint64_t>(bytes_ + 4),
                   bytes_ + array_head);
}

std::uint64_t GgufValue::nbytes() const noexcept {
  if (type_ == GgufValueType::string) return string_head + load<std::uint64_t>(bytes_);
  if (type_ != GgufValueType::array) return core::size_of(type_);
  const GgufArray array = as_array();
  if (const std::uint64_t size = core::size_of(array.element_type()); size != 0) {
    return array_head + array.size() * size;
  }
  std::uint64_t total = array_head;
  for (const GgufValue& element : array) total += element.nbytes();
  return total;
}

}  // namespace metalane
