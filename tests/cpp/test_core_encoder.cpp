// The encoder: barriers from declared access on real addresses, capture, checks, labels, one thread at a
// time.
#include <metalane/metalane.h>

#include <random>
#include <thread>

#include "check.h"
#include "core/hazard_tracker.h"
#include "fake_backend.h"

using namespace metalane;

namespace {

const Grid one = Grid::threads({1}, {1});

std::vector<std::string> committed_events(fake::Opened& opened, CommandEncoder& encoder) {
  encoder.commit();
  std::vector<std::string> events = opened.backend->pending.back().events;
  opened.backend->complete();
  return events;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

TEST_CASE(barriers_stand_for_each_kind_of_conflict_and_nowhere_else) {
  fake::Opened opened;
  const Pipeline rw = opened.pipeline("rw");
  Buffer a = opened.device.zeros({16}, DType::float32), b = opened.device.zeros({16}, DType::float32);
  Buffer c = opened.device.zeros({16}, DType::float32), d = opened.device.zeros({16}, DType::float32);
  const std::string apart = "launch rw, launch rw", ordered = "launch rw, barrier, launch rw";
  struct Two {
    Buffer in1, out1, in2, out2;
    std::string expected;
  };
  const Two cases[] = {
      {a, b, c, d, apart},
      {a, b, a, d, apart},    // read after read
      {a, b, b, d, ordered},  // read after write
      {a, b, c, b, ordered},  // write after write
      {a, b, c, a, ordered},  // write after read
      {a.view(0, {8}), b.view(0, {8}), c, b.view(32, {8}), apart},
      {a, b.view(0, {9}), c, b.view(32, {8}), ordered},  // one element shared through two views
  };
  for (const Two& two : cases) {
    CommandEncoder encoder = opened.device.command_encoder();
    encoder.dispatch(rw, {{0, two.in1}, {1, two.out1}}, one);
    encoder.dispatch(rw, {{0, two.in2}, {1, two.out2}}, one);
    CHECK_EQ(joined(committed_events(opened, encoder)), two.expected);
  }
}

TEST_CASE(wrapped_memory_that_overlaps_is_seen) {
  fake::Opened opened;
  const Pipeline rw = opened.pipeline("rw");
  std::vector<float> memory(64);
  Buffer whole = opened.device.wrap(memory.data(), {64}, DType::float32, false, nullptr);
  Buffer part = opened.device.wrap(memory.data() + 10, {4}, DType::float32, false, nullptr);
  Buffer other = opened.device.zeros({16}, DType::float32);
  CommandEncoder encoder = opened.device.command_encoder();
  encoder.dispatch(rw, {{0, other}, {1, whole}}, one);
  encoder.dispatch(rw, {{0, part}, {1, other.view(0, {1})}}, one);
  CHECK_EQ(joined(committed_events(opened, encoder)), "launch rw, barrier, launch rw");
}

TEST_CASE(memory_that_cannot_be_is_refused) {
  fake::Opened opened;
  const Device& device = opened.device;
  void* const last = reinterpret_cast<void*>(~std::uintptr_t{15});
  CHECK_THROWS(device.wrap(nullptr, {4}, DType::float32, false, nullptr), ArgumentError,
               "address must be not null");
  CHECK_THROWS(device.copy_of(nullptr, {4}, DType::float32), ArgumentError, "address must be not null");
  CHECK_THROWS(device.wrap(last, {5}, DType::float32, false, nullptr), ArgumentError, "end of memory");
  CHECK_THROWS(device.zeros({4}, static_cast<DType>(77)), DTypeError, "the value 77");
  CHECK_THROWS(device.wrap(last, {1}, static_cast<DType>(77), false, nullptr), DTypeError, "the value 77");
  CHECK_EQ(device.copy_of(nullptr, {0}, DType::float32).nbytes(), 0u);
}

TEST_CASE(handles_that_were_moved_from_stay_valid) {
  fake::Opened opened;
  Device device = opened.device;
  const Device other_device = std::move(device);
  CHECK(device == other_device);
  KernelRegistry registry = device.registry();
  const KernelRegistry other_registry = std::move(registry);
  CHECK(registry.names() == other_registry.names());
  CommandEncoder encoder = device.command_encoder();
  encoder.start_capture();
  encoder.dispatch(opened.pipeline("rw"),
                   {{0, device.zeros({4}, DType::float32)}, {1, device.zeros({4}, DType::float32)}}, one);
  ComputeGraph graph = encoder.take_capture();
  const ComputeGraph other_graph = std::move(graph);
  CHECK_EQ(graph.size(), 1u);
  Ticket ticket = encoder.commit();
  const Ticket other_ticket = std::move(ticket);
  opened.backend->complete();
  ticket.wait();
  CHECK(ticket.done() && other_ticket.done());
}

TEST_CASE(automatic_barriers_can_be_turned_off_and_explicit_ones_cost_nothing_twice) {
  fake::Opened opened;
  const Pipeline in_place = opened.pipeline("in_place");
  Buffer a = opened.device.zeros({16}, DType::float32);
  CommandEncoder manual = opened.device.command_encoder({true, false});
  manual.dispatch(in_place, {{0, a}}, one);
  manual.dispatch(in_place, {{0, a}}, one);
  CHECK_EQ(joined(committed_events(opened, manual)), "launch in_place, launch in_place");
  CommandEncoder both = opened.device.command_encoder();
  both.memory_barrier();  // nothing stands before it
  both.dispatch(in_place, {{0, a}}, one);
  both.memory_barrier();
  both.memory_barrier();
  both.dispatch(in_place, {{0, a}}, one);
  CHECK_EQ(both.counters().barriers, 1u);
  CHECK_EQ(joined(committed_events(opened, both)), "launch in_place, barrier, launch in_place");
}

TEST_CASE(pending_ranges_replace_the_derived_ones_for_one_launch) {
  fake::Opened opened;
  const Pipeline in_place = opened.pipeline("in_place");
  Buffer a = opened.device.zeros({16}, DType::float32);
  CommandEncoder encoder = opened.device.command_encoder();
  encoder.dispatch(in_place, {{0, a.view(0, {8})}}, one);
  encoder.set_pending_buffer_ranges({}, {{a.address() + 32, a.address() + 64}});
  encoder.dispatch(in_place, {{0, a}}, one);  // by its own ranges it would conflict
  encoder.dispatch(in_place, {{0, a.view(0, {8})}}, one);
  CHECK_EQ(joined(committed_events(opened, encoder)),
           "launch in_place, launch in_place, barrier, launch in_place");
  CommandEncoder failing = opened.device.command_encoder();
  failing.set_pending_buffer_ranges({}, {});
  CHECK_THROWS(failing.dispatch(in_place, {}, one), ArgumentError, "argument 0 (x) must be bound");
  failing.dispatch(in_place, {{0, a}}, one);
  failing.dispatch(in_place, {{0, a}}, one);
  CHECK_EQ(joined(committed_events(opened, failing)), "launch in_place, barrier, launch in_place");
}

TEST_CASE(capture_makes_nodes_with_ranges_and_encodes_nothing) {
  fake::Opened opened;
  const Pipeline rw = opened.pipeline("rw");
  Buffer a = opened.device.zeros({16}, DType::float32), b = opened.device.zeros({16}, DType::float32);
  CommandEncoder encoder = opened.device.command_encoder();
  encoder.start_capture();
  CHECK_THROWS(encoder.start_capture(), ArgumentError, "already open");
  CHECK(encoder.is_capturing());
  encoder.push_label("step");
  encoder.dispatch(rw, {{0, a}, {1, b.view(16, {4})}}, one);
  encoder.memory_barrier();
  encoder.dispatch(rw, {{0, b}, {1, a}}, one);
  encoder.pop_label();
  CHECK_THROWS(encoder.commit(), ArgumentError, "a capture is open");
  const ComputeGraph graph = encoder.take_capture();
  CHECK_THROWS(encoder.take_capture(), ArgumentError, "no capture is open");
  CHECK_EQ(graph.size(), 2u);
  const GraphNode& first = graph.nodes()[0];
  CHECK_EQ(first.label, std::string("step"));
  CHECK(first.reads == (std::vector<AddressRange>{a.range(), {b.address() + 16, b.address() + 32}}));
  CHECK(first.writes == (std::vector<AddressRange>{{b.address() + 16, b.address() + 32}}));
  CHECK(!first.barrier_before && graph.nodes()[1].barrier_before);
  CHECK_EQ(encoder.counters().launches, 0u);
  graph.encode(encoder);
  CHECK_EQ(encoder.counters().launches, 2u);
  CHECK_EQ(joined(committed_events(opened, encoder)),
           "push step, pop, launch rw @step, barrier, launch rw @step");
  a.release();
  CommandEncoder again = opened.device.command_encoder();
  CHECK_THROWS(graph.encode(again), ArgumentError, "node 0 argument 0");
  CHECK_EQ(again.counters().launches, 0u);
}

TEST_CASE(checks_name_the_argument_and_encode_nothing) {
  fake::Opened opened;
  fake::Opened other;
  const Pipeline rw = opened.pipeline("rw"), params = opened.pipeline("params");
  Buffer a = opened.device.zeros({16}, DType::float32), b = opened.device.zeros({16}, DType::float32);
  Buffer bytes = opened.device.zeros({64}, DType::uint8);
  const std::uint32_t n = 3;
  CommandEncoder encoder = opened.device.command_encoder();
  CHECK_THROWS(encoder.dispatch(Pipeline(), {}, one), ArgumentError, "empty handle");
  CHECK_THROWS(encoder.dispatch(other.pipeline("rw"), {{0, a}, {1, b}}, one), ArgumentError,
               "another device");
  CHECK_THROWS(encoder.dispatch(rw, {{0, a}}, one), ArgumentError, "argument 1 (y) must be bound");
  CHECK_THROWS(encoder.dispatch(rw, {{0, a}, {1, b}, {2, a}}, one), ArgumentError, "0 (x), 1 (y)");
  CHECK_THROWS(encoder.dispatch(rw, {{0, a}, {1, b}, {31, a}}, one), ArgumentError, "below 31");
  CHECK_THROWS(encoder.dispatch(rw, {{0, a}, {0, b}}, one), ArgumentError, "bound once");
  CHECK_THROWS(encoder.dispatch(rw, {{0, a}, {1, b.as_readonly()}}, one), ArgumentError, "writable");
  CHECK_THROWS(encoder.dispatch(rw, {{0, bytes.view(1, {4})}, {1, b}}, one), ArgumentError, "aligned to 4");
  CHECK_THROWS(encoder.dispatch(rw, {{0, a}, {1, n}}, one), ArgumentError, "may write it");
  CHECK_THROWS(encoder.dispatch(rw, {{0, other.device.zeros({4}, DType::float32)}, {1, b}}, one),
               ArgumentError, "another device");
  CHECK_THROWS(encoder.dispatch(params, {{0, a}, {1, std::uint64_t{3}}}, one), ArgumentError, "4 bytes");
  CHECK_THROWS(encoder.dispatch(params, {{0, a}, {1, nullptr, 4}}, one), ArgumentError, "null pointer");
  CHECK_THROWS(encoder.dispatch(params, {{0, a}, {1, n}}, one), ArgumentError, "threadgroup memory 0");
  const ThreadgroupMemory too_much[] = {{0, 32769}}, wrong[] = {{1, 16}}, fine[] = {{0, 20}};
  CHECK_THROWS(encoder.dispatch(params, {{0, a}, {1, n}}, one, too_much), ArgumentError, "at most 32768");
  CHECK_THROWS(encoder.dispatch(params, {{0, a}, {1, n}}, one, wrong), ArgumentError, "declares");
  const std::uint64_t big = 1ull << 32;
  for (const Grid& grid :
       {Grid::threads({big}, {1}), Grid::threadgroups({1u << 31}, {2}), Grid::threads({0}, {1}),
        Grid::threads({1, big, 1}, {1}), Grid::threadgroups({~0ull}, {~0ull})}) {
    CHECK_THROWS(encoder.dispatch(rw, {{0, a}, {1, b}}, grid), ArgumentError, "thread");
  }
  CHECK_THROWS(encoder.dispatch(rw, {{0, a}, {1, b}}, Grid::threads({1}, {1025})), ArgumentError, "1024");
  CHECK_THROWS(encoder.dispatch(rw, {{0, a}, {1, b}}, Grid::threads({1}, {1ull << 33, 1ull << 33})),
               ArgumentError, "1024");
  CHECK_THROWS(encoder.dispatch(rw, {{0, a}, {1, b}}, Grid::indirect(a, {1})), DTypeError, "uint32");
  Buffer two = opened.device.zeros({2}, DType::uint32);
  CHECK_THROWS(encoder.dispatch(rw, {{0, a}, {1, b}}, Grid::indirect(two, {1})), ArgumentError, "three u32");
  CHECK_THROWS(encoder.copy(a, b.view(0, {4})), ArgumentError, "64 bytes");
  CHECK_THROWS(encoder.copy(a.view(0, {4}), a.view(8, {4})), ArgumentError, "overlapping");
  CHECK_EQ(encoder.counters().launches, 0u);
  encoder.dispatch(params, {{0, a}, {1, n}}, one, fine);
  CHECK_EQ(encoder.counters().launches, 1u);
  committed_events(opened, encoder);
  CHECK_THROWS(encoder.dispatch(rw, {{0, a}, {1, b}}, one), ArgumentError, "committed or discarded");
}

TEST_CASE(two_threads_in_one_encoder_raise) {
  fake::Opened opened;
  const Pipeline in_place = opened.pipeline("in_place");
  Buffer a = opened.device.zeros({16}, DType::float32);
  CommandEncoder encoder = opened.device.command_encoder();
  std::atomic<int> refused{0}, done{0};
  auto work = [&] {
    for (int i = 0; i < 20000; ++i) {
      try {
        encoder.dispatch(in_place, {{0, a}}, one);
        ++done;
      } catch (const ArgumentError&) {
        ++refused;
      }
    }
  };
  std::thread first(work), second(work);
  first.join();
  second.join();
  CHECK_EQ(static_cast<std::uint64_t>(done.load()), encoder.counters().launches);
  CHECK_EQ(done + refused, 40000);
}

TEST_CASE(labels_nest_and_are_closed_by_commit) {
  fake::Opened opened;
  const Pipeline in_place = opened.pipeline("in_place");
  Buffer a = opened.device.zeros({16}, DType::float32);
  CommandEncoder encoder = opened.device.command_encoder();
  CHECK_THROWS(encoder.pop_label(), ArgumentError, "no label");
  encoder.push_label("outer");
  encoder.push_label("inner");
  encoder.dispatch(in_place, {{0, a}}, one);
  encoder.pop_label();
  encoder.push_label("second");
  CHECK_EQ(joined(committed_events(opened, encoder)),
           "push outer, push inner, launch in_place @outer/inner, pop, push second, pop, pop");
}

TEST_CASE(hazard_tracker_agrees_with_a_byte_map_on_random_launches) {
  std::mt19937 random(20260101);
  for (int round = 0; round < 200; ++round) {
    const std::uint32_t space = round % 2 == 0 ? 64 : 4096;
    core::HazardTracker tracker;
    std::vector<char> read(space), written(space);
    for (int step = 0; step < 300; ++step) {
      std::vector<core::TouchedRange> launch;
      bool expected = false;
      for (int i = 0; i < 3; ++i) {
        const std::uint64_t begin = random() % space,
                            end = begin + random() % std::min<std::uint64_t>(space - begin + 1, 24);
        launch.push_back({{begin, end}, static_cast<Access>(1 + random() % 3)});
        for (std::uint64_t at = begin; at < end; ++at) {
          expected |= written[at] || (read[at] && writes(launch.back().access));
        }
      }
      if (tracker.conflicts(launch) != expected) {
        CHECK_EQ(tracker.conflicts(launch), expected);
        return;
      }
      if (random() % 60 == 0) {
        tracker.clear();
        std::fill(read.begin(), read.end(), 0);
        std::fill(written.begin(), written.end(), 0);
      }
      tracker.add(launch);
      for (const auto& touched : launch) {
        auto& map = writes(touched.access) ? written : read;
        for (std::uint64_t at = touched.range.begin; at < touched.range.end; ++at) map[at] = 1;
      }
    }
  }
  CHECK(true);
}

CHECK_MAIN()
