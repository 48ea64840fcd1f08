// Address spaces of expressions: where what a name, a call or an operator gives stands.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "msl/syntax.h"
#include "msl/types.h"

namespace metalane::msl {

constexpr std::string_view unknown_space = "?";

// The spaces of an object, of what it points to, of what that points to, and so on. Each is a number in text,
// an expression of the emitted program where it comes with a template argument, or unknown_space.
struct Place {
  std::vector<std::string> levels;
  std::size_t extents = 0;  // dimensions of an array

  // Where the object stands.
  std::string object() const { return levels.empty() ? std::string(unknown_space) : levels[0]; }
  // Where it points, an array to its elements; empty where it is no pointer.
  std::string target() const;
  Place dereferenced() const;
  // What its value is once copied: an object of the thread.
  Place value() const;
};

// The number of an address space; empty for other words.
std::string space_number(std::string_view word);
// What a declarator declares; `fallback`: where the object stands if that is not said.
Place declared_place(const Declarator& declarator, const std::string& fallback);

class Places {
 public:
  explicit Places(const Unit& unit);

  // Of the expression `range` inside the function `item`.
  Place of(Range range, const Item& item) const;
  // Where a type points that an alias names; empty for other names.
  std::string alias_target(std::string_view name) const;
  // Where the object of a member function stands.
  std::string object_space(const Item& item) const;

 private:
  struct Symbol {
    std::string_view name;
    Place place;
    Range scope;
  };
  class Reader;

  const std::vector<Symbol>& symbols(const Item& item) const;
  void add_locals(const Item& item, std::vector<Symbol>& symbols) const;
  void add_symbol(const Declarator& declarator, Range scope, const Item& item,
                  std::vector<Symbol>& symbols) const;
  Place alias_place(Place place, const Declarator& declarator) const;

  const Unit& unit_;
  // By name; where several declarations differ, the place is not known.
  std::unordered_map<std::string_view, Place> fields_, globals_, results_, aliases_;
  mutable std::unordered_map<const Item*, std::vector<Symbol>> symbols_;
};

}  // namespace metalane::msl
