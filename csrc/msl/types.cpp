// Types of declarations, by name and by template arguments.
#include "msl/types.h"

#include <algorithm>
#include <utility>

namespace metalane::msl {
namespace {

// Deeper chains of aliases, constants or nested records are cycles or mischief.
constexpr int max_depth = 64;
constexpr std::uint32_t max_work = 300'000;

bool opens(const Token& token) { return token.is("(") || token.is("[") || token.is("{"); }

// The arguments of a template argument list given as the tokens between < and >.
std::vector<TokenList> split_arguments(const TokenList& tokens) {
  std::vector<TokenList> arguments;
  if (tokens.empty()) return arguments;
  arguments.emplace_back();
  int depth = 0;
  int angles = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Token& token = tokens[i];
    if (opens(token)) ++depth;
    if (token.is(")") || token.is("]") || token.is("}")) --depth;
    if (depth == 0 && token.is("<") && i > 0 && tokens[i - 1].is_identifier()) ++angles;
    if (depth == 0 && token.is(">")) --angles;
    if (depth == 0 && token.is(">>")) angles -= 2;
    if (depth == 0 && angles <= 0 && token.is(",")) {
      arguments.emplace_back();
    } else {
      arguments.back().push_back(token);
    }
  }
  return arguments;
}

// Past the > that closes the < at `open`; a ">>" that closes two lists counts as the end of both.
std::size_t behind_angles(const TokenList& tokens, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < tokens.size(); ++i) {
    if (tokens[i].is("<")) ++depth;
    if (tokens[i].is(">")) --depth;
    if (tokens[i].is(">>")) depth -= 2;
    if (depth <= 0) return i + 1;
  }
  return tokens.size();
}

TokenList bound(const TokenList& tokens, const Bindings& bindings) {
  TokenList result;
  for (const Token& token : tokens) {
    const auto found = token.is_identifier() ? bindings.find(token.text) : bindings.end();
    if (found == bindings.end()) {
      result.push_back(token);
    } else {
      result.insert(result.end(), found->second.begin(), found->second.end());
    }
  }
  return result;
}

std::string spelled(const TokenList& tokens) {
  std::string text;
  for (const Token& token : tokens) {
    if (is_address_space(token.text)) continue;
    if (token.is(",")) {
      text += ", ";
      continue;
    }
    const bool word = token.is_identifier() || token.kind == TokenKind::number;
    const char last = text.empty() ? ' ' : text.back();
    if (word && (std::isalnum(static_cast<unsigned char>(last)) || last == '_')) text += ' ';
    text += token.text;
  }
  return text;
}

std::string_view integer_name(const std::vector<std::string_view>& words) {
  const auto has = [&](std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  const bool is_unsigned = has("unsigned");
  if (has("char")) return is_unsigned ? "uchar" : "char";
  if (has("short")) return is_unsigned ? "ushort" : "short";
  if (has("long")) return is_unsigned ? "ulong" : "long";
  return is_unsigned ? "uint" : "int";
}

TypeInfo opaque(std::string name) {
  TypeInfo type;
  type.name = std::move(name);
  return type;
}

TypeInfo pointer_type(std::string name) {
  TypeInfo type = opaque(std::move(name));
  type.size = type.alignment = 8;
  return type;
}

}  // namespace

bool is_pointer(const TypeInfo& type) {
  return type.scalar == ScalarType::opaque && type.size == 8 && type.alignment == 8;
}

// Literals aside, an expression's operands: template parameters, constants, enumerators, sizeof, casts.
class ConstantNames : public ExpressionNames {
 public:
  ConstantNames(const TypeTable& types, const Bindings& bindings, int depth)
      : types_(types), bindings_(bindings), depth_(depth) {}

  std::optional<std::int64_t> operand(std::span<const Token> tokens, std::size_t& at) const override {
    const Token& name = tokens[at++];
    if (name.is("true")) return 1;
    if (name.is("false")) return 0;
    if (at < tokens.size() && tokens[at].is("(")) {
      const TokenList inside = parenthesised(tokens, at);
      if (name.is("sizeof") || name.is("alignof")) {
        const TypeInfo type = types_.resolve_counted(inside, bindings_, depth_ + 1).type;
        if (type.size == 0) return std::nullopt;
        return static_cast<std::int64_t>(name.is("sizeof") ? type.size : type.alignment);
      }
      if (name.is("is_function_constant_defined") && inside.size() == 1)
        return bindings_.count(inside[0].text) ? 1 : 0;
      if (!builtin_type(name.text) && !is_integer_word(name.text)) return std::nullopt;
      return types_.evaluate(inside, bindings_, depth_ + 1);
    }
    const auto bound = bindings_.find(name.text);
    if (bound != bindings_.end()) return types_.evaluate(bound->second, {}, depth_ + 1);
    std::string_view last = name.text;
    while (at + 1 < tokens.size() && tokens[at].is("::") && tokens[at + 1].is_identifier()) {
      last = tokens[at + 1].text;
      at += 2;
    }
    return types_.constant(last, bindings_, depth_ + 1);
  }

 private:
  static TokenList parenthesised(std::span<const Token> tokens, std::size_t& at) {
    TokenList inside;
    int depth = 0;
    for (; at < tokens.size(); ++at) {
      if (tokens[at].is(")") && --depth == 0) break;
      if (depth > 0) inside.push_back(tokens[at]);
      if (tokens[at].is("(")) ++depth;
    }
    if (at < tokens.size()) ++at;
    return inside;
  }

  const TypeTable& types_;
  const Bindings& bindings_;
  int depth_;
};

std::vector<Declarator> read_declarators(const Unit& unit, Range range, Index begin) {
  const std::vector<Token>& tokens = unit.tokens();
  Index end = range.end;
  while (end > range.begin && unit.is_at(end - 1, ";")) --end;
  if (begin == no_index) begin = unit.skip_type(range.begin, end);
  TokenList type(tokens.begin() + range.begin, tokens.begin() + begin);
  std::vector<Range> leading;
  for (Index i = range.begin; i < begin; ++i) {
    if (!unit.attribute_at(i)) continue;
    leading.push_back({i + 2, unit.match(i + 1)});
    i = unit.match(i);
  }
  std::vector<Declarator> declarators;
  for (const Range& part : unit.split_commas({begin, end})) {
    Declarator declarator;
    declarator.type = type;
    declarator.attributes = leading;
    for (Index i = part.begin; i < part.end; ++i) {
      const Token& token = tokens[i];
      if (unit.attribute_at(i)) {
        declarator.attributes.push_back({i + 2, unit.match(i + 1)});
        i = unit.match(i);
      } else if (const Index behind = unit.skip_attribute(i); behind != i) {
        i = behind - 1;
      } else if (token.is("[")) {
        declarator.extents.push_back({i + 1, unit.match(i)});
        i = unit.match(i);
      } else if (token.is("=") || token.is("{") || (token.is("(") && declarator.name_at != no_index)) {
        declarator.has_initialiser = true;
        declarator.initialiser = {token.is("=") ? i + 1 : i, part.end};
        break;
      } else if (token.is(":")) {
        declarator.bit_field = true;
        declarator.bit_width = {i + 1, part.end};
        break;
      } else if (token.is("*") || token.is("&") || token.is("(") || token.is("&&") ||
                 (token.is_identifier() && (is_qualifier(token.text) || is_address_space(token.text)))) {
        declarator.operators.push_back(token);
      } else if (token.is_identifier()) {
        declarator.name_at = i;
      }
    }
    declarators.push_back(std::move(declarator));
  }
  return declarators;
}

TypeTable::TypeTable(const Unit& unit) : unit_(unit) {
  for (Index i = 0; i < unit.items().size(); ++i) {
    const Item& item = unit.items()[i];
    bool in_function = false;
    for (Index up = item.parent; up != no_index; up = unit.items()[up].parent)
      in_function |= unit.items()[up].kind == ItemKind::function;
    if (in_function) continue;  // its names mean nothing to the kernels' arguments
    if (item.kind == ItemKind::variable) {
      for (const Declarator& declarator : read_declarators(unit, item.tokens)) {
        if (declarator.has_initialiser && declarator.name_at != no_index) {
          constants_.emplace(unit.at(declarator.name_at).text, declarator.initialiser);
        }
      }
    } else if (item.kind == ItemKind::record || item.kind == ItemKind::alias ||
               item.kind == ItemKind::enumeration) {
      for (const std::string_view name : item.names) named_[name].push_back(i);
    }
    if (item.kind == ItemKind::enumeration ||
        (item.kind == ItemKind::alias && item.body.end != 0 && !item.is_record())) {
      add_enumerators(item);
    }
  }
  for (Index i = 0; i < unit.items().size(); ++i) {
    const Item& item = unit.items()[i];
    if (item.is_record() && !item.is_template) layouts_.emplace(i, record_layout(i, {}, 0));
  }
}

void TypeTable::add_enumerators(const Item& item) {
  std::optional<std::int64_t> next = 0;
  for (const Range& part : unit_.split_commas(item.body)) {
    if (part.empty() || !unit_.at(part.begin).is_identifier()) continue;
    if (part.end - part.begin > 2 && unit_.is_at(part.begin + 1, "=")) {
      next = evaluate(tokens({part.begin + 2, part.end}), {}, 0);
    }
    enumerators_.emplace(unit_.at(part.begin).text, next);
    if (next) next = static_cast<std::int64_t>(static_cast<std::uint64_t>(*next) + 1);
  }
}

const std::vector<Index>& TypeTable::declarations(std::string_view name) const {
  static const std::vector<Index> none;
  const auto found = named_.find(name);
  return found == named_.end() ? none : found->second;
}

TokenList TypeTable::tokens(Range range) const {
  if (range.empty()) return {};
  return {unit_.tokens().begin() + range.begin, unit_.tokens().begin() + range.end};
}

std::optional<std::int64_t> TypeTable::constant(std::string_view name, const Bindings& bindings,
                                                int depth) const {
  const auto enumerator = enumerators_.find(name);
  if (enumerator != enumerators_.end()) return enumerator->second;
  const auto found = constants_.find(name);
  if (found == constants_.end()) return std::nullopt;
  Range range = found->second;
  if (unit_.is_at(range.begin, "{")) range = {range.begin + 1, unit_.match(range.begin)};
  return evaluate(tokens(range), bindings, depth);
}

std::optional<std::int64_t> TypeTable::evaluate_guard(const TokenList& expression,
                                                      const Bindings& values) const {
  work_ = 0;  // the bound is on one question
  return evaluate(expression, values, 0);
}

std::optional<std::int64_t> TypeTable::evaluate(const TokenList& expression, const Bindings& bindings) const {
  return evaluate(expression, bindings, 0);
}

std::optional<std::int64_t> TypeTable::evaluate(const TokenList& expression, const Bindings& bindings,
                                                int depth) const {
  if (depth > max_depth || expression.empty() || ++work_ > max_work) return std::nullopt;
  return msl::evaluate(expression, ConstantNames(*this, bindings, depth));
}

TypeTable::Names TypeTable::parameter_names(const Unit& unit, Range template_params) {
  Names names;
  for (const Range& part : unit.split_commas(template_params)) {
    std::string_view name;
    for (Index i = part.begin; i < part.end && !unit.is_at(i, "="); ++i) {
      if (unit.is_at(i, "<") && unit.angle_close(i, part.end) != no_index) {
        i = unit.angle_close(i, part.end);
      } else if (unit.at(i).is_identifier()) {
        name = unit.at(i).text;
      }
    }
    names.push_back(name);
  }
  return names;
}

Bindings TypeTable::bind(const Item& item, const std::vector<TokenList>& arguments) const {
  Bindings bindings;
  const Names names = parameter_names(unit_, item.template_params);
  const std::vector<Range> parts = unit_.split_commas(item.template_params);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i < arguments.size()) {
      bindings[names[i]] = arguments[i];
      continue;
    }
    for (Index k = parts[i].begin; k < parts[i].end; ++k) {
      if (unit_.is_at(k, "=")) {
        bindings[names[i]] = bound(tokens({k + 1, parts[i].end}), bindings);
        break;
      }
    }
  }
  return bindings;
}

TypeInfo TypeTable::resolve(const TokenList& type, const Bindings& bindings) const {
  const Resolved resolved = resolve_counted(type, bindings, 0);
  if (resolved.count == 0) return resolved.type;
  TypeInfo array = opaque(spelled(type));
  array.size = resolved.type.size * resolved.count;
  array.alignment = resolved.type.alignment;
  return array;
}

TypeInfo TypeTable::resolve(const Declarator& declarator, const Bindings& bindings) const {
  return resolve(declarator.type, bindings);
}

TypeTable::Resolved TypeTable::resolve_counted(const TokenList& type, const Bindings& bindings,
                                               int depth) const {
  if (depth > max_depth || ++work_ > max_work) return {opaque(spelled(type)), 0};
  std::vector<std::string_view> integer_words;
  for (std::size_t i = 0; i < type.size(); ++i) {
    const Token& token = type[i];
    if (token.is("*") || token.is("&")) return {pointer_type(spelled(type)), 0};
    if (token.is("[")) {  // attributes among the specifiers
      int brackets = 0;
      for (; i < type.size(); ++i) {
        brackets += token.is("[") && type[i].is("[") ? 1 : type[i].is("]") ? -1 : 0;
        if (brackets == 0) break;
      }
      continue;
    }
    if (token.is("alignas") || token.is("__attribute__")) {
      int parentheses = 0;
      for (++i; i < type.size(); ++i) {
        parentheses += type[i].is("(") ? 1 : type[i].is(")") ? -1 : 0;
        if (parentheses == 0) break;
      }
      continue;
    }
    if (!token.is_identifier() || is_qualifier(token.text) || is_address_space(token.text) ||
        token.is("struct") || token.is("class") || token.is("union") || token.is("enum")) {
      continue;
    }
    if (is_integer_word(token.text)) {
      integer_words.push_back(token.text);
      continue;
    }
    if (!integer_words.empty()) break;
    std::size_t last = i;
    while (last + 2 < type.size() && type[last + 1].is("::") && type[last + 2].is_identifier()) last += 2;
    std::size_t end = last + 1;
    std::vector<TokenList> arguments;
    const bool is_template = end < type.size() && type[end].is("<");
    if (is_template) {
      end = behind_angles(type, end);
      TokenList list(type.begin() + static_cast<std::ptrdiff_t>(last) + 2,
                     type.begin() + static_cast<std::ptrdiff_t>(end) - 1);
      // The second > of a ">>" belongs to this list where lists nest.
      if (type[end - 1].is(">>")) {
        Token inner = type[end - 1];
        inner.text = ">";
        list.push_back(inner);
      }
      for (const TokenList& argument : split_arguments(list)) arguments.push_back(bound(argument, bindings));
    }
    for (std::size_t k = end; k < type.size(); ++k) {
      if (type[k].is("*") || type[k].is("&")) return {pointer_type(spelled(type)), 0};
    }
    return resolve_named(type[last].text, is_template ? &arguments : nullptr, bindings, depth);
  }
  if (integer_words.empty()) return {opaque(spelled(type)), 0};
  return {*builtin_type(integer_name(integer_words)), 0};
}

TypeTable::Resolved TypeTable::resolve_named(std::string_view name, const std::vector<TokenList>* arguments,
                                             const Bindings& bindings, int depth) const {
  if (!arguments) {
    const auto parameter = bindings.find(name);
    if (parameter != bindings.end()) return resolve_counted(parameter->second, {}, depth + 1);
  }
  const auto found = named_.find(name);
  if (found != named_.end()) {
    const Item* chosen = nullptr;
    Index chosen_index = no_index;
    for (const Index index : found->second) {
      const Item& item = unit_.items()[index];
      if (item.is_template != (arguments != nullptr)) continue;
      // "typedef struct X X;" and NS_ENUM's "typedef enum X : int X;" name what is defined elsewhere.
      if (item.kind == ItemKind::alias && item.body.end == 0 && unit_.is_at(item.tokens.begin, "typedef") &&
          unit_.is_at(item.tokens.begin + 2, name) && found->second.size() > 1) {
        continue;
      }
      if (chosen) return {opaque(std::string(name)), 0};  // specialised or declared twice: not decided here
      chosen = &item;
      chosen_index = index;
    }
    if (!chosen) return {opaque(std::string(name)), 0};
    const Bindings own = arguments ? bind(*chosen, *arguments) : Bindings();
    if (chosen->kind == ItemKind::alias) return resolve_alias(chosen_index, own, depth + 1);
    if (chosen->kind == ItemKind::enumeration) {
      TypeInfo type = *builtin_type("int");
      for (Index i = chosen->tokens.begin; i + 1 < chosen->body.begin; ++i) {
        if (unit_.is_at(i, ":"))
          type = resolve_counted(tokens({i + 1, chosen->body.begin - 1}), {}, depth + 1).type;
      }
      type.name = name;
      return {type, 0};
    }
    TypeInfo type = opaque(std::string(name));
    type.scalar = ScalarType::structure;
    type.layout = record_layout(chosen_index, own, depth + 1);
    if (!type.layout) return {opaque(std::string(name)), 0};
    type.size = type.layout->size;
    type.alignment = type.layout->alignment;
    return {type, 0};
  }
  if (arguments) {
    const auto resolved = resolve_builtin_template(name, *arguments, bindings, depth);
    if (resolved) return *resolved;
  } else if (const auto builtin = builtin_type(name)) {
    return {*builtin, 0};
  }
  return {opaque(std::string(name)), 0};
}

// vec<T, N>, packed_vec<T, N>, matrix<T, C, R>, array<T, N>, atomic<T>.
std::optional<TypeTable::Resolved> TypeTable::resolve_builtin_template(
    std::string_view name, const std::vector<TokenList>& arguments, const Bindings& bindings,
    int depth) const {
  if (arguments.empty()) return std::nullopt;
  const TypeInfo element = resolve_counted(arguments[0], bindings, depth + 1).type;
  if (name == "atomic" || name == "_atomic" || name == "uniform") return Resolved{element, 0};
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const auto number = evaluate(arguments[i], bindings, depth + 1);
    if (!number || *number < 1 || *number > (std::int64_t(1) << 32)) return std::nullopt;
    numbers.push_back(*number);
  }
  if (name == "array" && numbers.size() == 1)
    return Resolved{element, static_cast<std::uint64_t>(numbers[0])};
  const bool is_vector = (name == "vec" || name == "packed_vec") && numbers.size() == 1;
  const bool is_matrix = name == "matrix" && numbers.size() == 2;
  for (const std::int64_t number : numbers) {
    if (number > 4) return std::nullopt;
  }
  std::string full = (name == "packed_vec" ? "packed_" : "") + element.name;
  if (is_vector) full += std::to_string(numbers[0]);
  if (is_matrix) full += std::to_string(numbers[0]) + "x" + std::to_string(numbers[1]);
  const auto type = is_vector || is_matrix ? builtin_type(full) : std::nullopt;
  return type ? std::optional(Resolved{*type, 0}) : std::nullopt;
}

TypeTable::Resolved TypeTable::resolve_alias(Index index, const Bindings& bindings, int depth) const {
  const Item& item = unit_.items()[index];
  const std::string name(item.names.back());
  if (unit_.is_at(item.tokens.begin, "typedef")) {
    if (item.body.end != 0) {
      if (!item.is_record()) return {*builtin_type("int"), 0};
      TypeInfo type = opaque(name);
      type.layout = record_layout(index, bindings, depth);
      if (!type.layout) return {type, 0};
      type.scalar = ScalarType::structure;
      type.size = type.layout->size;
      type.alignment = type.layout->alignment;
      return {type, 0};
    }
    const auto declarators = read_declarators(unit_, {item.tokens.begin + 1, item.tokens.end});
    if (declarators.empty()) return {opaque(name), 0};
    if (!declarators[0].operators.empty()) return {pointer_type(name), 0};
    Resolved resolved = resolve_counted(declarators[0].type, bindings, depth);
    for (const Range& extent : declarators[0].extents) {
      const auto count = evaluate(tokens(extent), bindings, depth);
      if (!count || *count < 0 || *count > (std::int64_t(1) << 32)) return {opaque(name), 0};
      resolved.count = std::max<std::uint64_t>(resolved.count, 1) * static_cast<std::uint64_t>(*count);
    }
    return resolved;
  }
  for (Index i = item.tokens.begin; i < item.tokens.end; ++i) {
    if (unit_.is_at(i, "=")) return resolve_counted(tokens({i + 1, item.tokens.end - 1}), bindings, depth);
  }
  return {opaque(name), 0};  // using a::b: a name of the standard library
}

std::shared_ptr<const StructLayout> TypeTable::layout(const std::string& name) const {
  const auto found = named_.find(name);
  if (found == named_.end()) return nullptr;
  work_ = 0;  // the bound is on one question
  for (const Index index : found->second) {
    const Item& item = unit_.items()[index];
    if (item.is_template || item.kind == ItemKind::enumeration) continue;
    return resolve_named(name, nullptr, {}, 0).type.layout;
  }
  return nullptr;
}

}  // namespace metalane::msl
