// Puts headers in place, line by line of the lexed files: what is no directive is copied as it stands.
#include "msl/metal_text.h"

#include <algorithm>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "core/hash.h"
#include "msl/expression.h"
#include "msl/preprocessor.h"
#include "msl/token.h"

namespace metalane::msl {
namespace {

// MTLMathModeSafe still contracts within an expression (Metal Shading Language 1.6.3). The first spelling is
// that section's; the second is what compilers before it know, being Clang.
constexpr std::string_view safe_pragmas =
    "#pragma METAL fp contract(off)\n"
    "#pragma clang fp contract(off)\n";

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";  // an editor's

class HeaderInliner {
 public:
  explicit HeaderInliner(const std::map<std::string, std::string>& headers) : headers_(headers) {}

  std::string run(const std::string& name, const std::string& text, MathMode math) {
    if (math == MathMode::safe) text_ = safe_pragmas;
    append_file(sources_.add(name, text));
    return std::move(text_);
  }

 private:
  // A file on its way into the text. What the compiler is told of lines may differ from where they stand, by
  // the file's own #line.
  struct OpenFile {
    const SourceFile& file;
    std::size_t copied = 0;       // bytes of file.text that are in the text
    std::size_t next_splice = 0;  // in file.splices
    std::int64_t line_shift = 0;
    std::string presumed_name;
    int conditionals = 0;  // #if that are open
  };

  void append_file(const SourceFile& file) {
    OpenFile open{.file = file, .presumed_name = file.name};
    if (file.text.starts_with(byte_order_mark)) open.copied = byte_order_mark.size();
    files_.push_back(&open);
    mark_line(1, file.name);
    for (std::size_t i = 0; i < file.tokens.size();) {
      std::size_t end = i + 1;
      if (file.tokens[i].line_start && file.tokens[i].is("#")) {
        while (end < file.tokens.size() && !file.tokens[end].line_start) ++end;
        directive(open, std::span(file.tokens).subspan(i, end - i));
      }
      i = end;
    }
    copy_until(open, file.text.size());
    files_.pop_back();
  }

  void directive(OpenFile& open, std::span<const Token> line) {
    if (line.size() < 2) return;
    const Token& word = line[1];
    const std::span<const Token> rest = line.subspan(2);
    if (word.is("if") || word.is("ifdef") || word.is("ifndef")) ++open.conditionals;
    if (word.is("endif")) --open.conditionals;
    if (word.is("include") || word.is("import")) {
      include(open, line);
    } else if (word.is("if") || word.is("elif")) {
      answer_has_include(open, rest);
    } else if (word.is("pragma") && !rest.empty() && rest.front().is("once")) {
      drop(open, line);  // a guard stands in for it, and a source is not included
    } else if (word.is("line")) {
      note_line_directive(open, line);
    }
  }

  void include(OpenFile& open, std::span<const Token> line) {
    const std::string name = header_of(open, line.subspan(2));
    const auto found = headers_.find(name);
    if (found == headers_.end()) return;
    drop(open, line);
    // A header inside itself finds its guard defined, and so does one that was certainly read before.
    const bool inside_itself = std::any_of(files_.begin(), files_.end(),
                                           [&](const OpenFile* file) { return file->file.name == name; });
    if (inside_itself || read_.contains(name)) return;
    if (files_.size() >= max_include_depth) {
      sources_.fail(line[1], "includes nest deeper than " + std::to_string(max_include_depth));
    }
    auto [lexed, fresh] = lexed_.try_emplace(name, nullptr);
    if (fresh) lexed->second = &sources_.add(name, found->second);
    const SourceFile& header = *lexed->second;
    const bool guarded = line[1].is("import") || has_pragma_once(header);
    const std::string guard = "METALANE_ONCE_" + core::sha256_hex(name).substr(0, 16);
    text_ += '\n';
    if (guarded) text_ += "#ifndef " + guard + "\n#define " + guard + "\n";
    append_file(header);
    if (guarded) text_ += "\n#endif";
    text_ += '\n';
    const bool certain = std::all_of(files_.begin(), files_.end(),
                                     [](const OpenFile* file) { return file->conditionals == 0; });
    if (guarded && certain) read_.insert(name);
    mark_line(line.back().line + open.line_shift, open.presumed_name);
  }

  // The registered header that an #include or __has_include names; empty for others.
  std::string header_of(const OpenFile& open, std::span<const Token> operand) const {
    HeaderName name;
    if (!read_header_name(operand, name)) return {};
    const auto* found = find_header(headers_, open.file.name, name);
    return found != nullptr ? found->first : std::string();
  }

  static bool has_pragma_once(const SourceFile& file) {
    for (std::size_t i = 0; i + 2 < file.tokens.size(); ++i) {
      const Token* token = &file.tokens[i];
      if (token[0].line_start && token[0].is("#") && token[1].is("pragma") && token[2].is("once"))
        return true;
    }
    return false;
  }

  void answer_has_include(OpenFile& open, std::span<const Token> rest) {
    for (std::size_t i = 0; i + 1 < rest.size(); ++i) {
      if (!rest[i].is("__has_include") || !rest[i + 1].is("(")) continue;
      std::size_t close = i + 2;
      while (close < rest.size() && !rest[close].is(")")) ++close;
      if (close == rest.size() || header_of(open, rest.subspan(i + 2, close - i - 2)).empty()) continue;
      drop(open, rest.subspan(i, close - i + 1));
      text_ += '1';
      i = close;
    }
  }

  // The compiler reads it in the text, too; after an include the mark has to go on from it.
  void note_line_directive(OpenFile& open, std::span<const Token> line) {
    const auto number = line.size() > 2 ? literal_value(line[2]) : std::nullopt;
    if (!number) return;
    open.line_shift = *number - line.back().line - 1;
    if (line.size() > 3 && line[3].kind == TokenKind::string) open.presumed_name = string_value(line[3].text);
  }

  // ---- bytes

  // The tokens do not come into the text; what stands before them does.
  void drop(OpenFile& open, std::span<const Token> tokens) {
    const char* const begin = open.file.text.data();
    copy_until(open, static_cast<std::size_t>(tokens.front().text.data() - begin));
    const std::string_view last = tokens.back().text;
    const std::size_t end = static_cast<std::size_t>(last.data() - begin) + last.size();
    for (; splice_before(open, end); ++open.next_splice) text_ += "\\\n";
    open.copied = end;
  }

  void copy_until(OpenFile& open, std::size_t end) {
    const std::string& from = open.file.text;
    for (; splice_before(open, end); ++open.next_splice) {
      const std::size_t splice = open.file.splices[open.next_splice];
      text_.append(from, open.copied, splice - open.copied);
      text_ += "\\\n";
      open.copied = splice;
    }
    text_.append(from, open.copied, end - open.copied);
    open.copied = end;
    if (text_.size() > max_text_bytes) {
      sources_.fail(
          0, 1, 1,
          "with its headers in place the source is longer than " + std::to_string(max_text_bytes) + " bytes");
    }
  }

  static bool splice_before(const OpenFile& open, std::size_t end) {
    return open.next_splice < open.file.splices.size() && open.file.splices[open.next_splice] < end;
  }

  void mark_line(std::int64_t line, const std::string& name) {
    text_ += "#line " + std::to_string(std::max<std::int64_t>(line, 0)) + " " + quoted(name) + "\n";
  }

  const std::map<std::string, std::string>& headers_;
  SourceSet sources_;
  std::map<std::string, const SourceFile*> lexed_;
  std::string text_;
  std::vector<const OpenFile*> files_;
  std::set<std::string> read_;  // headers whose guard is certainly defined from here on
};

}  // namespace

std::string metal_text(const std::string& name, const std::string& text,
                       const std::map<std::string, std::string>& headers, MathMode math) {
  return HeaderInliner(headers).run(name, text, math);
}

}  // namespace metalane::msl
