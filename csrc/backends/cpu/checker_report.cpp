// What the checker tells when it is asked: findings, and what each line of each kernel did.
#include <algorithm>
#include <map>
#include <tuple>

#include "backends/cpu/checker.h"

namespace metalane::cpu {
namespace {

CheckAccessKind kind_of(Touch touch) {
  if (is_atomic(touch)) return CheckAccessKind::atomic;
  return writes(touch) ? CheckAccessKind::store : CheckAccessKind::load;
}

void add(CheckTraffic& row, const Instruction& instruction) {
  row.count += instruction.count;
  row.nbytes += instruction.nbytes;
  row.sampled_count += instruction.sampled_count;
  row.sampled_nbytes += instruction.sampled_nbytes;
  row.simdgroup_nbytes += instruction.simdgroup_nbytes;
  row.threadgroup_nbytes += instruction.threadgroup_nbytes;
  row.requests += instruction.requests;
  row.lines += instruction.lines;
  row.bank_cycles += instruction.bank_cycles;
}

// One row for each line, argument and kind of access, in the order of the source. Returns each instruction's
// row.
std::map<std::uint32_t, std::uint32_t> append_rows(CheckedModule& module,
                                                   std::vector<CheckTraffic>& traffic) {
  std::vector<std::uint32_t> used;
  for (std::uint32_t i = 1; i < module.instructions().size(); ++i) {
    if (module.instruction(i).count != 0) used.push_back(i);
  }
  module.find_lines(used);
  using Key = std::tuple<std::string, std::uint32_t, std::string, std::string, CheckAccessKind>;
  std::map<Key, std::vector<std::uint32_t>> rows;
  for (const std::uint32_t i : used) {
    const Instruction& instruction = module.instruction(i);
    const SourceLine line = module.line(i);
    const CheckedModule::RegionName& region = module.region_name(instruction.region);
    rows[{line.file, line.line, region.name, region.memory, kind_of(instruction.touch)}].push_back(i);
  }
  std::map<std::uint32_t, std::uint32_t> row_of;
  for (const auto& [key, instructions] : rows) {
    CheckTraffic& row = traffic.emplace_back();
    row.kernel = module.kernel();
    std::tie(row.file, row.line, row.argument, row.memory, row.access) = key;
    for (const std::uint32_t i : instructions) {
      add(row, module.instruction(i));
      row_of[i] = static_cast<std::uint32_t>(traffic.size() - 1);
    }
  }
  return row_of;
}

// One row for each argument and threadgroup variable, in the order of their regions.
void append_arguments(CheckedModule& module, std::vector<CheckArgument>& arguments) {
  std::map<std::uint32_t, CheckArgument> rows;
  for (const Instruction& instruction : module.instructions()) {
    if (instruction.count == 0) continue;
    CheckArgument& row = rows[instruction.region];
    if (reads(instruction.touch)) row.loaded_nbytes += instruction.nbytes;
    if (writes(instruction.touch)) row.stored_nbytes += instruction.nbytes;
    row.sampled_nbytes += instruction.sampled_nbytes;
  }
  for (auto& [region, row] : rows) {
    const CheckedModule::RegionName& name = module.region_name(region);
    const CheckedModule::RegionCounts& counts = module.region_counts(region);
    row.kernel = module.kernel();
    row.argument = name.name;
    row.memory = name.memory;
    row.thread_nbytes = counts.thread_nbytes;
    row.simdgroup_nbytes = counts.simdgroup_nbytes;
    row.threadgroup_nbytes = counts.threadgroup_nbytes;
    arguments.push_back(std::move(row));
  }
}

// Requests of a simdgroup at one instruction are numbered in the order in which they were made.
void append_samples(const CheckedModule& module, const std::map<std::uint32_t, std::uint32_t>& row_of,
                    std::vector<CheckSample>& samples) {
  std::vector<LoggedAccess> logged = module.samples();
  const auto stream = [](const LoggedAccess& access) {
    return std::tuple(access.instruction, access.thread / 32);
  };
  const auto moment = [](const LoggedAccess& access) { return std::tuple(access.segment, access.turn); };
  std::stable_sort(logged.begin(), logged.end(), [&](const LoggedAccess& a, const LoggedAccess& b) {
    return std::tuple(stream(a), moment(a), a.thread) < std::tuple(stream(b), moment(b), b.thread);
  });
  std::uint32_t turn = 0;
  for (std::size_t i = 0; i < logged.size(); ++i) {
    const LoggedAccess& access = logged[i];
    if (i == 0 || stream(logged[i - 1]) != stream(access)) {
      turn = 0;
    } else if (moment(logged[i - 1]) != moment(access)) {
      ++turn;
    }
    samples.push_back({row_of.at(access.instruction), access.thread, turn, access.at, access.nbytes});
  }
}

}  // namespace

CheckReport Checker::report() {
  const std::lock_guard lock(mutex_);
  CheckReport report;
  report.findings = findings_.all();
  if (!options_.traffic) return report;
  for (const std::shared_ptr<CheckedModule>& module : modules_) {
    const auto row_of = append_rows(*module, report.traffic);
    append_samples(*module, row_of, report.samples);
    append_arguments(*module, report.arguments);
    for (std::uint32_t i = 0; i < module->waits().size(); ++i) {
      const metalane_site& site = module->module().sites[i];
      if (module->waits()[i] != 0)
        report.waits.push_back({module->kernel(), site.operation, site.file, site.line, module->waits()[i]});
    }
  }
  return report;
}

void Checker::clear_report() {
  const std::lock_guard lock(mutex_);
  findings_.clear();
  log_.clear();
  for (const std::shared_ptr<CheckedModule>& module : modules_) module->forget_counts();
  modules_.clear();
}

}  // namespace metalane::cpu
