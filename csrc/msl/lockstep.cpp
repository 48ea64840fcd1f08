// Finds, by the tokens alone, where one lane writes threadgroup memory that others may still read.
#include "msl/lockstep.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "msl/expression.h"

namespace metalane::msl {
namespace {

// The longest statement without braces that is looked at, in tokens: the reader takes no longer ones.
constexpr Index max_statement = 4000;

// Names declared with the word `threadgroup` anywhere: a name too many costs time, never a result.
std::unordered_set<std::string_view> threadgroup_names(const Unit& unit) {
  std::unordered_set<std::string_view> names;
  const Index count = static_cast<Index>(unit.tokens().size());
  for (Index i = 0; i < count; ++i) {
    if (!unit.is_at(i, "threadgroup")) continue;
    Index last = no_index;
    Index k = i + 1;
    for (; k < count; ++k) {
      const Token& token = unit.at(k);
      if (token.is("threadgroup")) break;
      if ((token.is("<") && unit.match(k) != no_index) || token.is("[")) {
        k = unit.match(k);
      } else if (token.is(",") && unit.is_at(k - 1, "]") && !unit.is_at(k + 2, "[")) {
        break;  // the end of a parameter
      } else if (token.is_identifier() || token.is(",")) {
        if (token.is_identifier()) last = k;
        if (token.is(",") && last != no_index) names.insert(unit.at(last).text);
      } else if (!token.is("*") && !token.is("&") && !token.is("::")) {
        break;
      }
    }
    if (last != no_index) names.insert(unit.at(last).text);
  }
  return names;
}

bool assigns(const Token& token) {
  static const std::unordered_set<std::string_view> words = {
      "=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="};
  return token.kind == TokenKind::punctuator && words.count(token.text) != 0;
}

// The assignments to threadgroup memory, in order.
std::vector<Index> threadgroup_stores(const Unit& unit) {
  std::vector<Index> stores;
  const auto names = threadgroup_names(unit);
  const Index count = static_cast<Index>(unit.tokens().size());
  for (Index i = 1; i < count && !names.empty(); ++i) {
    if (!assigns(unit.at(i))) continue;
    Index begin = unit.postfix_begin(i);
    if (begin > 0 && unit.is_at(begin - 1, ")")) begin = unit.match(begin - 1);  // "*(threadgroup T*)(p + i)"
    const bool stored = std::any_of(unit.tokens().begin() + begin, unit.tokens().begin() + i,
                                    [&](const Token& token) { return names.count(token.text) != 0; });
    if (stored) stores.push_back(i);
  }
  return stores;
}

}  // namespace

Lockstep::Lockstep(const Unit& unit) : unit_(unit) {
  meet_behind_writers();
  meet_before_loads();
}

void Lockstep::meet_behind_writers() {
  const Unit& unit = unit_;
  const std::vector<Index> stores = threadgroup_stores(unit);
  const Index count = static_cast<Index>(unit.tokens().size());
  for (Index i = 1; i + 1 < count; ++i) {
    const bool in_block = unit.is_at(i - 1, ";") || unit.is_at(i - 1, "{") || unit.is_at(i - 1, "}");
    if (!in_block || !unit.is_at(i, "if") || !unit.is_at(i + 1, "(")) continue;
    const Index close = unit.match(i + 1);
    const auto store = std::lower_bound(stores.begin(), stores.end(), close);
    if (store == stores.end()) return;
    Index end = close + 1;
    if (unit.is_at(end, "{")) {
      end = unit.match(end);
    } else if (*store < end + max_statement) {
      while (end < count && !unit.is_at(end, ";")) ++end;
    }
    if (*store < end && !unit.is_at(end + 1, "else") && !is_barrier(end + 1) && picks_lane({i + 2, close}))
      meetings_.insert(end + 1);
  }
}

// A loop that does nothing but load meets once, before it.
void Lockstep::meet_before_loads() {
  const Index count = static_cast<Index>(unit_.tokens().size());
  for (Index i = 1; i < count; ++i) {
    if (!unit_.is_at(i, "simdgroup_load")) continue;
    Index begin = unit_.postfix_begin(i + 1);
    const bool looped =
        begin > 1 && unit_.is_at(begin - 1, ")") && unit_.is_at(unit_.match(begin - 1) - 1, "for");
    if (looped) begin = unit_.match(begin - 1) - 1;
    const bool met = follows_meeting(begin);
    if (!met && !looped) continue;
    if (!met && !unit_.is_at(begin - 1, ";") && !unit_.is_at(begin - 1, "{") && !unit_.is_at(begin - 1, "}"))
      continue;
    if (!met) meetings_.insert(begin);
    met_loads_.insert(i);
  }
}

// Whether the statement before the one at `i` is a barrier, or a load before which lanes met.
bool Lockstep::follows_meeting(Index i) const {
  if (i < 3 || !unit_.is_at(i - 1, ";") || !unit_.is_at(i - 2, ")")) return false;
  const Index name = unit_.match(i - 2) - 1;
  return is_barrier(name) || unit_.is_at(name, "simdgroup_load");
}

bool Lockstep::picks_lane(Range condition) const {
  for (Index i = condition.begin; i < condition.end; ++i) {
    const Token& token = unit_.at(i);
    if (token.is(";") || token.is("=")) return false;  // declares a variable
    if (token.is("simd_is_first") || token.is("!")) return true;
    if (!token.is("==") || i + 1 >= condition.end) continue;
    for (const Index side : {i - 1, i + 1}) {
      if (unit_.at(side).kind == TokenKind::number && literal_value(unit_.at(side)) == 0) return true;
    }
  }
  return false;
}

bool Lockstep::is_barrier(Index i) const {
  if (unit_.is_at(i, "metal") && unit_.is_at(i + 1, "::")) i += 2;
  return unit_.is_at(i, "threadgroup_barrier") || unit_.is_at(i, "simdgroup_barrier");
}

}  // namespace metalane::msl
