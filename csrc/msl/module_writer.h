// The text of a module round the translated program: tag, entry function, sites and the exported table.
#pragma once

#include <metalane/kernel.h>

#include <string>
#include <vector>

#include "msl/reachability.h"
#include "msl/signature.h"

namespace metalane::msl {

struct ModuleRequest {
  const Unit& unit;
  const ReachabilityIndex& reachability;
  const std::vector<FunctionConstantDeclaration>& constants;
  const Kernel& kernel;
  const std::vector<ConstantValue>& values;
  // A module by itself exports `symbol`. One of several in a text lives in the namespace `symbol` and exports
  // nothing: its metalane_module is `symbol::metalane_module_table`.
  std::string symbol;
  bool is_part = false;
};

// What stands once at the head of a text that holds modules.
std::string module_prologue();
// Throws ArgumentError (constants), CompileError.
std::string write_module(const ModuleRequest& request);

}  // namespace metalane::msl
