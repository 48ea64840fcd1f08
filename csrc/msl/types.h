// What types mean: sizes, alignments and layouts as Metal has them, and the integer constants they rest on.
#pragma once

#include <metalane/kernel.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "msl/expression.h"
#include "msl/syntax.h"

namespace metalane::msl {

using TokenList = std::vector<Token>;
// Template parameters and the arguments they stand for.
using Bindings = std::unordered_map<std::string_view, TokenList>;

// One declarator with the type before it: "device const T* p [[buffer(0)]]", "uint x[4]".
struct Declarator {
  TokenList type;                // specifiers and type, without pointers
  std::vector<Token> operators;  // * and &, in order, and the qualifiers among them
  Index name_at = no_index;
  std::vector<Range> extents;     // contents of each [ ]
  std::vector<Range> attributes;  // contents of each [[ ]]
  bool bit_field = false;
  Range bit_width;  // the expression behind the colon
  bool has_initialiser = false;
  Range initialiser;
};

// Reads "type a, *b[2] = ..." in `range`; empty where there is no declarator. `begin` is where the type ends,
// if that is known.
std::vector<Declarator> read_declarators(const Unit& unit, Range range, Index begin = no_index);

class TypeTable {
 public:
  explicit TypeTable(const Unit& unit);

  // The meaning of a type with an optional trailing list of pointers; unknown types are opaque.
  TypeInfo resolve(const TokenList& type, const Bindings& bindings) const;
  TypeInfo resolve(const Declarator& declarator, const Bindings& bindings) const;
  std::optional<std::int64_t> evaluate(const TokenList& expression, const Bindings& bindings) const;
  // Of an expression of function constants, which `values` binds.
  std::optional<std::int64_t> evaluate_guard(const TokenList& expression, const Bindings& values) const;
  std::shared_ptr<const StructLayout> layout(const std::string& name) const;
  // The records, aliases and enumerations of that name.
  const std::vector<Index>& declarations(std::string_view name) const;
  TokenList tokens(Range range) const;
  using Names = std::vector<std::string_view>;
  // Names of the parameters of a template header.
  static Names parameter_names(const Unit& unit, Range template_params);
  // The parameters of `item` bound to `arguments`, with defaults for those that are not given.
  Bindings bind(const Item& item, const std::vector<TokenList>& arguments) const;

 private:
  friend class ConstantNames;
  // A type and, for arrays (typedefs, array<T, N>), how many elements follow each other.
  struct Resolved {
    TypeInfo type;
    std::uint64_t count = 0;
  };

  Resolved resolve_counted(const TokenList& type, const Bindings& bindings, int depth) const;
  Resolved resolve_named(std::string_view name, const std::vector<TokenList>* arguments,
                         const Bindings& bindings, int depth) const;
  std::optional<Resolved> resolve_builtin_template(std::string_view name,
                                                   const std::vector<TokenList>& arguments,
                                                   const Bindings& bindings, int depth) const;
  Resolved resolve_alias(Index index, const Bindings& bindings, int depth) const;
  std::shared_ptr<const StructLayout> record_layout(Index item, const Bindings& bindings, int depth) const;
  bool add_fields(StructLayout& layout, const Item& record, const Bindings& bindings, bool packed,
                  int depth) const;
  bool add_record_member(StructLayout& layout, Index index, const Bindings& bindings, bool packed,
                         int depth) const;
  std::optional<std::int64_t> evaluate(const TokenList& expression, const Bindings& bindings,
                                       int depth) const;
  std::optional<std::int64_t> constant(std::string_view name, const Bindings& bindings, int depth) const;
  void add_enumerators(const Item& item);
  void place(StructLayout& layout, StructField field, std::uint64_t alignment) const;
  void place_bits(StructLayout& layout, StructField field, std::uint64_t& end, bool packed) const;
  bool add_bases(StructLayout& layout, Range bases, const Bindings& bindings, int depth) const;
  bool is_plain(const Item& item) const;
  std::uint64_t alignas_of(Range range, const Bindings& bindings, int depth) const;

  const Unit& unit_;
  std::unordered_map<std::string_view, std::vector<Index>> named_;  // records, aliases, enumerations
  std::unordered_map<std::string_view, Range> constants_;           // initialisers
  std::unordered_map<std::string_view, std::optional<std::int64_t>> enumerators_;
  std::unordered_map<Index, std::shared_ptr<const StructLayout>>
      layouts_;  // of records that are no templates
  // Types and constants looked at: bounds chains that double at each link.
  mutable std::atomic<std::uint32_t> work_{0};
};

// Whether `type` is that of a pointer.
bool is_pointer(const TypeInfo& type);

// A scalar, vector, matrix or packed type of the language by name; nothing for other names.
std::optional<TypeInfo> builtin_type(std::string_view name);

}  // namespace metalane::msl
