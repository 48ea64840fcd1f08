// Macro definitions and substitution as C++17 [cpp.replace] has it, with GNU's `, ## __VA_ARGS__`.
#include "msl/macro.h"

#include <algorithm>
#include <string>
#include <utility>

namespace metalane::msl {
namespace {

constexpr std::size_t max_spelling = std::size_t(1) << 20;

std::size_t parameter_index(const Macro& macro, const Token& token) {
  if (!token.is_identifier()) return macro.params.size();
  return static_cast<std::size_t>(std::find(macro.params.begin(), macro.params.end(), token.text) -
                                  macro.params.begin());
}

// [first, last) of the contents of the parenthesis that opens at `open`; last == body.size() if unbalanced.
std::size_t closing(const std::vector<Token>& body, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < body.size(); ++i) {
    if (body[i].is("(")) ++depth;
    if (body[i].is(")") && --depth == 0) return i;
  }
  return body.size();
}

// The body with each __VA_OPT__(x) replaced by x or by nothing.
std::vector<Token> resolve_va_opt(const Macro& macro, bool have_rest) {
  std::vector<Token> body;
  for (std::size_t i = 0; i < macro.body.size(); ++i) {
    if (macro.variadic && macro.body[i].is("__VA_OPT__") && i + 1 < macro.body.size() &&
        macro.body[i + 1].is("(")) {
      const std::size_t close = closing(macro.body, i + 1);
      if (have_rest) body.insert(body.end(), macro.body.begin() + i + 2, macro.body.begin() + close);
      i = close;
      continue;
    }
    body.push_back(macro.body[i]);
  }
  return body;
}

class Substitution {
 public:
  Substitution(SourceSet& sources, const Macro& macro, const std::vector<MacroArgument>& arguments,
               const Token& place)
      : sources_(sources), macro_(macro), arguments_(arguments), place_(place) {}

  std::vector<Token> run() {
    const bool have_rest = macro_.variadic && !arguments_.back().raw.empty();
    const std::vector<Token> body = resolve_va_opt(macro_, have_rest);
    for (std::size_t i = 0; i < body.size(); ++i) {
      if (body[i].is("##") && i > 0 && i + 1 < body.size()) continue;
      const bool pasted_left = i > 1 && body[i - 1].is("##");
      const bool pasted_right = i + 2 < body.size() && body[i + 1].is("##");
      std::vector<Token> piece;
      bool is_rest = false;
      if (macro_.function_like && body[i].is("#") && i + 1 < body.size() &&
          parameter_index(macro_, body[i + 1]) < macro_.params.size()) {
        piece.push_back(stringified(arguments_[parameter_index(macro_, body[i + 1])].raw, body[i]));
        ++i;
      } else {
        const std::size_t parameter = parameter_index(macro_, body[i]);
        if (parameter < macro_.params.size()) {
          const MacroArgument& argument = arguments_[parameter];
          piece = pasted_left || pasted_right ? argument.raw : argument.expanded;
          if (!piece.empty()) piece.front().space_before = body[i].space_before;
          is_rest = macro_.variadic && parameter + 1 == macro_.params.size();
        } else {
          piece.push_back(placed(body[i]));
        }
      }
      append(std::move(piece), pasted_left, is_rest);
    }
    return std::move(result_);
  }

 private:
  Token placed(Token token) const {
    token.line = place_.line;
    token.column = place_.column;
    token.file = place_.file;
    token.line_start = false;
    return token;
  }

  // `left_empty_`: the operand before ## had no tokens.
  void append(std::vector<Token> piece, bool pasted_left, bool is_rest) {
    const bool empty = piece.empty();
    if (pasted_left && is_rest && !result_.empty() && result_.back().is(",")) {
      if (empty) result_.pop_back();
    } else if (pasted_left && !left_empty_ && !empty) {
      result_.back() = joined(result_.back(), piece.front());
      piece.erase(piece.begin());
    }
    left_empty_ = empty && (!pasted_left || left_empty_);
    result_.insert(result_.end(), piece.begin(), piece.end());
  }

  Token joined(const Token& left, const Token& right) {
    std::string text(left.text);
    text += right.text;
    if (text.size() > max_spelling) sources_.fail(place_, "a macro makes a token of more than 1 MiB");
    Token token = placed(left);
    token.text = sources_.keep(std::move(text));
    token.no_expand = false;
    const char first = token.text.front();
    const bool word = left.is_identifier();
    const bool number = left.kind == TokenKind::number || (first == '.' && right.kind == TokenKind::number);
    const bool right_is_word = right.is_identifier() || right.kind == TokenKind::number;
    if (word && right_is_word) {
      token.kind = TokenKind::identifier;
    } else if (number && (right_is_word || right.is("+") || right.is("-"))) {
      token.kind = TokenKind::number;
    } else if (left.kind == TokenKind::punctuator && right.kind == TokenKind::punctuator) {
      token.kind = TokenKind::punctuator;
    } else {
      sources_.fail(place_, "## makes no token of \"" + std::string(left.text) + "\" and \"" +
                                std::string(right.text) + "\"");
    }
    return token;
  }

  Token stringified(const std::vector<Token>& argument, const Token& at) {
    std::string text = "\"";
    for (std::size_t i = 0; i < argument.size(); ++i) {
      if (i > 0 && argument[i].space_before) text += ' ';
      const bool quotes = argument[i].kind == TokenKind::string || argument[i].kind == TokenKind::character;
      for (const char c : argument[i].text) {
        if (quotes && (c == '"' || c == '\\')) text += '\\';
        text += c;
      }
      if (text.size() > max_spelling) sources_.fail(place_, "a macro makes a string of more than 1 MiB");
    }
    Token token = placed(at);
    token.text = sources_.keep(text + "\"");
    token.kind = TokenKind::string;
    return token;
  }

  SourceSet& sources_;
  const Macro& macro_;
  const std::vector<MacroArgument>& arguments_;
  const Token& place_;
  std::vector<Token> result_;
  bool left_empty_ = false;
};

void define_value(SourceSet& sources, MacroTable& macros, std::string_view name, std::string_view value) {
  auto macro = std::make_shared<Macro>();
  std::size_t at = 0;
  while (at < value.size()) {
    const std::size_t space = std::min(value.find(' ', at), value.size());
    Token token;
    token.text = sources.keep(std::string(value.substr(at, space - at)));
    const char first = token.text.front();
    token.kind = first >= '0' && first <= '9'   ? TokenKind::number
                 : first == '(' || first == ')' ? TokenKind::punctuator
                                                : TokenKind::identifier;
    token.space_before = at > 0;
    macro->body.push_back(token);
    at = space + 1;
  }
  macros[name] = std::move(macro);
}

void define_builtin(MacroTable& macros, std::string_view name, Macro::Builtin builtin) {
  auto macro = std::make_shared<Macro>();
  macro->builtin = builtin;
  macros[name] = std::move(macro);
}

}  // namespace

std::shared_ptr<Macro> parse_definition(const SourceSet& sources, const std::vector<Token>& line) {
  auto macro = std::make_shared<Macro>();
  std::size_t i = 1;
  if (line.size() > 1 && line[1].is("(") && !line[1].space_before) {
    macro->function_like = true;
    for (i = 2; i < line.size() && !line[i].is(")"); ++i) {
      if (macro->variadic) sources.fail(line[i], "\"...\" must be a macro's last parameter");
      if (line[i].is("...")) {
        macro->variadic = true;
        macro->params.push_back("__VA_ARGS__");
      } else if (line[i].is_identifier()) {
        macro->params.push_back(line[i].text);
        if (i + 1 < line.size() && line[i + 1].is("...")) {
          macro->variadic = true;
          ++i;
        }
      } else {
        sources.fail(line[i], "a macro's parameter must be a name");
      }
      if (i + 1 < line.size() && line[i + 1].is(",")) {
        ++i;
      } else if (i + 1 < line.size() && !line[i + 1].is(")")) {
        sources.fail(line[i + 1], "a macro's parameters must be separated by commas");
      }
    }
    if (i >= line.size()) sources.fail(line[1], "the macro's parameter list has no end");
    ++i;
  }
  macro->body.assign(line.begin() + static_cast<std::ptrdiff_t>(i), line.end());
  for (Token& token : macro->body) token.line_start = false;
  if (!macro->body.empty() && (macro->body.front().is("##") || macro->body.back().is("##"))) {
    sources.fail(line[0], "## must stand between two tokens");
  }
  return macro;
}

void define_standard_macros(SourceSet& sources, MacroTable& macros) {
  static constexpr std::pair<std::string_view, std::string_view> values[] = {
      {"__METAL__", "1"},
      {"__METAL_VERSION__", "320"},
      {"__METAL_MACOS__", "1"},
      {"__METAL_IOS__", "0"},
      {"__APPLE__", "1"},
      {"__APPLE_CC__", "6000"},
      {"__ENVIRONMENT_MAC_OS_X_VERSION_MIN_REQUIRED__", "150000"},
      {"__cplusplus", "201402L"},
      {"__HAVE_BFLOAT__", "1"},
      {"__HAVE_SIMDGROUP_MATRIX__", "1"},
      {"__HAVE_SIMDGROUP_REDUCTION__", "1"},
      {"__HAVE_SIMDGROUP_SHUFFLE__", "1"},
      {"__HAVE_SIMDGROUP_BALLOT__", "1"},
      {"__HAVE_QUADGROUP_SHUFFLE__", "1"},
      {"METAL_FUNC", "inline __attribute__ ( ( __always_inline__ ) )"},
  };
  for (const auto& [name, value] : values) define_value(sources, macros, name, value);
  define_builtin(macros, "__LINE__", Macro::Builtin::line);
  define_builtin(macros, "__FILE__", Macro::Builtin::file);
  define_builtin(macros, "__COUNTER__", Macro::Builtin::counter);
}

std::vector<Token> substitute(SourceSet& sources, const Macro& macro,
                              const std::vector<MacroArgument>& arguments, const Token& place) {
  return Substitution(sources, macro, arguments, place).run();
}

}  // namespace metalane::msl
