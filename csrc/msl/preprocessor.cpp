// Directives and macro expansion over lexed files.
#include "msl/preprocessor.h"

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

#include "msl/expression.h"
#include "msl/macro.h"

namespace metalane::msl {
namespace {

// Bounds that no real source comes near; at 50 to 200 ns a token they end hostile ones within 2 s.
constexpr std::size_t max_work = 6'000'000;
constexpr std::size_t max_output = 2'000'000;
constexpr int max_argument_depth = 200;

// In #if lines a name that is no macro is 0, `true` is 1.
class ConditionNames : public ExpressionNames {
 public:
  std::optional<std::int64_t> operand(std::span<const Token> tokens, std::size_t& at) const override {
    return tokens[at++].is("true") ? 1 : 0;
  }
};

bool is_metal_header(std::string_view name) {
  return name.starts_with("metal_") || name == "simd/simd.h" || name == "TargetConditionals.h";
}

class Preprocessor {
 public:
  Preprocessor(SourceSet& sources, const std::map<std::string, std::string>& headers)
      : sources_(sources), headers_(headers) {
    define_standard_macros(sources, macros_);
  }

  std::vector<Token> run(const std::string& name, const std::string& text) {
    enter(sources_.add(name, text));
    std::vector<Token> output;
    Token token;
    while (next_expanded(token)) {
      if (token.kind == TokenKind::unknown) fail_unknown(token);
      if (output.size() >= max_output) {
        sources_.fail(token, "the source expands to more than " + std::to_string(max_output) + " tokens");
      }
      output.push_back(token);
    }
    return output;
  }

 private:
  struct Conditional {
    Token opened;
    bool taken = false;  // some group of it was active
    bool seen_else = false;
  };
  struct OpenFile {
    const SourceFile* file;
    std::size_t next = 0;
    std::vector<Conditional> conditionals;
    std::int64_t line_shift = 0;  // from #line
    std::int32_t presumed_file = -1;
  };
  // Tokens to read before the file goes on; `macro` is enabled again behind them.
  struct Context {
    std::vector<Token> tokens;
    std::size_t next = 0;
    std::shared_ptr<Macro> macro;
  };

  [[noreturn]] void fail_unknown(const Token& token) const {
    const char first = token.text.front();
    if (first == '"' || first == '\'') sources_.fail(token, "the literal has no closing quote");
    static constexpr char digits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(first);
    sources_.fail(token, std::string("byte 0x") + digits[byte >> 4] + digits[byte & 15] +
                             " is no part of the language");
  }

  void count_work(const Token& at, std::size_t tokens = 1) {
    work_ += tokens;
    if (work_ > max_work) sources_.fail(at, "macros and includes expand without bound");
  }

  void enter(const SourceFile& file) { files_.push_back({&file, 0, {}, 0, -1}); }

  // ---- tokens of files

  bool pull_file_token(Token& token) {
    while (!files_.empty()) {
      OpenFile& open = files_.back();
      if (open.next >= open.file->tokens.size()) {
        if (!open.conditionals.empty()) sources_.fail(open.conditionals.back().opened, "#if without #endif");
        files_.pop_back();
        continue;
      }
      token = presumed(open, open.file->tokens[open.next++]);
      count_work(token);
      if (token.line_start && token.is("#")) {
        directive(token);
        continue;
      }
      return true;
    }
    return false;
  }

  static Token presumed(const OpenFile& open, Token token) {
    token.line = static_cast<std::uint32_t>(token.line + open.line_shift);
    if (open.presumed_file >= 0) token.file = static_cast<std::uint16_t>(open.presumed_file);
    return token;
  }

  std::vector<Token> rest_of_line() {
    OpenFile& open = files_.back();
    std::vector<Token> line;
    while (open.next < open.file->tokens.size() && !open.file->tokens[open.next].line_start) {
      line.push_back(presumed(open, open.file->tokens[open.next++]));
    }
    return line;
  }

  // ---- directives

  void directive(const Token& hash) {
    const std::vector<Token> line = rest_of_line();
    if (line.empty()) return;
    count_work(hash, line.size());
    const Token& word = line.front();
    const std::vector<Token> rest(line.begin() + 1, line.end());
    if (word.is("define")) {
      define(word, rest);
    } else if (word.is("undef")) {
      macros_.erase(name_in(word, rest).text);
    } else if (word.is("include") || word.is("import")) {
      include(word, rest);
    } else if (word.is("if") || word.is("ifdef") || word.is("ifndef")) {
      const bool active =
          word.is("if") ? condition(word, rest) : is_defined(name_in(word, rest).text) == word.is("ifdef");
      files_.back().conditionals.push_back({word, active, false});
      if (!active) skip_group();
    } else if (word.is("elif") || word.is("else")) {
      // Met in an active group: whatever follows up to #endif is skipped.
      conditional_of(word).seen_else |= word.is("else");
      skip_group();
    } else if (word.is("endif")) {
      conditional_of(word);
      files_.back().conditionals.pop_back();
    } else if (word.is("error")) {
      std::string text;
      for (const Token& token : rest) {
        if (!text.empty() && token.space_before) text += ' ';
        text += token.text;
      }
      sources_.fail(word, "#error " + text);
    } else if (word.is("line") || word.kind == TokenKind::number) {
      line_directive(word, word.is("line") ? rest : line);
    } else if (word.is("pragma")) {
      if (!rest.empty() && rest.front().is("once")) once_.insert(files_.back().file->name);
    } else if (!word.is("warning")) {
      sources_.fail(word, "unknown directive #" + std::string(word.text));
    }
  }

  Token name_in(const Token& word, const std::vector<Token>& rest) const {
    if (rest.empty() || !rest.front().is_identifier()) {
      sources_.fail(word, "#" + std::string(word.text) + " needs a name");
    }
    return rest.front();
  }

  void define(const Token& word, const std::vector<Token>& rest) {
    const Token name = name_in(word, rest);
    if (name.is("defined")) sources_.fail(name, "\"defined\" cannot be a macro");
    macros_[name.text] = parse_definition(sources_, rest);
  }

  bool is_defined(std::string_view name) const {
    return macros_.count(name) != 0 || name.starts_with("__has_");
  }

  Conditional& conditional_of(const Token& word) {
    auto& conditionals = files_.back().conditionals;
    if (conditionals.empty()) sources_.fail(word, "#" + std::string(word.text) + " without #if");
    if (conditionals.back().seen_else && !word.is("endif")) {
      sources_.fail(word, "#" + std::string(word.text) + " after #else");
    }
    return conditionals.back();
  }

  // Passes over groups until one is active or #endif closes the innermost open #if.
  void skip_group() {
    std::vector<Token> nested;
    OpenFile& open = files_.back();
    while (open.next < open.file->tokens.size()) {
      const Token token = presumed(open, open.file->tokens[open.next++]);
      count_work(token);
      if (!token.line_start || !token.is("#")) continue;
      const std::vector<Token> line = rest_of_line();
      if (line.empty()) continue;
      const Token& word = line.front();
      if (word.is("if") || word.is("ifdef") || word.is("ifndef")) {
        nested.push_back(word);
      } else if (word.is("endif")) {
        if (nested.empty()) {
          open.conditionals.pop_back();
          return;
        }
        nested.pop_back();
      } else if (nested.empty() && (word.is("else") || word.is("elif"))) {
        Conditional& conditional = conditional_of(word);
        conditional.seen_else |= word.is("else");
        if (conditional.taken) continue;
        if (word.is("else") || condition(word, {line.begin() + 1, line.end()})) {
          conditional.taken = true;
          return;
        }
      }
    }
  }

  void line_directive(const Token& word, const std::vector<Token>& rest) {
    const std::vector<Token> line = expand_list(rest, word);
    const auto number = line.empty() ? std::nullopt : literal_value(line.front());
    if (!number || *number < 0 || *number > 0x7fffffff) sources_.fail(word, "#line needs a line number");
    OpenFile& open = files_.back();
    const std::uint32_t here = open.file->tokens[open.next - 1].line;
    open.line_shift = *number - here - 1;
    if (line.size() > 1 && line[1].kind == TokenKind::string) {
      open.presumed_file = sources_.add_name(string_value(line[1].text));
    }
  }

  // ---- includes

  HeaderName header_name(const Token& word, std::vector<Token> rest) {
    if (!rest.empty() && rest.front().is_identifier()) rest = expand_list(std::move(rest), word);
    HeaderName header;
    if (!read_header_name(rest, header)) sources_.fail(word, "#include needs \"name\" or <name>");
    return header;
  }

  const std::pair<const std::string, std::string>* find(const HeaderName& header) const {
    return find_header(headers_, files_.back().file->name, header);
  }

  void include(const Token& word, const std::vector<Token>& rest) {
    const HeaderName header = header_name(word, rest);
    const auto* found = find(header);
    if (!found) {
      // Tensor operations: kernels that use them are refused, others are not.
      const bool refused_later = header.name.starts_with("MetalPerformancePrimitives/");
      if (is_metal_header(header.name) || refused_later) return;
      sources_.fail(word, "header \"" + header.name + "\" is not registered");
    }
    if (once_.count(found->first)) return;
    if (files_.size() >= max_include_depth) {
      sources_.fail(word, "includes nest deeper than " + std::to_string(max_include_depth) + " (does \"" +
                              found->first + "\" include itself?)");
    }
    auto [at, fresh] = lexed_.try_emplace(found->first, nullptr);
    if (fresh) at->second = &sources_.add(found->first, found->second);
    enter(*at->second);
  }

  // ---- conditions

  bool condition(const Token& word, const std::vector<Token>& rest) {
    std::vector<Token> line;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      if (rest[i].is("defined")) {
        const bool parenthesis = i + 1 < rest.size() && rest[i + 1].is("(");
        const std::size_t name = i + (parenthesis ? 2 : 1);
        if (name >= rest.size() || !rest[name].is_identifier())
          sources_.fail(rest[i], "\"defined\" needs a name");
        line.push_back(number(rest[i], is_defined(rest[name].text)));
        i = parenthesis ? name + 1 : name;
      } else if (rest[i].text.starts_with("__has_") && i + 1 < rest.size() && rest[i + 1].is("(")) {
        std::size_t close = i + 1;
        for (int depth = 0; close < rest.size(); ++close) {
          depth += rest[close].is("(") ? 1 : rest[close].is(")") ? -1 : 0;
          if (depth == 0) break;
        }
        bool known = false;
        if (rest[i].is("__has_include") && close < rest.size()) {
          const HeaderName header = header_name(word, {rest.begin() + i + 2, rest.begin() + close});
          known = find(header) || is_metal_header(header.name);
        }
        line.push_back(number(rest[i], known));
        i = close;
      } else {
        line.push_back(rest[i]);
      }
    }
    const auto value = evaluate(expand_list(std::move(line), word), ConditionNames());
    if (!value) sources_.fail(word, "#" + std::string(word.text) + " needs an integer constant expression");
    return *value != 0;
  }

  static Token number(const Token& at, bool value) {
    Token token = at;
    token.kind = TokenKind::number;
    token.text = value ? "1" : "0";
    return token;
  }

  // ---- macro expansion

  bool next_raw(Token& token) {
    while (!contexts_.empty()) {
      Context& context = contexts_.back();
      if (context.next < context.tokens.size()) {
        token = context.tokens[context.next++];
        count_work(token);
        return true;
      }
      if (context.macro) context.macro->disabled = false;
      contexts_.pop_back();
    }
    return !isolated_ && pull_file_token(token);
  }

  bool parenthesis_follows() const {
    for (std::size_t i = contexts_.size(); i > 0; --i) {
      const Context& context = contexts_[i - 1];
      if (context.next < context.tokens.size()) return context.tokens[context.next].is("(");
    }
    if (isolated_ || files_.empty()) return false;
    const OpenFile& open = files_.back();
    return open.next < open.file->tokens.size() && open.file->tokens[open.next].is("(");
  }

  bool next_expanded(Token& token) {
    while (next_raw(token)) {
      if (!token.is_identifier() || token.no_expand) return true;
      if (token.is("_Pragma") && parenthesis_follows()) {
        skip_pragma(token);
        continue;
      }
      const auto found = macros_.find(token.text);
      if (found == macros_.end()) return true;
      const std::shared_ptr<Macro> macro = found->second;
      if (macro->disabled) {
        token.no_expand = true;
        return true;
      }
      if (macro->function_like && !parenthesis_follows()) return true;
      expand(macro, token);
    }
    return false;
  }

  void skip_pragma(const Token& pragma) {
    Token token;
    int depth = 0;
    do {
      if (!next_raw(token)) sources_.fail(pragma, "_Pragma has no closing parenthesis");
      depth += token.is("(") ? 1 : token.is(")") ? -1 : 0;
    } while (depth > 0);
  }

  void expand(const std::shared_ptr<Macro>& macro, const Token& name) {
    if (macro->builtin != Macro::Builtin::none) {
      contexts_.push_back({{builtin_token(*macro, name)}, 0, nullptr});
      return;
    }
    std::vector<MacroArgument> arguments;
    if (macro->function_like) arguments = collect_arguments(*macro, name);
    std::vector<Token> body = substitute(sources_, *macro, arguments, name);
    count_work(name, body.size());
    if (!body.empty()) body.front().space_before = name.space_before;
    macro->disabled = true;
    contexts_.push_back({std::move(body), 0, macro});
  }

  Token builtin_token(const Macro& macro, const Token& name) {
    Token token = name;
    token.kind = macro.builtin == Macro::Builtin::file ? TokenKind::string : TokenKind::number;
    token.text = sources_.keep(macro.builtin == Macro::Builtin::file   ? quoted(sources_.name(name.file))
                               : macro.builtin == Macro::Builtin::line ? std::to_string(name.line)
                                                                       : std::to_string(counter_++));
    return token;
  }

  std::vector<MacroArgument> collect_arguments(const Macro& macro, const Token& name) {
    std::vector<MacroArgument> arguments(1);
    Token token;
    next_raw(token);  // the parenthesis
    for (int depth = 1;;) {
      if (!next_raw(token)) {
        sources_.fail(name, "the call of macro " + std::string(name.text) + " has no closing parenthesis");
      }
      if (token.is("(")) {
        ++depth;
      } else if (token.is(")") && --depth == 0) {
        break;
      } else if (token.is(",") && depth == 1 &&
                 !(macro.variadic && arguments.size() >= macro.params.size())) {
        arguments.emplace_back();
        continue;
      }
      if (const auto own = macros_.find(token.text); own != macros_.end() && own->second->disabled) {
        token.no_expand = true;
      }
      token.space_before |= token.line_start;
      token.line_start = false;
      arguments.back().raw.push_back(token);
    }
    if (macro.params.empty() && arguments.size() == 1 && arguments[0].raw.empty()) arguments.clear();
    if (macro.variadic && arguments.size() + 1 == macro.params.size()) arguments.emplace_back();
    if (arguments.size() != macro.params.size()) {
      sources_.fail(name, "macro " + std::string(name.text) + " takes " +
                              std::to_string(macro.params.size()) + " arguments, got " +
                              std::to_string(arguments.size()));
    }
    for (MacroArgument& argument : arguments) argument.expanded = expand_list(argument.raw, name);
    return arguments;
  }

  // Expands `tokens` by themselves.
  std::vector<Token> expand_list(std::vector<Token> tokens, const Token& at) {
    if (std::none_of(tokens.begin(), tokens.end(),
                     [](const Token& token) { return token.is_identifier(); })) {
      return tokens;
    }
    if (++argument_depth_ > max_argument_depth) sources_.fail(at, "macro calls nest too deeply");
    std::vector<Context> outer = std::exchange(contexts_, {});
    const bool outer_isolated = std::exchange(isolated_, true);
    contexts_.push_back({std::move(tokens), 0, nullptr});
    std::vector<Token> result;
    Token token;
    while (next_expanded(token)) result.push_back(token);
    contexts_ = std::move(outer);
    isolated_ = outer_isolated;
    --argument_depth_;
    return result;
  }

  SourceSet& sources_;
  const std::map<std::string, std::string>& headers_;
  MacroTable macros_;
  std::vector<OpenFile> files_;
  std::vector<Context> contexts_;
  std::map<std::string, const SourceFile*> lexed_;
  std::unordered_set<std::string> once_;
  std::size_t work_ = 0;
  std::uint64_t counter_ = 0;
  int argument_depth_ = 0;
  bool isolated_ = false;
};

}  // namespace

bool read_header_name(std::span<const Token> tokens, HeaderName& header) {
  if (!tokens.empty() && tokens.front().kind == TokenKind::string) {
    const std::string_view text = tokens.front().text;
    header = {std::string(text.substr(1, text.size() - 2)), false};
    return true;
  }
  if (tokens.size() < 3 || !tokens.front().is("<")) return false;
  header = {"", true};
  for (const Token& token : tokens.subspan(1)) {
    if (token.is(">")) return true;
    header.name += token.text;
  }
  return false;
}

const std::pair<const std::string, std::string>* find_header(
    const std::map<std::string, std::string>& headers, const std::string& includer,
    const HeaderName& header) {
  const std::size_t slash = includer.rfind('/');
  if (!header.angled && slash != std::string::npos) {
    const auto beside = headers.find(includer.substr(0, slash + 1) + header.name);
    if (beside != headers.end()) return &*beside;
  }
  const auto found = headers.find(header.name);
  return found != headers.end() ? &*found : nullptr;
}

std::vector<Token> preprocess(SourceSet& sources, const std::string& name, const std::string& text,
                              const std::map<std::string, std::string>& headers) {
  return Preprocessor(sources, headers).run(name, text);
}

}  // namespace metalane::msl
