// What the checker's bindings give to those of devices and errors.
#pragma once

#include <metalane/check.h>

#include <string>
#include <vector>

#include "bindings/bindings.h"

namespace metalane::python {

// Device's arguments `check` and `reports`. Throws ArgumentError, DTypeError.
CheckOptions check_from(nb::handle check, nb::handle reports);
// The metalane.check_session.CheckSession that decides about a device opened without `check`, or None.
nb::object check_session_of(const std::string& kind, const char* kernels);
nb::tuple check_words(const CheckOptions& options);
nb::tuple findings_tuple(const std::vector<CheckFinding>& findings);
void bind_check(nb::class_<Device>& device);

}  // namespace metalane::python
