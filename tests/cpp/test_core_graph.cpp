// Graphs from C++: what replays hand to a backend and hold while they run, and threads that share one.
#include <metalane/metalane.h>

#include <thread>

#include "check.h"
#include "fake_backend.h"

using namespace metalane;

namespace {

const Grid one = Grid::threads({1}, {1});

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// x -> a, x -> b, a -> y: the second may run beside the first.
ComputeGraph chain(fake::Opened& opened, const Buffer& x, const Buffer& a, const Buffer& b, const Buffer& y) {
  const Pipeline rw = opened.pipeline("rw");
  CommandEncoder encoder = opened.device.command_encoder();
  CaptureScope capture(encoder);
  {
    const LabelScope label(encoder, "in");
    encoder.dispatch(rw, {{0, x}, {1, a}}, one);
    encoder.dispatch(rw, {{0, a}, {1, y}}, one);
  }
  encoder.dispatch(rw, {{0, x}, {1, b}}, one);
  return capture.take();
}

}  // namespace

TEST_CASE(a_replay_is_one_submission_with_barriers_and_labels) {
  fake::Opened opened;
  Buffer x = opened.device.zeros({16}, DType::float32), a = opened.device.zeros({16}, DType::float32);
  Buffer b = opened.device.zeros({16}, DType::float32), y = opened.device.zeros({16}, DType::float32);
  const ComputeGraph graph = chain(opened, x, a, b, y);
  const Ticket ticket = graph.replay({}, 2.5);
  CHECK_EQ(joined(opened.backend->pending.back().events),
           "push in, launch rw @in, barrier, launch rw @in, pop, launch rw");
  CHECK_EQ(*opened.backend->pending.back().time_limit, 2.5);
  CHECK(!ticket.done());
  opened.backend->complete();
  CHECK(ticket.done());
  const ReorderedGraph reordered = graph.reorder();
  CHECK_EQ(reordered.barriers_before, 1u);
  CHECK_EQ(reordered.barriers_after, 1u);
  reordered.graph.replay();
  CHECK_EQ(joined(opened.backend->pending.back().events),
           "push in, launch rw @in, pop, launch rw, barrier, push in, launch rw @in, pop");
  opened.backend->complete();
  CHECK_THROWS(graph.replay({}, 0.0), ArgumentError, "timeout");
}

TEST_CASE(a_replay_in_flight_holds_its_memory) {
  fake::Opened opened;
  Buffer x = opened.device.zeros({16}, DType::float32), a = opened.device.zeros({16}, DType::float32);
  Buffer b = opened.device.zeros({16}, DType::float32), y = opened.device.zeros({16}, DType::float32);
  std::optional<ComputeGraph> graph = chain(opened, x, a, b, y);
  graph->replay();
  graph->replay();
  CHECK_EQ(opened.backend->pending_count(), 2u);
  x.release();
  CHECK_THROWS(graph->replay(), ArgumentError, "released");
  CHECK_EQ(opened.backend->pending_count(), 2u);
  graph.reset();
  const int held = opened.backend->live_allocations;
  opened.backend->complete();
  CHECK_EQ(opened.backend->live_allocations.load(), held);  // the second one still runs
  opened.backend->complete();
  CHECK_EQ(opened.backend->live_allocations.load(), held - 1);
}

TEST_CASE(what_a_failed_replay_wrote_fails_for_its_readers) {
  fake::Opened opened;
  Buffer x = opened.device.zeros({16}, DType::float32), a = opened.device.zeros({16}, DType::float32);
  Buffer b = opened.device.zeros({16}, DType::float32), y = opened.device.zeros({16}, DType::float32);
  const ComputeGraph graph = chain(opened, x, a, b, y);
  const Ticket failed = graph.replay();
  const auto error = std::make_exception_ptr(CommandBufferError("fault", "in", false, "broken"));
  opened.backend->complete(0, error);
  CHECK_THROWS(y.data(), CommandBufferError, "broken");
  CHECK_THROWS(failed.wait(), CommandBufferError, "broken");
  CommandEncoder reader = opened.device.command_encoder();  // writes b alone anew, and y is still garbage
  reader.dispatch(opened.pipeline("rw"), {{0, x}, {1, b}}, one);
  reader.dispatch(opened.pipeline("rw"), {{0, y}, {1, b}}, one);
  const Ticket inherits = reader.commit();
  opened.backend->complete();
  CHECK_THROWS(inherits.wait(), CommandBufferError, "broken");
  graph.replay();  // reads a and y only behind its own writes
  opened.backend->complete();
  CHECK(y.data() != nullptr);
}

TEST_CASE(a_scope_ends_its_capture) {
  fake::Opened opened;
  CommandEncoder encoder = opened.device.command_encoder();
  try {
    const CaptureScope capture(encoder);
    CHECK(encoder.is_capturing());
    throw 1;
  } catch (int) {
    CHECK(!encoder.is_capturing());
  }
}

TEST_CASE(threads_replay_rebind_and_read_one_graph) {
  constexpr std::uint32_t threads = 4, turns = 50, words = 64;
  Device device("cpu");
  device.registry().register_source("add", R"(
    kernel void add(device uint* y, device const uint* x, constant uint& salt, uint i [[thread_position_in_grid]]) {
      y[i] = x[i] + salt;
    })");
  const Pipeline add = device.registry().pipeline("add");
  Buffer x = device.zeros({words}, DType::uint32), y = device.zeros({words}, DType::uint32);
  CommandEncoder encoder = device.command_encoder();
  CaptureScope capture(encoder);
  encoder.push_label("add");
  encoder.dispatch(add, {{0, y}, {1, x}, {2, std::uint32_t{0}}}, Grid::threads({words}, {words}));
  const ComputeGraph graph = capture.take();
  std::array<std::uint32_t, threads> wrong{};
  std::vector<std::thread> running;
  for (std::uint32_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      const Buffer own = device.zeros({words}, DType::uint32);
      const GraphRebinding to_own[] = {{y, own}};
      for (std::uint32_t i = 0; i < turns; ++i) {
        const GraphParams params[] = {GraphParams::of("add", t * turns + i)};
        graph.replay(params);
        graph.replay(params, to_own).wait();
        const auto* values = static_cast<const std::uint32_t*>(own.data());
        for (std::uint32_t e = 0; e < words; ++e) wrong[t] += values[e] != t * turns + i;
        wrong[t] += graph.levels().size() != 1 || !graph.validate().empty();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  for (const std::uint32_t count : wrong) CHECK_EQ(count, 0u);
}

CHECK_MAIN()
