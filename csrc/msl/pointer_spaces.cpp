// Address spaces of pointers by their declarations, function by function.
#include "msl/pointer_spaces.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "msl/types.h"

namespace metalane::msl {
namespace {

class PointerSpaces {
 public:
  explicit PointerSpaces(const Unit& unit) : unit_(unit) {
    for (const Item& item : unit.items()) {
      if (item.kind != ItemKind::function || item.names.empty()) continue;
      const auto [known, fresh] = functions_.emplace(item.names.front(), Parameters());
      if (fresh) known->second = parameters(item);
      if (!fresh) known->second.clear();  // overloaded
    }
  }

  void check(const Item& function) {
    pointers_.clear();
    for (Index i = function.params.begin; i < function.body.end; ++i) read_declaration(i);
    for (Index i = function.body.begin; i < function.body.end; ++i) {
      if (!unit_.at(i).is_identifier() || is_member(i)) continue;
      if (is(i + 1, "=")) check_assignment(i, function.body.end);
      if (is(i + 1, "(")) check_call(i);
    }
  }

 private:
  using Parameters = std::vector<std::string_view>;
  struct Pointer {
    std::string_view space;  // empty: no pointer, or not known
    Index at;
  };

  bool is(Index i, std::string_view spelling) const { return unit_.is_at(i, spelling); }
  bool is_member(Index i) const { return is(i - 1, ".") || is(i - 1, "->") || is(i - 1, "::"); }
  bool is_type_end(Index i) const { return unit_.at(i).is_identifier() || is(i, ">") || is(i, ">>"); }

  // Notes what the name at `i` is if a declarator ends there.
  void read_declaration(Index i) {
    static constexpr std::string_view no_types[] = {"return", "else", "case", "goto", "sizeof"};
    const Token& before = unit_.at(i - 1);
    const bool ends = is(i + 1, "=") || is(i + 1, ";") || is(i + 1, ",") || is(i + 1, ")") ||
                      is(i + 1, "[") || is(i + 1, "{") || is(i + 1, "(") || is(i + 1, ":");
    if (!unit_.at(i).is_identifier() || !ends || is_member(i)) return;
    const bool word = is_type_end(i - 1) &&
                      std::find(std::begin(no_types), std::end(no_types), before.text) == std::end(no_types);
    const bool mark =
        (before.is("*") || before.is("&")) && (is_type_end(i - 2) || is(i - 2, "*") || is(i - 2, "&"));
    if (!word && !mark) return;
    Index star = i - 1;
    while (is(star, "const") || is(star, "restrict")) --star;
    const bool pointer =
        is(star, "*") && is_type_end(star - 1) && (!is(i + 1, "[") || unit_.attribute_at(i + 1));
    const auto [known, fresh] =
        pointers_.emplace(unit_.at(i).text, Pointer{pointer ? space_before(star) : "", i});
    if (!fresh) known->second.space = "";  // declared twice: scopes are not followed
  }

  // The address space among the words of a type that ends before `star`.
  std::string_view space_before(Index star) const {
    for (Index i = star; i > 0;) {
      const Token& token = unit_.at(i - 1);
      if (is_address_space(token.text)) return token.text;
      const bool list = (token.is(">") || token.is(">>")) && unit_.match(i - 1) != no_index;
      if (!list && !token.is_identifier() && !token.is("::")) break;
      i = list ? unit_.match(i - 1) : i - 1;
    }
    return "";
  }

  // Where the expression `range` points; empty where that is not known.
  std::string_view space_of(Range range) const {
    if (range.empty()) return "";
    const bool address = is(range.begin, "&");
    const Index name = range.begin + (address ? 1 : 0);
    const auto found = pointers_.find(unit_.at(name).text);
    if (name >= range.end || found == pointers_.end()) return "";
    const Index next = name + 1;
    if (address) return is(next, "[") && unit_.match(next) + 1 == range.end ? found->second.space : "";
    if (next != range.end && !is(next, "+")) return "";
    for (Index i = next; i < range.end; ++i) {
      static constexpr std::string_view sums[] = {"+", "-", "*", "/", "%"};
      const Token& token = unit_.at(i);
      if (token.is("(") || token.is("[")) {
        i = unit_.match(i);
      } else if (token.kind == TokenKind::punctuator && !token.is("::") && !token.is(".") &&
                 !token.is("->") &&
                 std::find(std::begin(sums), std::end(sums), token.text) == std::end(sums)) {
        return "";
      }
    }
    return found->second.space;
  }

  void check_assignment(Index name, Index end) const {
    const auto found = pointers_.find(unit_.at(name).text);
    if (found == pointers_.end() || found->second.space.empty()) return;
    const bool statement = is(name - 1, ";") || is(name - 1, "{") || is(name - 1, "}") || is(name - 1, ")");
    if (!statement && found->second.at != name) return;
    Index last = name + 2;
    while (last < end && !is(last, ";") && !is(last, ",") && !is(last, ")")) {
      last = is(last, "(") || is(last, "[") || is(last, "{") ? unit_.match(last) + 1 : last + 1;
    }
    compare(found->second.space, {name + 2, last}, "\"" + std::string(unit_.at(name).text) + "\"");
  }

  // Where each pointer that `function` takes points; empty for what is none.
  Parameters parameters(const Item& function) const {
    Parameters spaces;
    for (const Range& part : unit_.split_commas(function.params)) {
      spaces.emplace_back();
      const std::vector<Declarator> declarators = read_declarators(unit_, part);
      if (declarators.size() != 1) continue;
      const auto is_mark = [](const Token& token) { return token.is("*") || token.is("&"); };
      const std::vector<Token>& operators = declarators[0].operators;
      if (operators.empty() || !operators[0].is("*") ||
          std::count_if(operators.begin(), operators.end(), is_mark) != 1) {
        continue;
      }
      for (const Token& token : declarators[0].type) {
        if (is_address_space(token.text)) spaces.back() = token.text;
      }
    }
    return spaces;
  }

  void check_call(Index name) const {
    const auto found = functions_.find(unit_.at(name).text);
    if (found == functions_.end() || found->second.empty() || pointers_.count(unit_.at(name).text) != 0)
      return;
    const std::vector<Range> arguments = unit_.split_commas({name + 2, unit_.match(name + 1)});
    for (std::size_t i = 0; i < std::min(arguments.size(), found->second.size()); ++i) {
      if (found->second[i].empty()) continue;
      compare(found->second[i], arguments[i],
              "argument " + std::to_string(i + 1) + " of " + std::string(unit_.at(name).text));
    }
  }

  void compare(std::string_view wanted, Range given, const std::string& what) const {
    const std::string_view space = space_of(given);
    if (space.empty() || space == wanted) return;
    unit_.sources().fail(unit_.at(given.begin), what + " points into " + std::string(wanted) +
                                                    " memory, and this into " + std::string(space) +
                                                    " memory");
  }

  const Unit& unit_;
  std::unordered_map<std::string_view, Parameters> functions_;  // empty where there are several
  std::unordered_map<std::string_view, Pointer> pointers_;      // what the function declares, by name
};

}  // namespace

void check_pointer_spaces(const Unit& unit) {
  PointerSpaces spaces(unit);
  for (const Item& item : unit.items()) {
    if (item.kind == ItemKind::function && item.body.end != 0) spaces.check(item);
  }
}

}  // namespace metalane::msl
