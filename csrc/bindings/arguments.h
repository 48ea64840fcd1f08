// A launch's arguments as the runtime takes them, read from Python's objects.
#pragma once

#include <array>

#include "bindings/bindings.h"

namespace metalane::python {

// Holds what `args()` points to, the Python objects included, until it goes.
class ArgumentList {
 public:
  static constexpr std::size_t kMaxArguments = 31;

  ArgumentList() noexcept {}
  ~ArgumentList();
  ArgumentList(const ArgumentList&) = delete;
  ArgumentList& operator=(const ArgumentList&) = delete;

  // `arguments`: a list or tuple (index = position) or a dict {index: value} of buffers, metal_struct
  // instances, bytes, and numbers typed by the kernel's signature.
  void read(const Pipeline& pipeline, nb::handle arguments);
  std::span<const KernelArg> args() const noexcept { return {args_, count_}; }

 private:
  void hold(PyObject* value);
  void add(const KernelSignature& signature, const Pipeline& pipeline, std::uint64_t index, nb::handle value);
  void add_number(const KernelSignature& signature, std::uint32_t index, nb::handle value);

  // The widest scalar argument: a vector of four 8-byte integers.
  static constexpr std::size_t kScalarBytes = 32;
  std::size_t count_ = 0;
  union {
    KernelArg args_[kMaxArguments];  // the first count_ exist: writing a kilobyte a call would show
  };
  std::size_t held_count_ = 0;
  std::array<PyObject*, kMaxArguments> held_;
  alignas(32) std::array<std::array<std::uint8_t, kScalarBytes>, kMaxArguments> scalars_;
};

}  // namespace metalane::python
