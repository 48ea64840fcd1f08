// Macros: definitions, and one expansion step (substitution, # and ##).
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "msl/token.h"

namespace metalane::msl {

struct Macro {
  enum class Builtin : std::uint8_t { none, line, file, counter };
  std::vector<std::string_view> params;
  std::vector<Token> body;
  bool function_like = false;
  bool variadic = false;  // the last parameter takes the rest
  bool disabled = false;  // while its own expansion is read
  Builtin builtin = Builtin::none;
};

using MacroTable = std::unordered_map<std::string_view, std::shared_ptr<Macro>>;

// Reads "NAME...", the tokens of a #define line behind the word `define`. Throws CompileError.
std::shared_ptr<Macro> parse_definition(const SourceSet& sources, const std::vector<Token>& line);

// The macros that Metal's compiler defines on macOS 15 (MSL 3.2), and METAL_FUNC of its headers.
void define_standard_macros(SourceSet& sources, MacroTable& macros);

struct MacroArgument {
  std::vector<Token> raw;
  std::vector<Token> expanded;
};

// The body of `macro` with its parameters replaced; `arguments` has one entry a parameter. The tokens made
// stand at `place`, except those that came from the arguments.
std::vector<Token> substitute(SourceSet& sources, const Macro& macro,
                              const std::vector<MacroArgument>& arguments, const Token& place);

}  // namespace metalane::msl
