// Follows identifiers from a kernel to declarations, and from those on.
#include "msl/reachability.h"

#include <algorithm>

namespace metalane::msl {

ReachabilityIndex::ReachabilityIndex(const Unit& unit) : unit_(unit) {
  for (const Index index : unit.top()) add(index);
  // What the library asks of its own template for a type of the source: no name in the source leads there.
  for (const auto& [name, items] : declared_) {
    const bool is_library = std::all_of(items.begin(), items.end(),
                                        [&](Index index) { return is_specialisation(unit.items()[index]); });
    if (is_library) by_operands_.insert(by_operands_.end(), items.begin(), items.end());
  }
  std::sort(by_operands_.begin(), by_operands_.end());
}

// template <...> struct X<...> { ... };
bool ReachabilityIndex::is_specialisation(const Item& item) const {
  return item.kind == ItemKind::record && item.is_template && item.name_at != no_index &&
         unit_.is_at(item.name_at + 1, "<");
}

void ReachabilityIndex::add(Index index) {
  const Item& item = unit_.items()[index];
  switch (item.kind) {
    case ItemKind::scope:
      for (const Index child : item.children) add(child);
      return;
    case ItemKind::instantiation:
      return;  // modules instantiate what they call
    case ItemKind::assertion:
      assertions_.push_back(index);
      return;
    case ItemKind::function:
      if (item.is_kernel && item.is_template && !item.names.empty())
        kernel_templates_[item.names[0]].push_back(index);
      if (item.is_kernel || restates_library(item)) return;
      if (!item.names.empty() && item.names[0] == "operator") {
        by_operands_.push_back(index);
        return;
      }
      break;
    default:
      break;
  }
  if (item.names.empty() || item.kind == ItemKind::other) {
    always_.push_back(index);
    return;
  }
  for (const std::string_view name : item.names) declared_[name].push_back(index);
}

// Sources for older compilers add overloads to namespace metal that call the compiler's own __metal_...
// functions (MLX does so for bfloat), or declare such functions: the library has both.
bool ReachabilityIndex::restates_library(const Item& item) const {
  if (!item.names.empty() && item.names.front().starts_with("__metal_")) return true;
  for (Index i = item.body.begin; i < item.body.end; ++i) {
    if (unit_.at(i).text.starts_with("__metal_")) return true;
  }
  return false;
}

// Whether all types of the source that the parameters, template arguments or assertion name are there.
bool ReachabilityIndex::operands_known(const Item& item, const std::vector<bool>& reached) const {
  const Range range = item.kind == ItemKind::assertion ? item.tokens
                      : item.is_record() ? Range{item.name_at + 2, unit_.match(item.name_at + 1)}
                                         : item.params;
  for (Index i = range.begin; i < range.end; ++i) {
    if (!unit_.at(i).is_identifier()) continue;
    const auto found = declared_.find(unit_.at(i).text);
    if (found == declared_.end()) continue;
    for (const Index index : found->second) {
      if (!reached[index]) return false;
    }
  }
  return true;
}

std::vector<bool> ReachabilityIndex::reach(const Kernel& kernel) const {
  std::vector<bool> reached(unit_.items().size());
  std::vector<Index> open;
  const auto mark = [&](Index index) {
    if (reached[index]) return;
    reached[index] = true;
    open.push_back(index);
    for (Index up = unit_.items()[index].parent; up != no_index; up = unit_.items()[up].parent)
      reached[up] = true;
  };
  const auto follow = [&](const Token& token) {
    if (!token.is_identifier()) return;
    const auto found = declared_.find(token.text);
    if (found == declared_.end()) return;
    for (const Index index : found->second) mark(index);
  };
  for (const Index index : always_) {
    reached[index] = true;
    for (Index up = unit_.items()[index].parent; up != no_index; up = unit_.items()[up].parent)
      reached[up] = true;
  }
  mark(kernel.item);
  if (kernel.is_template) {  // with its specialisations, or what it specialises
    for (const Index index : kernel_templates_.at(unit_.items()[kernel.item].names[0])) mark(index);
  }
  for (const TokenList& argument : kernel.template_arguments) {
    for (const Token& token : argument) follow(token);
  }
  for (bool changed = true; changed;) {
    while (!open.empty()) {
      const Range range = unit_.items()[open.back()].tokens;
      open.pop_back();
      for (Index i = range.begin; i < range.end; ++i) follow(unit_.at(i));
    }
    changed = false;
    for (const Index index : by_operands_) {
      if (reached[index] || !operands_known(unit_.items()[index], reached)) continue;
      mark(index);
      changed = true;
    }
  }
  for (const Index index : assertions_) {
    if (operands_known(unit_.items()[index], reached)) mark(index);
  }
  return reached;
}

}  // namespace metalane::msl
