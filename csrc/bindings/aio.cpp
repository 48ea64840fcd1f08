// What metalane.aio is made of: tickets and limits that wake a thread which does not wait for them.
#include <nanobind/stl/optional.h>

#include <cerrno>
#include <functional>
#include <system_error>

#include "bindings/checked_arguments.h"
#include "bindings/wake_queue.h"
#include "core/in_flight.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

// A place under a limit, which goes back with the object.
class Place {
 public:
  explicit Place(std::shared_ptr<core::InFlightPlace> place) : place_(std::move(place)) {}
  ~Place() { place_->give_back(); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  core::InFlightPlace& operator*() const noexcept { return *place_; }
  core::InFlightPlace* operator->() const noexcept { return place_.get(); }

 private:
  std::shared_ptr<core::InFlightPlace> place_;
};

// Runtime threads drop the queue's last owner, which must not be a Python object: they take no GIL.
struct SharedQueue {
  std::shared_ptr<WakeQueue> queue = std::make_shared<WakeQueue>();
};

// Puts the number on the queue when it is called.
std::function<void()> put_later(const std::shared_ptr<WakeQueue>& queue, std::uint64_t number) {
  return [queue, numbers = std::make_shared<WakeQueue::Numbers>(1, number)] { queue->put(*numbers); };
}

void bind_wake_queue(nb::module_& module) {
  nb::class_<SharedQueue>(module, "_WakeQueue", nb::is_final(),
                          "Numbers from runtime threads, for a thread that sleeps on a file descriptor.")
      .def("__init__",
           [](SharedQueue* self) {
             try {
               new (self) SharedQueue();
             } catch (const std::system_error& error) {
               errno = error.code().value();
               PyErr_SetFromErrno(PyExc_OSError);
               throw nb::python_error();
             }
           })
      .def_prop_ro(
          "descriptor", [](const SharedQueue& self) { return self.queue->descriptor(); },
          "Readable while there are numbers.")
      .def(
          "watch",
          [](const SharedQueue& self, const Ticket& ticket, std::uint64_t number) {
            ticket.on_done(put_later(self.queue, number));
          },
          "ticket"_a, "number"_a, "Gives the number once the ticket is done.")
      .def(
          "ask",
          [](const SharedQueue& self, const InFlightLimit& limit, std::uint64_t number) {
            return new Place(limit.state()->ask(put_later(self.queue, number)));
          },
          "limit"_a, "number"_a, nb::rv_policy::take_ownership,
          "A place under the limit: granted at once, or when the number comes.")
      .def(
          "take",
          [](const SharedQueue& self) {
            nb::list taken;
            for (const std::uint64_t number : self.queue->take()) taken.append(number);
            return taken;
          },
          nb::sig("def take(self) -> list[int]"), "The numbers that have come; never waits.");
}

void bind_limit(nb::module_& module) {
  nb::class_<Place>(module, "_InFlightPlace", nb::is_final(), nb::type_slots(made_by_runtime),
                    "A place under a limit, taken or waited for; goes back with the object.")
      .def_prop_ro("granted", [](const Place& self) { return self->granted(); })
      .def("give_back", [](const Place& self) { self->give_back(); })
      .def(
          "hold_until",
          [](const Place& self, nb::handle ticket) {
            self->hold_until(object_from<Ticket>(ticket, "InFlightSlot.hold_until", "ticket", "a Ticket"));
          },
          "ticket"_a.none());
  nb::class_<InFlightLimit>(module, "InFlightLimit", nb::is_final(),
                            "At most so many submissions in flight, of whatever devices, threads and event "
                            "loops; who asks first gets "
                            "the next place.")
      .def(
          "__init__",
          [](InFlightLimit* self, nb::handle max_in_flight) {
            new (self) InFlightLimit(u64_from(max_in_flight, "InFlightLimit", "max_in_flight"));
          },
          "max_in_flight"_a.none(), nb::sig("def __init__(self, max_in_flight: int) -> None"),
          "Raises ArgumentError for less than 1.")
      .def_prop_ro("max_in_flight", &InFlightLimit::max_in_flight)
      .def_prop_ro("in_flight", &InFlightLimit::in_flight, "Places that are taken.")
      .def_prop_ro("waiting", &InFlightLimit::waiting, "Callers that wait for one.")
      .def(
          "slot",
          [](nb::handle self, nb::handle timeout) {
            const std::optional<double> seconds = seconds_from(timeout, "InFlightLimit.slot", "timeout");
            return nb::module_::import_("metalane.aio").attr("InFlightSlot")(self, seconds);
          },
          "timeout"_a = nb::none(), nb::sig("def slot(self, timeout: float | None = None) -> InFlightSlot"),
          "A place, for `with` (which blocks until there is one; other threads run and Ctrl-C works) and "
          "`async "
          "with`.\n\n"
          "timeout: seconds after which entering it raises TimeoutError.")
      .def(
          "_acquire",
          [](const InFlightLimit& self, std::optional<double> seconds) {
            auto place = std::make_unique<Place>(self.state()->ask([] {}));
            wait_for_place(**place, seconds);
            return place.release();
          },
          "seconds"_a.none(), nb::rv_policy::take_ownership, "Waits for a place.")
      .def("__repr__", [](const InFlightLimit& self) {
        return "<InFlightLimit: " + std::to_string(self.in_flight()) + " of " +
               std::to_string(self.max_in_flight()) + " in flight, " + std::to_string(self.waiting()) +
               " waiting>";
      });
}

}  // namespace

void bind_aio(nb::module_& module) {
  bind_limit(module);
  bind_wake_queue(module);
}

}  // namespace metalane::python
