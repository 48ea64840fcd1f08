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

nb::dict launch_dict(const null::RecordedLaunch& launch) {
  nb::dict buffers;
  for (const null::RecordedBuffer& buffer : launch.buffers) {
    buffers[nb::int_(buffer.index)] = nb::make_tuple(buffer.address, buffer.nbytes);
  }
  nb::dict bytes;
  for (const auto& [index, values] : launch.bytes) {
    bytes[nb::int_(index)] = nb::bytes(values.data(), values.size());
  }
  nb::dict threadgroup_memory;
  for (const backend::ThreadgroupBinding& memory : launch.threadgroup_memory) {
    threadgroup_memory[nb::int_(memory.index)] = memory.nbytes;
  }
  nb::dict entry;
  entry["kernel"] = nb::str(launch.kernel.data(), launch.kernel.size());
  entry["buffers"] = buffers;
  entry["bytes"] = bytes;
  entry["threadgroup_memory"] = threadgroup_memory;
  entry["grid_kind"] = kind_name(launch.grid_kind);
  entry["grid"] = triple(launch.grid);
  entry["threads_per_threadgroup"] = triple(launch.threads_per_threadgroup);
  entry["label"] = nb::str(launch.label.data(), launch.label.size());
  entry["barrier_before"] = launch.barrier_before;
  return entry;
}

nb::list last_record(nb::handle value) {
  const auto& device = object_from<Device>(value, "last_record", "device", "a null device");
  if (device.kind() != "null") throw ArgumentError("last_record", "device", "a null device", device.kind());
  const auto& backend = static_cast<const null::NullDevice&>(device.state()->backend());
  nb::list launches;
  for (const null::RecordedLaunch& launch : backend.last_record()) launches.append(launch_dict(launch));
  return launches;
}

}  // namespace

void bind_null_record(nb::module_& module) {
  module.def("_last_record", &last_record, "device"_a.none(),
             nb::sig("def _last_record(device: Device) -> list[dict[str, typing.Any]]"),
             "The launches of the submission that a null device was given last.");
}

}  // namespace metalane::python
