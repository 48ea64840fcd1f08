// Source texts, spellings, and errors with the offending line.
#include "msl/token.h"

#include <metalane/error.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace metalane::msl {
namespace {

constexpr std::size_t max_files = 60000;
constexpr std::size_t max_shown = 300;  // characters of an offending line

// Messages are text for Python too: what is no UTF-8 becomes question marks.
std::string as_utf8(std::string text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead >= 0xc2 && lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    bool valid = lead < 0x80 || (lead >= 0xc2 && lead < 0xf5 && i + length <= text.size());
    for (std::size_t k = 1; valid && k < length; ++k) valid = (text[i + k] & 0xc0) == 0x80;
    // Not in use: longer forms of shorter ones, surrogates, and what is beyond 0x10ffff.
    const auto second = valid && length > 2 ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (valid && length > 2) {
      valid = !((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
                (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f));
    }
    if (!valid) text[i] = '?';
    i += valid ? length : 1;
  }
  return text;
}

// Line `line` of the file as it was given, the part before a splice counting as one.
std::string line_of(const SourceFile& file, std::uint32_t line) {
  const std::string& text = file.text;
  std::size_t begin = 0, splice = 0;
  for (std::uint32_t i = 1;; ++i) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const bool spliced = splice < file.splices.size() && file.splices[splice] <= end;
    const std::size_t stop = spliced ? file.splices[splice] : end;
    if (i == line) {
      std::string found = text.substr(begin, std::min<std::size_t>(stop - begin, max_shown));
      for (char& c : found) {
        if (static_cast<unsigned char>(c) < 32 || c == 127) c = ' ';
      }
      return found;
    }
    if (!spliced && end == text.size()) return {};
    begin = spliced ? stop : end + 1;
    splice += spliced ? 1 : 0;
  }
}

}  // namespace

SourceFile& SourceSet::new_file(const std::string& name) {
  if (files_.size() >= max_files) throw CompileError("", name + ":1:1: too many included files");
  files_.emplace_back();
  files_.back().name = name;
  return files_.back();
}

const SourceFile& SourceSet::add(const std::string& name, const std::string& text) {
  SourceFile& file = new_file(name);
  const auto index = static_cast<std::uint16_t>(files_.size() - 1);
  if (text.size() > max_text_bytes) {
    fail(index, 1, 1,
         "the source has " + std::to_string(text.size()) + " bytes; at most " +
             std::to_string(max_text_bytes) + " are read");
  }
  file.text.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      const std::size_t after = text.compare(i + 1, 2, "\r\n") == 0 ? i + 2 : i + 1;
      if (after < text.size() && text[after] == '\n') {
        file.splices.push_back(file.text.size());
        i = after;
        continue;
      }
    }
    file.text += text[i];
  }
  lex(*this, file, index);
  return file;
}

std::uint16_t SourceSet::add_name(const std::string& name) {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (files_[i].name == name) return static_cast<std::uint16_t>(i);
  }
  new_file(name);
  return static_cast<std::uint16_t>(files_.size() - 1);
}

std::string_view SourceSet::keep(std::string spelling) {
  return spellings_.emplace_back(std::move(spelling));
}

void SourceSet::fail(const Token& at, const std::string& what) const {
  fail(at.file, at.line, at.column, what);
}

void SourceSet::fail(std::uint16_t file, std::uint32_t line, std::uint32_t column,
                     const std::string& what) const {
  throw CompileError("", as_utf8(files_[file].name + ":" + std::to_string(line) + ":" +
                                 std::to_string(column) + ": " + what + shown_line(file, line, column)));
}

// The line and a caret below it, each on a line of its own; nothing where the text has no such line.
std::string SourceSet::shown_line(std::uint16_t file, std::uint32_t line, std::uint32_t column) const {
  const std::string text = line_of(files_[file], line);
  if (text.empty()) return {};
  const bool inside = column > 0 && column <= text.size() + 1;
  return "\n  " + text + (inside ? "\n  " + std::string(column - 1, ' ') + "^" : "");
}

std::string SourceSet::explain(std::string_view messages) const {
  std::string text;
  while (!messages.empty()) {
    const std::string_view message = messages.substr(0, messages.find('\n'));
    const bool ended = message.size() < messages.size();
    messages.remove_prefix(message.size() + (ended ? 1 : 0));
    text += message;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const std::string& name = files_[i].name;
      if (files_[i].text.empty() || !message.starts_with(name)) continue;
      unsigned line = 0, column = 0;
      int length = 0;
      const std::string place(message.substr(name.size(), 40));
      if (std::sscanf(place.c_str(), ":%9u:%9u: %n", &line, &column, &length) != 2 || length == 0) continue;
      text += shown_line(static_cast<std::uint16_t>(i), line, column);
      break;
    }
    if (ended) text += '\n';
  }
  return as_utf8(std::move(text));
}

std::string string_value(std::string_view literal) {
  std::string value;
  for (std::size_t i = 1; i + 1 < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 2 >= literal.size()) {
      value += literal[i];
      continue;
    }
    switch (literal[++i]) {
      case 'n':
        value += '\n';
        break;
      case 't':
        value += '\t';
        break;
      case '"':
      case '\\':
        value += literal[i];
        break;
      default:
        value += '\\';
        value += literal[i];
    }
  }
  return value;
}

std::string quoted(std::string_view value) {
  static constexpr char octal[] = "01234567";
  std::string literal = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      literal += '\\';
      literal += c;
    } else if (byte < 32 || byte == 127) {
      literal += {'\\', octal[byte >> 6], octal[byte >> 3 & 7], octal[byte & 7]};
    } else {
      literal += c;
    }
  }
  return literal + "\"";
}

}  // namespace metalane::msl
