// Finds declarations that agree but for address spaces.
#include "msl/overloads.h"

#include <algorithm>

namespace metalane::msl {
namespace {

constexpr std::string_view carried = "metalane_spaces";

bool is_specialisation(const Unit& unit, const Item& item) {
  return item.is_template && item.name_at != no_index && unit.is_at(item.name_at + 1, "<");
}

std::string without_const(std::string text) {
  for (std::size_t at = text.find("const "); at != std::string::npos; at = text.find("const ", at)) {
    if (at == 0 || text[at - 1] == ' ' || text[at - 1] == '\n') {
      text.erase(at, 6);
    } else {
      ++at;
    }
  }
  return text;
}

}  // namespace

Overloads::Overloads(const Unit& unit, const std::vector<bool>& reached) : unit_(unit) {
  compare(unit.top(), "", reached);
  seen_.clear();
  loose_.clear();
  if (functions_.empty() && templates_.empty()) return;
  places_ = std::make_unique<Places>(unit);
  for (Index i = 0; i < unit.items().size(); ++i) {
    const Item& item = unit.items()[i];
    if (item.kind == ItemKind::function && !item.names.empty()) by_name_[item.names.front()].push_back(i);
  }
  find_carriers(reached);
}

const Item& Overloads::item_at(Index index) const {
  static const Item none;
  return index == no_index ? none : unit_.items()[index];
}

void Overloads::compare(const std::vector<Index>& items, const std::string& scope,
                        const std::vector<bool>& reached) {
  for (const Index index : items) {
    const Item& item = unit_.items()[index];
    const bool member = item.parent != no_index && unit_.items()[item.parent].is_record();
    if (!member && !reached[index]) continue;
    if (item.kind == ItemKind::scope) {
      compare(item.children, scope + spelled({item.tokens.begin, item.body.begin}, {}), reached);
      continue;
    }
    compare(index, scope);
    if (item.is_record()) compare(item.children, scope + std::to_string(index) + " ", reached);
  }
}

void Overloads::compare(Index index, const std::string& scope) {
  const Item& item = unit_.items()[index];
  // Outside of classes a declaration may be repeated; in one, "X() device = default" may not.
  const bool member = item.parent != no_index && unit_.items()[item.parent].is_record();
  const bool function = item.kind == ItemKind::function && (item.body.end != 0 || member);
  const bool record = item.kind == ItemKind::record && item.is_template;
  const bool variable = item.kind == ItemKind::variable && is_specialisation(unit_, item);
  if ((!function && !record && !variable) || item.is_kernel) return;
  const Renames own = renames(item);
  const std::string key = scope + "\n" + head(item, own);
  const auto [other, fresh] = seen_.emplace(key, index);
  if (!fresh) {
    const Item& first = unit_.items()[other->second];
    if (rest(item, own) == rest(first, renames(first))) {
      repeated_.insert(index);
    } else {
      mark(index, other->second);
    }
    return;
  }
  // f(device const T*) and f(threadgroup T*) are told apart by the wrong word.
  if (!function) return;
  const auto [near, alone] = loose_.emplace(without_const(key), index);
  if (alone) return;
  const Item& first = unit_.items()[near->second];
  const bool same = wanted(item) == wanted(first) || rest(item, own) == rest(first, renames(first));
  if (!same) mark(index, near->second);
}

void Overloads::mark(Index index, Index first) {
  const Item& item = unit_.items()[index];
  const std::string_view name = unit_.at(item.name_at).text;
  if (item.kind != ItemKind::function || is_specialisation(unit_, item)) {
    templates_.insert(name);
    return;
  }
  const bool member = item.parent != no_index && unit_.items()[item.parent].is_record();
  const bool constructor =
      member && !unit_.items()[item.parent].names.empty() && unit_.items()[item.parent].names.front() == name;
  if (name == "operator" || constructor || wanted(item) == wanted(unit_.items()[first])) {
    const Token& place = unit_.at(unit_.items()[first].name_at);
    unit_.sources().fail(unit_.at(item.name_at),
                         "\"" + std::string(name) + "\" differs from its declaration in " +
                             unit_.sources().name(place.file) + ":" + std::to_string(place.line) +
                             " by address space alone and has another body: not supported on the CPU device");
  }
  functions_.insert(name);
  conflicting_.insert({index, first});
}

// ---- spelling without address spaces

// Names of parameters mean nothing: they become numbers.
Overloads::Renames Overloads::renames(const Item& item) const {
  Renames names;
  for (const std::string_view name : TypeTable::parameter_names(unit_, item.template_params)) {
    if (!name.empty()) names.emplace(name, "%" + std::to_string(names.size()));
  }
  if (item.kind != ItemKind::function) return names;
  for (const Range& part : unit_.split_commas(item.params)) {
    for (const Declarator& declarator : read_declarators(unit_, part)) {
      if (declarator.name_at != no_index)
        names.emplace(unit_.at(declarator.name_at).text, "$" + std::to_string(names.size()));
    }
  }
  return names;
}

std::string Overloads::spelled(Range range, const Renames& renames, Index without) const {
  std::string text;
  for (Index i = range.begin; i < range.end; ++i) {
    if (const Index behind = unit_.skip_attribute(i); behind != i) {
      i = behind - 1;
      continue;
    }
    const std::string_view word = unit_.at(i).text;
    if (i == without) continue;
    if (word == "constant" && !unit_.qualifies_member(i)) {
      const bool doubled = unit_.is_at(i + 1, "const") || (i > range.begin && unit_.is_at(i - 1, "const"));
      if (!doubled) text += "const ";
    } else if (!is_address_space(word) && word != "inline" && word != "static" && word != "constexpr") {
      const auto renamed = renames.find(word);
      text += renamed == renames.end() ? word : std::string_view(renamed->second);
      text += ' ';
    }
  }
  return text;
}

std::string Overloads::head(const Item& item, const Renames& renames) const {
  if (item.kind == ItemKind::record) return spelled({item.tokens.begin, item.body.begin - 1}, renames);
  if (item.kind == ItemKind::variable) {
    return spelled({item.tokens.begin, unit_.match(item.name_at + 1) + 1}, renames);
  }
  std::string text = spelled({item.tokens.begin, item.params.begin}, renames);
  for (const Range& part : unit_.split_commas(item.params)) {
    const auto declarators = read_declarators(unit_, part);
    Range type = part;
    Index name = no_index;
    if (declarators.size() == 1) {
      name = declarators[0].name_at;
      if (declarators[0].has_initialiser) type.end = declarators[0].initialiser.begin - 1;
    }
    text += spelled(type, renames, name) + ", ";
  }
  return text + spelled({item.params.end, unit_.signature_end(item)}, renames);
}

std::string Overloads::rest(const Item& item, const Renames& renames) const {
  const Index begin = item.kind == ItemKind::record     ? item.body.begin - 1
                      : item.kind == ItemKind::variable ? unit_.match(item.name_at + 1) + 1
                                                        : unit_.signature_end(item);
  return spelled({begin, item.tokens.end}, renames);
}

// ---- marked functions

std::vector<std::string> Overloads::wanted(const Item& item) const {
  std::vector<std::string> spaces = {""};
  for (Index i = item.params.end + 1; i < unit_.signature_end(item); ++i) {
    if (const std::string space = space_number(unit_.at(i).text); !space.empty()) spaces[0] = space;
  }
  for (const Range& part : unit_.split_commas(item.params)) {
    const auto declarators = read_declarators(unit_, part);
    const Place place = declarators.size() == 1 ? declared_place(declarators[0], "") : Place();
    const std::string target = place.target();
    const bool said = declarators.size() == 1 && !declarators[0].operators.empty();
    spaces.push_back(!target.empty() ? target : said ? place.object() : "");
  }
  return spaces;
}

std::string Overloads::parameter(Index index) const {
  if (carries_spaces(index)) return std::string(carried);
  std::string pairs;
  const std::vector<std::string> spaces = wanted(unit_.items()[index]);
  // A member function that says nothing is one for the thread's own objects.
  const bool others_say = std::any_of(conflicting_.begin(), conflicting_.end(), [&](Index other) {
    return unit_.items()[other].names == unit_.items()[index].names &&
           !wanted(unit_.items()[other])[0].empty();
  });
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    const std::string space = i == 0 && others_say && spaces[0].empty() ? "4" : spaces[i];
    if (space.empty()) continue;
    pairs += (pairs.empty() ? "" : ", ") + std::to_string(i) + ", " + space;
  }
  return pairs.empty() ? "::metal::detail::anywhere" : "::metal::detail::in<" + pairs + ">";
}

// Whether a marked function of that name has a reference, not a pointer, as parameter `number`.
bool Overloads::takes_reference(std::string_view name, std::size_t number) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return false;
  for (const Index index : found->second) {
    const std::vector<Range> parts = unit_.split_commas(unit_.items()[index].params);
    // What carries spaces hands on where a pointer points, however it takes the pointer.
    if (number >= parts.size() || carries_spaces(index)) continue;
    const auto declarators = read_declarators(unit_, parts[number]);
    if (declarators.size() != 1) continue;
    const auto has = [&](std::string_view sign) {
      return std::any_of(declarators[0].operators.begin(), declarators[0].operators.end(),
                         [&](const Token& token) { return token.is(sign); });
    };
    if (has("&") && !has("*")) return true;
  }
  return false;
}

// Of the object and of each argument, as far as they are known.
std::vector<std::string> Overloads::given(Index name, Index open, Index index) const {
  const Item& item = item_at(index);
  std::vector<std::string> spaces(1);
  const bool member = item.parent != no_index && unit_.items()[item.parent].is_record();
  if (name > 0 && (unit_.is_at(name - 1, ".") || unit_.is_at(name - 1, "->"))) {
    const Place object = places_->of({unit_.postfix_begin(name - 1), name - 1}, item);
    spaces[0] = unit_.is_at(name - 1, ".") ? object.object() : object.target();
  } else if (member) {
    spaces[0] = places_->object_space(item);
  }
  const std::vector<Range> arguments = unit_.split_commas({open + 1, unit_.match(open)});
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Place place = places_->of(arguments[i], item);
    spaces.push_back(takes_reference(unit_.at(name).text, i) ? place.object() : place.target());
  }
  return spaces;
}

std::string Overloads::argument(Index name, Index open, Index index) const {
  const std::vector<std::string> spaces = given(name, open, index);
  std::vector<bool> needed(spaces.size());
  for (const Index candidate : by_name_.at(unit_.at(name).text)) {
    const std::vector<std::string> places = wanted(unit_.items()[candidate]);
    if (places.size() != spaces.size()) continue;
    for (std::size_t i = 0; i < spaces.size(); ++i) needed[i] = needed[i] || !places[i].empty();
  }
  std::string text;
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    const bool unknown = spaces[i] == unknown_space;
    if (needed[i] && unknown) {
      const std::string what = i == 0 ? "object" : "argument " + std::to_string(i);
      unit_.sources().fail(unit_.at(name),
                           "which \"" + std::string(unit_.at(name).text) +
                               "\" is meant depends on the address space of its " + what +
                               ", which cannot be told here: not supported on the CPU device");
    }
    text += (text.empty() ? "" : ", ") + (spaces[i].empty() || unknown ? "0" : spaces[i]);
  }
  return "::metal::detail::spaces<" + text + ">{}";
}

std::string Overloads::template_argument(Range argument, Index index) const {
  const Item& item = item_at(index);
  const Range inside = {argument.begin + 2, argument.end - 1};
  if (unit_.is_at(argument.begin, "decltype") && unit_.match(argument.begin + 1) + 1 == argument.end)
    return places_->of(inside, item).target();
  const auto declarators = read_declarators(unit_, argument);
  if (declarators.size() == 1 && !declarators[0].operators.empty()) {
    const Place place = declared_place(declarators[0], "");
    return place.levels.size() > 1 ? place.target() : place.object();
  }
  if (argument.end - argument.begin != 1) return "";
  // A type that the function deduces, or an alias.
  for (const Range& part : unit_.split_commas(item.params)) {
    const auto parameters = read_declarators(unit_, part);
    const bool same =
        parameters.size() == 1 && parameters[0].name_at != no_index &&
        std::any_of(parameters[0].type.begin(), parameters[0].type.end(),
                    [&](const Token& token) { return token.is(unit_.at(argument.begin).text); });
    if (same) return places_->of({parameters[0].name_at, parameters[0].name_at + 1}, item).target();
  }
  return places_->alias_target(unit_.at(argument.begin).text);
}

bool Overloads::passes_spaces_on(Index index) const {
  const Item& item = unit_.items()[index];
  for (Index i = item.template_params.end + 1; i < item.tokens.end; ++i) {
    const Token& token = unit_.at(i);
    if (!token.is_identifier() || i == item.name_at) continue;
    const bool list = unit_.is_at(i + 1, "<") && unit_.match(i + 1) != no_index;
    const Index open = list ? unit_.match(i + 1) + 1 : i + 1;
    std::vector<std::string> spaces;
    if (marks_function(token.text) && unit_.is_at(open, "(")) spaces = given(i, open, index);
    if (marks_template(token.text) && list) {
      for (const Range& part : unit_.split_commas({i + 2, unit_.match(i + 1)}))
        spaces.push_back(template_argument(part, index));
    }
    for (const std::string& space : spaces) {
      if (space.starts_with(carried)) return true;
    }
  }
  return false;
}

void Overloads::find_carriers(const std::vector<bool>& reached) {
  for (bool changed = true; changed;) {
    changed = false;
    for (Index i = 0; i < unit_.items().size(); ++i) {
      const Item& item = unit_.items()[i];
      const bool member = item.parent != no_index && unit_.items()[item.parent].is_record();
      if (item.kind != ItemKind::function || item.template_params.empty() || item.is_kernel ||
          item.body.end == 0 || (!member && !reached[i]) || carriers_.count(i) || !passes_spaces_on(i)) {
        continue;
      }
      carriers_.insert(i);
      functions_.insert(item.names.front());
      changed = true;
    }
  }
}

}  // namespace metalane::msl
