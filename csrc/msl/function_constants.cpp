// Values of function constants: matched with the declarations, as C++ text, as bytes.
#include "msl/function_constants.h"

#include <metalane/error.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

namespace metalane::msl {
namespace {

std::string joined_names(const std::vector<FunctionConstantDeclaration>& constants) {
  std::string names;
  for (const auto& declared : constants) {
    if (!names.empty()) names += ", ";
    names += declared.constant.name + " (" + std::to_string(declared.constant.index) + ")";
  }
  return names.empty() ? "none: the source has no function constants" : "one of " + names;
}

std::string shown(const ConstantNumber& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<std::uint64_t>(&value)) return std::to_string(*number);
  char text[40];
  std::snprintf(text, sizeof text, "%g", std::get<double>(value));
  return text;
}

// One number, or the components of a vector.
std::vector<ConstantNumber> components_of(const ConstantValue& value) {
  using List = std::vector<ConstantNumber>;
  struct Components {
    List operator()(const List& list) const { return list; }
    List operator()(ConstantNumber number) const { return {number}; }
  };
  return std::visit(Components{}, value.value);
}

std::string shown(const ConstantValue& value) {
  const bool is_list = std::holds_alternative<std::vector<ConstantNumber>>(value.value);
  std::string text;
  for (const ConstantNumber& number : components_of(value))
    text += (text.empty() ? "" : ", ") + shown(number);
  return is_list ? "(" + text + ")" : text;
}

// The range of an integer type; nothing for others.
struct IntegerRange {
  std::int64_t low;
  std::uint64_t high;
};
std::optional<IntegerRange> integer_range(ScalarType type) {
  switch (type) {
    case ScalarType::int8:
      return IntegerRange{-128, 127};
    case ScalarType::uint8:
      return IntegerRange{0, 255};
    case ScalarType::int16:
      return IntegerRange{-32768, 32767};
    case ScalarType::uint16:
      return IntegerRange{0, 65535};
    case ScalarType::int32:
      return IntegerRange{std::numeric_limits<std::int32_t>::min(), 0x7fffffff};
    case ScalarType::uint32:
      return IntegerRange{0, 0xffffffff};
    case ScalarType::int64:
      return IntegerRange{std::numeric_limits<std::int64_t>::min(), 0x7fffffffffffffff};
    case ScalarType::uint64:
      return IntegerRange{0, std::numeric_limits<std::uint64_t>::max()};
    default:
      return std::nullopt;
  }
}

std::optional<std::string> integer_text(const IntegerRange& range, const ConstantNumber& value) {
  std::string text;
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    const bool fits = *number < 0 ? *number >= range.low : static_cast<std::uint64_t>(*number) <= range.high;
    if (!fits) return std::nullopt;
    // The most negative number has no literal of its own.
    if (*number == std::numeric_limits<std::int64_t>::min()) return "(-9223372036854775807L - 1)";
    text = std::to_string(*number);
  } else if (const auto* natural = std::get_if<std::uint64_t>(&value)) {
    if (*natural > range.high) return std::nullopt;
    text = std::to_string(*natural);
  } else {
    return std::nullopt;
  }
  if (range.high == std::numeric_limits<std::uint64_t>::max()) return text + "UL";
  return range.high == 0xffffffff ? text + "U" : text + "L";
}

std::optional<std::string> floating_text(ScalarType type, const ConstantNumber& value) {
  double number = 0;
  if (const auto* real = std::get_if<double>(&value)) {
    number = *real;
  } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    number = static_cast<double>(*integer);
  } else if (const auto* natural = std::get_if<std::uint64_t>(&value)) {
    number = static_cast<double>(*natural);
  } else {
    return std::nullopt;
  }
  std::string text;
  if (std::isnan(number)) {
    text = "__builtin_nanf(\"\")";
  } else if (std::isinf(number)) {
    text = number < 0 ? "-__builtin_inff()" : "__builtin_inff()";
  } else {
    char digits[48];
    // bfloat's constructor takes a float; the double rounds once to the others.
    const bool narrow = type == ScalarType::bfloat16;
    std::snprintf(digits, sizeof digits, narrow ? "%af" : "%a", number);
    text = digits;
  }
  const char* name = type == ScalarType::float32 ? "float" : type == ScalarType::float16 ? "half" : "bfloat";
  return std::string(name) + "(" + text + ")";
}

std::optional<std::string> number_text(ScalarType type, const ConstantNumber& value) {
  if (type == ScalarType::boolean) {
    const bool* flag = std::get_if<bool>(&value);
    return flag ? std::optional<std::string>(*flag ? "true" : "false") : std::nullopt;
  }
  if (const auto range = integer_range(type)) return integer_text(*range, value);
  if (type == ScalarType::float32 || type == ScalarType::float16 || type == ScalarType::bfloat16)
    return floating_text(type, value);
  return std::nullopt;
}

std::string expected_value(const FunctionConstant& constant) {
  const bool is_vector = constant.type.components > 1;
  const std::string many = is_vector ? std::to_string(constant.type.components) + " numbers" : "a number";
  if (const auto range = integer_range(constant.type.scalar)) {
    return (is_vector ? many + " for the " : "a ") + constant.type.name + " from " +
           std::to_string(range->low) + " to " + std::to_string(range->high);
  }
  if (constant.type.scalar == ScalarType::boolean)
    return is_vector ? std::to_string(constant.type.components) + " bools" : "a bool";
  return many + " for the " + constant.type.name;
}

}  // namespace

std::string constant_text(const Kernel& kernel, const FunctionConstant& constant,
                          const ConstantValue& value) {
  const std::vector<ConstantNumber> numbers = components_of(value);
  const bool is_list = std::holds_alternative<std::vector<ConstantNumber>>(value.value);
  const bool is_vector = constant.type.components > 1;
  std::string text;
  bool fits =
      constant.type.columns == 1 && is_list == is_vector && numbers.size() == constant.type.components;
  for (std::size_t i = 0; fits && i < numbers.size(); ++i) {
    const std::optional<std::string> number = number_text(constant.type.scalar, numbers[i]);
    fits = number.has_value();
    if (fits) text += (i == 0 ? "" : ", ") + *number;
  }
  if (!fits) {
    throw ArgumentError(kernel.signature.name, "function constant \"" + constant.name + "\"",
                        expected_value(constant), shown(value));
  }
  return is_vector ? constant.type.name + "(" + text + ")" : text;
}

namespace {

// A source that asks whether a constant is given has an answer for both cases.
bool is_queried(const Unit& unit, std::string_view name) {
  for (Index i = 0; i + 2 < unit.tokens().size(); ++i) {
    if (unit.is_at(i, "is_function_constant_defined") && unit.is_at(i + 2, name)) return true;
  }
  return false;
}

template <typename T>
void append(std::vector<std::uint8_t>& bytes, T value) {
  const auto* first = reinterpret_cast<const std::uint8_t*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof value);
}

// The upper half of the float, rounded to nearest even; a NaN stays one.
std::uint16_t bfloat_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A number that constant_text() took.
void append_number(std::vector<std::uint8_t>& bytes, ScalarType type, const ConstantNumber& number) {
  const double real = std::visit([](auto value) { return static_cast<double>(value); }, number);
  const auto integer = std::visit(
      [](auto value) {
        if constexpr (std::is_same_v<decltype(value), double>) return std::uint64_t{0};
        return static_cast<std::uint64_t>(value);
      },
      number);
  switch (type) {
    case ScalarType::boolean:
    case ScalarType::int8:
    case ScalarType::uint8:
      return append(bytes, static_cast<std::uint8_t>(integer));
    case ScalarType::int16:
    case ScalarType::uint16:
      return append(bytes, static_cast<std::uint16_t>(integer));
    case ScalarType::int32:
    case ScalarType::uint32:
      return append(bytes, static_cast<std::uint32_t>(integer));
    case ScalarType::int64:
    case ScalarType::uint64:
      return append(bytes, integer);
    case ScalarType::float16:
      return append(bytes, static_cast<_Float16>(real));
    case ScalarType::bfloat16:
      return append(bytes, bfloat_bits(static_cast<float>(real)));
    case ScalarType::float32:
      return append(bytes, static_cast<float>(real));
    case ScalarType::opaque:
    case ScalarType::structure:
      return;  // no constant has such a type: constant_text() refuses its values
  }
}

}  // namespace

const FunctionConstant* find_constant(const std::vector<FunctionConstantDeclaration>& constants,
                                      const ConstantValue& value) {
  for (const auto& declared : constants) {
    const auto* name = std::get_if<std::string>(&value.key);
    const auto* index = std::get_if<std::uint32_t>(&value.key);
    if ((name && *name == declared.constant.name) || (index && *index == declared.constant.index)) {
      return &declared.constant;
    }
  }
  return nullptr;
}

std::vector<MatchedConstant> match_constants(const ModuleRequest& request, const std::vector<bool>& reached) {
  const std::string& op = request.kernel.signature.name;
  std::vector<MatchedConstant> matched;
  std::set<std::string> given;
  for (const ConstantValue& value : request.values) {
    const FunctionConstant* constant = find_constant(request.constants, value);
    if (!constant) {
      const auto* name = std::get_if<std::string>(&value.key);
      throw ArgumentError(op, "function constant", joined_names(request.constants),
                          name ? "\"" + *name + "\"" : std::to_string(std::get<std::uint32_t>(value.key)));
    }
    if (!given.insert(constant->name).second) {
      throw ArgumentError(op, "function constant \"" + constant->name + "\"", "given once", "two values");
    }
    matched.push_back({constant, &value});
  }
  for (const auto& declared : request.constants) {
    const FunctionConstant& constant = declared.constant;
    if (given.contains(constant.name)) continue;
    if (reached[declared.item] && !is_queried(request.unit, constant.name)) {
      throw ArgumentError(op, "function constant \"" + constant.name + "\"", "given (the kernel uses it)",
                          "nothing");
    }
    matched.push_back({&constant, nullptr});
  }
  return matched;
}

std::vector<BoundConstant> bind_constants(const ModuleRequest& request) {
  std::vector<BoundConstant> bound;
  for (const MatchedConstant& matched :
       match_constants(request, request.reachability.reach(request.kernel))) {
    if (matched.value == nullptr) continue;
    const TypeInfo& type = matched.constant->type;
    constant_text(request.kernel, *matched.constant, *matched.value);  // checks the value
    std::vector<std::uint8_t> bytes;
    for (const ConstantNumber& number : components_of(*matched.value))
      append_number(bytes, type.scalar, number);
    bytes.resize(std::max<std::size_t>(bytes.size(), type.size));  // a vector of three takes four places
    bound.push_back({*matched.constant, std::move(bytes)});
  }
  return bound;
}

}  // namespace metalane::msl
