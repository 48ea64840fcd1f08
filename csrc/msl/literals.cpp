// Number literals of MSL in C++ spelling.
#include <string>

#include "msl/translator.h"

namespace metalane::msl {

std::string number_text(std::string_view literal) {
  const bool hexadecimal = literal.size() > 1 && literal[0] == '0' && (literal[1] | 0x20) == 'x';
  const bool binary = literal.size() > 1 && literal[0] == '0' && (literal[1] | 0x20) == 'b' &&
                      literal.find_first_not_of("01'uUlL", 2) == std::string_view::npos;
  if (binary) return std::string(literal);
  const std::string_view marks = hexadecimal ? ".pP" : ".eE";
  const bool fraction = literal.find_first_of(marks) != std::string_view::npos;
  const char last = literal.back();
  const bool can_have_suffix = !hexadecimal || literal.find_first_of("pP") != std::string_view::npos;
  if (can_have_suffix && (last == 'h' || last == 'H')) {
    return "half(" + std::string(literal.substr(0, literal.size() - 1)) + (fraction ? ")" : ".0)");
  }
  if (can_have_suffix && (literal.ends_with("bf") || literal.ends_with("BF"))) {
    return "bfloat(" + std::string(literal.substr(0, literal.size() - 2)) + (fraction ? "f)" : ".0f)");
  }
  if (!fraction || last == 'f' || last == 'F') return std::string(literal);
  return std::string(literal) + "f";
}

}  // namespace metalane::msl
