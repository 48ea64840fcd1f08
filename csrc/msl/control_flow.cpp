// A parser of statements; of expressions it knows calls, brackets and the operators that skip operands.
#include "msl/control_flow.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "msl/expression.h"
#include "msl/rendezvous.h"

namespace metalane::msl {
namespace {

class NoNames final : public ExpressionNames {
  std::optional<std::int64_t> operand(std::span<const Token>, std::size_t&) const override { return {}; }
};

// Each level is a few frames of this parser. Clang takes 256 levels of braces.
constexpr int max_statement_depth = 1000;
// Tokens of a loop's body that are searched for changes of its counter: nested loops stay cheap to read.
constexpr Index max_counted_body = 2000;

class FlowReader {
 public:
  FlowReader(const FlowContext& context, const Item& function)
      : context_(context), unit_(context.unit), limit_(function.body.end) {}

  ControlFlow read(Index open) {
    block(open);
    return std::move(flow_);
  }

 private:
  bool is(Index i, std::string_view spelling) const { return i < limit_ && unit_.is_at(i, spelling); }

  void add(EventKind kind, Index at, Index close, std::uint32_t depth) {
    flow_.events.push_back({kind, at, close, depth});
  }

  void meet(Index i) {
    if (context_.lockstep.meets_at(i)) add(EventKind::meeting, i, i, depth_);
  }

  // The statements of the braces that open at `i`; returns what follows these.
  Index block(Index i) {
    const Index end = unit_.match(i);
    for (Index at = i + 1; at < end;) at = statement(at);
    meet(end);
    return end + 1;
  }

  // Each of these returns the token behind the statement at `i`.
  Index statement(Index i) {
    if (++nesting_ > max_statement_depth)
      unit_.sources().fail(unit_.at(i), "statements nest deeper than " + std::to_string(max_statement_depth));
    meet(i);
    const Index end = unlabelled(skip_labels(i));
    --nesting_;
    return end;
  }

  // Behind attributes and the labels of a switch.
  Index skip_labels(Index i) const {
    for (;;) {
      if (const Index behind = unit_.skip_attribute(i); behind != i) {
        i = behind;
      } else if (is(i, "case") || (is(i, "default") && is(i + 1, ":"))) {
        while (i < limit_ && !is(i, ":")) i = is_open(i) ? unit_.match(i) + 1 : i + 1;
        ++i;
      } else {
        return i;
      }
    }
  }

  Index unlabelled(Index i) {
    if (i >= limit_) return limit_;
    if (is(i, "{")) return block(i);
    const bool head = is(i + 1, "(");
    if (is(i, "if") && (head || (is(i + 1, "constexpr") && is(i + 2, "(")))) return if_statement(i);
    if (is(i, "for") && head) return for_loop(i);
    if (is(i, "while") && head) return while_loop(i);
    if (is(i, "do")) return do_loop(i);
    if (is(i, "switch") && head) {
      expression({i + 2, unit_.match(i + 1)});
      return skippable(unit_.match(i + 1) + 1);
    }
    if (is(i, "continue") && !open_loops_.empty()) flow_.loops[open_loops_.back()].has_continue = true;
    const Index end = statement_end(i);
    expression({i, end});
    if (is(i, "return")) flow_.returned = std::min(flow_.returned, flow_.events.size());
    return std::min(end + 1, limit_);
  }

  Index skippable(Index i) {
    ++depth_;
    const Index end = statement(i);
    --depth_;
    return end;
  }

  // A chain of else-ifs is read in one go, however long.
  Index if_statement(Index i) {
    const std::uint32_t outer = depth_;
    for (;;) {
      const Index open = is(i + 1, "constexpr") ? i + 2 : i + 1;
      if (!is(open, "(")) break;
      expression({open + 1, unit_.match(open)});
      depth_ = outer + 1;
      i = statement(unit_.match(open) + 1);
      if (!is(i, "else")) break;
      ++i;
      if (!is(i, "if")) {
        i = statement(i);
        break;
      }
    }
    depth_ = outer;
    return i;
  }

  std::size_t open_loop(Index i) {
    add(EventKind::loop, i, i, depth_);
    flow_.loops.push_back({{i, i}, {}, flow_.events.size(), 0, 0, ++depth_, false});
    return flow_.loops.size() - 1;
  }

  Index repeated(std::size_t loop, Index i) {
    open_loops_.push_back(loop);
    const Index end = statement(i);
    open_loops_.pop_back();
    flow_.loops[loop].body = {i, end};
    flow_.loops[loop].tail = flow_.events.size();
    return end;
  }

  Index close_loop(std::size_t loop, Index end) {
    --depth_;
    flow_.loops[loop].end = flow_.events.size();
    flow_.loops[loop].tokens.end = end;
    return end;
  }

  Index for_loop(Index i) {
    const Index close = unit_.match(i + 1);
    const Index first = std::min(statement_end(i + 2), close);
    const Index second = first < close ? std::min(statement_end(first + 1), close) : close;
    const Range start = {i + 2, first}, condition = {first + 1, second}, step = {second + 1, close};
    const bool fixed = repeats_a_fixed_number(start, condition, step, close + 1);
    const std::size_t loop = open_loop(i);
    if (fixed) --flow_.loops[loop].depth, --depth_;
    expression(start);
    const Index end = repeated(loop, close + 1);
    expression(step);
    expression(condition);
    if (fixed) ++depth_;
    return close_loop(loop, end);
  }

  std::optional<std::int64_t> value(Range range) const {
    if (range.empty()) return {};
    return evaluate({&unit_.at(range.begin), range.end - range.begin}, NoNames());
  }

  // "for (int i = 0; i < 4; ++i)", whose body leaves i alone and is not left early: all lanes come by what is
  // in it, as if it were written out.
  bool repeats_a_fixed_number(Range start, Range condition, Range step, Index body) const {
    Index name = start.begin;
    while (name < start.end && !is(name + 1, "=")) ++name;
    if (name >= start.end || condition.empty() || step.empty()) return false;
    const std::string_view counter = unit_.at(name).text;
    const bool counts_up =
        step.end - step.begin == 2 && ((is(step.begin, "++") && is(step.begin + 1, counter)) ||
                                       (is(step.begin, counter) && is(step.begin + 1, "++")));
    if (!counts_up || !is(condition.begin, counter) || !is(condition.begin + 1, "<")) return false;
    const auto from = value({name + 2, start.end}), to = value({condition.begin + 2, condition.end});
    if (!from || !to || *from >= *to) return false;
    const Index end = is(body, "{") ? unit_.match(body) : statement_end(body);
    if (end - body > max_counted_body) return false;
    for (Index i = body; i < end; ++i) {
      if (is(i, "break") || is(i, "continue") || is(i, "return")) return false;
      if (is(i, counter) && may_change(i)) return false;
    }
    return true;
  }

  // Whether the variable whose name stands at `i` is written there, or handed on whole.
  bool may_change(Index i) const {
    static const std::unordered_set<std::string_view> writes = {
        "=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"};
    const bool alone = (is(i - 1, "(") || is(i - 1, ",")) && (is(i + 1, ")") || is(i + 1, ","));
    return alone || is(i - 1, "++") || is(i - 1, "--") || is(i - 1, "&") ||
           writes.count(unit_.at(i + 1).text);
  }

  Index while_loop(Index i) {
    const Index close = unit_.match(i + 1);
    const std::size_t loop = open_loop(i);
    const Index end = repeated(loop, close + 1);
    expression({i + 2, close});
    return close_loop(loop, end);
  }

  Index do_loop(Index i) {
    const std::size_t loop = open_loop(i);
    Index end = repeated(loop, i + 1);
    if (is(end, "while") && is(end + 1, "(")) {
      expression({end + 2, unit_.match(end + 1)});
      end = unit_.match(end + 1) + 1;
      if (is(end, ";")) ++end;
    }
    return close_loop(loop, end);
  }

  bool is_open(Index i) const { return is(i, "(") || is(i, "[") || is(i, "{"); }

  // The semicolon that ends what begins at `i`.
  Index statement_end(Index i) const {
    while (i < limit_ && !is(i, ";") && !is(i, ")") && !is(i, "}"))
      i = is_open(i) ? unit_.match(i) + 1 : i + 1;
    return std::min(i, limit_);
  }

  // Operands behind &&, || and ? may be skipped, up to the bracket that they stand in.
  void expression(Range range) {
    struct Bracket {
      Index close;
      std::uint32_t skipped;
    };
    std::vector<Bracket> brackets;
    std::vector<Event> calls;  // whose arguments are being read
    std::uint32_t skipped = 0;
    for (Index i = range.begin; i < range.end; ++i) {
      const Token& token = unit_.at(i);
      if (token.is_identifier()) {
        const auto record = context_.local_records.find(i);
        if (record != context_.local_records.end()) {
          i = record->second->body.end;  // its functions are read by themselves
        } else if (is_unevaluated(i)) {
          i = unit_.match(i + 1);
        } else if (token.is("and") || token.is("or")) {
          skipped = 1;
        } else {
          note_call(i, depth_ + skipped, calls);
        }
      } else if (is_open(i)) {
        brackets.push_back({unit_.match(i), skipped});
      } else if (token.is("&&") || token.is("||") || token.is("?")) {
        skipped = 1;
      }
      while (!calls.empty() && calls.back().close == i) {
        flow_.events.push_back(calls.back());
        calls.pop_back();
      }
      if (!brackets.empty() && brackets.back().close == i) {
        skipped = brackets.back().skipped;
        brackets.pop_back();
      }
    }
  }

  bool is_unevaluated(Index i) const {
    return is(i + 1, "(") && (is(i, "sizeof") || is(i, "decltype") || is(i, "alignof") || is(i, "noexcept"));
  }

  // A function of the source that is named like one of the library may be either: a call and a rendezvous.
  void note_call(Index i, std::uint32_t depth, std::vector<Event>& calls) const {
    const std::string_view name = unit_.at(i).text;
    const bool own = context_.is_own_function(name);
    const bool waits = is_rendezvous(name) && !unit_.is_at(i - 1, ".") && !unit_.is_at(i - 1, "->") &&
                       (own || !context_.lockstep.has_met(i));
    if (!own && !waits) return;
    const Index open = call_parenthesis(unit_, i);
    if (open == no_index || declares_next(unit_.at(i - 1))) return;
    const Index close = unit_.match(open);
    if (own) calls.push_back({EventKind::call, i, close, depth});
    if (waits) calls.push_back({EventKind::rendezvous, i, close, depth});
  }

  const FlowContext& context_;
  const Unit& unit_;
  const Index limit_;
  ControlFlow flow_;
  std::vector<std::size_t> open_loops_;
  std::uint32_t depth_ = 0;
  int nesting_ = 0;
};

}  // namespace

ControlFlow read_control_flow(const FlowContext& context, const Item& function) {
  return FlowReader(context, function).read(function.body.begin - 1);
}

}  // namespace metalane::msl
