// Address spaces of expressions, from declarations alone.
#include "msl/places.h"

#include <algorithm>
#include <utility>

namespace metalane::msl {
namespace {

constexpr int max_depth = 64;  // of expressions
const std::string thread_space = "4";

bool is_template_parameter(const TypeTable::Names& names, const Declarator& declarator) {
  for (const Token& token : declarator.type) {
    if (std::find(names.begin(), names.end(), token.text) != names.end()) return true;
  }
  return false;
}

// Words before a name that do not make it a declaration.
bool is_statement_word(std::string_view word) {
  static constexpr std::string_view words[] = {"return", "else",   "case",     "delete",  "goto", "using",
                                               "do",     "switch", "typename", "typedef", "new",  "operator"};
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// Notes what `name` is; two different answers make none.
void note(std::unordered_map<std::string_view, Place>& places, std::string_view name, Place place) {
  const auto [known, fresh] = places.emplace(name, place);
  if (!fresh && (known->second.levels != place.levels || known->second.extents != place.extents))
    known->second = Place();
}

}  // namespace

std::string Place::target() const {
  if (extents > 0 || levels.empty()) return object();
  if (levels.size() == 1) return "";
  return levels[1].empty() ? std::string(unknown_space) : levels[1];
}

Place Place::dereferenced() const {
  if (extents > 0) return {levels, extents - 1};
  // A component of a vector stands where the vector does.
  return levels.size() > 1 ? Place{{levels.begin() + 1, levels.end()}, 0} : *this;
}

Place Place::value() const {
  if (levels.empty()) return {};
  Place place{{thread_space}, 0};
  place.levels.insert(place.levels.end(), levels.begin() + (extents > 0 ? 0 : 1), levels.end());
  return place;
}

std::string space_number(std::string_view word) {
  if (word == "device") return "1";
  if (word == "constant") return "2";
  if (word == "threadgroup") return "3";
  if (word == "thread") return "4";
  return "";
}

Place declared_place(const Declarator& declarator, const std::string& fallback) {
  std::vector<std::string> chain(1);  // from the innermost pointee outwards
  for (const Token& token : declarator.type) {
    if (is_address_space(token.text)) chain[0] = space_number(token.text);
  }
  for (const Token& token : declarator.operators) {
    if (token.is("*")) chain.emplace_back();
    if (is_address_space(token.text)) chain.back() = space_number(token.text);
  }
  if (chain.back().empty()) chain.back() = fallback;
  std::reverse(chain.begin(), chain.end());
  return {std::move(chain), declarator.extents.size()};
}

// Reads one expression.
class Places::Reader {
 public:
  Reader(const Places& places, const Item& item, const std::vector<Symbol>& symbols)
      : places_(places), unit_(places.unit_), item_(item), symbols_(symbols) {}

  Place read(Range range, int depth = 0) const {
    if (range.empty() || depth > max_depth) return {};
    const Index whole = unit_.match(range.begin);
    if (is(range.begin, "(") && whole + 1 == range.end) return read({range.begin + 1, whole}, depth + 1);
    if (const auto parts = unit_.split_commas(range); parts.size() > 1) return read(parts.back(), depth + 1);
    return read_operators(range, depth);
  }

 private:
  bool is(Index i, std::string_view spelling) const { return unit_.is_at(i, spelling); }
  bool ends_operand(Index i) const {
    const Token& token = unit_.at(i);
    return token.is_identifier() || token.kind == TokenKind::number || token.is(")") || token.is("]");
  }

  // Binary operators outside brackets: a sum points where its pointer does; other results are values.
  Place read_operators(Range range, int depth) const {
    Index sum = no_index;
    bool is_value = false;
    for (Index i = range.begin; i < range.end; ++i) {
      if (is(i, "(") || is(i, "[") || is(i, "{")) {
        i = unit_.match(i);
      } else if (is(i, "<") && unit_.angle_close(i, range.end) != no_index) {
        i = unit_.angle_close(i, range.end);
      } else if (is(i, "?")) {
        return read_choice({i + 1, range.end}, depth);
      } else if (unit_.at(i).kind == TokenKind::punctuator && i > range.begin && ends_operand(i - 1)) {
        const std::string_view sign = unit_.at(i).text;
        if (sign.back() == '=' && sign != "==" && sign != "!=" && sign != "<=" && sign != ">=")
          return read({range.begin, i}, depth + 1);
        if ((sign == "+" || sign == "-") && sum == no_index) sum = i;
        is_value |= sign == "==" || sign == "!=" || sign == "<" || sign == ">" || sign == "<=" ||
                    sign == ">=" || sign == "&&" || sign == "||";
      }
    }
    if (is_value) return Place{{thread_space}, 0};
    if (sum == no_index) return read_unary(range, depth);
    const Place left = read({range.begin, sum}, depth + 1);
    return left.target().empty() ? read({sum + 1, range.end}, depth + 1).value() : left.value();
  }

  Place read_choice(Range range, int depth) const {
    int choices = 0;
    for (Index i = range.begin; i < range.end; ++i) {
      if (is(i, "(") || is(i, "[") || is(i, "{")) i = unit_.match(i);
      choices += is(i, "?") ? 1 : 0;
      if (!is(i, ":") || choices-- > 0) continue;
      const Place first = read({range.begin, i}, depth + 1);
      return first.target().empty() ? read({i + 1, range.end}, depth + 1) : first;
    }
    return {};
  }

  Place read_unary(Range range, int depth) const {
    const Range rest = {range.begin + 1, range.end};
    if (is(range.begin, "&")) {
      Place place = read(rest, depth + 1);
      if (place.levels.empty()) return {};
      if (place.extents > 0) return place.value();
      place.levels.insert(place.levels.begin(), thread_space);
      return place;
    }
    if (is(range.begin, "*")) return read(rest, depth + 1).dereferenced();
    if (is(range.begin, "++") || is(range.begin, "--")) return read(rest, depth + 1);
    if (is(range.begin, "-") || is(range.begin, "+") || is(range.begin, "!") || is(range.begin, "~"))
      return Place{{thread_space}, 0};
    if (is(range.begin, "(")) {
      const Index close = unit_.match(range.begin), next = close + 1;
      const bool operand =
          next < range.end && (unit_.at(next).is_identifier() || is(next, "(") || is(next, "&") ||
                               is(next, "*") || unit_.at(next).kind == TokenKind::number);
      if (operand) return type_place({range.begin + 1, close});
      return read_postfix(read({range.begin + 1, close}, depth + 1), {next, range.end});
    }
    return read_primary(range);
  }

  // What a conversion to a type gives.
  Place type_place(Range type) const {
    const auto declarators = read_declarators(unit_, type);
    return declarators.size() == 1 ? declared_place(declarators[0], thread_space) : Place{{thread_space}, 0};
  }

  Place read_primary(Range range) const {
    if (is(range.begin, "[")) return {};  // a lambda
    if (!unit_.at(range.begin).is_identifier()) return Place{{thread_space}, 0};
    if (is(range.begin, "this")) {
      const Place self{{thread_space, places_.object_space(item_)}, 0};
      return read_postfix(self, {range.begin + 1, range.end});
    }
    Index last = range.begin;
    while (is(last + 1, "::") && last + 2 < range.end) last += 2;
    Index next = last + 1;
    Range arguments;
    if (is(next, "<") && unit_.angle_close(next, range.end) != no_index) {
      arguments = {next + 1, unit_.match(next)};
      next = arguments.end + 1;
    }
    const std::string_view name = unit_.at(last).text;
    if (is(next, "(") && next < range.end) {
      const Place result = name.ends_with("_cast") ? type_place(arguments) : called(name);
      return read_postfix(result, {unit_.match(next) + 1, range.end});
    }
    if (is(next, "{") && next < range.end) return Place{{thread_space}, 0};
    return read_postfix(variable(name, range.begin), {next, range.end});
  }

  Place called(std::string_view name) const {
    const auto found = places_.results_.find(name);
    return found == places_.results_.end() ? Place{{thread_space}, 0} : found->second;
  }

  Place variable(std::string_view name, Index at) const {
    for (auto symbol = symbols_.rbegin(); symbol != symbols_.rend(); ++symbol) {
      if (symbol->name == name && symbol->scope.contains(at)) return symbol->place;
    }
    const bool member = item_.parent != no_index && unit_.items()[item_.parent].is_record();
    if (member && places_.fields_.count(name)) return field(Place{{places_.object_space(item_)}, 0}, name);
    const auto global = places_.globals_.find(name);
    // Enumerators and template parameters.
    return global == places_.globals_.end() ? Place{{thread_space}, 0} : global->second;
  }

  // The member of an object: where the object is.
  Place field(const Place& object, std::string_view name) const {
    Place place{{object.object()}, 0};
    const auto found = places_.fields_.find(name);
    if (found == places_.fields_.end()) return place;
    if (found->second.levels.empty()) place.levels.emplace_back(unknown_space);
    if (found->second.levels.empty()) return place;
    place.extents = found->second.extents;
    place.levels.insert(place.levels.end(), found->second.levels.begin() + 1, found->second.levels.end());
    return place;
  }

  Place read_postfix(Place place, Range rest) const {
    for (Index i = rest.begin; i < rest.end;) {
      if (is(i, "[")) {
        place = place.dereferenced();
        i = unit_.match(i) + 1;
      } else if ((is(i, ".") || is(i, "->")) && i + 1 < rest.end) {
        const Place object = is(i, ".") ? place : place.dereferenced();
        Index member = i + 1;
        if (is(member, "template")) ++member;
        Index next = member + 1;
        if (is(next, "<") && unit_.angle_close(next, rest.end) != no_index) next = unit_.match(next) + 1;
        const bool call = next < rest.end && is(next, "(");
        place = call ? called(unit_.at(member).text) : field(object, unit_.at(member).text);
        i = call ? unit_.match(next) + 1 : next;
      } else if (is(i, "++") || is(i, "--")) {
        ++i;
      } else {
        return {};
      }
    }
    return place;
  }

  const Places& places_;
  const Unit& unit_;
  const Item& item_;
  const std::vector<Symbol>& symbols_;
};

Places::Places(const Unit& unit) : unit_(unit) {
  for (const Item& item : unit.items()) {
    if (item.kind == ItemKind::alias && unit.is_at(item.tokens.begin, "using")) {
      for (Index i = item.tokens.begin; i < item.tokens.end; ++i) {
        if (!unit.is_at(i, "=")) continue;
        const auto declarators = read_declarators(unit, {i + 1, item.tokens.end});
        if (declarators.size() == 1) note(aliases_, item.names.back(), declared_place(declarators[0], ""));
        break;
      }
    } else if (item.kind == ItemKind::alias && item.body.end == 0 && !item.names.empty()) {
      const auto declarators = read_declarators(unit, {item.tokens.begin + 1, item.tokens.end});
      if (declarators.size() == 1) note(aliases_, item.names.back(), declared_place(declarators[0], ""));
    }
  }
  for (const Item& item : unit.items()) {
    if (item.kind == ItemKind::variable) {
      const bool member = item.parent != no_index && unit.items()[item.parent].is_record();
      for (const Declarator& declarator : read_declarators(unit, item.tokens)) {
        if (declarator.name_at == no_index) continue;
        const Place place = alias_place(
            declared_place(declarator, declarator.operators.empty() ? "" : thread_space), declarator);
        note(member ? fields_ : globals_, unit.at(declarator.name_at).text, place);
      }
    } else if (item.kind == ItemKind::function && item.name_at != no_index && item.params.end != 0) {
      Index begin = item.is_template ? item.template_params.end + 1 : item.tokens.begin;
      Index end = item.name_at;
      while (end > begin && unit.is_at(end - 1, "::")) end -= 2;
      const auto declarators = read_declarators(unit, {begin, end});
      if (declarators.size() == 1) {
        note(results_, item.names.front(),
             alias_place(declared_place(declarators[0], thread_space), declarators[0]));
      } else {
        note(results_, item.names.front(), Place{{thread_space}, 0});
      }
    }
  }
}

// Adds what an alias of a pointer type points to.
Place Places::alias_place(Place place, const Declarator& declarator) const {
  for (const Token& token : declarator.type) {
    const auto found = aliases_.find(token.text);
    if (found == aliases_.end() || found->second.levels.size() < 2) continue;
    place.levels.insert(place.levels.end(), found->second.levels.begin() + 1, found->second.levels.end());
    break;
  }
  return place;
}

std::string Places::alias_target(std::string_view name) const {
  const auto found = aliases_.find(name);
  return found == aliases_.end() ? "" : found->second.target();
}

std::string Places::object_space(const Item& item) const {
  for (Index i = item.params.end + 1; i < unit_.signature_end(item); ++i) {
    if (const std::string space = space_number(unit_.at(i).text); !space.empty()) return space;
  }
  return thread_space;
}

Place Places::of(Range range, const Item& item) const {
  return Reader(*this, item, symbols(item)).read(range);
}

void Places::add_symbol(const Declarator& declarator, Range scope, const Item& item,
                        std::vector<Symbol>& symbols) const {
  if (declarator.name_at == no_index) return;
  Place place = alias_place(declared_place(declarator, thread_space), declarator);
  const bool is_auto = std::any_of(declarator.type.begin(), declarator.type.end(),
                                   [](const Token& token) { return token.is("auto"); });
  if (is_auto && declarator.has_initialiser) {
    const Place initial = Reader(*this, item, symbols).read(declarator.initialiser);
    const bool reference = std::any_of(declarator.operators.begin(), declarator.operators.end(),
                                       [](const Token& token) { return token.is("&") || token.is("&&"); });
    if (reference) {
      place = initial;
    } else {
      const Place said = std::exchange(place, initial.value());
      for (std::size_t i = 0; i < std::min(said.levels.size(), place.levels.size()); ++i) {
        if (!said.levels[i].empty()) place.levels[i] = said.levels[i];
      }
    }
  }
  symbols.push_back({unit_.at(declarator.name_at).text, std::move(place), scope});
}

const std::vector<Places::Symbol>& Places::symbols(const Item& item) const {
  const auto [found, fresh] = symbols_.try_emplace(&item);
  std::vector<Symbol>& symbols = found->second;
  if (!fresh) return symbols;
  const TypeTable::Names names = TypeTable::parameter_names(unit_, item.template_params);
  int number = 0;
  for (const Range& part : unit_.split_commas(item.params)) {
    ++number;  // the first place is the object's
    for (const Declarator& declarator : read_declarators(unit_, part)) {
      add_symbol(declarator, {item.params.begin, item.tokens.end}, item, symbols);
      if (symbols.empty() || !is_template_parameter(names, declarator)) continue;
      // A pointer that comes as the template's argument brings its space along.
      if (symbols.back().place.levels.size() == 1)
        symbols.back().place.levels.push_back("metalane_spaces::template at<" + std::to_string(number) + ">");
    }
  }
  add_locals(item, symbols);
  return symbols;
}

void Places::add_locals(const Item& item, std::vector<Symbol>& symbols) const {
  std::vector<Index> ends = {item.body.end};
  for (Index i = item.body.begin; i < item.body.end; ++i) {
    if (unit_.is_at(i, "{")) ends.push_back(unit_.match(i));
    if (unit_.is_at(i, "}") && ends.size() > 1) ends.pop_back();
    const Token& before = unit_.at(i - 1);
    const bool starts = before.is(";") || before.is("{") || before.is("}") || before.is("(") ||
                        before.is(",") || before.is(":") || unit_.attribute_at(i);
    if (!starts || !unit_.at(i).is_identifier() || is_statement_word(unit_.at(i).text)) continue;
    const Index name = unit_.skip_type(i, item.body.end);
    const bool declares =
        name > i && name < item.body.end &&
        (unit_.at(name).is_identifier() || unit_.is_at(name, "*") || unit_.is_at(name, "&"));
    if (!declares) continue;
    Index end = name;
    while (end < item.body.end && !unit_.is_at(end, ";") && !unit_.is_at(end, ")")) {
      if (before.is("(") || before.is(",")) {
        if (unit_.is_at(end, ",")) break;
      }
      const bool opens = unit_.is_at(end, "(") || unit_.is_at(end, "[") || unit_.is_at(end, "{");
      end = opens ? unit_.match(end) + 1 : end + 1;
    }
    for (const Declarator& declarator : read_declarators(unit_, {i, end}))
      add_symbol(declarator, {i, ends.back()}, item, symbols);
    if (before.is(";") || before.is("{") || before.is("}")) i = name;
  }
}

}  // namespace metalane::msl
