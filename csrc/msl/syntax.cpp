// Brackets, and helpers that read types and argument lists.
#include "msl/syntax.h"

#include <algorithm>

#include "msl/declaration_parser.h"

namespace metalane::msl {
namespace {

// C++ compilers refuse deeper nesting too (Clang at 256); it also bounds every recursion here.
constexpr std::size_t max_nesting = 200;
// Statements nest without brackets too, and operators in a chain nest expressions: GCC 12 takes minutes for
// chains of 20,000 conditionals. Real code stays far below.
constexpr std::size_t max_run = 4000;
// Branches of one if ... else if: GCC 12 takes 15 s for 20,000 of them.
constexpr std::size_t max_branches = 2000;
constexpr int max_postfix_parts = 100;  // keeps endless chains linear

template <std::size_t N>
bool one_of(std::string_view word, const std::string_view (&words)[N]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// Pairs brackets, and the angle brackets that may be template argument lists: in one pass, so that no
// sequence of unclosed "<" makes later look-ups slow.
class BracketMatcher {
 public:
  BracketMatcher(const SourceSet& sources, const std::vector<Token>& tokens)
      : sources_(sources), tokens_(tokens), match_(tokens.size(), no_index) {}

  std::vector<Index> run() {
    for (Index i = 0; i < tokens_.size(); ++i) {
      const Token& token = tokens_[i];
      count_run(token);
      count_branches(i);
      if (token.kind != TokenKind::punctuator || token.text.size() > 2) continue;
      switch (token.text[0]) {
        case '(':
        case '[':
        case '{':
          open(i);
          break;
        case ')':
        case ']':
        case '}':
          close(i);
          break;
        case '<':
          if (token.is("<") && i > 0 && tokens_[i - 1].is_identifier() && !tokens_[i - 1].is("operator")) {
            angles_.push_back(i);
          }
          break;
        case '>':
          if (token.is(">") || token.is(">>")) close_angles(i);
          break;
        case ';':
          angles_.resize(angle_base());
          break;
        default:
          break;
      }
    }
    if (!open_.empty()) {
      const Token& token = tokens_[open_.back().at];
      sources_.fail(token, "\"" + std::string(token.text) + "\" is never closed");
    }
    return std::move(match_);
  }

 private:
  struct Open {
    Index at;
    std::size_t angle_base;  // angle brackets opened outside
  };

  // Bounds what stands between two commas, semicolons or braces, and heads of statements in a row.
  void count_run(const Token& token) {
    if (token.is(";") || token.is("{") || token.is("}")) {
      run_ = heads_ = 0;
    } else if (token.is(",")) {
      run_ = 0;
    } else if (++run_ > max_run) {
      sources_.fail(token, "an expression has more than " + std::to_string(max_run) + " tokens");
    }
    const bool head = token.is("if") || token.is("else") || token.is("for") || token.is("while");
    if (head && ++heads_ > max_nesting) {
      sources_.fail(token, "statements nest deeper than " + std::to_string(max_nesting));
    }
  }

  // An else goes on with the statement before it; any other statement of the same braces ends the chain.
  void count_branches(Index i) {
    const Token& token = tokens_[i];
    if (token.is("{")) {
      branches_.push_back(0);
    } else if (token.is("}") && branches_.size() > 1) {
      branches_.pop_back();
    } else if (token.is("else") && ++branches_.back() > max_branches) {
      sources_.fail(token, "an if has more than " + std::to_string(max_branches) + " branches");
    }
    const bool ends = token.is("}") || token.is(";");
    if (ends && (i + 1 == tokens_.size() || !tokens_[i + 1].is("else"))) branches_.back() = 0;
  }

  std::size_t angle_base() const { return open_.empty() ? 0 : open_.back().angle_base; }

  void open(Index i) {
    if (open_.size() >= max_nesting) {
      sources_.fail(tokens_[i], "brackets nest deeper than " + std::to_string(max_nesting));
    }
    open_.push_back({i, angles_.size()});
  }

  void close(Index i) {
    const char c = tokens_[i].text[0];
    const char wanted = c == ')' ? '(' : c == ']' ? '[' : '{';
    if (open_.empty() || tokens_[open_.back().at].text[0] != wanted) {
      sources_.fail(tokens_[i], std::string("\"") + c + "\" closes nothing");
    }
    angles_.resize(open_.back().angle_base);
    match_[i] = open_.back().at;
    match_[open_.back().at] = i;
    open_.pop_back();
  }

  void close_angles(Index i) {
    for (std::size_t n = tokens_[i].text.size(); n > 0 && angles_.size() > angle_base(); --n) {
      match_[i] = angles_.back();
      match_[angles_.back()] = i;
      angles_.pop_back();
    }
  }

  const SourceSet& sources_;
  const std::vector<Token>& tokens_;
  std::vector<Index> match_;
  std::vector<Open> open_;
  std::vector<Index> angles_;
  std::size_t run_ = 0;
  std::size_t heads_ = 0;
  std::vector<std::size_t> branches_ = {0};  // of the chain that goes on in each open brace
};

}  // namespace

bool is_address_space(std::string_view word) {
  static constexpr std::string_view words[] = {"device",   "constant",    "threadgroup",           "thread",
                                               "ray_data", "object_data", "threadgroup_imageblock"};
  return one_of(word, words);
}

bool is_qualifier(std::string_view word) {
  static constexpr std::string_view words[] = {
      "const",      "volatile",     "static",   "constexpr", "inline",  "extern",      "restrict",
      "__restrict", "__restrict__", "typename", "coherent",  "mutable", "register",    "kernel",
      "friend",     "__inline__",   "__inline", "explicit",  "virtual", "thread_local"};
  return one_of(word, words);
}

bool is_integer_word(std::string_view word) {
  static constexpr std::string_view words[] = {"unsigned", "signed", "int", "char", "short", "long"};
  return one_of(word, words);
}

Unit::Unit(const SourceSet& sources, std::vector<Token> tokens)
    : sources_(sources), tokens_(std::move(tokens)), match_(BracketMatcher(sources_, tokens_).run()) {
  DeclarationParser(*this).parse();
  for (const Item& item : items_) names_.insert(item.names.begin(), item.names.end());
}

Index Unit::skip_attribute(Index i) const {
  if (attribute_at(i)) return match_[i] + 1;
  if ((is_at(i, "__attribute__") || is_at(i, "alignas") || is_at(i, "__declspec")) && is_at(i + 1, "(")) {
    return match_[i + 1] + 1;
  }
  // coherent(device), coherent(system): among the qualifiers of what lies in device memory.
  const bool scope = is_at(i + 2, "device") || is_at(i + 2, "system") || is_at(i + 2, "threadgroup");
  if (is_at(i, "coherent") && is_at(i + 1, "(") && scope && is_at(i + 3, ")")) return i + 4;
  return i;
}

std::vector<Range> Unit::split_commas(Range range) const {
  std::vector<Range> parts;
  if (range.empty()) return parts;
  Index begin = range.begin;
  for (Index i = range.begin; i < range.end; ++i) {
    const Token& token = tokens_[i];
    if (token.kind != TokenKind::punctuator) continue;
    if (token.is("(") || token.is("[") || token.is("{")) {
      i = match_[i];
    } else if (token.is("<") && i > range.begin && tokens_[i - 1].is_identifier()) {
      const Index close = angle_close(i, range.end);
      if (close != no_index) i = close;
    } else if (token.is(",")) {
      parts.push_back({begin, i});
      begin = i + 1;
    }
  }
  parts.push_back({begin, range.end});
  return parts;
}

bool Unit::qualifies_member(Index i) const {
  const auto qualifies = [&](Index k) {
    return k < tokens_.size() && tokens_[k].is_identifier() &&
           (is_address_space(tokens_[k].text) || is_at(k, "const") || is_at(k, "volatile") ||
            is_at(k, "noexcept"));
  };
  Index first = i;
  while (first > 0 && qualifies(first - 1)) --first;
  if (first == 0 || !is_at(first - 1, ")")) return false;
  while (qualifies(i)) ++i;
  return is_at(i, "{") || is_at(i, ":") || is_at(i, ";") || is_at(i, "->") || is_at(i, "=");
}

Index Unit::signature_end(const Item& item) const {
  Index i = item.params.end + 1;
  while (i < item.tokens.end && tokens_[i].is_identifier() &&
         (is_address_space(tokens_[i].text) || is_at(i, "const") || is_at(i, "volatile") ||
          is_at(i, "noexcept"))) {
    ++i;
  }
  return i;
}

Index Unit::postfix_begin(Index end) const {
  Index first = end;
  for (int part = 0; first > 0 && part < max_postfix_parts; ++part) {
    const Token& token = tokens_[first - 1];
    const bool operand = token.is_identifier() || token.is(")") || token.is("]");
    if (operand && first < end && tokens_[first].is_identifier()) break;  // "return x", "if (a) x"
    if (token.is(")") || token.is("]")) {
      first = match_[first - 1];
    } else if (token.is_identifier() || token.is(".") || token.is("->") || token.is("::")) {
      --first;
    } else {
      break;
    }
  }
  return first;
}

Index Unit::skip_type(Index i, Index end) const {
  bool have_type = false;
  while (i < end) {
    if (const Index behind = skip_attribute(i); behind != i) {
      i = behind;
      continue;
    }
    const Token& token = tokens_[i];
    const bool scope = token.is("::");
    if (!token.is_identifier() && !scope) break;
    if (is_qualifier(token.text) || is_address_space(token.text)) {
      ++i;
    } else if (is_integer_word(token.text)) {
      have_type = true;
      ++i;
    } else if (have_type) {
      break;
    } else if (token.is("struct") || token.is("class") || token.is("union") || token.is("enum")) {
      ++i;
    } else if (token.is("decltype") && is_at(i + 1, "(")) {
      have_type = true;
      i = match_[i + 1] + 1;
    } else {
      have_type = true;
      if (scope) ++i;
      for (;;) {  // name, name<...>, name::name, name<...>::template name<...>
        ++i;
        if (is_at(i, "<")) {
          const Index close = angle_close(i, end);
          if (close == no_index) break;
          i = close + 1;
        }
        if (!is_at(i, "::")) break;
        ++i;
        if (is_at(i, "template")) ++i;
      }
    }
  }
  return std::min(i, end);
}

}  // namespace metalane::msl
