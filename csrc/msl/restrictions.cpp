// The restrictions of the Metal Shading Language that can be told from tokens and declarations.
//
// From the list in Apple's specification (section "Restrictions") and from messages of Apple's compiler as
// public bug reports quote them. docs/metal_strictness.md says which are not looked for here.
#include "msl/restrictions.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "msl/types.h"

namespace metalane::msl {
namespace {

template <std::size_t N>
bool one_of(std::string_view word, const std::string_view (&words)[N]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

class RestrictionChecker {
 public:
  explicit RestrictionChecker(const Unit& unit) : unit_(unit) {}

  void check() {
    find_variable_names();
    find_plain_types();
    for (Index i = 0; i < unit_.tokens().size(); ++i) {
      if (unit_.at(i).is_identifier()) check_word(i);
      if (is(i, "*") || is(i, "&") || is(i, "&&")) check_pointer(i);
    }
    for (const Item& item : unit_.items()) {
      if (item.kind == ItemKind::variable && is_outside(item)) check_global(item);
      if (item.kind == ItemKind::function && item.body.end != 0) check_locals(item);
    }
  }

 private:
  bool is(Index i, std::string_view spelling) const { return unit_.is_at(i, spelling); }
  [[noreturn]] void fail(Index i, const std::string& what) const { unit_.sources().fail(unit_.at(i), what); }

  void check_word(Index i) const {
    static constexpr std::string_view words[] = {"new",    "delete",       "throw",   "try",
                                                 "catch",  "goto",         "virtual", "dynamic_cast",
                                                 "typeid", "thread_local", "double"};
    const std::string_view word = unit_.at(i).text;
    if (!one_of(word, words) || (word == "delete" && i > 0 && is(i - 1, "="))) return;
    fail(i, word == "double" ? "double is no type of the Metal Shading Language"
                             : "the Metal Shading Language has no " + std::string(word));
  }

  // ---- pointers and references

  // Names of variables and arguments, which may hide a type: "block * 2" is a product then.
  void find_variable_names() {
    static constexpr std::string_view not_types[] = {"struct",   "class", "union",     "enum",
                                                     "typename", "using", "namespace", "return",
                                                     "case",     "goto",  "else"};
    std::unordered_set<Index> aliases;
    for (const Item& item : unit_.items()) {
      if (item.kind == ItemKind::alias) aliases.insert(item.name_at);
    }
    for (Index i = 1; i + 1 < unit_.tokens().size(); ++i) {
      const Token& before = unit_.at(i - 1);
      const bool type = (before.is_identifier() && !one_of(before.text, not_types)) || before.is(">") ||
                        before.is("*") || before.is("&");
      const bool ends =
          is(i + 1, "=") || is(i + 1, ";") || is(i + 1, ",") || is(i + 1, ")") || is(i + 1, "[");
      if (type && ends && unit_.at(i).is_identifier() && aliases.count(i) == 0)
        variables_.insert(unit_.at(i).text);
    }
  }

  // The type before the * or & at `i`: Metal wants to know where that is. References to pointers go without,
  // as shipped kernels have them: "device float*& p".
  void check_pointer(Index i) {
    std::string_view name;
    Index at = i;
    for (; at > 0 && !is_address_space(unit_.at(at - 1).text); --at) {
      const Index last = at - 1;
      const bool list = (is(last, ">") || is(last, ">>")) && unit_.match(last) != no_index;
      if (is_qualifier(unit_.at(last).text)) continue;
      if (is_integer_word(unit_.at(last).text) && (name.empty() || is_integer_word(name))) {
        name = unit_.at(last).text;
      } else if (name.empty() && list && is_plain_template(unit_.match(last) - 1)) {
        at = before_scopes(unit_.match(last) - 1) + 1;
        name = "a vector, matrix or atomic";
      } else if (name.empty() && unit_.at(last).is_identifier() && is_plain_type(last)) {
        at = before_scopes(last) + 1;
        name = unit_.at(last).text;
      } else {
        break;
      }
    }
    if (name.empty() || (at > 0 && is_address_space(unit_.at(at - 1).text))) return;
    fail(i, std::string(is(i, "*") ? "a pointer" : "a reference") + " to " + std::string(name) +
                " must say where that is: device, constant, threadgroup or thread");
  }

  // Where the qualified name whose last part stands at `i` begins.
  Index before_scopes(Index i) const {
    while (i >= 2 && is(i - 1, "::") && unit_.at(i - 2).is_identifier()) i -= 2;
    return i > 0 && is(i - 1, "::") ? i - 1 : i;
  }

  // Types that hold no address space themselves: records, enumerations, and what is another name for one.
  void find_plain_types() {
    std::unordered_set<std::string_view> others;
    for (const Item& item : unit_.items()) {
      const bool plain = !item.is_template &&
                         (item.is_record() || item.kind == ItemKind::enumeration || is_plain_alias(item));
      if (item.kind == ItemKind::alias) {
        for (const std::string_view name : item.names) (plain ? plain_types_ : others).insert(name);
      } else if (item.name_at != no_index && (item.is_record() || item.kind == ItemKind::enumeration)) {
        (plain ? plain_types_ : others).insert(unit_.at(item.name_at).text);
      }
    }
    for (const std::string_view name : others) plain_types_.erase(name);
  }

  // "using X = type;" and "typedef type X;" of a type that is known by now.
  bool is_plain_alias(const Item& item) const {
    if (item.kind != ItemKind::alias) return false;
    Index type = no_index;
    for (Index i = item.tokens.begin; i < item.tokens.end; ++i) {
      const Token& token = unit_.at(i);
      const bool word = token.is("using") || token.is("typedef") || token.is("=") || token.is(";");
      if (word || i == item.name_at || is_qualifier(token.text)) continue;
      if (!token.is_identifier() || (type != no_index && !is_integer_word(token.text))) return false;
      type = i;
    }
    return type != no_index && (is_integer_word(unit_.at(type).text) || is_plain_type(type));
  }

  bool is_plain_type(Index i) const {
    const std::string_view name = unit_.at(i).text;
    if (builtin_type(name) || name == "void") return true;
    const bool member = i > 1 && is(i - 1, "::") && unit_.at(i - 2).is_identifier();
    return !member && variables_.count(name) == 0 && plain_types_.count(name) != 0;
  }

  bool is_plain_template(Index i) const {
    static constexpr std::string_view templates[] = {"vec",    "packed_vec", "matrix", "simdgroup_matrix",
                                                     "atomic", "_atomic"};
    return one_of(unit_.at(i).text, templates) && !unit_.declares(unit_.at(i).text);
  }

  // ---- variables

  bool is_outside(const Item& item) const {
    return item.parent == no_index || unit_.items()[item.parent].kind == ItemKind::scope;
  }

  // Of a type that cannot say by itself where it is, as aliases can; samplers are constants whatever is said.
  void check_global(const Item& item) {
    if (item.name_at == no_index) return;
    bool have_type = false;
    for (Index i = item.tokens.begin; i < item.name_at; ++i) {
      if (is(i, "constant")) return;
      if (is_qualifier(unit_.at(i).text)) continue;
      if (!is_integer_word(unit_.at(i).text) && !(unit_.at(i).is_identifier() && is_plain_type(i))) return;
      have_type = true;
    }
    if (!have_type) return;
    fail(item.name_at, "variable \"" + std::string(unit_.at(item.name_at).text) +
                           "\" outside functions must be in constant memory: write \"constant\"");
  }

  // Declarations in the body of `item` that are static, in threadgroup memory, or arrays of variable length.
  void check_locals(const Item& item) const {
    const std::unordered_set<std::string_view> parameters = parameter_names(item);
    auto record = item.children.begin();
    for (Index i = item.body.begin; i < item.body.end; ++i) {
      while (record != item.children.end() && unit_.items()[*record].body.end <= i) ++record;
      const bool in_record = record != item.children.end() && unit_.items()[*record].body.contains(i);
      const bool begins = is(i - 1, ";") || is(i - 1, "{") || is(i - 1, "}") || is(i - 1, ")");
      if (!begins || !unit_.at(i).is_identifier() || in_record) continue;
      Index at = i;
      bool is_static = false;
      while (at < item.body.end && unit_.at(at).is_identifier() && is_qualifier(unit_.at(at).text)) {
        is_static |= is(at, "static");
        ++at;
      }
      if (is_static) fail(i, "the Metal Shading Language has no static variables inside functions");
      if (!item.is_kernel && is(at, "threadgroup")) check_threadgroup_variable(i, item.body.end);
      if (is_integer_word(unit_.at(at).text) || is_plain_type(at)) check_array(at, parameters);
    }
  }

  void check_threadgroup_variable(Index begin, Index end) const {
    Index last = begin;
    while (last < end && !is(last, ";"))
      last = is(last, "(") || is(last, "{") ? unit_.match(last) + 1 : last + 1;
    for (const Declarator& declarator : read_declarators(unit_, {begin, last})) {
      if (declarator.name_at == no_index || !declarator.operators.empty()) return;
      fail(declarator.name_at, "threadgroup variable \"" + std::string(unit_.at(declarator.name_at).text) +
                                   "\" must be declared in a kernel, not in a function that it calls");
    }
  }

  std::unordered_set<std::string_view> parameter_names(const Item& item) const {
    std::unordered_set<std::string_view> names;
    for (const Range& part : unit_.split_commas(item.params)) {
      for (const Declarator& declarator : read_declarators(unit_, part)) {
        if (declarator.name_at != no_index) names.insert(unit_.at(declarator.name_at).text);
      }
    }
    return names;
  }

  // "float x[n];", of a type that begins at `i`, where n is an argument of the function.
  void check_array(Index i, const std::unordered_set<std::string_view>& parameters) const {
    while (is_integer_word(unit_.at(i).text) && is_integer_word(unit_.at(i + 1).text)) ++i;
    if (!unit_.at(i + 1).is_identifier() || !is(i + 2, "[")) return;
    for (Index k = i + 3; k < unit_.match(i + 2); ++k) {
      if (is(k, "(")) k = unit_.match(k);  // sizeof and decltype do not look at the value
      const bool whole = !is(k - 1, ".") && !is(k - 1, "->") && !is(k - 1, "::") && !is(k + 1, "::");
      if (whole && parameters.count(unit_.at(k).text) != 0)
        fail(k, "the length of array \"" + std::string(unit_.at(i + 1).text) + "\" must be a constant");
    }
  }

  const Unit& unit_;
  std::unordered_set<std::string_view> variables_, plain_types_;
};

}  // namespace

void check_restrictions(const Unit& unit) { RestrictionChecker(unit).check(); }

}  // namespace metalane::msl
