// Tokens, the texts they come from, and errors that point into those texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace metalane::msl {

// Longer than any kernel file in the field by two orders of magnitude, and read in well under 2 s.
inline constexpr std::size_t max_text_bytes = std::size_t(8) << 20;

enum class TokenKind : std::uint8_t {
  identifier,
  number,
  string,
  character,
  punctuator,
  unknown,  // no token of the language: an error unless it stands in a skipped #if group
};

// `text` refers to a SourceSet. A token made by a macro has the place of the outermost macro's name.
struct Token {
  std::string_view text;
  std::uint32_t line = 0;
  std::uint16_t column = 0;  // 1-based; 65535 stands for everything beyond
  std::uint16_t file = 0;    // index into SourceSet
  TokenKind kind = TokenKind::unknown;
  bool space_before = false;
  bool line_start = false;
  bool no_expand = false;  // a macro's name met inside its own expansion

  bool is(std::string_view spelling) const noexcept { return text == spelling; }
  bool is_identifier() const noexcept { return kind == TokenKind::identifier; }
};

struct SourceFile {
  std::string name;
  std::string text;  // with line splices removed
  std::vector<Token> tokens;
  std::vector<std::size_t> splices;  // offsets in `text` at which a backslash and its line end stood
};

// All texts of one program. Files and made-up spellings stay where they are once added.
class SourceSet {
 public:
  // Lexes `text`; throws CompileError (unterminated comment, too long).
  const SourceFile& add(const std::string& name, const std::string& text);
  // A name that #line gives, without a text of its own.
  std::uint16_t add_name(const std::string& name);
  std::string_view keep(std::string spelling);
  const std::string& name(std::uint16_t file) const { return files_[file].name; }
  std::size_t file_count() const { return files_.size(); }
  // Throws CompileError "<file>:<line>:<column>: <what>" and the offending line with a caret below.
  [[noreturn]] void fail(const Token& at, const std::string& what) const;
  [[noreturn]] void fail(std::uint16_t file, std::uint32_t line, std::uint32_t column,
                         const std::string& what) const;
  // A compiler's messages about the emitted program, each that names one of these texts followed by its line.
  std::string explain(std::string_view messages) const;

 private:
  SourceFile& new_file(const std::string& name);
  std::string shown_line(std::uint16_t file, std::uint32_t line, std::uint32_t column) const;
  std::deque<SourceFile> files_;
  std::deque<std::string> spellings_;
};

// Cuts `file.text` into `file.tokens`.
void lex(const SourceSet& sources, SourceFile& file, std::uint16_t index);

// What a string literal without a prefix holds; escapes other than \" \\ \n \t stay as they are.
std::string string_value(std::string_view literal);
// The literal that holds `value`.
std::string quoted(std::string_view value);

}  // namespace metalane::msl
