// Single numbers between Python and device memory, range-checked.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "bindings/bindings.h"

namespace metalane::python {

namespace {

std::string argument_text(const ScalarSource& source) {
  std::string text(source.argument);
  if (source.element >= 0) text += "[" + std::to_string(source.element) + "]";
  return text;
}

[[noreturn]] void throw_type(const ScalarSource& source, const std::string& expected, nb::handle value) {
  throw DTypeError(std::string(source.op), argument_text(source), expected,
                   repr_of(value) + " (" + type_name_of(value) + ")");
}

template <typename T>
void pack_integer(nb::handle value, void* out, const ScalarSource& source) {
  const auto expected = [] {
    return "an integer from " + std::to_string(std::numeric_limits<T>::min()) + " to " +
           std::to_string(std::numeric_limits<T>::max());
  };
  nb::object converted;
  PyObject* number = value.ptr();
  if (PyLong_Check(number) == 0) {
    converted = integer_from(value);
    if (!converted.is_valid()) throw_type(source, expected(), value);
    number = converted.ptr();
  }
  T result = 0;
  bool fits = false;
  int overflow = 0;
  const long long whole = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (overflow == 0) {
    fits = std::in_range<T>(whole);
    result = static_cast<T>(whole);
  } else if (overflow > 0 && std::is_same_v<T, std::uint64_t>) {
    const unsigned long long large = PyLong_AsUnsignedLongLong(number);
    fits = PyErr_Occurred() == nullptr;
    PyErr_Clear();
    result = static_cast<T>(large);
  }
  if (!fits) throw ArgumentError(std::string(source.op), argument_text(source), expected(), repr_of(value));
  std::memcpy(out, &result, sizeof result);
}

// NumPy makes floats of complex numbers and of arrays of one element, with no more than a warning.
bool is_no_real_number(nb::handle value) {
  if (PyFloat_CheckExact(value.ptr()) || PyLong_CheckExact(value.ptr())) return false;
  nb::object axes = nb::getattr(value, "ndim", nb::none());
  if (PyLong_Check(axes.ptr()) != 0 && !axes.equal(nb::int_(0))) return true;
  nb::object kind = nb::getattr(nb::getattr(value, "dtype", nb::none()), "kind", nb::none());
  return nb::isinstance<nb::str>(kind) && nb::cast<nb::str>(kind).equal(nb::str("c"));
}

double double_from(ScalarType type, nb::handle value, const ScalarSource& source) {
  if (is_no_real_number(value)) {
    throw_type(source, std::string("a number (") + scalar_name(type) + ")", value);
  }
  double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    const bool too_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
    clear_refusal();
    if (!too_large) throw_type(source, std::string("a number (") + scalar_name(type) + ")", value);
    number = HUGE_VAL;
  }
  return number;
}

// Round to nearest even; NaN stays a (quiet) NaN.
std::uint16_t bfloat_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float bfloat_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

void pack_float(ScalarType type, nb::handle value, void* out, const ScalarSource& source) {
  const double number = double_from(type, value, source);
  double stored = 0;
  if (type == ScalarType::float32) {
    const auto single = static_cast<float>(number);
    std::memcpy(out, &single, sizeof single);
    stored = single;
  } else if (type == ScalarType::float16) {
    const auto half = static_cast<_Float16>(number);
    std::memcpy(out, &half, sizeof half);
    stored = static_cast<double>(half);
  } else {
    const std::uint16_t bits = bfloat_bits(static_cast<float>(number));
    std::memcpy(out, &bits, sizeof bits);
    stored = bfloat_value(bits);
  }
  const bool overflowed = std::isinf(stored) && (std::isfinite(number) || PyLong_Check(value.ptr()) != 0);
  if (overflowed) {
    throw ArgumentError(std::string(source.op), argument_text(source),
                        std::string("a number within the range of ") + scalar_name(type), repr_of(value));
  }
}

template <typename T>
T read_as(const void* in) {
  T value;
  std::memcpy(&value, in, sizeof value);
  return value;
}

}  // namespace

std::size_t scalar_size(ScalarType type) noexcept {
  switch (type) {
    case ScalarType::boolean:
    case ScalarType::int8:
    case ScalarType::uint8:
      return 1;
    case ScalarType::int16:
    case ScalarType::uint16:
    case ScalarType::float16:
    case ScalarType::bfloat16:
      return 2;
    case ScalarType::int32:
    case ScalarType::uint32:
    case ScalarType::float32:
      return 4;
    case ScalarType::int64:
    case ScalarType::uint64:
      return 8;
    case ScalarType::opaque:
    case ScalarType::structure:
      return 0;
  }
  return 0;
}

const char* scalar_name(ScalarType type) noexcept {
  switch (type) {
    case ScalarType::opaque:
      return "opaque";
    case ScalarType::boolean:
      return "bool";
    case ScalarType::int8:
      return "i8";
    case ScalarType::uint8:
      return "u8";
    case ScalarType::int16:
      return "i16";
    case ScalarType::uint16:
      return "u16";
    case ScalarType::int32:
      return "i32";
    case ScalarType::uint32:
      return "u32";
    case ScalarType::int64:
      return "i64";
    case ScalarType::uint64:
      return "u64";
    case ScalarType::float16:
      return "f16";
    case ScalarType::bfloat16:
      return "bf16";
    case ScalarType::float32:
      return "f32";
    case ScalarType::structure:
      return "struct";
  }
  return "opaque";
}

ScalarType scalar_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::float32:
      return ScalarType::float32;
    case DType::float16:
      return ScalarType::float16;
    case DType::bfloat16:
      return ScalarType::bfloat16;
    case DType::uint8:
      return ScalarType::uint8;
    case DType::int8:
      return ScalarType::int8;
    case DType::uint16:
      return ScalarType::uint16;
    case DType::int16:
      return ScalarType::int16;
    case DType::uint32:
      return ScalarType::uint32;
    case DType::int32:
      return ScalarType::int32;
    case DType::uint64:
      return ScalarType::uint64;
    case DType::int64:
      return ScalarType::int64;
  }
  return ScalarType::opaque;
}

void pack_scalar(ScalarType type, nb::handle value, void* out, const ScalarSource& source) {
  switch (type) {
    case ScalarType::boolean: {
      if (!PyBool_Check(value.ptr()) && !is_numpy_bool(value)) throw_type(source, "True or False", value);
      *static_cast<std::uint8_t*>(out) = PyObject_IsTrue(value.ptr()) == 1 ? 1 : 0;
      return;
    }
    case ScalarType::int8:
      return pack_integer<std::int8_t>(value, out, source);
    case ScalarType::uint8:
      return pack_integer<std::uint8_t>(value, out, source);
    case ScalarType::int16:
      return pack_integer<std::int16_t>(value, out, source);
    case ScalarType::uint16:
      return pack_integer<std::uint16_t>(value, out, source);
    case ScalarType::int32:
      return pack_integer<std::int32_t>(value, out, source);
    case ScalarType::uint32:
      return pack_integer<std::uint32_t>(value, out, source);
    case ScalarType::int64:
      return pack_integer<std::int64_t>(value, out, source);
    case ScalarType::uint64:
      return pack_integer<std::uint64_t>(value, out, source);
    case ScalarType::float16:
    case ScalarType::bfloat16:
    case ScalarType::float32:
      return pack_float(type, value, out, source);
    case ScalarType::opaque:
    case ScalarType::structure:
      throw_type(source, "a buffer, a struct or bytes (this argument is no scalar)", value);
  }
}

nb::object unpack_scalar(ScalarType type, const void* in) {
  switch (type) {
    case ScalarType::boolean:
      return nb::bool_(read_as<std::uint8_t>(in) != 0);
    case ScalarType::int8:
      return nb::int_(read_as<std::int8_t>(in));
    case ScalarType::uint8:
      return nb::int_(read_as<std::uint8_t>(in));
    case ScalarType::int16:
      return nb::int_(read_as<std::int16_t>(in));
    case ScalarType::uint16:
      return nb::int_(read_as<std::uint16_t>(in));
    case ScalarType::int32:
      return nb::int_(read_as<std::int32_t>(in));
    case ScalarType::uint32:
      return nb::int_(read_as<std::uint32_t>(in));
    case ScalarType::int64:
      return nb::int_(read_as<std::int64_t>(in));
    case ScalarType::uint64:
      return nb::int_(read_as<std::uint64_t>(in));
    case ScalarType::float16:
      return nb::float_(static_cast<double>(read_as<_Float16>(in)));
    case ScalarType::bfloat16:
      return nb::float_(bfloat_value(read_as<std::uint16_t>(in)));
    case ScalarType::float32:
      return nb::float_(read_as<float>(in));
    case ScalarType::opaque:
    case ScalarType::structure:
      return nb::none();
  }
  return nb::none();
}

}  // namespace metalane::python
