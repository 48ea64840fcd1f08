// Integer constant expressions over tokens: #if lines, array sizes, enumerators, template arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "msl/token.h"

namespace metalane::msl {

// Gives meaning to what is no literal and no operator.
class ExpressionNames {
 public:
  virtual ~ExpressionNames() = default;
  // The value of the operand that begins at tokens[at] (an identifier), which it moves `at` past; nothing
  // where it has no value known here.
  virtual std::optional<std::int64_t> operand(std::span<const Token> tokens, std::size_t& at) const = 0;
};

// The value of the whole of `tokens`, in 64 bits that wrap; nothing where they are no such expression or
// it divides by zero. Bounded depth.
std::optional<std::int64_t> evaluate(std::span<const Token> tokens, const ExpressionNames& names);

// The value of an integer or character literal; nothing for others.
std::optional<std::int64_t> literal_value(const Token& token);

}  // namespace metalane::msl
