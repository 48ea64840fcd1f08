// The model of acceptance; metalane.ops.acceptance_model gives it arrays and dataclasses.
#include <metalane/ops/acceptance_model.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "bindings/bindings.h"
#include "bindings/checked_arguments.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

double number_from(nb::handle value, const char* op, const char* argument) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    clear_refusal();
    throw DTypeError(op, argument, "a number", repr_of(value) + " (" + type_name_of(value) + ")");
  }
  return number;
}

std::uint32_t position_from(nb::handle value, const char* op) {
  const std::uint64_t position = u64_from(value, op, "position");
  if (position > std::numeric_limits<std::uint32_t>::max()) {
    throw ArgumentError(op, "position", "below " + std::to_string(DFLASH2_MAX_POSITIONS),
                        std::to_string(position));
  }
  return static_cast<std::uint32_t>(position);
}

}  // namespace

void bind_acceptance_model(nb::module_& module) {
  nb::class_<AcceptanceCalibration>(
      module, "AcceptanceCalibration", nb::is_final(), nb::type_slots(made_by_runtime),
      "How the probabilities of an AcceptanceModel compare with what happened; each observation counts with "
      "its "
      "present weight, and with the probability that the model gave it before it had learned from it.")
      .def_ro("weight", &AcceptanceCalibration::weight, "Of all observations.")
      .def_ro("predicted", &AcceptanceCalibration::predicted, "Mean probability.")
      .def_ro("accepted", &AcceptanceCalibration::accepted, "Share that was accepted.")
      .def_ro("calibration_error", &AcceptanceCalibration::calibration_error,
              "|predicted - accepted| of ten equal bins of probability, averaged by weight.")
      .def_ro("log_loss", &AcceptanceCalibration::log_loss, "Mean, in nats.");
  nb::class_<AcceptanceModel>(module, "AcceptanceModel", nb::is_final(),
                              "See metalane.ops.acceptance_model.AcceptanceModel.")
      .def(
          "__init__",
          [](AcceptanceModel* self, nb::handle forgetting, nb::handle damping, nb::handle capacity) {
            constexpr const char* op = "AcceptanceModel";
            new (self) AcceptanceModel(AcceptanceOptions{number_from(forgetting, op, "forgetting"),
                                                         number_from(damping, op, "damping"),
                                                         u64_from(capacity, op, "capacity")});
          },
          "forgetting"_a.none(), "damping"_a.none(), "capacity"_a.none(),
          nb::sig("def __init__(self, forgetting: float, damping: float, capacity: int) -> None"))
      .def(
          "observe",
          [](AcceptanceModel& self, nb::handle position, nb::handle confidence, nb::handle accepted) {
            constexpr const char* op = "AcceptanceModel.observe";
            self.observe(position_from(position, op),
                         static_cast<float>(number_from(confidence, op, "confidence")),
                         flag_from(accepted, op, "accepted"));
          },
          "position"_a.none(), "confidence"_a.none(), "accepted"_a.none(),
          nb::sig("def observe(self, position: int, confidence: float, accepted: bool) -> None"),
          nb::lock_self())
      .def(
          "observe_verified",
          [](AcceptanceModel& self, const std::vector<float>& confidence,
             const std::vector<std::uint32_t>& accepted, const std::vector<std::uint32_t>& verify_rows) {
            self.observe_verified(confidence, accepted, verify_rows);
          },
          "confidence"_a, "accepted"_a, "verify_rows"_a, nb::lock_self())
      .def("fit", &AcceptanceModel::fit, nb::lock_self())
      .def(
          "probability",
          [](const AcceptanceModel& self, nb::handle position, nb::handle confidence) {
            constexpr const char* op = "AcceptanceModel.probability";
            return self.probability(position_from(position, op),
                                    static_cast<float>(number_from(confidence, op, "confidence")));
          },
          "position"_a.none(), "confidence"_a.none(),
          nb::sig("def probability(self, position: int, confidence: float) -> float"), nb::lock_self())
      .def("calibration", &AcceptanceModel::calibration, nb::lock_self())
      .def_prop_ro("slope", &AcceptanceModel::slope)
      .def_prop_ro("intercepts", [](const AcceptanceModel& self) {
        return std::vector<double>(self.intercepts().begin(), self.intercepts().end());
      });
}

}  // namespace metalane::python
