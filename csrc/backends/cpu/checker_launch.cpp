// Before and after a launch: what it may write, where it sees its arguments, and its threadgroups.
#include <algorithm>

#include "backends/cpu/checker.h"
#include "backends/cpu/checker_current.h"

namespace metalane::cpu {

namespace {

// Segment numbers start again long before they end.
constexpr std::uint32_t many_segments = 1u << 30;

std::uint64_t number(const void* address) { return reinterpret_cast<std::uint64_t>(address); }

bool is_bound(const KernelArgument& argument) { return argument.space != AddressSpace::threadgroup; }

}  // namespace

void Checker::begin_submission(const CommandList& list) {
  submission_lock_ = std::unique_lock(mutex_);
  list_ = &list;
  if (segment_ > many_segments) {
    segment_ = 0;
    variable_shadows_.clear();
  }
}

std::vector<CheckFinding> Checker::end_submission() {
  const std::unique_lock lock = std::move(submission_lock_);
  std::vector<CheckFinding> findings = findings_.end_submission();
  tracked_.clear();
  launches_.clear();
  module_.reset();
  list_ = nullptr;
  return findings;
}

// Finds what the launches up to the next barrier may write. All that overlaps is one range, so that an
// argument lies in one or in none.
void Checker::begin_interval(std::size_t first) {
  interval_first_ = ++segment_;
  launches_.clear();
  tracked_.clear();
  if (!options_.races) return;
  struct Range {
    std::uint64_t begin, end;
    bool written;
  };
  std::vector<Range> ranges;
  const std::vector<LaunchRecord>& launches = list_->launches();
  for (std::size_t i = first; i < launches.size() && (i == first || !launches[i].after_barrier); ++i) {
    for (const KernelArgument& argument : launches[i].pipeline->signature.arguments) {
      if (!is_bound(argument) || launches[i].sizes[argument.index] == 0) continue;
      const std::uint64_t begin = number(launches[i].launch.buffers[argument.index]);
      ranges.push_back({begin, begin + launches[i].sizes[argument.index], metalane::writes(argument.access)});
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (std::size_t i = 0; i < ranges.size();) {
    Range all = ranges[i++];
    for (; i < ranges.size() && ranges[i].begin < all.end; ++i) {
      all.end = std::max(all.end, ranges[i].end);
      all.written = all.written || ranges[i].written;
    }
    if (!all.written) continue;
    const std::uint64_t begin = all.begin / 16 * 16;  // cells stand at multiples of their size
    tracked_.push_back({begin, all.end, std::make_unique<ShadowMemory>(all.end - begin)});
  }
}

Checker::Tracked* Checker::tracked_at(std::uint64_t address) {
  for (Tracked& tracked : tracked_) {
    if (address >= tracked.begin && address < tracked.end) return &tracked;
  }
  return nullptr;
}

// Pages of arguments that are no allocation of the device's; arguments that share one share the copy.
void Checker::plan_copies(const LaunchRecord& record) {
  copies_.clear();
  write_back_.clear();
  for (const KernelArgument& argument : record.pipeline->signature.arguments) {
    const std::uint64_t address = is_bound(argument) ? number(record.launch.buffers[argument.index]) : 0;
    const std::uint64_t nbytes = is_bound(argument) ? record.sizes[argument.index] : 0;
    if (nbytes == 0 || allocations_.find(address)) continue;
    const std::uint64_t page = page_bytes();
    copies_.push_back({address / page * page, (address + nbytes + page - 1) / page * page, nullptr});
  }
  std::sort(copies_.begin(), copies_.end(), [](const Copy& a, const Copy& b) { return a.begin < b.begin; });
  std::size_t kept = 0;
  for (std::size_t i = 1; i < copies_.size(); ++i) {
    if (copies_[i].begin < copies_[kept].end) {
      copies_[kept].end = std::max(copies_[kept].end, copies_[i].end);
    } else {
      copies_[++kept].begin = copies_[i].begin;
      copies_[kept].end = copies_[i].end;
    }
  }
  if (!copies_.empty()) copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(kept) + 1, copies_.end());
}

bool Checker::make_copies(const LaunchRecord& record, std::string& why) {
  for (Copy& copy : copies_) {
    copy.pages = std::make_unique<CopiedPages>(copy.end - copy.begin);
    if (copy.pages->begin() == 0) {
      why = "no memory for the checker's copy of wrapped memory";
      return false;
    }
  }
  for (const KernelArgument& argument : record.pipeline->signature.arguments) {
    if (!is_bound(argument)) continue;
    const std::uint64_t address = number(record.launch.buffers[argument.index]);
    const std::uint64_t nbytes = record.sizes[argument.index];
    for (Copy& copy : copies_) {
      if (nbytes == 0 || address < copy.begin || address >= copy.end) continue;
      if (!copy.pages->read(address - copy.begin, address, nbytes)) {
        why = "argument '" + argument.name + "': the memory that is bound cannot be read";
        return false;
      }
      if (metalane::writes(argument.access)) write_back_.push_back({&copy, address, nbytes});
    }
  }
  return true;
}

bool Checker::show_argument(const KernelArgument& argument, const LaunchRecord& record,
                            metalane_launch& launch, std::string& why) {
  const std::uint64_t address = number(record.launch.buffers[argument.index]);
  CheckRegion& region = regions_[argument.index];
  region = {};
  region.begin = arena_.address(argument.index);
  region.nbytes = record.sizes[argument.index];
  region.element_bytes = static_cast<std::uint32_t>(argument.type.size);
  region.is_const = !metalane::writes(argument.access);
  region.name = argument.name;
  region.memory = argument.space == AddressSpace::constant ? "constant" : "device";
  if (region.nbytes != 0) {
    std::uint64_t source = address;
    if (const auto allocation = allocations_.find(address)) {
      region.line_offset = static_cast<std::uint32_t>((address - allocation->begin) % CheckLog::line_bytes);
      if (options_.uninitialised && allocation->initialized != nullptr &&
          !allocation->initialized->complete()) {
        initialized_.push_back(allocation->initialized);
        region.initialized = allocation->initialized.get();
        region.initialized_begin = address - allocation->begin;
      }
    } else {
      for (const Copy& copy : copies_) {
        if (address >= copy.begin && address < copy.end)
          source = copy.pages->begin() + (address - copy.begin);
      }
    }
    region.begin = arena_.show(argument.index, source, region.nbytes);
    if (region.begin == 0) {
      why = "argument '" + argument.name + "': no addresses for the checker's view of its memory";
      return false;
    }
    if (const Tracked* tracked = tracked_at(address)) {
      region.shadow = tracked->shadow.get();
      region.shadow_begin = address - tracked->begin;
    }
  }
  launch.buffers[argument.index] = reinterpret_cast<void*>(region.begin);
  return true;
}

void Checker::place_variable(std::uint32_t place, std::string name, std::uint64_t nbytes,
                             std::uint32_t element_bytes) {
  CheckRegion& region = regions_[first_variable + place];
  region = {};
  region.begin = variables_begin_ + std::uint64_t{place} * METALANE_CHECK_PITCH + METALANE_CHECK_MARGIN;
  region.nbytes = nbytes;
  region.is_threadgroup = true;
  region.element_bytes = element_bytes;
  region.name = std::move(name);
  region.memory = "threadgroup";
  if (!options_.races && !options_.uninitialised) return;
  // Segments tell what another group or launch did there.
  if (variable_shadows_.size() <= place) variable_shadows_.resize(place + 1);
  std::unique_ptr<ShadowMemory>& shadow = variable_shadows_[place];
  if (shadow == nullptr || shadow->nbytes() < nbytes) shadow = std::make_unique<ShadowMemory>(nbytes);
  region.shadow = shadow.get();
}

bool Checker::place_threadgroup_memory(const LaunchRecord& record, metalane_launch& launch) {
  variables_begin_ = arena_.address(CheckArena::threadgroup_slot);
  const std::uint32_t own = module_->variable_count();
  const std::span<const backend::ThreadgroupBinding> bindings = list_->threadgroup_memory(record);
  variable_count_ = own + static_cast<std::uint32_t>(bindings.size());
  if (variable_count_ == 0) regions_[first_variable] = {};
  CheckRegion& outside = regions_[CheckArena::threadgroup_slot];
  outside = {};
  outside.begin = variables_begin_;
  outside.is_threadgroup = true;
  outside.memory = "threadgroup";
  for (std::uint32_t i = 0; i < own; ++i) {
    const metalane_check_variable& variable = module_->variable(i);
    place_variable(i, module_->variable_name(i), variable.bytes, variable.element_bytes);
  }
  std::uint32_t place = own;
  for (const backend::ThreadgroupBinding& binding : bindings) {
    std::string name;
    std::uint64_t element_bytes = 0;
    for (const KernelArgument& argument : record.pipeline->signature.arguments) {
      if (argument.space != AddressSpace::threadgroup || argument.index != binding.index) continue;
      name = argument.name;
      element_bytes = argument.type.size;
    }
    launch.threadgroup_offsets[binding.index] = place * METALANE_CHECK_PITCH + METALANE_CHECK_MARGIN;
    place_variable(place++, std::move(name), binding.nbytes, static_cast<std::uint32_t>(element_bytes));
  }
  return variable_count_ == 0 ||
         arena_.provide(CheckArena::threadgroup_slot, std::uint64_t{variable_count_} * METALANE_CHECK_PITCH);
}

bool Checker::begin_launch(std::size_t launch_number, const LaunchRecord& record, const LaunchShape& shape,
                           metalane_launch& launch, ThreadgroupRunner& runner, std::string& why) {
  if (!arena_.reserved() && !arena_.reserve()) {
    why = "no addresses for the checker";
    return false;
  }
  arena_begin_ = arena_.begin();
  arena_bytes_ = arena_.nbytes();
  arena_shift_ = arena_.shift();
  if (launch_number == 0 || record.after_barrier) begin_interval(launch_number);
  runner_ = &runner;
  group_ = &runner.group();
  module_ = record.pipeline->checked;
  if (std::find(modules_.begin(), modules_.end(), module_) == modules_.end()) modules_.push_back(module_);
  flags_of_site_.assign(module_->module().site_count, 0);
  regions_.resize(null_region + 1);
  std::fill_n(regions_.begin(), CheckArena::slot_count, CheckRegion());
  region_data_ = regions_.data();
  instructions_ = module_->instructions().data();
  by_offset_ = module_->by_offset().data();
  text_begin_ = module_->text_begin();
  text_bytes_ = module_->by_offset().size();
  thread_storage_ = module_->thread_storage();
  initialized_.clear();
  plan_copies(record);
  if (!make_copies(record, why)) return false;
  for (const KernelArgument& argument : record.pipeline->signature.arguments) {
    if (is_bound(argument) && !show_argument(argument, record, launch, why)) return false;
  }
  if (!place_threadgroup_memory(record, launch)) {
    why = "no addresses for the checker's view of threadgroup memory";
    return false;
  }
  for (std::uint32_t i = 0; i < first_variable + variable_count_; ++i)
    module_->name_region(i, regions_[i].name, regions_[i].memory);
  track_races_ = options_.races;
  launches_.begin_launch(module_, shape, ++segment_);
  group_count_ = std::uint64_t{shape.groups[0]} * shape.groups[1] * shape.groups[2];
  runner.observe(this, reinterpret_cast<std::uint8_t*>(variables_begin_));
  current_checker = this;
  return true;
}

void Checker::end_launch() {
  current_checker = nullptr;
  if (runner_ != nullptr) runner_->observe(nullptr, nullptr);
  runner_ = nullptr;
  for (const WriteBack& back : write_back_)
    back.copy->pages->write_back(back.address - back.copy->begin, back.address, back.nbytes);
  for (std::uint32_t slot = 0; slot < CheckArena::slot_count; ++slot) arena_.clear(slot);
  for (const std::shared_ptr<InitializedBytes>& initialized : initialized_) initialized->settle();
  initialized_.clear();
  copies_.clear();
  write_back_.clear();
}

void Checker::begin_group(std::uint64_t group) {
  left_ = out_of_memory_ = false;
  has_pending_store_ = false;
  pending_lockstep_.clear();
  pending_index_.clear();
  group_first_ = ++segment_;
  simdgroup_ = 0;
  for (const Memory memory : {device_memory, threadgroup_memory}) {
    barrier_first_[memory] = group_first_;
    std::fill(std::begin(simdgroup_first_[memory]), std::end(simdgroup_first_[memory]), group_first_);
  }
  std::fill(std::begin(ended_), std::end(ended_), 0u);
  launches_.begin_group(group, group_first_);
  logs_ =
      options_.traffic && CheckLog::samples(group, group_count_) && module_->logged() < CheckLog::most_logged;
  if (logs_) log_.begin_group();
}

void Checker::end_group() {
  new_segment();
  if (!logs_) return;
  std::vector<LoggedRegion> regions(regions_.size());
  for (std::size_t i = 0; i < regions_.size(); ++i)
    regions[i] = {regions_[i].is_threadgroup, regions_[i].line_offset};
  log_.count(*module_, regions);
}

}  // namespace metalane::cpu
