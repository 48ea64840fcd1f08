// What this machine's processor can run.
#pragma once

#include <string>
#include <string_view>

#include "backends/cpu/native_kernel.h"

namespace metalane::cpu {

// Whether code built for a level of builtin_modules(), or for an Isa, runs here.
bool supports_level(std::string_view level);
bool supports(Isa isa);
Isa best_isa();
// Of a name as DeviceOptions has it; throws ArgumentError for unknown ones and those that do not run here.
Isa isa_from(const std::string& name);
// The level of builtin_modules() that uses no more than an Isa.
std::string_view level_of(Isa isa);
// Everything that -march=native may turn into code, as one short text: equal texts mean that a module
// compiled on one machine runs on the other.
const std::string& instruction_set_id();
// The processor's name, for people.
std::string processor_name();

}  // namespace metalane::cpu
