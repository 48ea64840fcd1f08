// Counting what lanes and threadgroups have in common.
#include "backends/cpu/check_log.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace metalane::cpu {
namespace {

constexpr std::uint64_t bank_bytes = 4;
constexpr std::size_t bank_count = 32;

using Logged = std::vector<LoggedAccess>;
using Iterator = Logged::iterator;

// Distinct bytes of [begin, end), which are sorted by their place.
std::uint64_t distinct_bytes(Iterator begin, Iterator end) {
  std::uint64_t total = 0, covered = 0;
  for (Iterator access = begin; access != end; ++access) {
    const std::uint64_t last = access->at + access->nbytes;
    if (last > covered) total += last - std::max(covered, access->at);
    covered = std::max(covered, last);
  }
  return total;
}

// Cache lines that one request touches; sorted by place.
std::uint64_t lines_of(Iterator begin, Iterator end, std::uint64_t line_offset) {
  std::uint64_t count = 0, next = 0;
  for (Iterator access = begin; access != end; ++access) {
    const std::uint64_t at = access->at + line_offset;
    const std::uint64_t first = std::max(next, at / CheckLog::line_bytes);
    const std::uint64_t behind = (at + access->nbytes - 1) / CheckLog::line_bytes + 1;
    if (behind > first) count += behind - first;
    next = std::max(next, behind);
  }
  return count;
}

// Turns that the banks need for one request: words of one bank are served one after another, one word to all
// that want it at once.
std::uint64_t bank_cycles_of(Iterator begin, Iterator end) {
  std::array<std::uint32_t, bank_count> words{};
  std::uint64_t next = 0;
  for (Iterator access = begin; access != end; ++access) {
    const std::uint64_t behind = (access->at + access->nbytes - 1) / bank_bytes + 1;
    for (std::uint64_t word = std::max(next, access->at / bank_bytes); word < behind; ++word)
      ++words[word % bank_count];
    next = std::max(next, behind);
  }
  return *std::max_element(words.begin(), words.end());
}

// Calls `f` for each run of accesses with equal `key`.
template <typename Key, typename F>
void for_runs(Iterator begin, Iterator end, Key key, F f) {
  while (begin != end) {
    const auto first = key(*begin);
    Iterator behind = begin;
    while (behind != end && key(*behind) == first) ++behind;
    f(begin, behind);
    begin = behind;
  }
}

}  // namespace

void CheckLog::begin_group() {
  accesses_.reserve(max_accesses);
  accesses_.clear();
}

void CheckLog::count(CheckedModule& module, const std::vector<LoggedRegion>& regions) {
  module.count_logged(accesses_.size());
  module.keep_samples(accesses_);
  const auto simdgroup = [](const LoggedAccess& access) { return access.thread / 32u; };
  const auto request = [&](const LoggedAccess& access) {
    return std::tuple(access.instruction, access.segment, access.turn, simdgroup(access));
  };
  std::sort(accesses_.begin(), accesses_.end(), [&](const LoggedAccess& a, const LoggedAccess& b) {
    return std::tuple_cat(request(a), std::tuple(a.at)) < std::tuple_cat(request(b), std::tuple(b.at));
  });
  for_runs(accesses_.begin(), accesses_.end(), request, [&](Iterator begin, Iterator end) {
    Instruction& instruction = module.instruction(begin->instruction);
    ++instruction.requests;
    const LoggedRegion& region = regions[instruction.region];
    if (region.is_threadgroup) {
      instruction.bank_cycles += bank_cycles_of(begin, end);
    } else {
      instruction.lines += lines_of(begin, end, region.line_offset);
    }
  });
  const auto of_instruction = [](const LoggedAccess& access) { return access.instruction; };
  const auto of_simdgroup = [&](const LoggedAccess& access) {
    return std::tuple(access.instruction, simdgroup(access));
  };
  std::sort(accesses_.begin(), accesses_.end(), [&](const LoggedAccess& a, const LoggedAccess& b) {
    return std::tuple_cat(of_simdgroup(a), std::tuple(a.at)) <
           std::tuple_cat(of_simdgroup(b), std::tuple(b.at));
  });
  for_runs(accesses_.begin(), accesses_.end(), of_simdgroup, [&](Iterator begin, Iterator end) {
    module.instruction(begin->instruction).simdgroup_nbytes += distinct_bytes(begin, end);
  });
  std::sort(accesses_.begin(), accesses_.end(), [&](const LoggedAccess& a, const LoggedAccess& b) {
    return std::tuple(a.instruction, a.at) < std::tuple(b.instruction, b.at);
  });
  for_runs(accesses_.begin(), accesses_.end(), of_instruction, [&](Iterator begin, Iterator end) {
    Instruction& instruction = module.instruction(begin->instruction);
    instruction.threadgroup_nbytes += distinct_bytes(begin, end);
    instruction.sampled_count += static_cast<std::uint64_t>(end - begin);
    for (Iterator access = begin; access != end; ++access) instruction.sampled_nbytes += access->nbytes;
  });
  count_regions(module);
}

// The same by argument instead of instruction.
void CheckLog::count_regions(CheckedModule& module) {
  const auto region = [&](const LoggedAccess& access) {
    return module.instruction(access.instruction).region;
  };
  using Counts = CheckedModule::RegionCounts;
  const auto add_distinct = [&](std::uint64_t Counts::* total, auto owner) {
    const auto key = [&](const LoggedAccess& access) { return std::tuple(region(access), owner(access)); };
    std::sort(accesses_.begin(), accesses_.end(), [&](const LoggedAccess& a, const LoggedAccess& b) {
      return std::tuple_cat(key(a), std::tuple(a.at)) < std::tuple_cat(key(b), std::tuple(b.at));
    });
    for_runs(accesses_.begin(), accesses_.end(), key, [&](Iterator begin, Iterator end) {
      module.region_counts(region(*begin)).*total += distinct_bytes(begin, end);
    });
  };
  add_distinct(&Counts::thread_nbytes, [](const LoggedAccess& access) { return access.thread + 0u; });
  add_distinct(&Counts::simdgroup_nbytes, [](const LoggedAccess& access) { return access.thread / 32u; });
  add_distinct(&Counts::threadgroup_nbytes, [](const LoggedAccess&) { return 0u; });
}

void CheckLog::clear() { accesses_ = {}; }

}  // namespace metalane::cpu
