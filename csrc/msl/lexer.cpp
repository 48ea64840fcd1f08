// Text to tokens: identifiers, numbers, strings, punctuators; comments become white space.
#include <algorithm>
#include <array>

#include "msl/token.h"

namespace metalane::msl {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$';
}
bool is_word(char c) { return is_word_start(c) || is_digit(c); }

// Longest first, so that the first match is the right one.
constexpr std::array<std::string_view, 25> long_punctuators = {
    "<<=", ">>=", "...", "->*", "##", "::", "->", "++", "--", "<<", ">>", "<=", ">=",
    "==",  "!=",  "&&",  "||",  "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^="};
constexpr std::string_view single_punctuators = "{}[]()<>;:?.,+-*/%&|^~!=#@";

class Lexer {
 public:
  Lexer(const SourceSet& sources, SourceFile& file, std::uint16_t index)
      : sources_(sources), file_(file), text_(file.text), index_(index), splices_(file.splices) {}

  void run() {
    file_.tokens.reserve(text_.size() / 4);
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") at_ = line_begin_ = 3;  // an editor's byte order mark
    for (;;) {
      skip_space();
      if (at_ >= text_.size()) return;
      Token token;
      token.line = line_;
      token.column = static_cast<std::uint16_t>(std::min<std::size_t>(at_ - line_begin_ + 1, 65535));
      token.file = index_;
      token.space_before = space_;
      token.line_start = line_start_;
      const std::size_t begin = at_;
      token.kind = scan();
      token.text = text_.substr(begin, at_ - begin);
      file_.tokens.push_back(token);
      space_ = line_start_ = false;
      pass_splices();
    }
  }

 private:
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  void new_line() {
    ++line_;
    line_begin_ = at_;
  }

  // Counts the lines that were spliced away up to here.
  void pass_splices() {
    while (next_splice_ < splices_.size() && splices_[next_splice_] <= at_) {
      ++line_;
      line_begin_ = splices_[next_splice_++];
    }
  }

  void skip_space() {
    for (;;) {
      pass_splices();
      const char c = peek();
      if (at_ >= text_.size()) return;
      if (c == '\n') {
        ++at_;
        new_line();
        line_start_ = true;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f') {
        ++at_;
      } else if (c == '/' && peek(1) == '/') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '/' && peek(1) == '*') {
        skip_block_comment();
      } else {
        return;
      }
      space_ = true;
    }
  }

  void skip_block_comment() {
    const std::uint32_t line = line_;
    const std::size_t column = at_ - line_begin_ + 1;
    const std::size_t end = text_.find("*/", at_ + 2);
    if (end == std::string_view::npos) {
      sources_.fail(index_, line, static_cast<std::uint32_t>(column), "unterminated /* comment");
    }
    for (; at_ < end + 2; ++at_) {
      pass_splices();
      if (text_[at_] == '\n') {
        ++line_;
        line_begin_ = at_ + 1;
      }
    }
  }

  TokenKind scan() {
    const char c = peek();
    if (is_word_start(c)) {
      while (is_word(peek())) ++at_;
      return TokenKind::identifier;
    }
    if (is_digit(c) || (c == '.' && is_digit(peek(1)))) {
      scan_number();
      return TokenKind::number;
    }
    if (c == '"' || c == '\'') return scan_quoted(c);
    for (const std::string_view punctuator : long_punctuators) {
      if (text_.compare(at_, punctuator.size(), punctuator) == 0) {
        at_ += punctuator.size();
        return TokenKind::punctuator;
      }
    }
    ++at_;
    return single_punctuators.find(c) != std::string_view::npos ? TokenKind::punctuator : TokenKind::unknown;
  }

  // A preprocessing number: digits, letters, dots, digit separators, and signs behind an exponent's letter.
  void scan_number() {
    const bool hexadecimal = peek() == '0' && (peek(1) == 'x' || peek(1) == 'X');
    while (is_word(peek()) || peek() == '.' || (peek() == '\'' && is_word(peek(1)))) {
      const char c = text_[at_++];
      const bool exponent = hexadecimal ? c == 'p' || c == 'P' : c == 'e' || c == 'E';
      if (exponent && (peek() == '+' || peek() == '-')) ++at_;
    }
  }

  TokenKind scan_quoted(char quote) {
    ++at_;
    while (at_ < text_.size() && peek() != '\n') {
      const char c = text_[at_++];
      if (c == quote) return quote == '"' ? TokenKind::string : TokenKind::character;
      if (c == '\\' && peek() != '\n' && at_ < text_.size()) ++at_;
    }
    return TokenKind::unknown;
  }

  const SourceSet& sources_;
  SourceFile& file_;
  std::string_view text_;
  std::uint16_t index_;
  const std::vector<std::size_t>& splices_;
  std::size_t next_splice_ = 0;
  std::size_t at_ = 0;
  std::size_t line_begin_ = 0;
  std::uint32_t line_ = 1;
  bool space_ = false;
  bool line_start_ = true;
};

}  // namespace

void lex(const SourceSet& sources, SourceFile& file, std::uint16_t index) {
  Lexer(sources, file, index).run();
}

}  // namespace metalane::msl
