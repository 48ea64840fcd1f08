// What serving loops use in C++: limits on what is in flight, profiles, buffer pools.
#include <metalane/metalane.h>

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "core/storage.h"
#include "fake_backend.h"

using namespace metalane;

namespace {

const Grid one = Grid::threads({1}, {1});

struct Fixture {
  fake::Opened opened;
  Pipeline in_place = opened.pipeline("in_place");

  CommandEncoder recorded(const Buffer& buffer) {
    CommandEncoder encoder = opened.device.command_encoder();
    encoder.dispatch(in_place, {{0, buffer}}, one);
    return encoder;
  }
};

std::exception_ptr fault() {
  return std::make_exception_ptr(CommandBufferError("fault", "", false, "planted"));
}

}  // namespace

TEST_CASE(a_limit_holds_places_until_their_tickets_are_done) {
  Fixture f;
  const Buffer buffer = f.opened.device.zeros({4}, DType::float32);
  const InFlightLimit limit(2);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 2; ++i) {
    InFlightSlot slot = limit.acquire();
    tickets.push_back(f.recorded(buffer).commit());
    slot.hold_until(tickets.back());
    CHECK_THROWS(slot.hold_until(tickets.back()), ArgumentError, "none of the limit's places");
  }
  CHECK_EQ(limit.in_flight(), 2u);
  CHECK_THROWS(limit.acquire(0.01), TimeoutError, "no submission ended");
  CHECK_EQ(limit.waiting(), 0u);
  f.opened.backend->complete(0, fault());
  CHECK_EQ(limit.in_flight(), 1u);
  {
    const InFlightSlot slot = limit.acquire(1.0);
  }  // goes back by itself
  CHECK_EQ(limit.in_flight(), 1u);
  f.opened.backend->complete();
  CHECK_EQ(limit.in_flight(), 0u);
  CHECK_THROWS(InFlightLimit(0), ArgumentError, "max_in_flight");
}

TEST_CASE(a_moved_slot_gives_its_place_back_once) {
  const InFlightLimit limit(3);
  InFlightSlot first = limit.acquire(), second = limit.acquire();
  second = std::move(first);
  CHECK_EQ(limit.in_flight(), 1u);
  InFlightSlot third = std::move(second);
  CHECK_EQ(limit.in_flight(), 1u);
  Fixture f;
  const Ticket ticket = f.recorded(f.opened.device.zeros({4}, DType::float32)).commit();
  CHECK_THROWS(first.hold_until(ticket), ArgumentError, "moved from");
  f.opened.backend->complete();
}

TEST_CASE(threads_pass_places_on_and_never_hold_more_than_there_are) {
  const InFlightLimit limit(3);
  std::atomic<int> inside{0}, most{0}, entered{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const InFlightSlot slot = limit.acquire();
        const int now = ++inside;
        int seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        ++entered;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(entered.load(), 1600);
  CHECK(most.load() <= 3);
  CHECK_EQ(limit.in_flight(), 0u);
}

TEST_CASE(a_profile_sees_submissions_end_in_any_order) {
  Fixture f;
  const Buffer a = f.opened.device.zeros({4}, DType::float32), b = f.opened.device.zeros({4}, DType::float32);
  Profile profile(f.opened.device);
  CHECK_THROWS(Profile(f.opened.device), ArgumentError, "being profiled");
  CommandEncoder late = f.recorded(a);
  const Ticket first = f.recorded(a).commit(), second = f.recorded(b).commit();
  profile.stop();
  late.commit();
  CHECK(!profile.wait_done(0.0));
  f.opened.backend->complete(1);
  f.opened.backend->complete(0, fault());
  CHECK(profile.wait_done(0.0));
  const std::vector<ProfiledSubmission> seen = profile.submissions();
  CHECK_EQ(seen.size(), 2u);
  CHECK(seen[0].failed && !seen[1].failed);
  CHECK(seen[0].done && seen[1].done && first.done() && second.done());
  CHECK_EQ(seen[0].bytes_read, 16u);
  CHECK_EQ(seen[0].bytes_written, 16u);
  CHECK_EQ(seen[0].launches.at(0).kernel, std::string("in_place"));
  CHECK_EQ(profile.counters().failed_submissions, 1u);
  Profile next(f.opened.device);
  CHECK_EQ(next.counters().submissions, 0u);
  f.opened.backend->complete();
}

TEST_CASE(label_ranges_go_on_where_their_names_and_their_scopes_do) {
  Fixture f;
  const Buffer buffer = f.opened.device.zeros({4}, DType::float32);
  Profile profile(f.opened.device);
  CommandEncoder encoder = f.opened.device.command_encoder();
  const auto launch = [&] { encoder.dispatch(f.in_place, {{0, buffer}}, one); };
  {
    const LabelScope outer(encoder, "ab");
    launch();
    {
      const LabelScope inner(encoder, "c");
      launch();
      launch();
    }
    {
      const LabelScope inner(encoder, "c");
      launch();
    }
    launch();
  }
  {
    const LabelScope outer(encoder, "abc");
    launch();
  }
  launch();
  encoder.commit();
  f.opened.backend->complete();
  std::vector<std::string> labels;
  std::vector<std::size_t> continued;
  const std::vector<ProfiledSubmission> submissions = profile.submissions();
  for (const ProfiledLaunch& seen : submissions.at(0).launches) {
    labels.push_back(seen.label);
    continued.push_back(seen.continued);
  }
  CHECK(labels == (std::vector<std::string>{"ab", "ab/c", "ab/c", "ab/c", "ab", "abc", ""}));
  CHECK(continued == (std::vector<std::size_t>{0, 2, 4, 2, 2, 0, 0}));
}

TEST_CASE(a_profile_may_go_before_its_submissions_end) {
  Fixture f;
  const Buffer buffer = f.opened.device.zeros({4}, DType::float32);
  auto profile = std::make_unique<Profile>(f.opened.device);
  CommandEncoder open = f.recorded(buffer);
  const Ticket ticket = f.recorded(buffer).commit();
  profile.reset();
  f.opened.backend->complete();
  CHECK(ticket.done());
  const Ticket later = open.commit();
  f.opened.backend->complete();
  later.wait(0.0);
}

TEST_CASE(a_block_in_flight_waits_for_its_launches) {
  Fixture f;
  const BufferPool pool(f.opened.device);
  Buffer block = pool.take({16}, DType::float32);
  const std::uint64_t place = block.address();
  CommandEncoder encoder = f.recorded(block);
  pool.give_back(block);
  CHECK_THROWS(pool.give_back(block), ArgumentError, "given back or released already");
  CHECK_EQ(pool.statistics().returning_bytes, 4096u);
  const Ticket ticket = encoder.commit();
  Buffer other = pool.take({16}, DType::float32);
  CHECK(other.address() != place);
  f.opened.backend->complete();
  CHECK_EQ(pool.statistics().returning_bytes, 0u);
  CHECK_EQ(pool.statistics().free_bytes, 4096u);
  CHECK_EQ(pool.take({16}, DType::float32).address(), place);
  CHECK_EQ(f.opened.backend->live_allocations.load(), 2);
}

TEST_CASE(giving_back_and_releasing_at_once_returns_a_block_once) {
  Fixture f;
  const BufferPool pool(f.opened.device);
  for (int i = 0; i < 300; ++i) {
    const Buffer block = pool.take({16}, DType::float32);
    std::atomic<int> refused{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        if (t == 2) {
          Buffer(block).release();
          return;
        }
        try {
          pool.give_back(block);
        } catch (const ArgumentError&) {
          ++refused;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(refused.load() >= 1);
    const BufferPoolStatistics counts = pool.statistics();
    CHECK_EQ(counts.owned_bytes + counts.returning_bytes, 0u);
    CHECK_EQ(counts.free_bytes, 4096u);
  }
  CHECK_EQ(f.opened.backend->live_allocations.load(), 1);
}

CHECK_MAIN()
