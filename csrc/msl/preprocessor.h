// The C preprocessor of the reader: includes, conditionals, macros. Its result is one flat token stream.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "msl/token.h"

namespace metalane::msl {

// `headers`: what #include "name" and #include <name> give beside the built-in Metal headers, which are
// accepted and give nothing (adapted text always includes metal_stdlib). Throws CompileError. Work, nesting
// and output are bounded, so that macro bombs and include cycles end quickly.
std::vector<Token> preprocess(SourceSet& sources, const std::string& name, const std::string& text,
                              const std::map<std::string, std::string>& headers);

}  // namespace metalane::msl
