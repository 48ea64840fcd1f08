// Tickets of committed submissions.
#include <nanobind/stl/optional.h>

#include "bindings/bindings.h"

namespace metalane::python {

using namespace nb::literals;

void bind_ticket(nb::module_& module) {
  nb::class_<Ticket>(module, "Ticket", nb::is_final(), nb::type_slots(made_by_runtime),
                     "The receipt of a committed submission.")
      .def(
          "wait",
          [](const Ticket& self, nb::object timeout) {
            wait_for_ticket(self, seconds_from(timeout, "Ticket.wait", "timeout"));
          },
          "timeout"_a = nb::none(), nb::sig("def wait(self, timeout: float | None = None) -> None"),
          "Waits until the submission has finished; other threads run and Ctrl-C works meanwhile.\n\n"
          "Raises the submission's error, or TimeoutError after `timeout` seconds (the ticket stays valid).")
      .def_prop_ro("done", &Ticket::done, "True once the submission has finished.")
      .def_prop_ro(
          "error",
          [](const Ticket& self) -> nb::object {
            const std::exception_ptr error = self.error();
            return error == nullptr ? nb::none() : exception_object(error);
          },
          nb::sig("def error(self) -> Exception | None"),
          "The submission's error; None while it runs and when it succeeded.")
      .def_prop_ro("status", &Ticket::status, "'pending', 'done' or 'failed'.")
      .def_prop_ro("gpu_start", &Ticket::gpu_start,
                   "When its first launch began, in seconds of the device's clock; None until finished.")
      .def_prop_ro("gpu_end", &Ticket::gpu_end, "When its last launch ended; None until finished.")
      .def_prop_ro("gpu_time", &Ticket::gpu_time, "Seconds on the device; None until finished.")
      .def(
          "add_done_callback",
          [](nb::object self, nb::handle function) {
            if (!PyCallable_Check(function.ptr())) {
              throw DTypeError("Ticket.add_done_callback", "function", "a callable",
                               repr_of(function) + " (" + type_name_of(function) + ")");
            }
            nb::module_::import_("metalane.aio").attr("add_done_callback")(self, function);
          },
          "function"_a.none(),
          nb::sig("def add_done_callback(self, function: Callable[[Ticket], object]) -> None"),
          "Calls `function(ticket)` once the submission has finished: at once where it has already, else on "
          "the "
          "one thread that runs all these callbacks, in the order in which tickets finish. What a callback "
          "raises is logged (logger 'metalane').")
      .def(
          "__await__",
          [](nb::object self) {
            return nb::module_::import_("metalane.aio").attr("wait")(self).attr("__await__")();
          },
          nb::sig("def __await__(self) -> Generator[typing.Any, None, None]"),
          "`await ticket` under asyncio: as wait(), while the event loop runs on.")
      .def(
          "__eq__",
          [](const Ticket& self, nb::handle other) {
            return nb::isinstance<Ticket>(other) && self.state() == nb::inst_ptr<Ticket>(other)->state();
          },
          "other"_a.none(), nb::sig("def __eq__(self, other: object) -> bool"),
          "Whether both are of one submission.")
      .def("__hash__", [](const Ticket& self) { return std::hash<const void*>{}(self.state().get()); })
      .def("__repr__", [](const Ticket& self) { return "<Ticket " + self.status() + ">"; });
}

}  // namespace metalane::python
