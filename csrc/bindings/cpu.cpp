// Process-wide settings of the CPU device: its threads, and the disk cache of compiled kernels.
#include <metalane/cpu.h>
#include <nanobind/stl/vector.h>

#include "bindings/checked_arguments.h"

namespace metalane::python {

using namespace nb::literals;

namespace {

void set_thread_count(nb::handle count) {
  cpu::set_thread_count(u64_from(count, "set_thread_count", "count"));
}

void set_kernel_cache(nb::handle directory, nb::handle limit_bytes) {
  const std::string path =
      directory.is_none() ? std::string() : path_from(directory, "set_kernel_cache", "directory");
  cpu::set_kernel_cache(path, u64_from(limit_bytes, "set_kernel_cache", "limit_bytes"));
}

}  // namespace

void bind_cpu(nb::module_& module) {
  nb::class_<cpu::KernelCacheInfo>(module, "KernelCacheInfo", nb::is_final(), nb::type_slots(made_by_runtime),
                                   "Where compiled kernels are kept, and how much is there.")
      .def_prop_ro(
          "directory",
          [](const cpu::KernelCacheInfo& self) {
            return nb::module_::import_("os").attr("fsdecode")(
                nb::bytes(self.directory.data(), self.directory.size()));
          },
          nb::sig("def directory(self) -> str"))
      .def_ro("entries", &cpu::KernelCacheInfo::entries, "Compiled kernels.")
      .def_ro("nbytes", &cpu::KernelCacheInfo::nbytes, "Of all of them.")
      .def_ro("limit_bytes", &cpu::KernelCacheInfo::limit_bytes,
              "The least recently used ones go when more is stored.")
      .def("__repr__", [](const cpu::KernelCacheInfo& self) {
        return "<KernelCacheInfo: " + std::to_string(self.entries) + " kernels, " +
               std::to_string(self.nbytes) + " of " + std::to_string(self.limit_bytes) + " bytes>";
      });
  module.def(
      "set_thread_count", &set_thread_count, "count"_a.none(),
      nb::sig("def set_thread_count(count: int) -> None"),
      "Worker threads of CPU devices opened from now on; 0: one a processor that the process may use.");
  module.def("instruction_sets", &cpu::instruction_sets,
             "What `isa` of a CPU Device may name on this processor, the best first.");
  module.def("set_kernel_cache", &set_kernel_cache, "directory"_a.none() = nb::none(),
             "limit_bytes"_a.none() = std::uint64_t{1} << 30,
             nb::sig("def set_kernel_cache(directory: str | os.PathLike[str] | None = None, "
                     "limit_bytes: int = 1073741824) -> None"),
             "Where kernels compiled at run time are kept, and how many bytes of them.\n\n"
             "directory: None: $METALANE_CACHE_DIR, else $XDG_CACHE_HOME/metalane, else ~/.cache/metalane.");
  module.def("kernel_cache_info", &cpu::kernel_cache_info, nb::call_guard<Unlocked>(),
             "The cache's folder, and what is in it now.");
  module.def(
      "prune_kernel_cache",
      [](nb::handle nbytes) {
        const std::uint64_t limit = u64_from(nbytes, "prune_kernel_cache", "nbytes");
        Unlocked unlocked;
        return cpu::prune_kernel_cache(limit);
      },
      "nbytes"_a.none(), nb::sig("def prune_kernel_cache(nbytes: int) -> int"),
      "Deletes the least recently used compiled kernels until at most `nbytes` are left; returns how many "
      "went.");
  module.def("clear_kernel_cache", &cpu::clear_kernel_cache, nb::call_guard<Unlocked>(),
             "Deletes every compiled kernel and returns how many; kernels in use stay usable.");
}

}  // namespace metalane::python
