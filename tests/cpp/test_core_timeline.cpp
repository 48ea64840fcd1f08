// Submissions in flight: ticket order, errors that follow data, waits between devices, host reads, lifetimes.
#include <metalane/metalane.h>

#include <chrono>
#include <thread>

#include "check.h"
#include "core/storage.h"
#include "fake_backend.h"

using namespace metalane;

namespace {

const Grid one = Grid::threads({1}, {1});

std::exception_ptr fault(const std::string& text) {
  return std::make_exception_ptr(CommandBufferError("fault", "", false, text));
}

struct Fixture {
  fake::Opened opened;
  Pipeline rw = opened.pipeline("rw");
  Pipeline in_place = opened.pipeline("in_place");
  Buffer a = opened.device.zeros({16}, DType::float32);
  Buffer b = opened.device.zeros({16}, DType::float32);
  Buffer c = opened.device.zeros({16}, DType::float32);

  Ticket submit(const Buffer& from, const Buffer& to) {
    CommandEncoder encoder = opened.device.command_encoder();
    encoder.dispatch(rw, {{0, from}, {1, to}}, one);
    return encoder.commit();
  }
  Ticket submit_in_place(const Buffer& buffer) {
    CommandEncoder encoder = opened.device.command_encoder();
    encoder.dispatch(in_place, {{0, buffer}}, one);
    return encoder.commit();
  }
};

}  // namespace

TEST_CASE(tickets_finish_in_commit_order_whatever_the_backend_does) {
  Fixture f;
  Ticket first = f.submit(f.a, f.b), second = f.submit(f.a, f.c);
  std::vector<int> order;
  second.on_done([&] { order.push_back(2); });
  first.on_done([&] { order.push_back(1); });
  f.opened.backend->complete(1);
  CHECK(!second.done() && !first.done());
  CHECK_THROWS(second.wait(0.01), TimeoutError, "did not finish");
  f.opened.backend->complete(0);
  CHECK(first.done() && second.done());
  CHECK(order == (std::vector<int>{1, 2}));
  second.on_done([&] { order.push_back(3); });
  CHECK_EQ(order.size(), 3u);
}

TEST_CASE(a_failure_reaches_its_readers_and_nobody_else) {
  Fixture f;
  Ticket failed = f.submit(f.a, f.b), reader = f.submit(f.b, f.c);
  Buffer d = f.opened.device.zeros({4}, DType::float32);
  Ticket unrelated = f.submit(f.a, d);
  f.opened.backend->complete(0, fault("broken"));
  f.opened.backend->complete(0);
  f.opened.backend->complete(0);
  CHECK_THROWS(failed.wait(), CommandBufferError, "broken");
  CHECK_THROWS(failed.wait(), CommandBufferError, "broken");
  CHECK_THROWS(reader.wait(), CommandBufferError, "broken");
  CHECK_EQ(reader.status(), std::string("failed"));
  unrelated.wait();
  CHECK_EQ(unrelated.status(), std::string("done"));
  CHECK_THROWS(f.b.data(), CommandBufferError, "broken");
  CHECK_THROWS(f.c.data(), CommandBufferError, "broken");
  CHECK(d.data() != nullptr && f.a.data() != nullptr);
}

TEST_CASE(a_read_and_write_launch_inherits_unless_the_error_was_told_before) {
  Fixture f;
  Ticket failed = f.submit_in_place(f.b), follower = f.submit_in_place(f.b);
  f.opened.backend->complete(0, fault("first"));
  f.opened.backend->complete(0);
  CHECK_THROWS(follower.wait(), CommandBufferError, "first");
  // Told now: writing the range anew is a retry.
  Ticket retry = f.submit_in_place(f.b.view(0, {8}));
  f.opened.backend->complete(0);
  retry.wait();
  CHECK(f.b.view(0, {8}).data() != nullptr);
  CHECK_THROWS(f.b.view(32, {8}).data(), CommandBufferError, "first");
  // Reading what is left of it still fails.
  Ticket reader = f.submit(f.b, f.c);
  f.opened.backend->complete(0);
  CHECK_THROWS(reader.wait(), CommandBufferError, "first");
}

TEST_CASE(memory_that_is_freed_forgets_its_failure) {
  Fixture f;
  std::vector<float> memory(16);
  {
    Buffer wrapped = f.opened.device.wrap(memory.data(), {16}, DType::float32, false, nullptr);
    Ticket failed = f.submit(f.a, wrapped);
    f.opened.backend->complete(0, fault("broken"));
    CHECK_THROWS(wrapped.data(), CommandBufferError, "broken");
  }
  Buffer again = f.opened.device.wrap(memory.data(), {16}, DType::float32, false, nullptr);
  CHECK(again.data() == memory.data());
}

TEST_CASE(waiting_for_a_ticket_of_another_device_holds_the_submission_back) {
  Fixture f, g;
  Ticket theirs = g.submit(g.a, g.b);
  CommandEncoder encoder = f.opened.device.command_encoder();
  encoder.wait_for(theirs);
  encoder.dispatch(f.in_place, {{0, f.a}}, one);
  Ticket ours = encoder.commit();
  Ticket later = f.submit_in_place(f.c);
  CHECK_EQ(f.opened.backend->pending_count(), 0u);
  g.opened.backend->complete();
  CHECK_EQ(f.opened.backend->pending_count(), 2u);
  f.opened.backend->complete();
  f.opened.backend->complete();
  ours.wait();
  later.wait();

  Ticket broken = g.submit(g.a, g.b);
  CommandEncoder dependent = f.opened.device.command_encoder();
  dependent.wait_for(broken);
  dependent.dispatch(f.in_place, {{0, f.a}}, one);
  Ticket inherits = dependent.commit();
  g.opened.backend->complete(0, fault("elsewhere"));
  CHECK_EQ(f.opened.backend->pending_count(), 0u);
  CHECK_THROWS(inherits.wait(), CommandBufferError, "elsewhere");
}

TEST_CASE(host_reads_wait_for_writers_and_refuse_open_encoders) {
  Fixture f;
  {
    CommandEncoder encoder = f.opened.device.command_encoder();
    encoder.dispatch(f.rw, {{0, f.a}, {1, f.b.view(0, {4})}}, one);
    CHECK_THROWS(f.b.data(), ArgumentError, "open encoder");
    CHECK(f.b.view(16, {4}).data() != nullptr);  // not the range that is written
    CHECK(f.a.data() != nullptr);                // read only
  }
  CHECK(f.b.data() != nullptr);  // discarded
  Ticket ticket = f.submit(f.a, f.b);
  CHECK_THROWS(f.b.synchronize(0.01), TimeoutError, "did not finish");
  std::thread finisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    f.opened.backend->complete();
  });
  f.b.synchronize();
  CHECK(ticket.done());
  finisher.join();
}

TEST_CASE(release_frees_at_once_or_with_the_last_pin) {
  Fixture f;
  const int before = f.opened.backend->live_allocations.load();
  Buffer d = f.opened.device.zeros({16}, DType::float32);
  Buffer view = d.view(0, {4});
  view.release();
  CHECK_EQ(f.opened.backend->live_allocations.load(), before + 1);
  Buffer other_view = d.view(0, {4});
  d.release();
  CHECK_EQ(f.opened.backend->live_allocations.load(), before);
  CHECK_THROWS(d.address(), ArgumentError, "released");
  CHECK_THROWS(other_view.view(0, {1}), ArgumentError, "released");
  d.release();

  Buffer e = f.opened.device.zeros({16}, DType::float32);
  Ticket ticket = f.submit(f.a, e);
  e.release();
  CHECK_EQ(f.opened.backend->live_allocations.load(), before + 1);  // in flight
  f.opened.backend->complete();
  CHECK_EQ(f.opened.backend->live_allocations.load(), before);
  {
    Buffer g = f.opened.device.zeros({16}, DType::float32);
    CHECK(g.storage()->try_pin());
    g.release();
    CHECK_EQ(f.opened.backend->live_allocations.load(), before + 1);
    CHECK(!g.storage()->try_pin());
    g.storage()->unpin();
    CHECK_EQ(f.opened.backend->live_allocations.load(), before);
  }
  CHECK_EQ(f.opened.backend->live_allocations.load(), before);
}

TEST_CASE(views_are_checked_when_they_are_made) {
  Fixture f;
  CHECK_EQ(f.a.view(4, {15}).view(8, {2}).byte_offset(), 12u);
  CHECK_THROWS(f.a.view(4, {16}), ArgumentError, "at most the buffer's 64 bytes");
  CHECK_THROWS(f.a.view(2, {1}), ArgumentError, "a multiple of 4");
  CHECK_THROWS(f.a.view(~0ull - 3, {4}), ArgumentError, "at most");
  CHECK_THROWS(f.a.view(0, {1ull << 63, 1ull << 63}), ArgumentError, "below 2^64");
  CHECK_EQ(f.a.view(0, {1ull << 63, 0}).nbytes(), 0u);
  CHECK_EQ(f.a.view(6, {3}, DType::uint16).nbytes(), 6u);
  CHECK_THROWS(f.opened.device.zeros({1ull << 40}, DType::float32), OutOfMemoryError, "a buffer");
}

TEST_CASE(many_threads_commit_and_read_at_once) {
  fake::Opened opened;
  const Pipeline in_place = opened.pipeline("in_place");
  std::atomic<bool> stop{false};
  std::thread finisher([&] {
    while (!stop || opened.backend->pending_count() != 0) {
      if (opened.backend->pending_count() != 0) opened.backend->complete();
    }
  });
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Buffer buffer = opened.device.zeros({16}, DType::float32);
      for (int i = 0; i < 500; ++i) {
        CommandEncoder encoder = opened.device.command_encoder();
        encoder.dispatch(in_place, {{0, buffer}}, one);
        Ticket ticket = encoder.commit();
        ticket.on_done([&] { ++finished; });
        if (i % 7 == 0) buffer.synchronize();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  opened.device.synchronize();
  stop = true;
  finisher.join();
  CHECK_EQ(finished.load(), 2000);
}

CHECK_MAIN()
