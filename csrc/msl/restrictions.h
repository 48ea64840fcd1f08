// What C++ takes and Metal's compiler refuses.
#pragma once

#include "msl/syntax.h"

namespace metalane::msl {

// Throws CompileError for the first such thing in the whole of a source, kernels that nobody asks for
// included: Metal compiles all of it or nothing. Where tokens alone do not tell, it passes.
void check_restrictions(const Unit& unit);

}  // namespace metalane::msl
