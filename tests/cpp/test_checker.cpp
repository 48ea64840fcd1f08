// The checker's parts by themselves, and its face in C++.
#include <metalane/metalane.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backends/cpu/check_launches.h"
#include "backends/cpu/check_memory.h"
#include "backends/cpu/check_shadow.h"
#include "check.h"

using namespace metalane;

namespace {

constexpr const char* text = R"(#include <metal_stdlib>
using namespace metal;
kernel void turn(device const float* x, device float* y, uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = x[t];
  y[t] = s[63 - t];
}
kernel void past(device float* y, uint i [[thread_position_in_grid]]) { y[i + 1] = 1; }
)";

Ticket launch(const Device& device, const char* kernel, std::vector<KernelArg> args) {
  device.registry().register_source("checked", text);
  CommandEncoder encoder = device.command_encoder();
  encoder.dispatch(device.registry().pipeline(std::string("checked::") + kernel), args,
                   Grid::threads({64}, {64}));
  return encoder.commit();
}

}  // namespace

TEST_CASE(findings_come_as_an_exception) {
  const Device device("cpu", DeviceOptions{KernelChoice::automatic, CheckOptions::all()});
  CHECK(device.check().races && device.check().traffic);
  const Buffer x = device.zeros({64}, DType::float32), y = device.zeros({64}, DType::float32);
  std::memset(x.data(), 0x3f, x.nbytes());
  bool caught = false;
  try {
    launch(device, "turn", {{0, x}, {1, y}}).wait();
  } catch (const CheckError& error) {
    caught = true;
    CHECK_EQ(error.code(), "check");
    CHECK_EQ(error.findings().size(), 1u);
    const CheckFinding& race = error.findings().front();
    CHECK_EQ(std::string(name_of(race.kind)), "race");
    CHECK_EQ(race.argument, "s");
    CHECK_EQ(race.access.line + race.other.value().line, 5u + 6u);
    CHECK_EQ(race.access.file, "checked");
  }
  CHECK(caught);
  CHECK_EQ(device.check_report().findings.size(), 1u);
  device.clear_check_report();
  CHECK_EQ(device.check_report().findings.size(), 0u);
}

TEST_CASE(lists_do_not_throw) {
  CheckOptions options;
  options.bounds = options.as_list = true;
  const Device device("cpu", DeviceOptions{KernelChoice::automatic, options});
  const Buffer y = device.zeros({64}, DType::float32);
  launch(device, "past", {{0, y}}).wait();
  const CheckReport report = device.check_report();
  CHECK_EQ(report.findings.size(), 1u);
  CHECK_EQ(report.findings.front().element_index, 64);
  CHECK(report.traffic.empty());
}

TEST_CASE(other_devices_have_none) {
  CHECK_THROWS(Device("null", DeviceOptions{KernelChoice::automatic, CheckOptions::all()}), ArgumentError,
               "check must be");
  CHECK_THROWS(Device("cpu", DeviceOptions{KernelChoice::native, CheckOptions::all()}), ArgumentError,
               "kernels must be");
  CHECK(!Device("cpu").check().any());
  CHECK(Device("cpu").check_report().findings.empty());
}

TEST_CASE(cells_split_where_accesses_are_smaller) {
  cpu::ShadowMemory shadow(10000);
  const cpu::Mark mark(7, 3, 40, 2, true);
  CHECK_EQ(mark.segment(), 7u);
  CHECK_EQ(mark.instruction(), 3u);
  CHECK_EQ(mark.thread(), 40u);
  CHECK_EQ(mark.simdgroup(), 1u);
  CHECK_EQ(mark.turn(), 2u);
  CHECK(mark.atomic());
  CHECK(!shadow.is_ready(4088, 16));
  const auto words = shadow.at(4088, 16);  // up to the end of its 4,096 bytes
  CHECK_EQ(words.count, 2u);
  CHECK_EQ(words.shift, 2u);
  words.first[1].writer = mark;
  CHECK(shadow.only(4092, 4) == words.first + 1);
  CHECK(shadow.only(4092, 2) == nullptr);
  const auto bytes = shadow.at(4093, 1);
  CHECK_EQ(bytes.count, 1u);
  CHECK_EQ(bytes.shift, 0u);
  CHECK_EQ(bytes.first->writer.thread(), 40u);
  CHECK(shadow.at(4091, 1).first->writer.empty());
  CHECK_EQ(shadow.at(4092, 4).count, 4u);
  CHECK_EQ(shadow.at(8190, 2).shift, 1u);
}

TEST_CASE(bytes_are_initialized_one_by_one) {
  std::vector<bool> expected(203);
  cpu::InitializedBytes bytes(expected.size());
  std::srand(1);
  for (int i = 0; i < 300; ++i) {
    const std::size_t begin = static_cast<std::size_t>(std::rand()) % expected.size();
    const std::size_t count =
        1 + static_cast<std::size_t>(std::rand()) % std::min<std::size_t>(20, expected.size() - begin);
    const auto first = expected.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = first + static_cast<std::ptrdiff_t>(count);
    CHECK_EQ(bytes.covers(begin, count), std::all_of(first, last, [](bool set) { return set; }));
    if (i % 3 != 0) continue;
    bytes.set(begin, count);
    std::fill(first, last, true);
  }
  bytes.settle();
  CHECK(!bytes.complete());
  bytes.set(0, expected.size());
  bytes.settle();
  CHECK(bytes.complete());
}

TEST_CASE(copies_report_what_cannot_be_read) {
  cpu::CopiedPages pages(8192);
  const std::vector<char> source(5000, 'x');
  CHECK(pages.read(100, reinterpret_cast<std::uint64_t>(source.data()), source.size()));
  CHECK_EQ(*reinterpret_cast<const char*>(pages.begin() + 5099), 'x');
  CHECK(!pages.read(0, 8, 16));
  std::vector<char> target(5000);
  CHECK(pages.write_back(100, reinterpret_cast<std::uint64_t>(target.data()), target.size()));
  CHECK(target == source);
  CHECK(!pages.write_back(0, 8, 16));
}

TEST_CASE(arguments_see_one_memory_at_two_places) {
  cpu::CheckedAllocations allocations;
  cpu::CheckArena arena;
  CHECK(arena.reserve());
  auto* memory = static_cast<char*>(allocations.allocate(10000, true));
  CHECK(memory != nullptr);
  const auto address = reinterpret_cast<std::uint64_t>(memory) + 5000;
  auto* first = reinterpret_cast<char*>(arena.show(0, address, 4000));
  auto* second = reinterpret_cast<char*>(arena.show(1, address, 4000));
  CHECK(first != second && first != memory);
  first[3999] = 'a';
  CHECK_EQ(second[3999], 'a');
  CHECK_EQ(memory[8999], 'a');
  CHECK(allocations.find(address).has_value());
  CHECK(!allocations.find(8).has_value());
  arena.clear(0);
  arena.clear(1);
  allocations.release(memory);
  CHECK(!allocations.find(address).has_value());
}

TEST_CASE(segments_tell_the_thread) {
  cpu::LaunchShape shape;
  const std::uint32_t groups[3] = {3, 2, 1}, nominal[3] = {4, 2, 1}, grid[3] = {10, 4, 1};
  std::copy(std::begin(groups), std::end(groups), shape.groups);
  std::copy(std::begin(nominal), std::end(nominal), shape.nominal);
  std::copy(std::begin(grid), std::end(grid), shape.grid);
  cpu::CheckLaunches launches;
  launches.begin_launch(nullptr, shape, 10);
  for (std::uint32_t group = 0; group < 6; ++group) launches.begin_group(group, 11 + 5 * group);
  // Group 5 is at [2, 1], with 2 x 2 threads at the grid's edge.
  const cpu::ThreadPosition last = launches.position_of(11 + 25 + 3, 3);
  CHECK(last.threadgroup == (std::array<std::uint32_t, 3>{2, 1, 0}));
  CHECK(last.thread == (std::array<std::uint32_t, 3>{9, 3, 0}));
  const cpu::ThreadPosition second = launches.position_of(16, 5);
  CHECK(second.threadgroup == (std::array<std::uint32_t, 3>{1, 0, 0}));
  CHECK(second.thread == (std::array<std::uint32_t, 3>{5, 1, 0}));
  CHECK(!launches.group_has_fenced());
  launches.fence(38);
  CHECK(launches.group_has_fenced());
  CHECK(launches.fenced_after(37));
  CHECK(!launches.fenced_after(39));
  CHECK(!launches.fenced_after(20));
}

CHECK_MAIN()
