// Declarations of a token stream: enough of a parser to know what each one is, what it names and where its
// parts stand. Statements and expressions stay tokens.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "msl/token.h"

namespace metalane::msl {

using Index = std::uint32_t;
constexpr Index no_index = std::numeric_limits<Index>::max();

// Tokens [begin, end).
struct Range {
  Index begin = 0;
  Index end = 0;
  bool empty() const noexcept { return begin >= end; }
  bool contains(Index at) const noexcept { return at >= begin && at < end; }
};

enum class ItemKind : std::uint8_t {
  scope,  // a namespace or extern "C" block; see children
  function,
  variable,
  record,  // struct, class or union definition, with what it declares behind the closing brace
  enumeration,
  alias,          // using X = ..., typedef
  instantiation,  // explicit instantiation of a template
  assertion,      // static_assert
  other,          // using directives, access labels, forward declarations
};

struct Item {
  ItemKind kind = ItemKind::other;
  Range tokens;
  Range template_params;     // between < and > of the last template header
  bool is_template = false;  // has a template header, `template <>` included
  bool is_kernel = false;
  Index name_at = no_index;             // the function, record or first variable
  std::vector<std::string_view> names;  // all that it declares for its scope
  Range params;                         // between the parentheses of a function
  Range body;                           // between the braces
  Index parent = no_index;
  std::vector<Index> children;  // of scopes and records
  bool has_fields = false;      // a record, also one inside a typedef
  bool is_local = false;        // a record inside a function, which is its parent
  bool is_record() const noexcept { return has_fields; }
};

class Unit {
 public:
  // Throws CompileError: unbalanced or too deeply nested brackets, a declaration without an end.
  Unit(const SourceSet& sources, std::vector<Token> tokens);

  const SourceSet& sources() const { return sources_; }
  const std::vector<Token>& tokens() const { return tokens_; }
  const Token& at(Index i) const { return tokens_[i]; }
  const std::vector<Item>& items() const { return items_; }
  const std::vector<Index>& top() const { return top_; }
  // Whether anything of that name is declared outside functions.
  bool declares(std::string_view name) const { return names_.count(name) != 0; }
  // The other end of the bracket at `i`; for < and > the other end if they may enclose template arguments,
  // else no_index. A ">>" that closes two lists is the end of both and names the outer one.
  Index match(Index i) const { return match_[i]; }
  bool is_at(Index i, std::string_view spelling) const {
    return i < tokens_.size() && tokens_[i].text == spelling;
  }
  // Whether an attribute [[...]] begins at `i`.
  bool attribute_at(Index i) const {
    return is_at(i, "[") && is_at(i + 1, "[") && match_[i] == match_[i + 1] + 1;
  }
  // Behind the attribute, __attribute__ or alignas at `i`; `i` itself where there is none.
  Index skip_attribute(Index i) const;
  // The > that closes the template arguments opened by the < at `i`, before `end`; else no_index.
  Index angle_close(Index i, Index end) const { return match_[i] < end ? match_[i] : no_index; }
  // Splits at the commas that stand in no bracket and no template argument list.
  std::vector<Range> split_commas(Range range) const;
  // Whether the address space at `i` stands behind a member function's parameters, where it says what the
  // object may be: "T get() const device { ... }".
  bool qualifies_member(Index i) const;
  // The first token behind the parameters of `item`, a function, and what qualifies them.
  Index signature_end(const Item& item) const;
  // Where the postfix expression that ends before `end` begins: "a.b[i]->c".
  Index postfix_begin(Index end) const;
  // Where the declarator begins in a declaration that begins at `i`: behind specifiers and type.
  Index skip_type(Index i, Index end) const;

 private:
  friend class DeclarationParser;
  const SourceSet& sources_;
  std::vector<Token> tokens_;
  std::vector<Index> match_;
  std::vector<Item> items_;
  std::vector<Index> top_;
  std::unordered_set<std::string_view> names_;
};

// device, constant, threadgroup, thread and the ones that only graphics and ray tracing use.
bool is_address_space(std::string_view word);
// const, volatile, static, constexpr, inline, extern and restrict spellings.
bool is_qualifier(std::string_view word);
// unsigned, signed, int, char, short, long: words that add up to one type.
bool is_integer_word(std::string_view word);

}  // namespace metalane::msl
