// What a checker has found: each fault once, with lines and a sentence.
#pragma once

#include <metalane/check.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "backends/cpu/check_module.h"

namespace metalane::cpu {

// In a position: nobody kept which it was.
constexpr std::uint32_t unknown_position = ~0u;

constexpr CheckSeverity severity_of(CheckKind kind) noexcept {
  const bool warns = kind == CheckKind::same_value || kind == CheckKind::lockstep;
  return warns ? CheckSeverity::warning : CheckSeverity::error;
}

// An instruction of a module, or where `is_site` one of its barriers and collectives.
struct CheckPlace {
  std::shared_ptr<CheckedModule> module;
  std::uint32_t number = 0;
  bool is_site = false;
};

// At most so many of each severity are kept apart: a program with more has other troubles. Warnings, however
// many, crowd out no error.
constexpr std::size_t max_findings = 1000;

// Not thread-safe: the checker's lock guards it.
class CheckFindings {
 public:
  // Counts a fault that is known, or one too many: false where it is neither, and add() has to follow.
  bool count(CheckKind kind, const CheckPlace& place, const CheckPlace* other, std::uint32_t region);
  // `finding` lacks what the places tell: kernel, file and line. `detail`: what the sentence ends with.
  void add(CheckFinding finding, const CheckPlace& place, const CheckPlace* other, std::uint32_t region,
           std::string detail);
  // What the submission that ends here did, with lines; equal ones by their lines made one.
  std::vector<CheckFinding> end_submission();
  // Of all submissions: each fault as it was when it happened first, counts added up.
  const std::vector<CheckFinding>& all() const noexcept { return all_; }
  void clear();

 private:
  using Key = std::tuple<CheckKind, const CheckedModule*, std::uint32_t, bool, const CheckedModule*,
                         std::uint32_t, std::uint32_t>;
  struct Recorded {
    CheckFinding finding;
    CheckPlace place;
    CheckPlace other;
    std::string detail;
  };
  std::vector<CheckFinding> resolve() const;
  static Key key(CheckKind kind, const CheckPlace& place, const CheckPlace* other, std::uint32_t region);

  std::vector<CheckFinding> all_;
  std::array<std::size_t, 2> all_of_severity_{};
  std::vector<Recorded> recorded_;  // of the submission that runs
  std::array<std::size_t, 2> recorded_of_severity_{};
  std::map<Key, std::size_t> known_;
};

// The text of an error for these findings.
std::string describe(const std::vector<CheckFinding>& findings);

}  // namespace metalane::cpu
