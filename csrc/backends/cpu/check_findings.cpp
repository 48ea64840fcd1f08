// Lines and sentences of findings.
#include "backends/cpu/check_findings.h"

#include <algorithm>

namespace metalane {

const char* name_of(CheckKind kind) noexcept {
  switch (kind) {
    case CheckKind::race:
      return "race";
    case CheckKind::bounds:
      return "bounds";
    case CheckKind::uninitialised:
      return "uninitialised";
    case CheckKind::divergence:
      return "divergence";
    case CheckKind::same_value:
      return "same-value";
    case CheckKind::lockstep:
      return "lockstep";
  }
  return "";
}

const char* name_of(CheckSeverity severity) noexcept {
  return severity == CheckSeverity::error ? "error" : "warning";
}

const char* name_of(CheckAccessKind kind) noexcept {
  switch (kind) {
    case CheckAccessKind::load:
      return "load";
    case CheckAccessKind::store:
      return "store";
    case CheckAccessKind::atomic:
      return "atomic";
    case CheckAccessKind::wait:
      return "wait";
  }
  return "";
}

namespace cpu {
namespace {

std::size_t index_of(CheckSeverity severity) { return static_cast<std::size_t>(severity); }

std::string triple(const std::array<std::uint32_t, 3>& values) {
  return "[" + std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " +
         std::to_string(values[2]) + "]";
}

std::string where(const CheckAccess& access) {
  return access.line == 0 ? "an unknown line" : access.file + ":" + std::to_string(access.line);
}

std::string who(const CheckAccess& access) {
  if (access.thread[0] == unknown_position) return "a thread of an earlier threadgroup";
  return "thread " + triple(access.thread) + " (threadgroup " + triple(access.threadgroup) + ", simdgroup " +
         std::to_string(access.simdgroup) + ", lane " + std::to_string(access.lane) + ")";
}

const char* verb(CheckAccessKind kind) {
  switch (kind) {
    case CheckAccessKind::load:
      return "loads";
    case CheckAccessKind::store:
      return "stores";
    case CheckAccessKind::atomic:
      return "updates atomically";
    case CheckAccessKind::wait:
      return "waits for";
  }
  return "";
}

std::string action(const CheckAccess& access) {
  return who(access) + " " + verb(access.access) + " " + std::to_string(access.nbytes) + " bytes at " +
         where(access);
}

std::string object(const CheckFinding& finding) {
  return finding.memory + (finding.memory.empty() ? "" : " memory ") + "'" + finding.argument + "'[" +
         std::to_string(finding.element_index) + "]";
}

std::string sentence(const CheckFinding& finding, const std::string& detail) {
  std::string text = std::string(name_of(finding.kind)) + " in kernel '" + finding.access.kernel + "' at " +
                     where(finding.access) + ": ";
  if (finding.access.access == CheckAccessKind::wait) return text + detail;
  if (!finding.argument.empty()) text += object(finding) + ": ";
  text += action(finding.access);
  if (finding.other) {
    text += "; ";
    if (finding.other->kernel != finding.access.kernel) text += "kernel '" + finding.other->kernel + "', ";
    text += action(*finding.other);
  }
  return text + (detail.empty() ? "" : "; " + detail);
}

void place_access(CheckAccess& access, const CheckPlace& place) {
  access.kernel = place.module->kernel();
  if (place.is_site) {
    const metalane_module& module = place.module->module();
    if (place.number >= module.site_count) return;
    access.file = module.sites[place.number].file;
    access.line = module.sites[place.number].line;
  } else {
    const SourceLine line = place.module->line(place.number);
    access.file = line.file;
    access.line = line.line;
  }
}

bool same_place(const CheckAccess& a, const CheckAccess& b) {
  return a.kernel == b.kernel && a.file == b.file && a.line == b.line && a.access == b.access;
}

bool same_object(const CheckFinding& a, const CheckFinding& b) {
  return a.argument == b.argument && a.memory == b.memory && a.access.kernel == b.access.kernel;
}

// The same two accesses, whichever came first.
bool same_pair(const CheckFinding& a, const CheckFinding& b) {
  if (a.other.has_value() != b.other.has_value()) return false;
  if (!a.other) return same_place(a.access, b.access);
  return (same_place(a.access, b.access) && same_place(*a.other, *b.other)) ||
         (same_place(a.access, *b.other) && same_place(*a.other, b.access));
}

bool same_fault(const CheckFinding& a, const CheckFinding& b) {
  return a.kind == b.kind && same_object(a, b) && same_pair(a, b);
}

// Accesses that race are no warning where other threads do the same, and what one side of a race found
// unwritten is the race's doing.
bool is_said_by(const CheckFinding& finding, const CheckFinding& race) {
  if (race.kind != CheckKind::race || !same_object(finding, race)) return false;
  if (finding.severity == CheckSeverity::warning) return same_pair(finding, race);
  const bool reads = same_place(finding.access, race.access) || same_place(finding.access, *race.other);
  return finding.kind == CheckKind::uninitialised && finding.memory == "threadgroup" && reads;
}

}  // namespace

CheckFindings::Key CheckFindings::key(CheckKind kind, const CheckPlace& place, const CheckPlace* other,
                                      std::uint32_t region) {
  return {kind,
          place.module.get(),
          place.number,
          place.is_site,
          other != nullptr ? other->module.get() : nullptr,
          other != nullptr ? other->number : 0,
          region};
}

bool CheckFindings::count(CheckKind kind, const CheckPlace& place, const CheckPlace* other,
                          std::uint32_t region) {
  const auto known = known_.find(key(kind, place, other, region));
  if (known == known_.end()) return recorded_of_severity_[index_of(severity_of(kind))] >= max_findings;
  ++recorded_[known->second].finding.count;
  return true;
}

void CheckFindings::add(CheckFinding finding, const CheckPlace& place, const CheckPlace* other,
                        std::uint32_t region, std::string detail) {
  finding.count = 1;
  finding.severity = severity_of(finding.kind);
  ++recorded_of_severity_[index_of(finding.severity)];
  known_.emplace(key(finding.kind, place, other, region), recorded_.size());
  recorded_.push_back(
      {std::move(finding), place, other != nullptr ? *other : CheckPlace(), std::move(detail)});
}

std::vector<CheckFinding> CheckFindings::resolve() const {
  std::map<CheckedModule*, std::vector<std::uint32_t>> wanted;
  const auto want = [&wanted](const CheckPlace& place) {
    if (place.module != nullptr && !place.is_site) wanted[place.module.get()].push_back(place.number);
  };
  for (const Recorded& recorded : recorded_) {
    want(recorded.place);
    want(recorded.other);
  }
  for (const auto& [module, numbers] : wanted) module->find_lines(numbers);
  std::vector<CheckFinding> findings;
  for (const Recorded& recorded : recorded_) {
    CheckFinding finding = recorded.finding;
    place_access(finding.access, recorded.place);
    if (finding.other) place_access(*finding.other, recorded.other);
    const auto same = std::find_if(findings.begin(), findings.end(), [&finding](const CheckFinding& known) {
      return same_fault(known, finding);
    });
    if (same != findings.end()) {
      same->count += finding.count;
      continue;
    }
    finding.message = sentence(finding, recorded.detail);
    findings.push_back(std::move(finding));
  }
  const std::vector<CheckFinding> every = findings;
  std::erase_if(findings, [&every](const CheckFinding& finding) {
    return std::any_of(every.begin(), every.end(),
                       [&finding](const CheckFinding& race) { return is_said_by(finding, race); });
  });
  return findings;
}

std::vector<CheckFinding> CheckFindings::end_submission() {
  std::vector<CheckFinding> findings = resolve();
  recorded_.clear();
  recorded_of_severity_ = {};
  known_.clear();
  for (const CheckFinding& finding : findings) {
    const auto same = std::find_if(all_.begin(), all_.end(), [&finding](const CheckFinding& known) {
      return same_fault(known, finding);
    });
    if (same != all_.end()) {
      same->count += finding.count;
    } else if (std::size_t& count = all_of_severity_[index_of(finding.severity)]; count < max_findings) {
      ++count;
      all_.push_back(finding);
    }
  }
  return findings;
}

void CheckFindings::clear() {
  all_.clear();
  all_of_severity_ = {};
  recorded_.clear();
  recorded_of_severity_ = {};
  known_.clear();
}

std::string describe(const std::vector<CheckFinding>& findings) {
  std::string text;
  for (const CheckFinding& finding : findings) {
    if (!text.empty()) text += "\n";
    text += finding.message;
    if (finding.count > 1) text += " (" + std::to_string(finding.count) + " times)";
  }
  return text;
}

}  // namespace cpu
}  // namespace metalane
