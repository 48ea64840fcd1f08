// What the checker's bindings give to those of devices and errors.
#pragma once

#include <metalane/check.h>

#include <vector>

#include "bindings/bindings.h"

namespace metalane::python {

// Device's arguments `check` and `reports`. Throws ArgumentError, DTypeError.
CheckOptions check_from(nb::handle check, nb::handle reports);
nb::tuple check_words(const CheckOptions& options);
nb::tuple findings_tuple(const std::vector<CheckFinding>& findings);
void bind_check(nb::class_<Device>& device);

}  // namespace metalane::python
