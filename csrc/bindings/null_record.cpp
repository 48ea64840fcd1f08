// What the null device was given: for tests of everything above a backend.
#include "backends/null/null_device.h"
#include "bindings/checked_arguments.h"
#include "core/device_state.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

nb::tuple triple(const std::uint32_t (&values)[3]) { return nb::make_tuple(values[0], values[1], values[2]); }

const char* kind_name(Grid::Kind kind) {
  switch (kind) {
    case Grid::Kind::threadgroups:
      return "threadgroups";
    case Grid::Kind::threads:
      return "threads";
    case Grid::Kind::indirect:
      return "indirect";
  }
  return "threadgroups";
}

nb::dict launch_dict(const null::Record& record, const null::RecordedLaunch& launch) {
  nb::dict buffers;
  for (std::uint32_t i = 0; i < launch.buffer_count; ++i) {
    const backend::BufferBinding& binding = record.buffers[launch.first_buffer + i];
    buffers[nb::int_(binding.index)] =
        nb::make_tuple(reinterpret_cast<std::uint64_t>(binding.address), binding.nbytes);
  }
  nb::dict bytes;
  for (std::uint32_t i = 0; i < launch.bytes_count; ++i) {
    const null::RecordedBytes& binding = record.bytes[launch.first_bytes + i];
    bytes[nb::int_(binding.index)] =
        nb::bytes(reinterpret_cast<const char*>(record.data.data()) + binding.first, binding.nbytes);
  }
  nb::dict threadgroup_memory;
  for (std::uint32_t i = 0; i < launch.threadgroup_count; ++i) {
    const backend::ThreadgroupBinding& binding = record.threadgroup_memory[launch.first_threadgroup + i];
    threadgroup_memory[nb::int_(binding.index)] = binding.nbytes;
  }
  const std::string label = record.text.substr(launch.first_label, launch.label_size);
  nb::dict entry;
  entry["kernel"] = nb::str(record.text.data() + launch.first_name, launch.name_size);
  entry["buffers"] = buffers;
  entry["bytes"] = bytes;
  entry["threadgroup_memory"] = threadgroup_memory;
  entry["grid_kind"] = kind_name(launch.grid_kind);
  entry["grid"] = triple(launch.grid);
  entry["threads_per_threadgroup"] = triple(launch.threads_per_threadgroup);
  entry["label"] = nb::str(label.c_str());
  entry["barrier_before"] = launch.barrier_before;
  return entry;
}

nb::list last_record(nb::handle value) {
  const auto& device = object_from<Device>(value, "last_record", "device", "a null device");
  if (device.kind() != "null") throw ArgumentError("last_record", "device", "a null device", device.kind());
  const auto& backend = static_cast<const null::NullDevice&>(device.state()->backend());
  const null::Record record = backend.last_record();
  nb::list launches;
  for (const null::RecordedLaunch& launch : record.launches) launches.append(launch_dict(record, launch));
  return launches;
}

}  // namespace

void bind_null_record(nb::module_& module) {
  module.def("_last_record", &last_record, "device"_a.none(),
             nb::sig("def _last_record(device: Device) -> list[dict[str, typing.Any]]"),
             "The launches of the submission that a null device was given last.");
}

}  // namespace metalane::python
