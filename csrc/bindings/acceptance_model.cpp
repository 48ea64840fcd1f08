// The model of acceptance; metalane.ops.acceptance_model gives it arrays and dataclasses.
#include <metalane/ops/acceptance_model.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace metalane::python {

using namespace nb::literals;

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
          [](AcceptanceModel* self, double forgetting, double damping, std::size_t capacity) {
            new (self) AcceptanceModel(AcceptanceOptions{forgetting, damping, capacity});
          },
          "forgetting"_a, "damping"_a, "capacity"_a)
      .def("observe", &AcceptanceModel::observe, "position"_a, "confidence"_a, "accepted"_a, nb::lock_self())
      .def(
          "observe_verified",
          [](AcceptanceModel& self, const std::vector<float>& confidence,
             const std::vector<std::uint32_t>& accepted, const std::vector<std::uint32_t>& verify_rows) {
            self.observe_verified(confidence, accepted, verify_rows);
          },
          "confidence"_a, "accepted"_a, "verify_rows"_a, nb::lock_self())
      .def("fit", &AcceptanceModel::fit, nb::lock_self())
      .def("probability", &AcceptanceModel::probability, "position"_a, "confidence"_a, nb::lock_self())
      .def("calibration", &AcceptanceModel::calibration, nb::lock_self())
      .def_prop_ro("slope", &AcceptanceModel::slope)
      .def_prop_ro("intercepts", [](const AcceptanceModel& self) {
        return std::vector<double>(self.intercepts().begin(), self.intercepts().end());
      });
}

}  // namespace metalane::python
