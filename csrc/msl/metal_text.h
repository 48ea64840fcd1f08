// The text of a source as Metal's compiler takes it, which has no search path for headers.
#pragma once

#include <metalane/kernel.h>

#include <map>
#include <string>

namespace metalane::msl {

// The source with its registered headers in place of their #include lines; Metal's own headers stay includes.
// #line marks give every message the caller's file and line. A header's `#pragma once` (and `#import`)
// becomes a guard, `__has_include` of a registered header 1. For safe math the text begins with the pragmas
// that keep a * b + c apart. The reader gives the same program for it as for the source. Throws CompileError
// (a text that cannot be lexed, headers that make it longer than 8 MiB).
std::string metal_text(const std::string& name, const std::string& text,
                       const std::map<std::string, std::string>& headers, MathMode math);

}  // namespace metalane::msl
