// Precedence climbing over tokens, with a bound on depth.
#include "msl/expression.h"

#include <limits>
#include <string_view>

namespace metalane::msl {
namespace {

constexpr int max_depth = 200;

struct Operator {
  std::string_view spelling;
  int precedence;
};
constexpr Operator operators[] = {{"||", 1}, {"&&", 2}, {"|", 3}, {"^", 4},  {"&", 5},  {"==", 6},
                                  {"!=", 6}, {"<", 7},  {">", 7}, {"<=", 7}, {">=", 7}, {"<<", 8},
                                  {">>", 8}, {"+", 9},  {"-", 9}, {"*", 10}, {"/", 10}, {"%", 10}};

int precedence_of(const Token& token) {
  for (const Operator& op : operators) {
    if (token.is(op.spelling)) return op.precedence;
  }
  return 0;
}

using Value = std::optional<std::int64_t>;

Value apply(std::string_view op, std::int64_t a, std::int64_t b) {
  const auto ua = static_cast<std::uint64_t>(a);
  const auto ub = static_cast<std::uint64_t>(b);
  if (op == "||") return a || b;
  if (op == "&&") return a && b;
  if (op == "|") return a | b;
  if (op == "^") return a ^ b;
  if (op == "&") return a & b;
  if (op == "==") return a == b;
  if (op == "!=") return a != b;
  if (op == "<") return a < b;
  if (op == ">") return a > b;
  if (op == "<=") return a <= b;
  if (op == ">=") return a >= b;
  if (op == "+") return static_cast<std::int64_t>(ua + ub);
  if (op == "-") return static_cast<std::int64_t>(ua - ub);
  if (op == "*") return static_cast<std::int64_t>(ua * ub);
  if (op == "<<" || op == ">>") {
    if (b < 0 || b > 63) return std::nullopt;
    return op == "<<" ? static_cast<std::int64_t>(ua << b) : a >> b;
  }
  if (b == 0 || (b == -1 && a == std::numeric_limits<std::int64_t>::min())) return std::nullopt;
  return op == "/" ? a / b : a % b;
}

class Evaluator {
 public:
  Evaluator(std::span<const Token> tokens, const ExpressionNames& names) : tokens_(tokens), names_(names) {}

  Value run() {
    const Value value = conditional();
    return at_ == tokens_.size() ? value : std::nullopt;
  }

 private:
  bool at_end() const { return at_ >= tokens_.size(); }
  bool take(std::string_view spelling) {
    if (at_end() || !tokens_[at_].is(spelling)) return false;
    ++at_;
    return true;
  }

  // An operand that is not evaluated (the other branch, say) may be meaningless: `defined(A) && 1 / A`.
  Value conditional() {
    if (++depth_ > max_depth) return std::nullopt;
    Value condition = binary(1);
    if (take("?")) {
      const Value yes = conditional();
      if (!take(":")) return std::nullopt;
      const Value no = conditional();
      if (condition) condition = *condition ? yes : no;
    }
    --depth_;
    return condition;
  }

  Value binary(int lowest) {
    if (++depth_ > max_depth) return std::nullopt;
    Value left = unary();
    while (!at_end()) {
      const Token& op = tokens_[at_];
      const int precedence = precedence_of(op);
      if (precedence == 0 || precedence < lowest) break;
      ++at_;
      const Value right = binary(precedence + 1);
      if (left && op.is("||") && *left) {
        left = 1;
      } else if (left && op.is("&&") && !*left) {
        left = 0;
      } else {
        left = left && right ? apply(op.text, *left, *right) : std::nullopt;
      }
    }
    --depth_;
    return left;
  }

  Value unary() {
    const std::size_t first = at_;
    while (take("!") || take("-") || take("+") || take("~")) {
    }
    const std::size_t last = at_;
    Value value = primary();
    for (std::size_t i = last; i > first && value; --i) {
      const Token& op = tokens_[i - 1];
      if (op.is("!")) value = !*value;
      if (op.is("~")) value = ~*value;
      if (op.is("-")) value = static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(*value));
    }
    return value;
  }

  Value primary() {
    if (at_end()) return std::nullopt;
    if (take("(")) {
      const Value value = conditional();
      return take(")") ? value : std::nullopt;
    }
    const Token& token = tokens_[at_];
    if (token.is_identifier()) return names_.operand(tokens_, at_);
    ++at_;
    return literal_value(token);
  }

  std::span<const Token> tokens_;
  const ExpressionNames& names_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

Value character_value(std::string_view text) {
  if (text.size() == 3) return text[1];
  if (text.size() != 4 || text[1] != '\\') return std::nullopt;
  switch (text[2]) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case '0':
      return 0;
    case '\\':
    case '\'':
    case '"':
      return text[2];
    default:
      return std::nullopt;
  }
}

}  // namespace

Value literal_value(const Token& token) {
  std::string_view text = token.text;
  if (token.kind == TokenKind::character) return character_value(text);
  if (token.kind != TokenKind::number) return std::nullopt;
  unsigned base = 10;
  if (text.size() > 1 && text[0] == '0') {
    const char mark = text[1] | 0x20;
    base = mark == 'x' ? 16 : mark == 'b' ? 2 : 8;
    text.remove_prefix(base == 8 ? 1 : 2);
  }
  while (!text.empty() && ((text.back() | 0x20) == 'u' || (text.back() | 0x20) == 'l')) text.remove_suffix(1);
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c == '\'') continue;
    const char lower = c | 0x20;
    const unsigned digit = c >= '0' && c <= '9'           ? unsigned(c - '0')
                           : lower >= 'a' && lower <= 'f' ? unsigned(lower - 'a' + 10)
                                                          : 99u;
    if (digit >= base || value > (std::numeric_limits<std::uint64_t>::max() - digit) / base)
      return std::nullopt;
    value = value * base + digit;
  }
  return static_cast<std::int64_t>(value);
}

Value evaluate(std::span<const Token> tokens, const ExpressionNames& names) {
  return Evaluator(tokens, names).run();
}

}  // namespace metalane::msl
