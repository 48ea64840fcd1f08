// Where a module's code lies, and asking addr2line which lines it comes from.
#include "backends/cpu/check_module.h"

#include <metalane/error.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "backends/cpu/check_system.h"
#include "backends/cpu/host_compiler.h"
#include "backends/cpu/process.h"

namespace metalane::cpu {
namespace {

// The program that reads debug information: both compilers' own packages bring one of these.
std::string line_program() {
  for (const char* name : {"addr2line", "llvm-addr2line", "eu-addr2line"}) {
    std::string path = find_program(name);
    if (!path.empty()) return path;
  }
  return {};
}

// Which of these names debug information means by `file`. Relative ones have debug_root in front, which also
// stands for the compiler's working folder in absolute ones.
const char* source_name(std::string_view file, const char* const* names) {
  const std::string root = debug_root;
  const bool is_inside = file.starts_with(root + "/");
  if (is_inside) file.remove_prefix(root.size() + 1);
  for (const char* const* name = names; *name != nullptr; ++name) {
    if (file == *name) return *name;
  }
  const std::string end = "/" + std::string(file);
  for (const char* const* name = names; is_inside && *name != nullptr; ++name) {
    if (std::string_view(*name).starts_with('/') && std::string_view(*name).ends_with(end)) return *name;
  }
  return nullptr;
}

// "FILE:LINE" or "FILE:LINE (discriminator 3)", of one of these files: nothing for the library's headers and
// for the entry function.
bool parse_place(std::string_view text, const char* const* names, SourceLine& place) {
  const std::size_t colon = text.rfind(':');
  const char* name = colon == std::string_view::npos ? nullptr : source_name(text.substr(0, colon), names);
  if (name == nullptr) return false;
  const std::string number(text.substr(colon + 1));
  place.line = static_cast<std::uint32_t>(std::strtoul(number.c_str(), nullptr, 10));
  place.file = name;
  return place.line != 0;
}

}  // namespace

CheckedModule::CheckedModule(std::shared_ptr<const LoadedModule> library, const std::string& kernel,
                             const metalane_check_host& host)
    : library_(std::move(library)),
      kernel_(kernel),
      table_(static_cast<const metalane_check_module*>(library_->symbol("metalane_check_v1"))),
      thread_storage_(
          reinterpret_cast<const void* (*)()>(const_cast<void*>(library_->symbol("metalane_check_storage")))),
      instructions_(1),
      waits_(library_->module().site_count) {
  if (table_ == nullptr || thread_storage_ == nullptr || table_->abi_version != METALANE_CHECK_ABI_VERSION) {
    throw CompileError(kernel, "kernel '" + kernel + "': the compiled kernel has no table for the checker");
  }
  table_->attach(&host);
  const CodeRange range = find_code(reinterpret_cast<std::uint64_t>(library_->module().entry));
  load_address_ = range.load_address;
  image_begin_ = range.image_begin;
  image_bytes_ = range.image_end - range.image_begin;
  text_begin_ = range.begin;
  by_offset_.resize(range.end - range.begin);
}

std::uint32_t CheckedModule::add(const void* pc, std::uint32_t region, Touch touch) {
  const std::uint64_t at = reinterpret_cast<std::uint64_t>(pc) - text_begin_;
  if (at >= by_offset_.size() || instructions_.size() > max_instructions) return 0;
  const auto number = static_cast<std::uint16_t>(instructions_.size());
  Instruction& instruction = instructions_.emplace_back();
  instruction.region = region;
  instruction.touch = touch;
  instruction.pc = pc;
  instruction.next = by_offset_[at];
  by_offset_[at] = number;
  return number;
}

void CheckedModule::find_lines(const std::vector<std::uint32_t>& numbers) {
  std::vector<const void*> wanted;
  for (const std::uint32_t number : numbers) {
    const void* pc = instructions_[number].pc;
    if (pc != nullptr && lines_.emplace(pc, SourceLine()).second) wanted.push_back(pc);
  }
  const std::string program = line_program();
  if (program.empty()) return;
  constexpr ProcessLimits limits = {30, std::uint64_t{4} << 30, std::uint64_t{1} << 20};
  constexpr std::size_t at_once = 500;
  for (std::size_t begin = 0; begin < wanted.size(); begin += at_once) {
    const std::size_t end = std::min(wanted.size(), begin + at_once);
    std::vector<std::string> argv = {program, "-a", "-i", "-e", library_->file()};
    std::map<std::uint64_t, const void*> by_address;
    for (std::size_t i = begin; i < end; ++i) {
      // The call that returns to `pc` is the access's.
      const std::uint64_t address = reinterpret_cast<std::uint64_t>(wanted[i]) - load_address_ - 1;
      by_address.emplace(address, wanted[i]);
      std::ostringstream text;
      text << "0x" << std::hex << address;
      argv.push_back(text.str());
    }
    const ProcessResult result = run_process(argv, "/", limits);
    // Of each address: itself, then the places from the innermost inlined function outwards.
    std::istringstream output(result.output);
    SourceLine* place = nullptr;
    for (std::string text; std::getline(output, text);) {
      if (text.starts_with("0x")) {
        const auto known = by_address.find(std::strtoull(text.c_str(), nullptr, 16));
        place = known != by_address.end() ? &lines_[known->second] : nullptr;
      } else if (place != nullptr && parse_place(text, table_->files, *place)) {
        place = nullptr;
      } else if (place != nullptr) {
        *place = {};
      }
    }
  }
}

SourceLine CheckedModule::line(std::uint32_t number) const {
  const auto found = lines_.find(instructions_[number].pc);
  return found != lines_.end() ? found->second : SourceLine();
}

void CheckedModule::name_region(std::uint32_t region, const std::string& name, const char* memory) {
  if (region_names_.size() <= region) region_names_.resize(region + 1);
  if (region_names_[region].memory.empty()) region_names_[region] = {name, memory};
}

const CheckedModule::RegionName& CheckedModule::region_name(std::uint32_t region) const {
  static const RegionName none;
  return region < region_names_.size() ? region_names_[region] : none;
}

CheckedModule::RegionCounts& CheckedModule::region_counts(std::uint32_t region) {
  if (region >= region_counts_.size()) region_counts_.resize(region + 1);
  return region_counts_[region];
}

void CheckedModule::keep_samples(const std::vector<LoggedAccess>& accesses) {
  constexpr std::size_t most = 1 << 14;
  if (samples_.empty())
    samples_.assign(accesses.begin(),
                    accesses.begin() + static_cast<std::ptrdiff_t>(std::min(accesses.size(), most)));
}

void CheckedModule::forget_counts() {
  samples_.clear();
  for (Instruction& instruction : instructions_) {
    const Instruction before = instruction;
    instruction = {};
    instruction.region = before.region;
    instruction.next = before.next;
    instruction.touch = before.touch;
    instruction.pc = before.pc;
  }
  region_counts_.clear();
  std::fill(waits_.begin(), waits_.end(), 0);
  logged_ = 0;
}

}  // namespace metalane::cpu
