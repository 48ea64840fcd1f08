// Pointers into one address space where another is wanted, which C++ cannot tell apart.
#pragma once

#include "msl/syntax.h"

namespace metalane::msl {

// Throws CompileError where a function gives a pointer that it declares to another, or to a function of the
// source, whose declaration names another address space. Looks at "p", "p + n" and "&p[n]"; where names are
// declared twice, or functions overloaded, it passes.
void check_pointer_spaces(const Unit& unit);

}  // namespace metalane::msl
