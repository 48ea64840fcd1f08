// Declarations at namespace and record scope.
#include "msl/declaration_parser.h"

#include <string>

namespace metalane::msl {
namespace {

bool opens(const Token& token) { return token.is("(") || token.is("[") || token.is("{"); }

bool is_record_word(const Token& token) {
  return token.is("struct") || token.is("class") || token.is("union");
}

}  // namespace

void DeclarationParser::parse() { parse_scope({0, static_cast<Index>(tokens_.size())}, no_index); }

Index DeclarationParser::add(Item item, Index parent) {
  const auto index = static_cast<Index>(unit_.items_.size());
  item.parent = parent;
  unit_.items_.push_back(std::move(item));
  (parent == no_index ? unit_.top_ : unit_.items_[parent].children).push_back(index);
  return index;
}

void DeclarationParser::parse_scope(Range range, Index parent) {
  for (Index i = range.begin; i < range.end;) {
    Index end = i;
    if (is(i, ";")) {
      ++i;
    } else if (parse_block(i, parent, end)) {
      i = end;
    } else {
      i = parse_item(i, range, parent);
    }
  }
}

// namespace a::b { ... } and extern "C" { ... }.
bool DeclarationParser::parse_block(Index begin, Index parent, Index& end) {
  Index i = begin;
  if (is(i, "inline") && is(i + 1, "namespace")) ++i;
  if (is(i, "extern") && i + 1 < tokens_.size() && tokens_[i + 1].kind == TokenKind::string &&
      is(i + 2, "{")) {
    i += 2;
  } else if (is(i, "namespace")) {
    for (++i; i < tokens_.size() && !is(i, "{"); ++i) {
      if (const Index behind = unit_.skip_attribute(i); behind != i) {
        i = behind - 1;
      } else if (!tokens_[i].is_identifier() && !is(i, "::")) {
        return false;
      }
    }
    if (i >= tokens_.size()) return false;
  } else {
    return false;
  }
  Item item;
  item.kind = ItemKind::scope;
  item.body = {i + 1, unit_.match(i)};
  end = unit_.match(i) + 1;
  item.tokens = {begin, end};
  const Range body = item.body;
  const Index index = add(std::move(item), parent);
  parse_scope(body, index);
  return true;
}

Index DeclarationParser::template_header(Index at, Index end, Item& item) const {
  while (is(at, "template") && is(at + 1, "<")) {
    const Index close = unit_.angle_close(at + 1, end);
    if (close == no_index) unit_.sources_.fail(tokens_[at + 1], "\"<\" is never closed");
    item.is_template = true;
    item.template_params = {at + 2, close};
    at = close + 1;
  }
  return at;
}

Index DeclarationParser::parse_item(Index begin, Range scope, Index parent) {
  Item item;
  item.tokens.begin = begin;
  const bool label = is(begin, "public") || is(begin, "private") || is(begin, "protected");
  if (label && is(begin + 1, ":")) {
    item.tokens.end = begin + 2;
    add(std::move(item), parent);
    return begin + 2;
  }
  const Index at = template_header(begin, scope.end, item);
  if (is(at, "using") || is(at, "typedef") || is(at, "static_assert") || is(at, "_Static_assert") ||
      is(at, "template") || is(at, "namespace")) {
    item.tokens.end = statement_end(at, scope.end, item);
    if (is(at, "using") || is(at, "typedef")) parse_alias(at, item);
    if (is(at, "static_assert") || is(at, "_Static_assert")) item.kind = ItemKind::assertion;
    if (is(at, "template")) parse_instantiation(at, item);
  } else {
    parse_general(at, scope, item);
  }
  const Index end = item.tokens.end;
  const bool record = item.is_record(), function = item.kind == ItemKind::function;
  const Range body = item.body;
  const Index index = add(std::move(item), parent);
  if (record) parse_scope(body, index);
  if (function) find_local_records(body, index);
  return end;
}

// Records that a function defines for itself; the rest of its body stays tokens.
void DeclarationParser::find_local_records(Range body, Index function) {
  for (Index i = body.begin; i < body.end; ++i) {
    const Index open = record_open(i, body.end);
    if (open == no_index) continue;
    Item item;
    parse_record(i, open, item);
    item.is_local = true;
    item.tokens = {i, unit_.match(open) + 1};
    const Range inside = item.body;
    parse_scope(inside, add(std::move(item), function));
    i = unit_.match(open);
  }
}

Index DeclarationParser::statement_end(Index at, Index end, const Item& item) const {
  for (Index i = at; i < end; ++i) {
    if (is(i, ";")) return i + 1;
    if (opens(tokens_[i])) i = unit_.match(i);
  }
  unit_.sources_.fail(tokens_[item.tokens.begin], "the declaration that begins here has no end");
}

void DeclarationParser::parse_alias(Index at, Item& item) const {
  if (is(at, "using")) {
    if (is(at + 1, "namespace")) return;
    item.kind = ItemKind::alias;
    const bool equals = is(at + 2, "=") || unit_.attribute_at(at + 2);
    item.name_at = equals ? at + 1 : item.tokens.end - 2;  // using a::b;
    item.names.push_back(tokens_[item.name_at].text);
    return;
  }
  item.kind = ItemKind::alias;
  for (Index i = at; i < item.tokens.end; ++i) {
    if (is(i, "{")) {
      const Index open = record_open(at + 1, item.tokens.end);
      if (open != no_index) parse_record(at + 1, open, item);
      const Index enum_open = enumeration_open(at + 1, item.tokens.end);
      if (enum_open != no_index) parse_enumeration(at + 1, item);
      item.kind = ItemKind::alias;
      add_declarators(unit_.match(i) + 1, item);
      return;
    }
  }
  for (Index i = at + 1; i + 1 < item.tokens.end; ++i) {
    const bool ends = is(i + 1, ";") || is(i + 1, "[") || is(i + 1, ",") || is(i + 1, ")") ||
                      unit_.skip_attribute(i + 1) != i + 1;
    if (tokens_[i].is_identifier() && ends) {
      item.name_at = i;
      item.names.push_back(tokens_[i].text);
      return;
    }
    if (is(i, "<")) {
      const Index close = unit_.angle_close(i, item.tokens.end);
      if (close != no_index) i = close;
    }
  }
}

// template [[host_name("x")]] ... f<args>;  or  ... f<args>(parameters);
void DeclarationParser::parse_instantiation(Index, Item& item) const {
  item.kind = ItemKind::instantiation;
  Index last = item.tokens.end - 2;
  if (is(last, ")")) {
    item.params = {unit_.match(last) + 1, last};
    last = unit_.match(last) - 1;
  }
  if ((is(last, ">") || is(last, ">>")) && unit_.match(last) != no_index) {
    item.template_params = {unit_.match(last) + 1, last};
    item.is_template = true;
    last = unit_.match(last) - 1;
  }
  if (last > item.tokens.begin && tokens_[last].is_identifier()) item.name_at = last;
}

Index DeclarationParser::enumeration_open(Index at, Index end) const {
  if (!is(at, "enum")) return no_index;
  for (Index i = at + 1; i < end; ++i) {
    if (is(i, "{")) return i;
    if (const Index behind = unit_.skip_attribute(i); behind != i) {
      i = behind - 1;
    } else if (!tokens_[i].is_identifier() && !is(i, ":") && !is(i, "::")) {
      return no_index;
    }
  }
  return no_index;
}

void DeclarationParser::parse_enumeration(Index at, Item& item) const {
  const Index open = enumeration_open(at, item.tokens.end == 0 ? unit_.tokens_.size() : item.tokens.end);
  item.kind = ItemKind::enumeration;
  item.body = {open + 1, unit_.match(open)};
  bool scoped = false;
  for (Index i = at + 1; i < open; ++i) {
    if (const Index behind = unit_.skip_attribute(i); behind != i) {
      i = behind - 1;
    } else if (is(i, ":")) {
      break;
    } else if (is(i, "class") || is(i, "struct")) {
      scoped = true;
    } else if (tokens_[i].is_identifier()) {
      item.name_at = i;
      item.names.push_back(tokens_[i].text);
    }
  }
  if (scoped) return;
  for (const Range& part : unit_.split_commas(item.body)) {
    if (!part.empty() && tokens_[part.begin].is_identifier()) item.names.push_back(tokens_[part.begin].text);
  }
}

Index DeclarationParser::record_open(Index at, Index end) const {
  if (at >= end || !is_record_word(tokens_[at])) return no_index;
  bool in_bases = false;
  for (Index i = at + 1; i < end; ++i) {
    if (is(i, "{")) return i;
    if (const Index behind = unit_.skip_attribute(i); behind != i) {
      i = behind - 1;
    } else if (is(i, ":")) {
      in_bases = true;
    } else if (is(i, "<")) {
      const Index close = unit_.angle_close(i, end);
      if (close == no_index) return no_index;
      i = close;
    } else if (!tokens_[i].is_identifier() && !is(i, "::") && !(in_bases && is(i, ","))) {
      return no_index;
    } else if (tokens_[i].is_identifier() && !in_bases && i > at + 1 && tokens_[i - 1].is_identifier() &&
               !is(i, "final") && unit_.skip_attribute(i - 1) == i - 1) {
      return no_index;  // struct X name ...: an elaborated type
    }
  }
  return no_index;
}

void DeclarationParser::parse_record(Index at, Index open, Item& item) const {
  item.kind = ItemKind::record;
  item.has_fields = true;
  item.body = {open + 1, unit_.match(open)};
  for (Index i = at + 1; i < open; ++i) {
    if (const Index behind = unit_.skip_attribute(i); behind != i) {
      i = behind - 1;
    } else if (tokens_[i].is_identifier()) {
      item.name_at = i;
      item.names.push_back(tokens_[i].text);
      return;
    }
  }
}

// Names in "a, *b[2] = ..., c;" from `at` to the item's end.
void DeclarationParser::add_declarators(Index at, Item& item) const {
  bool initialiser = false;
  for (Index i = at; i + 1 < item.tokens.end; ++i) {
    const Token& token = tokens_[i];
    if (opens(token)) {
      i = unit_.match(i);
    } else if (token.is("=")) {
      initialiser = true;
    } else if (token.is(",")) {
      initialiser = false;
    } else if (const Index behind = unit_.skip_attribute(i); behind != i) {
      i = behind - 1;
    } else if (!initialiser && token.is_identifier()) {
      Index next = i + 1;  // behind the arguments of a specialised variable template
      if (is(next, "<") && unit_.match(next) != no_index) next = unit_.match(next) + 1;
      const bool ends =
          is(next, ";") || is(next, "=") || is(next, "[") || is(next, ",") || is(next, "{") || is(next, ":");
      if (!ends) {
        i = next - 1;
        continue;
      }
      if (item.name_at == no_index) item.name_at = i;
      item.names.push_back(token.text);
    }
  }
}

// The parameter list opens at `parenthesis`: the name stands before it, perhaps qualified or with arguments.
void DeclarationParser::name_function(Index parenthesis, Item& item) const {
  item.kind = ItemKind::function;
  item.params = {parenthesis + 1, unit_.match(parenthesis)};
  Index name = parenthesis - 1;
  if ((is(name, ">") || is(name, ">>")) && unit_.match(name) != no_index) name = unit_.match(name) - 1;
  item.name_at = name;
  while (name >= item.tokens.begin + 2 && is(name - 1, "::") && tokens_[name - 2].is_identifier()) name -= 2;
  item.names.push_back(tokens_[name].text);
}

// Behind `)` `:` of a constructor: the brace of its body.
Index DeclarationParser::constructor_body(Index colon, Index end) const {
  for (Index i = colon + 1; i < end; ++i) {
    if (is(i, "{") && (is(i - 1, ")") || is(i - 1, "}"))) return i;
    if (opens(tokens_[i])) i = unit_.match(i);
  }
  return no_index;
}

void DeclarationParser::parse_general(Index at, Range scope, Item& item) {
  bool is_operator = false;
  bool have_braces = false;
  for (Index i = at; i < scope.end; ++i) {
    const Token& token = tokens_[i];
    if (const Index behind = unit_.skip_attribute(i); behind != i) {
      for (Index k = i; k < behind; ++k) item.is_kernel |= is(k, "kernel") && is(i, "[");
      i = behind - 1;
    } else if (token.is("kernel")) {
      item.is_kernel = true;
    } else if (is_record_word(token) && record_open(i, scope.end) != no_index && item.params.end == 0) {
      const Index open = record_open(i, scope.end);
      parse_record(i, open, item);
      have_braces = true;
      i = unit_.match(open);
      at = i + 1;
    } else if (token.is("enum") && enumeration_open(i, scope.end) != no_index) {
      const Index open = enumeration_open(i, scope.end);
      parse_enumeration(i, item);
      have_braces = true;
      i = unit_.match(open);
      at = i + 1;
    } else if (token.is("operator")) {
      is_operator = true;
      item.kind = ItemKind::function;
      item.name_at = i;
      item.names.push_back(token.text);
      if (is(i + 1, "(")) i += 2;
      while (i + 1 < scope.end && !is(i + 1, "(")) ++i;
      if (i + 1 < scope.end) item.params = {i + 2, unit_.match(i + 1)};
    } else if (token.is("<") && i > at && tokens_[i - 1].is_identifier()) {
      const Index close = unit_.angle_close(i, scope.end);
      if (close != no_index) i = close;
    } else if (token.is("(")) {
      const bool named = i > at && (tokens_[i - 1].is_identifier() || is(i - 1, ">") || is(i - 1, ">>")) &&
                         !is(i - 1, "decltype");
      if (!is_operator && !have_braces && item.params.end == 0 && named) name_function(i, item);
      i = unit_.match(i);
    } else if (token.is("[")) {
      i = unit_.match(i);
    } else if (token.is(":") && item.params.end != 0) {
      const Index open = constructor_body(i, scope.end);
      if (open != no_index) i = open - 1;
    } else if (token.is("{")) {
      if (item.params.end != 0) {
        item.body = {i + 1, unit_.match(i)};
        item.tokens.end = unit_.match(i) + 1;
        return;
      }
      i = unit_.match(i);
    } else if (token.is("=") || token.is(";")) {
      item.tokens.end = statement_end(i, scope.end, item);
      if (item.params.end != 0) return;
      add_declarators(at, item);
      if (item.kind == ItemKind::other && !item.names.empty()) {
        // "struct X;" declares no variable.
        const bool forward = is_record_word(tokens_[at]) && item.name_at == at + 1 && !token.is("=");
        item.kind = forward ? ItemKind::other : ItemKind::variable;
      }
      return;
    }
  }
  unit_.sources_.fail(tokens_[item.tokens.begin], "the declaration that begins here has no end");
}

}  // namespace metalane::msl
