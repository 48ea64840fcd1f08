// Values of function constants: which declaration each is for, checked against its type.
#pragma once

#include <string>
#include <vector>

#include "msl/module_writer.h"
#include "msl/msl.h"

namespace metalane::msl {

struct MatchedConstant {
  const FunctionConstant* constant;
  const ConstantValue* value;  // null: not given, and the kernel does without
};

// The constant that `value` names, by name or index; null where there is none.
const FunctionConstant* find_constant(const std::vector<FunctionConstantDeclaration>& constants,
                                      const ConstantValue& value);
// Every constant of the source. Throws ArgumentError: no such constant, one given twice or not at all.
std::vector<MatchedConstant> match_constants(const ModuleRequest& request, const std::vector<bool>& reached);
// The value as a C++ expression of the constant's type. Throws ArgumentError where it is none of that type.
std::string constant_text(const Kernel& kernel, const FunctionConstant& constant, const ConstantValue& value);
// The given constants as bytes of their types. Throws ArgumentError as the two above do.
std::vector<BoundConstant> bind_constants(const ModuleRequest& request);

}  // namespace metalane::msl
