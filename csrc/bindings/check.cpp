// The checker's face in Python: the argument of Device that turns it on, and what it reports.
#include "bindings/check.h"

#include <metalane/check.h>
#include <nanobind/stl/vector.h>

#include <iterator>

#include "bindings/checked_arguments.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

constexpr const char* kinds_expected =
    "True, False, or words of 'races bounds uninitialised divergence traffic' (text or a sequence)";

void add_kind(CheckOptions& options, const std::string& word) {
  if (word == "races") {
    options.races = true;
  } else if (word == "bounds") {
    options.bounds = true;
  } else if (word == "uninitialised") {
    options.uninitialised = true;
  } else if (word == "divergence") {
    options.divergence = true;
  } else if (word == "traffic") {
    options.traffic = true;
  } else {
    throw ArgumentError("Device", "check", kinds_expected, "'" + word + "'");
  }
}

nb::tuple triple(const std::array<std::uint32_t, 3>& values) {
  return nb::make_tuple(values[0], values[1], values[2]);
}

nb::object access_object(const nb::module_& classes, const CheckAccess& access) {
  return classes.attr("CheckAccess")(
      "kernel"_a = access.kernel, "file"_a = access.file, "line"_a = access.line,
      "access"_a = name_of(access.access), "nbytes"_a = access.nbytes, "thread"_a = triple(access.thread),
      "threadgroup"_a = triple(access.threadgroup), "thread_index"_a = access.thread_index,
      "simdgroup"_a = access.simdgroup, "lane"_a = access.lane);
}

nb::object finding_object(const nb::module_& classes, const CheckFinding& finding) {
  return classes.attr("CheckFinding")(
      "kind"_a = name_of(finding.kind), "severity"_a = name_of(finding.severity),
      "argument"_a =
          finding.argument.empty() ? nb::object(nb::none()) : nb::object(nb::str(finding.argument.c_str())),
      "memory"_a = finding.memory, "byte_offset"_a = finding.byte_offset,
      "element_index"_a = finding.element_index, "bound_nbytes"_a = finding.bound_nbytes,
      "access"_a = access_object(classes, finding.access),
      "other"_a = finding.other ? access_object(classes, *finding.other) : nb::object(nb::none()),
      "count"_a = finding.count, "message"_a = finding.message);
}

nb::object report_object(const Device& device) {
  CheckReport report;
  {
    Unlocked unlocked;
    report = device.check_report();
  }
  const nb::module_ classes = nb::module_::import_("metalane.check");
  nb::list traffic, arguments, waits, samples;
  for (const CheckTraffic& row : report.traffic) {
    traffic.append(classes.attr("CheckTraffic")(
        "kernel"_a = row.kernel, "argument"_a = row.argument, "memory"_a = row.memory, "file"_a = row.file,
        "line"_a = row.line, "access"_a = name_of(row.access), "count"_a = row.count, "nbytes"_a = row.nbytes,
        "sampled_count"_a = row.sampled_count, "sampled_nbytes"_a = row.sampled_nbytes,
        "simdgroup_nbytes"_a = row.simdgroup_nbytes, "threadgroup_nbytes"_a = row.threadgroup_nbytes,
        "requests"_a = row.requests, "lines"_a = row.lines, "bank_cycles"_a = row.bank_cycles));
  }
  for (const CheckArgument& row : report.arguments) {
    arguments.append(classes.attr("CheckArgument")(
        "kernel"_a = row.kernel, "argument"_a = row.argument, "memory"_a = row.memory,
        "loaded_nbytes"_a = row.loaded_nbytes, "stored_nbytes"_a = row.stored_nbytes,
        "sampled_nbytes"_a = row.sampled_nbytes, "thread_nbytes"_a = row.thread_nbytes,
        "simdgroup_nbytes"_a = row.simdgroup_nbytes, "threadgroup_nbytes"_a = row.threadgroup_nbytes));
  }
  for (const CheckWaits& row : report.waits) {
    waits.append(classes.attr("CheckWaits")("kernel"_a = row.kernel, "operation"_a = row.operation,
                                            "file"_a = row.file, "line"_a = row.line, "count"_a = row.count));
  }
  for (const CheckSample& sample : report.samples) {
    samples.append(classes.attr("CheckSample")(
        "traffic"_a = sample.traffic, "thread_index"_a = sample.thread_index, "turn"_a = sample.turn,
        "byte_offset"_a = sample.byte_offset, "nbytes"_a = sample.nbytes));
  }
  return classes.attr("CheckReport")("findings"_a = findings_tuple(report.findings),
                                     "traffic"_a = nb::tuple(traffic), "arguments"_a = nb::tuple(arguments),
                                     "waits"_a = nb::tuple(waits), "samples"_a = nb::tuple(samples));
}

}  // namespace

CheckOptions check_from(nb::handle check, nb::handle reports) {
  CheckOptions options;
  const std::string form = text_from(reports, "Device", "reports");
  if (form != "raise" && form != "list")
    throw ArgumentError("Device", "reports", "'raise' or 'list'", "'" + form + "'");
  if (check.is(nb::handle(Py_True))) {
    options = CheckOptions::all();
  } else if (nb::isinstance<nb::str>(check)) {
    const nb::object words = check.attr("split")();
    for (nb::handle word : words) add_kind(options, nb::cast<std::string>(word));
  } else if (!check.is(nb::handle(Py_False)) && !check.is_none()) {
    constexpr std::uint64_t most = 100;
    const SequenceItems items = sequence_items(check, most);
    if (items.length < 0 || !items.tuple.is_valid())
      throw DTypeError("Device", "check", kinds_expected, repr_of(check) + " (" + type_name_of(check) + ")");
    for (nb::handle word : items.tuple) add_kind(options, text_from(word, "Device", "check"));
  }
  options.as_list = form == "list";
  return options;
}

nb::object check_session_of(const std::string& kind, const char* kernels) {
  return nb::module_::import_("metalane.check_session").attr("session_of")(kind, kernels);
}

nb::tuple check_words(const CheckOptions& options) {
  nb::list words;
  if (options.races) words.append("races");
  if (options.bounds) words.append("bounds");
  if (options.uninitialised) words.append("uninitialised");
  if (options.divergence) words.append("divergence");
  if (options.traffic) words.append("traffic");
  return nb::tuple(words);
}

nb::tuple findings_tuple(const std::vector<CheckFinding>& findings) {
  const nb::module_ classes = nb::module_::import_("metalane.check");
  nb::list objects;
  for (const CheckFinding& finding : findings) objects.append(finding_object(classes, finding));
  return nb::tuple(objects);
}

void bind_check(nb::class_<Device>& device) {
  device
      .def_prop_ro(
          "check", [](const Device& self) { return check_words(self.check()); },
          nb::sig("def check(self) -> tuple[str, ...]"), "What the checker watches; empty: nothing.")
      .def("check_report", &report_object, nb::sig("def check_report(self) -> CheckReport"),
           "What a device with the checker has found and counted so far; waits for what was committed.")
      .def(
          "clear_check_report",
          [](const Device& self) {
            Unlocked unlocked;
            self.clear_check_report();
          },
          "Forgets what was found and counted.");
}

}  // namespace metalane::python
