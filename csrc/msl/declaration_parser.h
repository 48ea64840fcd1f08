// Finds the declarations of a Unit: the part of Unit's construction behind bracket matching.
#pragma once

#include "msl/syntax.h"

namespace metalane::msl {

class DeclarationParser {
 public:
  explicit DeclarationParser(Unit& unit) : unit_(unit), tokens_(unit.tokens_) {}
  void parse();

 private:
  void parse_scope(Range range, Index parent);
  // One declaration from `begin`; returns where it ends.
  Index parse_item(Index begin, Range scope, Index parent);
  bool parse_block(Index begin, Index parent, Index& end);
  Index template_header(Index at, Index end, Item& item) const;
  void parse_alias(Index at, Item& item) const;
  void parse_instantiation(Index at, Item& item) const;
  void parse_enumeration(Index at, Item& item) const;
  void parse_record(Index at, Index open, Item& item) const;
  void parse_general(Index at, Range scope, Item& item);
  void find_local_records(Range body, Index function);
  // The body's brace of the record definition that begins at `at` with struct, class or union; else no_index.
  Index record_open(Index at, Index end) const;
  Index enumeration_open(Index at, Index end) const;
  Index statement_end(Index at, Index end, const Item& item) const;
  void name_function(Index parenthesis, Item& item) const;
  Index constructor_body(Index colon, Index end) const;
  void add_declarators(Index at, Item& item) const;
  Index add(Item item, Index parent);
  bool is(Index i, std::string_view spelling) const { return unit_.is_at(i, spelling); }

  Unit& unit_;
  const std::vector<Token>& tokens_;
};

}  // namespace metalane::msl
