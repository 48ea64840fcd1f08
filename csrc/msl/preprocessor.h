// The C preprocessor of the reader: includes, conditionals, macros. Its result is one flat token stream.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "msl/token.h"

namespace metalane::msl {

inline constexpr std::size_t max_include_depth = 64;

// What #include names.
struct HeaderName {
  std::string name;
  bool angled = false;
};
// Reads "name" or <name>; false for anything else, a macro say.
bool read_header_name(std::span<const Token> tokens, HeaderName& header);
// The given header, also by a path relative to the including header's folder; null where there is none.
const std::pair<const std::string, std::string>* find_header(
    const std::map<std::string, std::string>& headers, const std::string& includer, const HeaderName& header);

// `headers`: what #include "name" and #include <name> give beside the built-in Metal headers, which are
// accepted and give nothing (adapted text always includes metal_stdlib). Throws CompileError. Work, nesting
// and output are bounded, so that macro bombs and include cycles end quickly.
std::vector<Token> preprocess(SourceSet& sources, const std::string& name, const std::string& text,
                              const std::map<std::string, std::string>& headers);

}  // namespace metalane::msl
