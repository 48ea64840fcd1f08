// Modules of all kernels of a source in one text: how the built-in kernels are compiled ahead of time.
#pragma once

#include <string>

#include "msl/msl.h"

namespace metalane::msl {

// C++ text that defines `extern "C" const metalane_module* const METALANE_FAMILY_TABLE_SYMBOL[]`, ended by a
// null pointer; the macro comes from whoever compiles it. Throws like Program::adapt.
std::string adapt_family(const Program& program, const std::string& family);

}  // namespace metalane::msl
