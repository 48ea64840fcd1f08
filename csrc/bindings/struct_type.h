// Parameter structs: Python objects whose fields live packed, as the device reads them, inside the object.
#pragma once

#include <atomic>
#include <map>

#include "bindings/bindings.h"

namespace metalane::python {

// One field as it is converted; `layout.fields[i]` describes it to people and to comparisons.
struct StructFieldSpec {
  nb::object name;   // interned
  std::string text;  // the same, for errors
  ScalarType scalar = ScalarType::opaque;
  std::uint32_t components = 1;
  std::uint64_t count = 0;  // 0: not an array
  std::uint64_t offset = 0;
  std::uint64_t element_size = 0;  // of one array element: a scalar, a vector or a nested struct
  std::uint64_t component_size = 0;
  nb::object nested;           // the field's class where it is a struct
  nb::object default_factory;  // called for a field that is not given; or none
  bool required = true;
  bool keyword_only = false;  // not among the values that are given by position
};

// What a class made by metal_struct knows about its memory. Shared by all its instances.
struct StructSpec {
  std::string name;
  std::shared_ptr<const StructLayout> layout;
  std::vector<StructFieldSpec> fields;
  std::size_t positional = 0;          // how many of them can be given by position
  std::vector<std::uint8_t> defaults;  // an instance with every default filled in

  // The operator's struct that this layout was last compared with and found equal.
  mutable std::atomic<const StructLayout*> lies_as{nullptr};

  // Throws ArgumentError naming the first field in which a kernel's argument of `type` differs. Compared once
  // for each pipeline and argument.
  void check_matches(const Pipeline& pipeline, const KernelArgument& argument) const;

 private:
  struct Checked {
    std::weak_ptr<const core::PipelineState> pipeline;
    std::uint32_t index = 0;
  };
  static constexpr std::size_t kChecked = 16;
  mutable std::vector<Checked> checked_;
  mutable std::size_t next_checked_ = 0;
};

// The parameter structs of the built-in kernels as the C++ compiler laid them out, by name (layouts.cpp).
const std::map<std::string, StructLayout>& cpp_layouts();

// The packed bytes of an instance of a metal_struct class.
struct StructView {
  const StructSpec* spec = nullptr;
  const void* bytes = nullptr;
};
// An empty view where `value` is no such instance. Valid while `value` lives.
StructView struct_view(nb::handle value) noexcept;

}  // namespace metalane::python
