// Declarations that C++, which has no address spaces, would take for one: which of them say the same, and how
// calls and uses tell the others apart.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "msl/places.h"
#include "msl/syntax.h"

namespace metalane::msl {

// Functions that differ by address space and have different bodies are *marked*, with all that share their
// name: they get a first parameter, and calls a first argument, that says where the arguments are
// (metalane/spaces.h). A function template that hands a pointer of a type it deduces on to them is marked too
// and passes on what it was given. Templates specialised by address space get pointer types that hold it.
class Overloads {
 public:
  // `reached`: the items that are emitted. Throws CompileError for overloaded operators and constructors.
  Overloads(const Unit& unit, const std::vector<bool>& reached);

  // Whether an earlier declaration says the same once address spaces are gone.
  bool is_repeated(Index item) const { return repeated_.count(item) != 0; }
  bool marks_function(std::string_view name) const { return functions_.count(name) != 0; }
  bool marks_template(std::string_view name) const { return templates_.count(name) != 0; }
  // Whether the function template `item` gets the template parameter metalane_spaces.
  bool carries_spaces(Index item) const { return carriers_.count(item) != 0; }
  // Type of the first parameter of a marked function.
  std::string parameter(Index item) const;
  // The first argument of the call whose name and ( stand there, in the function `item`. Throws CompileError
  // where an address space cannot be told.
  std::string argument(Index name, Index open, Index item) const;
  // The space of a pointer type or reference type as template argument, or of decltype(...); empty for
  // others.
  std::string template_argument(Range argument, Index item) const;

 private:
  using Renames = std::unordered_map<std::string_view, std::string>;

  void compare(const std::vector<Index>& items, const std::string& scope, const std::vector<bool>& reached);
  void compare(Index index, const std::string& scope);
  void mark(Index index, Index first);
  void find_carriers(const std::vector<bool>& reached);
  bool passes_spaces_on(Index index) const;
  std::string head(const Item& item, const Renames& renames) const;
  std::string rest(const Item& item, const Renames& renames) const;
  Renames renames(const Item& item) const;
  std::string spelled(Range range, const Renames& renames, Index without = no_index) const;
  // Places of the parameters that are pointers or references, by number, and of the object (0).
  std::vector<std::string> wanted(const Item& item) const;
  std::vector<std::string> given(Index name, Index open, Index item) const;
  bool takes_reference(std::string_view name, std::size_t number) const;
  const Item& item_at(Index index) const;

  const Unit& unit_;
  std::unordered_map<std::string, Index> seen_, loose_;  // heads, and heads without const
  std::unordered_set<Index> repeated_, conflicting_, carriers_;
  std::unordered_set<std::string_view> functions_, templates_;
  std::unordered_map<std::string_view, std::vector<Index>> by_name_;
  std::unique_ptr<Places> places_;  // where anything is marked
};

}  // namespace metalane::msl
