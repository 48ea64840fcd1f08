// Buffer pools.
#include "bindings/checked_arguments.h"

namespace metalane::python {

using namespace nb::literals;

void bind_buffer_pool(nb::module_& module) {
  using Statistics = BufferPoolStatistics;
  nb::class_<Statistics>(module, "BufferPoolStatistics", nb::is_final(), nb::type_slots(made_by_runtime),
                         "What a pool holds and has done; bytes are those of whole blocks.")
      .def_prop_ro(
          "quota_bytes",
          [](const Statistics& self) {
            return self.quota_bytes == 0 ? nb::none() : nb::object(nb::int_(self.quota_bytes));
          },
          nb::sig("def quota_bytes(self) -> int | None"))
      .def_ro("held_bytes", &Statistics::held_bytes, "Taken from the device: the sum of the next three.")
      .def_ro("owned_bytes", &Statistics::owned_bytes, "Somebody has them.")
      .def_ro("returning_bytes", &Statistics::returning_bytes,
              "Given back, but launches or host views use them still.")
      .def_ro("free_bytes", &Statistics::free_bytes)
      .def_ro("peak_bytes", &Statistics::peak_bytes, "The most that was held.")
      .def_ro("takes", &Statistics::takes)
      .def_ro("reuses", &Statistics::reuses, "Takes that needed nothing from the device.")
      .def_ro("blocks", &Statistics::blocks, "Held.")
      .def("__repr__", [](const Statistics& self) {
        return "<BufferPoolStatistics: " + std::to_string(self.owned_bytes) + " bytes owned, " +
               std::to_string(self.returning_bytes) + " returning, " + std::to_string(self.free_bytes) +
               " free>";
      });
  nb::class_<BufferPool>(
      module, "BufferPool", nb::is_final(),
      "Blocks of a device's memory, in sizes at most a quarter apart, given out and taken back without "
      "asking the "
      "device. A block has one owner at a time; it goes to the next once it was given back, or its last "
      "handle is "
      "gone, and no open encoder, launch in flight or host view uses it any more.\n\n"
      "On a device with the checker every block is new, so that it finds reads of what a former owner left.")
      .def(
          "__init__",
          [](BufferPool* self, nb::handle device, nb::handle quota) {
            std::uint64_t bytes = 0;
            if (!quota.is_none()) {
              bytes = u64_from(quota, "BufferPool", "quota");
              if (bytes == 0) throw ArgumentError("BufferPool", "quota", "None or at least 1 byte", "0");
            }
            new (self) BufferPool(object_from<Device>(device, "BufferPool", "device", "a Device"), bytes);
          },
          "device"_a.none(), "quota"_a = nb::none(),
          nb::sig("def __init__(self, device: Device, quota: int | None = None) -> None"),
          "quota: bytes that it holds at most; None: whatever the device has.")
      .def(
          "take",
          [](const BufferPool& self, nb::handle shape, nb::handle dtype) {
            drain_deferred();
            const Shape dims = shape_from(shape, "BufferPool.take");
            const DType element = dtype_from(dtype, "BufferPool.take");
            Unlocked unlocked;
            return self.take(dims, element);
          },
          "shape"_a.none(), "dtype"_a.none(),
          nb::sig("def take(self, shape: int | Sequence[int], dtype: typing.Any) -> Buffer"),
          "A buffer with unspecified contents.\n\n"
          "Raises OutOfMemoryError past the quota, and where the device has no more.")
      .def(
          "give_back",
          [](const BufferPool& self, nb::handle buffer) {
            self.give_back(object_from<Buffer>(buffer, "BufferPool.give_back", "buffer", "a Buffer"));
          },
          "buffer"_a.none(), nb::sig("def give_back(self, buffer: Buffer) -> None"),
          "Ends the ownership: every later use of the buffer, also through views, raises.\n\n"
          "Raises ArgumentError for a view, a buffer from elsewhere, and one that was given back or released "
          "already.")
      .def("trim", &BufferPool::trim, nb::call_guard<Unlocked>(),
           "Gives free blocks back to the device; returns their bytes.")
      .def_prop_ro("statistics", &BufferPool::statistics)
      .def_prop_ro("device", &BufferPool::device, nb::sig("def device(self) -> Device"))
      .def("__repr__", [](const BufferPool& self) {
        const Statistics counts = self.statistics();
        return "<BufferPool: " + std::to_string(counts.blocks) + " blocks, " +
               std::to_string(counts.held_bytes) + " bytes>";
      });
}

}  // namespace metalane::python
