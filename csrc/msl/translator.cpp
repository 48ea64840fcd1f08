// Items of a program as C++: what is emitted, in which order, and how records and namespaces are entered.
#include "msl/translator.h"

#include <algorithm>
#include <utility>

#include "msl/expression.h"
#include "msl/rendezvous.h"
#include "msl/types.h"

namespace metalane::msl {
namespace {

constexpr std::uint32_t max_blank_lines = 8;
constexpr std::size_t max_indent = 200;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

bool is_swizzle(std::string_view name) {
  if (name.size() < 2 || name.size() > 4) return false;
  return name.find_first_not_of("xyzw") == std::string_view::npos ||
         name.find_first_not_of("rgba") == std::string_view::npos;
}

Translator::Translator(const Translation& translation)
    : translation_(translation),
      unit_(translation.unit),
      overloads_(unit_, translation.reached),
      lockstep_(unit_),
      names_bfloat_(std::any_of(unit_.tokens().begin(), unit_.tokens().end(),
                                [](const Token& token) { return token.is("bfloat"); })),
      has_simdgroup_barrier_(
          std::any_of(unit_.tokens().begin(), unit_.tokens().end(), [](const Token& token) {
            return token.is("simdgroup_barrier") || token.is("__metal_wait_simdgroup_events");
          })) {
  for (const Item& item : unit_.items()) {
    const bool member = item.parent != no_index && unit_.items()[item.parent].is_record();
    if (member && item.kind == ItemKind::variable) {
      for (const std::string_view name : item.names) {
        if (is_swizzle(name)) swizzle_fields_.insert(name);
      }
      for (const Declarator& declarator : read_declarators(unit_, item.tokens)) {
        if (declarator.bit_field && declarator.name_at != no_index)
          bit_fields_.insert(unit_.at(declarator.name_at).text);
      }
    }
    if (item.is_local) local_records_.emplace(item.tokens.begin, &item);
    if (item.kind == ItemKind::function && item.name_at != no_index &&
        is_rendezvous(unit_.at(item.name_at).text)) {
      own_functions_.insert(unit_.at(item.name_at).text);
    }
  }
  for (Index index = 0; index < unit_.items().size() && !waits_; ++index) {
    const Item& item = unit_.items()[index];
    if (!translation.reached[index] || item.kind == ItemKind::scope) continue;
    for (Index i = item.tokens.begin; i < item.tokens.end; ++i) waits_ |= is_rendezvous(unit_.at(i).text);
  }
  paths_ =
      std::make_unique<LanePaths>(unit_, waits_ ? emitted_items() : std::vector<bool>(unit_.items().size()),
                                  translation.kernel, lockstep_, local_records_);
}

// One flag an item: members come with their record, local records with their function.
std::vector<bool> Translator::emitted_items() const {
  std::vector<bool> emitted(unit_.items().size());
  for (Index index = 0; index < emitted.size(); ++index) {  // parents stand before their children
    const Index parent = unit_.items()[index].parent;
    const bool inside = parent != no_index && unit_.items()[parent].kind != ItemKind::scope;
    emitted[index] =
        (inside ? emitted[parent] : translation_.reached[index]) && !overloads_.is_repeated(index);
  }
  return emitted;
}

void Translator::emit_program() { emit_items(unit_.top()); }

std::string Translator::inline_text(Range range) {
  std::string outer = std::exchange(out_, {});
  const bool was_inline = std::exchange(inline_, true);
  last_ = Token();
  emit_range(range);
  inline_ = was_inline;
  return std::exchange(out_, std::move(outer));
}

void Translator::emit_items(const std::vector<Index>& items) {
  for (const Index index : items) {
    const Item& item = unit_.items()[index];
    const bool member = item.parent != no_index && unit_.items()[item.parent].is_record();
    // Namespaces are there even if empty: directives and aliases may name them.
    if (!member && !translation_.reached[index] && item.kind != ItemKind::scope) continue;
    own_name_ = item.name_at;
    const auto constant = translation_.constant_items.find(index);
    if (constant != translation_.constant_items.end()) {
      emit_function_constant(index, constant->second);
    } else if (item.kind == ItemKind::scope) {
      emit_range({item.tokens.begin, item.body.begin});
      emit_items(item.children);
      emit_range({item.body.end, item.tokens.end});
    } else if (overloads_.is_repeated(index)) {
      continue;
    } else if (item.is_record()) {
      emit_record(item);
    } else if (item.kind == ItemKind::function) {
      emit_function(index, member);
    } else if (is_enumeration_alias(item)) {
      emit_enumeration_alias(item);
    } else {
      emit_range(item.tokens);
      if (!member || item.kind != ItemKind::variable) continue;
      for (const std::string_view name : item.names) {
        if (!swizzle_fields_.count(name)) continue;
        const std::string call(name);
        const std::string field = "metalane_field_" + call;
        raw(" auto& " + call + "() { return " + field + "; } const auto& " + call + "() const { return " +
            field + "; }");
      }
    }
  }
}

// "typedef enum X : int X;", which Clang takes before the definition of X: headers shared with Objective-C
// have it by their NS_ENUM.
bool Translator::is_enumeration_alias(const Item& item) const {
  return item.kind == ItemKind::alias && item.body.end == 0 && is(item.tokens.begin, "typedef") &&
         is(item.tokens.begin + 1, "enum") && is(item.tokens.begin + 3, ":");
}

void Translator::emit_enumeration_alias(const Item& item) {
  const Index enumeration = item.tokens.begin + 1, name = item.name_at;
  emit_range({enumeration, name});
  raw("; typedef enum ");
  put(unit_.at(enumeration + 1), unit_.at(enumeration + 1).text);
  emit_range({name, item.tokens.end});
}

void Translator::emit_function(Index index, bool member) {
  const Item& item = unit_.items()[index];
  bool is_static = member || !translation_.internal_linkage || unit_.at(item.name_at).is("operator");
  for (Index i = item.tokens.begin; i < item.name_at; ++i) is_static |= is(i, "static") || is(i, "extern");
  // Neither an explicit specialisation nor a member defined outside its class may have a storage class.
  is_static |= (item.is_template && item.template_params.empty()) || is(item.name_at - 1, "::");
  const Index body = item.body.end != 0 ? item.body.begin : item.tokens.end;
  const Index outer = std::exchange(function_, index);
  const bool outer_joins = std::exchange(may_join_bfloats_, may_have_bfloats(unit_.items()[index]));
  head_ = {item.tokens.begin, body};
  Index begin = item.tokens.begin;
  if (item.is_template && (!is_static || overloads_.carries_spaces(index))) {
    begin = item.template_params.end + 1;
    emit_range({item.tokens.begin, begin - 1});
    if (overloads_.carries_spaces(index)) raw(", class metalane_spaces");
    emit_range({begin - 1, begin});
  }
  if (!is_static) raw(" static ");
  // "template <> int f(int)" inside a class, which GCC refuses: a plain overload is preferred alike.
  if (member && item.is_template && item.template_params.empty() && is(item.name_at + 1, "(")) {
    begin = item.template_params.end + 1;
  }
  emit_range({begin, body});
  head_ = {};
  in_body_ = true;
  // Lanes that return early from what a kernel calls are as good as returned from the kernel.
  if (index == translation_.kernel && has_simdgroup_barrier_ && !paths_->callee_returns_early(index)) {
    emit_range({body, item.body.end});
    raw(" ::metal::detail::note_end();");
    emit_range({item.body.end, item.tokens.end});
  } else {
    emit_range({body, item.tokens.end});
  }
  in_body_ = false;
  function_ = outer;
  may_join_bfloats_ = outer_joins;
}

void Translator::emit_record(const Item& item) {
  const bool outer = std::exchange(in_record_, true);
  const bool outer_body = std::exchange(in_body_, false);
  emit_range({item.tokens.begin, item.body.begin});
  emit_items(item.children);
  emit_range({item.body.end, item.body.end + 1});
  in_record_ = outer;
  emit_range({item.body.end + 1, item.tokens.end});
  in_body_ = outer_body;
}

// A record inside a function; what it declares behind the brace is left to whoever goes on from there.
Index Translator::emit_local_record(const Item& item) {
  const bool outer = std::exchange(in_record_, true);
  const bool outer_body = std::exchange(in_body_, false);
  put(unit_.at(item.tokens.begin), unit_.at(item.tokens.begin).text);
  if (item.names.empty()) raw(" " + local_record_name(item));
  emit_range({item.tokens.begin + 1, item.body.begin});
  emit_items(item.children);
  emit_range({item.body.end, item.body.end + 1});
  in_record_ = outer;
  in_body_ = outer_body;
  return item.body.end + 1;
}

std::string Translator::local_record_name(const Item& item) const {
  return item.names.empty() ? "metalane_unnamed_" + std::to_string(item.tokens.begin)
                            : std::string(item.names.front());
}

const Item* Translator::record_in(Index i, Index end) const {
  for (; i < end && !is(i, ";"); ++i) {
    const auto local = local_records_.find(i);
    if (local != local_records_.end()) return local->second;
  }
  return nullptr;
}

void Translator::emit_function_constant(Index index, std::string_view name) {
  const Item& item = unit_.items()[index];
  const auto declarators = read_declarators(unit_, item.tokens);
  const ConstantText& value = translation_.constants.at(name);
  const Token& place = unit_.at(item.name_at);
  put(place, "constexpr");
  for (const Token& token : declarators.front().type) {
    if (token.is_identifier() && !is_qualifier(token.text) && !is_address_space(token.text))
      put(place, token.text);
  }
  put(place, name);
  raw(" = " + value.initialiser + ";");
}

// ---- output

void Translator::raw(std::string_view text) {
  out_ += text;
  last_verbatim_ = false;
}

void Translator::move_to(const Token& token) {
  const bool same_file = file_ == token.file;
  if (same_file && token.line == line_) return;
  if (same_file && token.line > line_ && token.line - line_ <= max_blank_lines) {
    out_.append(token.line - line_, '\n');
  } else {
    out_ += "\n#line " + std::to_string(token.line) + " " + quoted(unit_.sources().name(token.file)) + "\n";
  }
  line_ = token.line;
  file_ = token.file;
  line_begin_ = out_.size();
  last_verbatim_ = false;
}

// Text stands at its token's column where it can, so that a compiler's columns are the user's.
void Translator::put(const Token& token, std::string_view text) {
  if (!inline_) {
    move_to(token);
    const bool adjacent = last_verbatim_ && last_.line == token.line && last_.file == token.file &&
                          last_.column + last_.text.size() == token.column;
    if (!adjacent) {
      const std::size_t column = out_.size() - line_begin_ + 1;
      if (column < token.column && token.column < max_indent) {
        out_.append(token.column - column, ' ');
      } else if (column > 1) {
        out_ += ' ';
      }
    }
  } else if (!out_.empty() && (is_word(out_.back()) == is_word(text.front()) || !is_word(text.front()))) {
    out_ += ' ';
  }
  out_ += text;
  last_ = token;
  last_verbatim_ = text == token.text;
}

// ---- tokens

void Translator::emit_range(Range range) {
  for (Index i = range.begin; i < range.end;) i = emit_token(i);
}

Index Translator::emit_token(Index i) {
  const Token& token = unit_.at(i);
  if (in_body_ && waits_) {
    if (lockstep_.meets_at(i)) emit_meeting(i);
    if (const auto text = paths_->before().find(i); text != paths_->before().end()) raw(text->second);
  }
  switch (token.kind) {
    case TokenKind::identifier:
      return emit_identifier(i);
    case TokenKind::number:
      put(token, number_text(token.text));
      return i + 1;
    case TokenKind::punctuator:
      if (i == half_closed_) {
        put(token, ">");
        return i + 1;
      }
      if (unit_.attribute_at(i)) return unit_.match(i) + 1;
      if (token.is(".") || token.is("->")) return emit_member_access(i);
      if (token.is("/") || token.is("%") || token.is("/=") || token.is("%=")) return emit_division(i);
      if (in_body_ && token.is("=") && is(i + 1, "{") && is(i + 2, "[")) return emit_array_designators(i);
      if (in_body_ && token.is("?") && may_join_bfloats_) return emit_conditional(i);
      break;
    default:
      break;
  }
  put(token, token.text);
  if (const auto text = paths_->behind().find(i); text != paths_->behind().end()) raw(text->second);
  return i + 1;
}

Index Translator::emit_identifier(Index i) {
  const Token& token = unit_.at(i);
  const std::string_view word = token.text;
  if (const auto local = local_records_.find(i); local != local_records_.end())
    return emit_local_record(*local->second);
  if (in_body_ && !threadgroup_type_ && (word == "threadgroup" || is_qualifier(word))) {
    if (threadgroup_declaration_end(i) != no_index) return emit_threadgroup_variables(i);
  }
  if (word == "constant" && !unit_.qualifies_member(i)) return emit_constant_qualifier(i);
  if (is_address_space(word) || word == "kernel" || word == "vertex" || word == "fragment") return i + 1;
  if (word == "coherent" && !is(i + 1, "=") && i + 1 < unit_.tokens().size() &&
      (unit_.at(i + 1).is_identifier() || is(i + 1, "("))) {
    return is(i + 1, "(") ? unit_.match(i + 1) + 1 : i + 1;
  }
  if (word == "restrict") {
    put(token, "__restrict__");
    return i + 1;
  }
  if (word == "is_function_constant_defined" && is(i + 1, "(")) return emit_constant_query(i);
  check_supported(i);
  if (is_rendezvous(word)) return emit_rendezvous(i);
  if (overloads_.marks_function(word)) return emit_marked_function(i);
  if (overloads_.marks_template(word) && is(i + 1, "<") && unit_.match(i + 1) != no_index)
    return emit_marked_template(i);
  if (in_record_ && swizzle_fields_.count(word)) {
    put(token, "metalane_field_" + std::string(word));
    return i + 1;
  }
  put(token, word);
  return i + 1;
}

// `constant` makes what follows const; C++ takes the word once.
Index Translator::emit_constant_qualifier(Index i) {
  bool is_const = false;
  for (Index k = i; k > 0 && unit_.at(k - 1).is_identifier() && is_qualifier(unit_.at(k - 1).text); --k) {
    is_const |= is(k - 1, "const");
  }
  for (Index k = i + 1;
       k < unit_.tokens().size() && (unit_.at(k).is_identifier() || is(k, "<") || is(k, "::")); ++k) {
    is_const |= is(k, "const");
    if (!is(k, "<")) continue;
    if (unit_.match(k) == no_index) break;
    k = unit_.match(k);
  }
  if (!is_const) put(unit_.at(i), "const");
  return i + 1;
}

// Integer division by zero gives some value in MSL: "a / b" goes through operators of metal_stdlib. Left
// alone where an operand beside the operator is a number that makes this a real division, or one by no zero.
Index Translator::emit_division(Index i) {
  const Token& sign = unit_.at(i);
  if (sign.text.back() == '=' && i > 0 && bit_fields_.count(unit_.at(i - 1).text))
    return emit_bit_field_division(i);
  put(sign, sign.text);
  const bool assigns = sign.text.back() == '=';
  const auto is_real = [&](Index k) {
    return unit_.at(k).kind == TokenKind::number && !literal_value(unit_.at(k));
  };
  if (i == 0 || is(i - 1, "operator") || is_real(i - 1) || i + 1 >= unit_.tokens().size()) return i + 1;
  const bool alone = !assigns || is(i + 2, ";") || is(i + 2, ")") || is(i + 2, ",");
  const auto divisor = literal_value(unit_.at(i + 1));
  if (alone && (divisor.value_or(0) != 0 || is_real(i + 1))) return i + 1;
  raw(assigns ? " ::metal::detail::by =" : " ::metal::detail::by *");
  return i + 1;
}

// "a.bits /= b" is "a.bits = a.bits / (b)": no reference binds to a bit-field.
Index Translator::emit_bit_field_division(Index i) {
  const Range target = {unit_.postfix_begin(i), i};
  Index end = i + 1;
  for (; !is(end, ";") && !is(end, ",") && !is(end, ")"); ++end) {
    if (is(end, "(") || is(end, "[") || is(end, "{")) end = unit_.match(end);
  }
  put(unit_.at(i), "=");
  raw(" " + inline_text(target) + " " + unit_.at(i).text[0] + " ::metal::detail::by * (");
  emit_range({i + 1, end});
  raw(")");
  return end;
}

// Behind the operand of "a ? b : c" that begins at `i`: the colon of b, the end of c; no_index where it has
// none.
Index Translator::operand_end(Index i, bool second) const {
  for (int open = 0; i < unit_.tokens().size(); ++i) {
    const Token& token = unit_.at(i);
    const bool list = token.is("<") && unit_.at(i - 1).is_identifier() && unit_.match(i) != no_index;
    if (token.is("(") || token.is("[") || token.is("{") || list) {
      i = unit_.match(i);
    } else if (token.is("?")) {
      ++open;
    } else if (token.is(":") && open-- == 0) {
      return i;
    } else if (token.is(";") || token.is(",") || token.is(")") || token.is("]") || token.is("}") ||
               ((token.is(">") || token.is(">>")) && unit_.match(i) != no_index)) {
      return second && open == 0 ? i : no_index;
    }
  }
  return no_index;
}

// To C++ a class is no number, and a bfloat and a number beside it in "a ? b : c" convert to each other. Each
// operand learns the other's type and becomes what arithmetic would make of both: (b, beside<decltype(c)>{}).
// Chains stay as they are past some length, since a type repeats its text.
Index Translator::emit_conditional(Index i) {
  constexpr int max_nested = 4;
  put(unit_.at(i), "?");
  const Index colon = operand_end(i + 1, false);
  const Index end = colon == no_index ? no_index : operand_end(colon + 1, true);
  if (end == no_index) return i + 1;
  const Range first = {i + 1, colon}, second = {colon + 1, end};
  const auto is_number = [&](Range range) {
    const Index at = is(range.begin, "-") ? range.begin + 1 : range.begin;
    return at + 1 == range.end && unit_.at(at).kind == TokenKind::number;
  };
  int nested = 0;
  bool bits = false;
  for (Index k = first.begin; k < second.end; ++k) {
    nested += is(k, "?");
    bits |= bit_fields_.count(unit_.at(k).text) != 0;  // no reference binds to them
  }
  if (nested > max_nested || bits || (is_number(first) && is_number(second))) return i + 1;
  const auto emit = [&](Range operand, Range other) {
    raw(" (");
    emit_range(operand);
    raw(", ::metal::detail::beside<decltype(" + inline_text(other) + ")>{})");
  };
  emit(first, second);
  put(unit_.at(colon), ":");
  emit(second, first);
  return end;
}

// Whether values in a function may be bfloats: its tokens say so, or it depends on template arguments.
bool Translator::may_have_bfloats(const Item& item) const {
  if (!names_bfloat_) return false;
  for (const Item* scope = &item;; scope = &unit_.items()[scope->parent]) {
    if (scope->is_template) return true;
    if (scope->parent == no_index) break;
  }
  for (Index i = item.tokens.begin; i < item.tokens.end; ++i) {
    if (unit_.at(i).text.find("bf") != std::string_view::npos) return true;  // bfloat, bf16_t, ...
  }
  return false;
}

// Swizzles of several components are calls; single components are plain members.
Index Translator::emit_member_access(Index i) {
  const Token& dot = unit_.at(i);
  put(dot, dot.text);
  if (i + 1 >= unit_.tokens().size() || !unit_.at(i + 1).is_identifier()) return i + 1;
  const Token& member = unit_.at(i + 1);
  if (overloads_.marks_function(member.text)) return emit_marked_function(i + 1);
  if (!is_swizzle(member.text) || is(i + 2, "(")) {
    put(member, member.text);
    return i + 2;
  }
  const bool designator = i > 0 && (is(i - 1, "{") || is(i - 1, ",")) && is(i + 2, "=") && dot.is(".");
  if (designator) {
    put(member, "metalane_field_" + std::string(member.text));
    return i + 2;
  }
  if (swizzle_fields_.count(member.text)) {  // a record's accessor, or a vector's: not known which
    put(member, std::string(member.text) + "()");
    return i + 2;
  }
  // "v.zyx.xy" is "v.zy": the first swizzle is no object that the second could write to.
  std::string components(member.text);
  Index end = i + 2;
  while (is(end, ".") && end + 1 < unit_.tokens().size() && !is(end + 2, "(")) {
    const std::string_view next = unit_.at(end + 1).text;
    std::string chosen;
    for (const char c : next) {
      const std::size_t at = std::string_view(next.find_first_of("xyzw") == 0 ? "xyzw" : "rgba").find(c);
      if (at < components.size()) chosen += components[at];
    }
    const bool chains = (is_swizzle(next) || next.size() == 1) && !swizzle_fields_.count(next);
    if (!chains || chosen.size() != next.size()) break;
    components = chosen;
    end += 2;
  }
  put(member, components);
  if (components.size() > 1) raw(is_target(i, end) ? "()" : "().value()");
  return end;
}

// Whether the swizzle behind the dot at `dot` is written to: an assignment follows, or ++ or -- on either
// side.
bool Translator::is_target(Index dot, Index end) const {
  while (is(end, ")") || is(end, "[")) end = is(end, "[") ? unit_.match(end) + 1 : end + 1;
  static const std::unordered_set<std::string_view> writes = {
      "=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"};
  if (end < unit_.tokens().size() && writes.count(unit_.at(end).text)) return true;
  const Index first = unit_.postfix_begin(dot);
  return first > 0 && (is(first - 1, "++") || is(first - 1, "--"));
}

// A call of a barrier or collective gets the number of its place as a first argument.
Index Translator::emit_rendezvous(Index i) {
  const Token& name = unit_.at(i);
  const Index open = call_parenthesis(unit_, i);
  const Token* previous = i > 0 ? &unit_.at(i - 1) : nullptr;
  const bool member = previous && (previous->is(".") || previous->is("->"));
  const bool own = own_functions_.count(name.text) != 0;
  const bool own_declaration = head_.contains(i) && own;
  put(name, name.text);
  if (open == no_index || member || (previous && declares_next(*previous) && !own_declaration)) return i + 1;
  emit_range({i + 1, open});
  put(unit_.at(open), "(");
  const bool empty = is(open + 1, ")") || (own_declaration && is(open + 1, "void") && is(open + 2, ")"));
  if (own_declaration) {
    raw(empty ? "::metal::detail::site" : "::metal::detail::site, ");
    return empty ? unit_.match(open) : open + 1;
  }
  raw(lockstep_.has_met(i) && !own ? "::metal::detail::met_site{" : "::metal::detail::site{");
  raw(std::to_string(paths_->rendezvous(i)) + (empty ? "u}" : "u}, "));
  return open + 1;
}

// The lanes of a simdgroup meet before the statement at `i`.
void Translator::emit_meeting(Index i) {
  raw(" ::metal::detail::meet(::metal::detail::site{" + std::to_string(paths_->meeting(i)) + "u});");
}

// A function that address spaces choose among others of its name: a parameter or an argument says which.
Index Translator::emit_marked_function(Index i) {
  const Token& name = unit_.at(i);
  const Index open = call_parenthesis(unit_, i);
  const bool own = function_ != no_index && unit_.items()[function_].name_at == i;
  put(name, name.text);
  if (open == no_index || (i > 0 && declares_next(unit_.at(i - 1)) && !own)) return i + 1;
  emit_range({i + 1, open});
  put(unit_.at(open), "(");
  const Index close = unit_.match(open);
  const bool empty = open + 1 == close || (own && is(open + 1, "void") && open + 2 == close);
  raw(own ? overloads_.parameter(function_) : overloads_.argument(i, open, function_));
  if (!empty) raw(", ");
  return empty ? close : open + 1;
}

// A template that is specialised by address space: pointer types among its arguments say which they mean.
Index Translator::emit_marked_template(Index i) {
  const Token& name = unit_.at(i);
  const Index close = unit_.match(i + 1);
  put(name, name.text);
  put(unit_.at(i + 1), "<");
  const bool own = i == own_name_;
  bool first = true;
  for (const Range& part : unit_.split_commas({i + 2, close})) {
    if (!std::exchange(first, false)) raw(",");
    const std::string space = overloads_.template_argument(part, function_);
    if (!space.empty())
      raw((own ? "::metal::detail::pointer_in<" : "::metal::detail::in_space_t<") + space + ", ");
    emit_range(part);
    if (!space.empty()) raw(">");
  }
  if (!is(close, ">>") || half_closed_ == close) {
    raw(" >");
    return close + 1;
  }
  raw(" >");
  half_closed_ = close;
  return close;
}

Index Translator::emit_constant_query(Index i) {
  const auto found =
      is(i + 3, ")") ? translation_.constants.find(unit_.at(i + 2).text) : translation_.constants.end();
  if (found == translation_.constants.end()) {
    unit_.sources().fail(unit_.at(i), "is_function_constant_defined needs the name of a function constant");
  }
  put(unit_.at(i), found->second.defined ? "true" : "false");
  return i + 4;
}

Index Translator::threadgroup_declaration_end(Index i) const {
  if (i > 0 && !is(i - 1, ";") && !is(i - 1, "{") && !is(i - 1, "}") && !is(i - 1, ":") &&
      !unit_.attribute_at(i)) {
    return no_index;
  }
  Index at = i;
  while (at < unit_.tokens().size() && unit_.at(at).is_identifier() && is_qualifier(unit_.at(at).text)) ++at;
  if (!is(at, "threadgroup")) return no_index;
  Index end = at;
  for (; end < unit_.tokens().size() && !is(end, ";"); ++end) {
    if (is(end, ")") || is(end, "}")) return no_index;
    if (is(end, "(") || is(end, "[") || is(end, "{")) end = unit_.match(end);
  }
  const Item* record = record_in(at, end);
  for (const Declarator& declarator :
       read_declarators(unit_, {i, end}, record ? record->tokens.end : no_index)) {
    if (declarator.name_at == no_index) return no_index;
    for (const Token& token : declarator.operators) {
      if (token.is("*") || token.is("&") || token.is("(")) return no_index;
    }
  }
  return end + 1;
}

Index Translator::emit_threadgroup_variables(Index i) {
  const Index end = threadgroup_declaration_end(i);
  const Range type = {i, unit_.skip_type(i, end - 1)};
  const Item* record = record_in(i, end);
  if (record) {
    emit_local_record(*record);
    raw(";");
  }
  for (const Declarator& declarator :
       read_declarators(unit_, {i, end - 1}, record ? record->tokens.end : no_index)) {
    const Token& name = unit_.at(declarator.name_at);
    if (declarator.has_initialiser) {
      unit_.sources().fail(
          name, "threadgroup variable \"" + std::string(name.text) + "\" cannot have an initialiser");
    }
    put(name, "auto& " + std::string(name.text));
    raw(" = ::metal::detail::threadgroup_variable<" + std::string(translation_.tag) + ", ");
    threadgroup_type_ = true;
    if (record) raw(local_record_name(*record));
    for (Index k = type.begin; k < type.end && !record;) {
      const bool qualifier = is_qualifier(unit_.at(k).text) && !is(k, "typename");
      k = qualifier ? k + 1 : unit_.skip_attribute(k) != k ? unit_.skip_attribute(k) : emit_token(k);
    }
    for (const Range& extent : declarator.extents) {
      raw("[(");
      emit_range(extent);
      raw(")]");
    }
    threadgroup_type_ = false;
    raw(", " + std::to_string(threadgroup_variables_.size()) + ">();");
    threadgroup_variables_.push_back(name.text);
  }
  return end;
}

// "T a[N] = {[0 ... N - 1] = x}": designators of arrays are no C++, so that assignments follow the
// declaration.
Index Translator::emit_array_designators(Index i) {
  const Range list = {i + 2, unit_.match(i + 1)};
  Index name = i;
  while (name > 0 && is(name - 1, "]")) name = unit_.match(name - 1);
  put(unit_.at(i), "=");
  if (name == i || name == 0 || !is(list.end + 1, ";") || !is(unit_.match(list.begin) + 1, "=")) return i + 1;
  --name;
  raw(" {}");
  for (const Range& part : unit_.split_commas(list)) {
    if (part.empty()) continue;
    const Index close = is(part.begin, "[") ? unit_.match(part.begin) : part.end;
    if (close >= part.end || !is(close + 1, "=")) {
      unit_.sources().fail(unit_.at(part.begin),
                           "elements with and without [index] cannot be mixed on the CPU device");
    }
    Index dots = part.begin;
    while (dots < close && !is(dots, "...")) ++dots;
    raw("; for (long metalane_index = (");
    emit_range({part.begin + 1, dots});
    raw("), metalane_last = (");
    emit_range(dots < close ? Range{dots + 1, close} : Range{part.begin + 1, close});
    raw("); metalane_index <= metalane_last; ++metalane_index) " + std::string(unit_.at(name).text) +
        "[metalane_index] =");
    emit_range({close + 2, part.end});
  }
  return list.end + 1;
}

void Translator::check_supported(Index i) const {
  const Token& token = unit_.at(i);
  const std::string_view word = token.text;
  if (word == "asm" || word == "__asm" || word == "__asm__") {
    unit_.sources().fail(token, "assembly is not supported on the CPU device");
  }
  if (!unsupported_word(unit_, i)) return;
  unit_.sources().fail(token, std::string(word) + " is not supported on the CPU device");
}

}  // namespace metalane::msl
