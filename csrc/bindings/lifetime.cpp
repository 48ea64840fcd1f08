// Objects that outlive their last Python reference: owners of wrapped memory, and work in flight at exit.
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "bindings/bindings.h"
#include "core/device_state.h"
#include "core/timeline.h"

namespace metalane::python {

namespace {

struct Release {
  void* object;
  void (*run)(void*);
};

// Never destroyed: runtime threads may drop owners while the process exits.
struct Deferred {
  std::mutex mutex;
  std::vector<Release> due;
  std::atomic<bool> any{false};
  std::atomic<bool> exiting{false};
  std::thread::id exit_thread;  // valid once `exiting`
};

Deferred& deferred() {
  static Deferred* const state = new Deferred;
  return *state;
}

int drain_pending_call(void*) {
  drain_deferred();
  return 0;
}

// A runtime thread never takes the GIL (it may hold a lock that a thread with the GIL waits for), and none
// may once the interpreter is going down: the main thread runs the release as a pending call.
void defer(Release release) noexcept {
  Deferred& state = deferred();
  if (state.exiting.load(std::memory_order_acquire)) return;
  try {
    std::lock_guard lock(state.mutex);
    state.due.push_back(release);
  } catch (const std::bad_alloc&) {
    return;  // the object leaks, which is safe
  }
  // A full queue of pending calls is no loss: the next wait, wrap or commit drains.
  if (!state.any.exchange(true, std::memory_order_acq_rel)) Py_AddPendingCall(drain_pending_call, nullptr);
}

// Submissions that were committed from Python and may still run, the newest of each device: tickets of one
// device finish in commit order.
struct InFlight {
  std::mutex mutex;
  std::vector<std::pair<std::weak_ptr<core::DeviceState>, std::weak_ptr<core::TicketState>>> newest;
};

InFlight& in_flight() {
  static InFlight* const state = new InFlight;
  return *state;
}

constexpr double kFinishSeconds = 1.0;  // for work that is about to end by itself
constexpr double kCancelSeconds = 2.0;  // for cancelled work to stop

// Called by atexit: lets work in flight end, or ends it, while the interpreter is whole.
void finish_work() {
  deferred().exit_thread = std::this_thread::get_id();
  deferred().exiting.store(true, std::memory_order_release);
  std::vector<Ticket> running;
  {
    std::lock_guard lock(in_flight().mutex);
    for (const auto& [device, ticket] : in_flight().newest) {
      if (std::shared_ptr<core::TicketState> state = ticket.lock()) running.emplace_back(std::move(state));
    }
  }
  Unlocked unlocked;
  for (const Ticket& ticket : running) {
    // A forked child inherits tickets that nobody will ever finish.
    if (ticket.state()->device()->in_other_process() || ticket.wait_done(kFinishSeconds)) continue;
    ticket.state()->device()->backend().cancel_all();
    ticket.wait_done(kCancelSeconds);
  }
}

}  // namespace

std::shared_ptr<void> deferred_owner(void* object, void (*release)(void*)) {
  return std::shared_ptr<void>(object, [release](void* dropped) { defer({dropped, release}); });
}

std::shared_ptr<void> deferred_reference(nb::object object) {
  return deferred_owner(object.release().ptr(),
                        [](void* reference) { Py_DECREF(static_cast<PyObject*>(reference)); });
}

void park_if_exiting() noexcept {
  Deferred& state = deferred();
  if (!state.exiting.load(std::memory_order_acquire) || state.exit_thread == std::this_thread::get_id())
    return;
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

void drain_deferred() noexcept {
  Deferred& state = deferred();
  if (!state.any.load(std::memory_order_relaxed)) return;
  std::vector<Release> due;
  {
    std::lock_guard lock(state.mutex);
    due.swap(state.due);
    state.any.store(false, std::memory_order_release);
  }
  for (const Release& release : due) release.run(release.object);
}

void track_ticket(const Ticket& ticket) {
  InFlight& state = in_flight();
  const std::shared_ptr<core::DeviceState>& device = ticket.state()->device();
  std::lock_guard lock(state.mutex);
  std::erase_if(state.newest, [](const auto& entry) { return entry.first.expired(); });
  for (auto& [known, newest] : state.newest) {
    if (!known.owner_before(device) && !device.owner_before(known)) {
      newest = ticket.state();
      return;
    }
  }
  state.newest.emplace_back(device, ticket.state());
}

void bind_lifetime(nb::module_& module) {
  module.def("_finish_work", &finish_work,
             "Waits briefly for work in flight on every device, then cancels it; registered with atexit.");
}

}  // namespace metalane::python
