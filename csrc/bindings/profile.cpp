// Profiles of devices.
#include <nanobind/stl/vector.h>

#include "bindings/checked_arguments.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

// None for the 0 of what was not timed.
nb::object seconds_or_none(double seconds) { return seconds == 0 ? nb::none() : nb::cast(seconds); }

void bind_records(nb::module_& module) {
  nb::class_<ProfiledLaunch>(
      module, "ProfiledLaunch", nb::is_final(), nb::type_slots(made_by_runtime),
      "One launch that a profile has seen. Bytes are those of the buffers bound to it.")
      .def_ro("kernel", &ProfiledLaunch::kernel)
      .def_ro("label", &ProfiledLaunch::label, "Nested labels joined by '/'.")
      .def_ro("bytes_read", &ProfiledLaunch::bytes_read)
      .def_ro("bytes_written", &ProfiledLaunch::bytes_written)
      .def_ro("after_barrier", &ProfiledLaunch::after_barrier)
      .def_prop_ro(
          "start_seconds", [](const ProfiledLaunch& self) { return seconds_or_none(self.start_seconds); },
          nb::sig("def start_seconds(self) -> float | None"),
          "None where the device does not time single launches, and where it never started.")
      .def_prop_ro(
          "end_seconds", [](const ProfiledLaunch& self) { return seconds_or_none(self.end_seconds); },
          nb::sig("def end_seconds(self) -> float | None"))
      .def("__repr__", [](const ProfiledLaunch& self) {
        return "<ProfiledLaunch " + self.kernel + (self.label.empty() ? "" : " '" + self.label + "'") + ">";
      });
  nb::class_<ProfiledSubmission>(module, "ProfiledSubmission", nb::is_final(),
                                 nb::type_slots(made_by_runtime), "One submission that a profile has seen.")
      .def_ro("commit_seconds", &ProfiledSubmission::commit_seconds, "When it was handed to the device.")
      .def_prop_ro(
          "start_seconds", [](const ProfiledSubmission& self) { return seconds_or_none(self.start_seconds); },
          nb::sig("def start_seconds(self) -> float | None"),
          "When the device began; None while it runs, and where the device runs nothing.")
      .def_prop_ro(
          "end_seconds", [](const ProfiledSubmission& self) { return seconds_or_none(self.end_seconds); },
          nb::sig("def end_seconds(self) -> float | None"))
      .def_prop_ro(
          "done_seconds", [](const ProfiledSubmission& self) { return seconds_or_none(self.done_seconds); },
          nb::sig("def done_seconds(self) -> float | None"), "When the host knew; None while it runs.")
      .def_ro("done", &ProfiledSubmission::done)
      .def_ro("failed", &ProfiledSubmission::failed)
      .def_ro("launch_count", &ProfiledSubmission::launch_count)
      .def_ro("barrier_count", &ProfiledSubmission::barrier_count)
      .def_ro("bytes_read", &ProfiledSubmission::bytes_read)
      .def_ro("bytes_written", &ProfiledSubmission::bytes_written)
      .def_ro("launches", &ProfiledSubmission::launches, "Fewer than launch_count past max_launches.")
      .def("__repr__", [](const ProfiledSubmission& self) {
        return "<ProfiledSubmission of " + std::to_string(self.launch_count) + " launches>";
      });
  nb::class_<ProfileCounters>(module, "ProfileCounters", nb::is_final(), nb::type_slots(made_by_runtime),
                              "Sums over a profile.")
      .def_ro("submissions", &ProfileCounters::submissions)
      .def_ro("launches", &ProfileCounters::launches)
      .def_ro("barriers", &ProfileCounters::barriers)
      .def_ro("bytes_read", &ProfileCounters::bytes_read, "Of buffers bound to launches for reading.")
      .def_ro("bytes_written", &ProfileCounters::bytes_written)
      .def_ro("failed_submissions", &ProfileCounters::failed_submissions)
      .def_ro("device_seconds", &ProfileCounters::device_seconds, "In which the device ran something.")
      .def("__repr__", [](const ProfileCounters& self) {
        return "<ProfileCounters: " + std::to_string(self.launches) + " launches in " +
               std::to_string(self.submissions) + " submissions>";
      });
}

// Python's exporters, on the profile's records.
nb::object drawn(nb::handle self, const char* function) {
  return nb::module_::import_("metalane.profile").attr(function)(self);
}

}  // namespace

void bind_profile(nb::module_& module, nb::class_<Device>& device) {
  bind_records(module);
  nb::class_<Profile>(
      module, "Profile", nb::is_final(), nb::type_slots(made_by_runtime),
      "What a device did while it ran: submissions, launches, times, bytes. As a context manager "
      "it ends with the block, and waits for what it has seen unless the block raised.")
      .def(
          "stop", [](Profile& self) { self.stop(); }, "Later commits are not seen any more.")
      .def("wait", &wait_for_profile, "Waits until everything that was seen is done.")
      .def_prop_ro("running", &Profile::running)
      .def_prop_ro("device", &Profile::device, nb::rv_policy::copy, nb::sig("def device(self) -> Device"))
      .def_prop_ro("counters", &Profile::counters, nb::sig("def counters(self) -> ProfileCounters"))
      .def_prop_ro("submissions", &Profile::submissions,
                   nb::sig("def submissions(self) -> list[ProfiledSubmission]"),
                   "In the order of commits, those still running included.")
      .def(
          "trace_json",
          [](const Profile& self) {
            const std::string json = self.trace_json();
            nb::object text =
                nb::steal(PyUnicode_DecodeUTF8(json.data(), static_cast<Py_ssize_t>(json.size()), "replace"));
            if (!text.is_valid()) throw nb::python_error();
            return text;
          },
          nb::sig("def trace_json(self) -> str"),
          "What has finished as JSON of the Trace Event Format, which Perfetto and chrome://tracing show: "
          "submissions, label ranges and launches on the device's track, commit to completion on the host's.")
      .def(
          "table", [](nb::handle self) { return drawn(self, "table_text"); },
          nb::sig("def table(self) -> str"),
          "Launches by label and kernel with their times and bytes, the longest first, and the totals.")
      .def(
          "timeline_svg", [](nb::handle self) { return drawn(self, "timeline_svg"); },
          nb::sig("def timeline_svg(self) -> str"),
          "A picture of what ran when: submissions, label ranges and launches, as an SVG document.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Profile"))
      .def(
          "__exit__",
          [](Profile& self, nb::handle type, nb::handle, nb::handle) {
            self.stop();
            if (type.is_none()) wait_for_profile(self);
            return false;
          },
          "exception_type"_a.none(), "exception"_a.none(), "traceback"_a.none(),
          nb::sig("def __exit__(self, exception_type: object, exception: object, traceback: object) -> "
                  "typing.Literal[False]"))
      .def("__repr__", [](const Profile& self) {
        return "<Profile of " + std::to_string(self.counters().launches) + " launches, " +
               (self.running() ? "running>" : "stopped>");
      });
  device.def(
      "profile",
      [](const Device& self, nb::handle max_launches) {
        ProfileOptions options;
        options.max_launches = u64_from(max_launches, "Device.profile", "max_launches");
        return new Profile(self, options);
      },
      "max_launches"_a.none() = ProfileOptions().max_launches, nb::rv_policy::take_ownership,
      nb::sig("def profile(self, max_launches: int = 1048576) -> Profile"),
      "Starts a profile, which sees the submissions whose encoders are opened and committed while it "
      "runs.\n\n"
      "max_launches: how many launches are kept one by one; the rest are counted only.\n\n"
      "Raises ArgumentError where one of this device runs already.");
}

}  // namespace metalane::python
