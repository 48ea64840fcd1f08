// Turns the tokens of a unit into C++ text for one kernel.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "msl/lane_paths.h"
#include "msl/lockstep.h"
#include "msl/overloads.h"
#include "msl/signature.h"
#include "msl/syntax.h"

namespace metalane::msl {

// What a function constant became: its C++ initialiser.
struct ConstantText {
  bool defined = false;
  std::string initialiser;
};

struct Translation {
  const Unit& unit;
  const std::vector<bool>& reached;
  Index kernel;                                                         // its item
  const std::unordered_map<std::string_view, ConstantText>& constants;  // by name
  const std::unordered_map<Index, std::string_view>& constant_items;    // declarations of function constants
  std::string_view tag;   // the type that names the kernel to threadgroup_variable
  bool internal_linkage;  // functions get `static`; off inside an unnamed namespace
};

class Translator {
 public:
  explicit Translator(const Translation& translation);

  // Emits all reached items. Throws CompileError for what the CPU device does not support.
  void emit_program();
  // Emits some tokens in place, without new lines.
  std::string inline_text(Range range);
  const std::string& text() const { return out_; }
  const std::vector<Site>& sites() const { return paths_->sites(); }
  // Whether threads keep the path by which they came to a rendezvous.
  bool keeps_paths() const { return paths_->kept(); }
  // Names of the threadgroup variables, by the number that each was emitted with.
  const std::vector<std::string_view>& threadgroup_variables() const { return threadgroup_variables_; }

 private:
  void emit_items(const std::vector<Index>& items);
  void emit_record(const Item& item);
  void emit_function_constant(Index item, std::string_view name);
  void emit_function(Index index, bool member);
  bool is_enumeration_alias(const Item& item) const;
  void emit_enumeration_alias(const Item& item);

  void emit_range(Range range);
  // Each returns the index behind what it emitted.
  Index emit_token(Index i);
  Index emit_identifier(Index i);
  Index emit_constant_qualifier(Index i);
  Index emit_division(Index i);
  Index emit_bit_field_division(Index i);
  Index emit_conditional(Index i);
  Index operand_end(Index i, bool second) const;
  bool may_have_bfloats(const Item& item) const;
  Index emit_local_record(const Item& item);
  std::string local_record_name(const Item& item) const;
  // The record that is defined in a declaration from `i` to `end`; null where there is none.
  const Item* record_in(Index i, Index end) const;
  Index emit_member_access(Index i);
  Index emit_rendezvous(Index i);
  void emit_meeting(Index i);
  Index emit_marked_function(Index i);
  Index emit_marked_template(Index i);
  Index emit_constant_query(Index i);
  Index emit_threadgroup_variables(Index i);
  Index emit_array_designators(Index i);
  bool is_target(Index dot, Index end) const;
  std::vector<bool> emitted_items() const;
  // The first token behind a declaration of threadgroup variables at `i`; no_index where there is none.
  Index threadgroup_declaration_end(Index i) const;
  void check_supported(Index i) const;

  void put(const Token& token, std::string_view text);
  void raw(std::string_view text);
  void move_to(const Token& token);
  bool is(Index i, std::string_view spelling) const { return unit_.is_at(i, spelling); }

  const Translation& translation_;
  const Unit& unit_;
  const Overloads overloads_;
  const Lockstep lockstep_;
  const bool names_bfloat_;
  const bool has_simdgroup_barrier_;
  std::string out_;
  std::unordered_set<std::string_view> swizzle_fields_;  // members of records that read like swizzles
  std::unordered_set<std::string_view> own_functions_;   // functions named like a rendezvous
  std::unordered_set<std::string_view> bit_fields_;
  std::unordered_map<Index, const Item*> local_records_;  // by their first token
  Token last_;                                            // the last one put
  bool last_verbatim_ = false;
  bool inline_ = false;  // no line control
  bool waits_ = false;   // the program has a barrier or collective
  std::unique_ptr<LanePaths> paths_;
  std::size_t line_begin_ = 0;
  std::uint32_t line_ = 0;  // of the text at the cursor, as #line gives it
  std::int32_t file_ = -1;
  std::vector<std::string_view> threadgroup_variables_;
  bool may_join_bfloats_ = false;  // the function that is being emitted
  bool in_body_ = false;
  bool in_record_ = false;
  bool threadgroup_type_ = false;
  Range head_;                    // the tokens of a function before its body
  Index function_ = no_index;     // the item that is being emitted, where it is one
  Index own_name_ = no_index;     // the name that the item being emitted declares
  Index half_closed_ = no_index;  // a ">>" whose first half has been emitted
};

// A literal of MSL as C++: 1.0 is a float, 1.0h a half, 1.0bf a bfloat.
std::string number_text(std::string_view literal);
// Whether `name` reads like a swizzle of two to four components.
bool is_swizzle(std::string_view name);

}  // namespace metalane::msl
