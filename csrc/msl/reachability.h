// Which declarations a kernel needs: everything else of its source is left out of the module.
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "msl/signature.h"
#include "msl/syntax.h"

namespace metalane::msl {

// Declarations of namespace scope by the names they give. Names are followed without regard to scopes, so
// that the answer may hold more than is needed, never less.
class ReachabilityIndex {
 public:
  explicit ReachabilityIndex(const Unit& unit);
  // One flag an item of the unit: emitted with `kernel` or not. Members of records follow their record.
  std::vector<bool> reach(const Kernel& kernel) const;

 private:
  void add(Index index);
  bool restates_library(const Item& item) const;
  bool is_specialisation(const Item& item) const;
  bool operands_known(const Item& item, const std::vector<bool>& reached) const;

  const Unit& unit_;
  std::unordered_map<std::string_view, std::vector<Index>> declared_;
  std::unordered_map<std::string_view, std::vector<Index>> kernel_templates_;
  std::vector<Index> always_;
  std::vector<Index> by_operands_;  // operators, specialisations of the library's templates
  std::vector<Index> assertions_;
};

}  // namespace metalane::msl
