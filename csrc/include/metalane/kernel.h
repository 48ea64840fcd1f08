// What a kernel takes (read from its source), and the pipelines built from it.
#pragma once

#include <metalane/dtype.h>
#include <metalane/export.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace metalane {

enum class AddressSpace : std::uint8_t { device, constant, threadgroup };

// Bit set: what a launch may do with the range bound to an argument.
enum class Access : std::uint8_t { none = 0, read = 1, write = 2, read_write = 3 };
constexpr bool reads(Access access) noexcept { return (static_cast<int>(access) & 1) != 0; }
constexpr bool writes(Access access) noexcept { return (static_cast<int>(access) & 2) != 0; }

enum class ScalarType : std::uint8_t {
  opaque,  // void, a type that the reader does not know, or a template parameter
  boolean,
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  bfloat16,
  float32,
  structure,  // struct or union: see `layout`
};

struct StructLayout;

// A type as the device lays it out. `components` counts a vector's elements and `columns` a matrix's
// columns; both are 1 for a scalar. Size and alignment are 0 where they are not known.
struct TypeInfo {
  std::string name;
  ScalarType scalar = ScalarType::opaque;
  std::uint32_t components = 1;
  std::uint32_t columns = 1;
  std::uint64_t size = 0;
  std::uint64_t alignment = 0;
  std::shared_ptr<const StructLayout> layout;
};

struct StructField {
  std::string name;
  TypeInfo type;            // the element's type where the field is an array
  std::uint64_t count = 0;  // elements of an array (all its dimensions multiplied); 0: not an array
  std::uint64_t offset = 0;
  std::uint64_t size = 0;  // bytes of the whole field
  // A bit-field's place in the unit of its type at `offset`; bit_width is 0 for other fields.
  std::uint32_t bit_offset = 0;
  std::uint32_t bit_width = 0;
};

struct StructLayout {
  std::string name;
  std::uint64_t size = 0;
  std::uint64_t alignment = 0;
  bool is_union = false;
  std::vector<StructField> fields;
};

// One bound argument: a pointer or reference into `space`, at `index` of [[buffer(index)]] (or of
// [[threadgroup(index)]] for the threadgroup space).
struct KernelArgument {
  std::string name;
  AddressSpace space = AddressSpace::device;
  Access access = Access::read_write;
  std::uint32_t index = 0;
  bool is_reference = false;  // `constant T&`: exactly one T
  TypeInfo type;              // what is pointed to
  bool is_optional = false;   // [[function_constant(c)]]: there only where c is true
};

struct FunctionConstant {
  std::string name;
  std::uint32_t index = 0;
  TypeInfo type;
};

struct KernelSignature {
  std::string name;      // what dispatch calls it: the function's name, or its [[host_name("...")]]
  std::string function;  // the function (with template arguments) that it instantiates
  std::vector<KernelArgument> arguments;  // buffers by index, then threadgroup memory by index
  std::vector<FunctionConstant> constants;
  std::uint32_t max_total_threads_per_threadgroup = 0;  // the attribute; 0: not given
};

enum class MathMode : std::uint8_t { safe, fast };

using ConstantNumber = std::variant<bool, std::int64_t, std::uint64_t, double>;

// The value of a function constant, by name or by index; the components of one that is a vector.
struct ConstantValue {
  std::variant<std::string, std::uint32_t> key;
  std::variant<bool, std::int64_t, std::uint64_t, double, std::vector<ConstantNumber>> value;
};

namespace core {
struct PipelineState;
}

// A kernel compiled for one device. Cheap to copy, thread-safe.
class METALANE_API Pipeline {
 public:
  Pipeline() = default;
  explicit Pipeline(std::shared_ptr<const core::PipelineState> state) : state_(std::move(state)) {}

  // These throw ArgumentError on an empty handle.
  const KernelSignature& signature() const;
  // The complete key, readable: "name=saxpy source=1f3a... math=safe device=cpu ..."
  const std::string& key() const;
  std::uint32_t max_total_threads_per_threadgroup() const;
  std::uint32_t thread_execution_width() const;
  std::uint32_t static_threadgroup_memory() const;
  explicit operator bool() const noexcept { return state_ != nullptr; }
  const std::shared_ptr<const core::PipelineState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<const core::PipelineState> state_;
};

namespace core {
class RegistryState;
}

// The sources of one device and the pipelines built from them. A source is registered under a name; the
// kernel that `pipeline(name)` gives is, in this order: the kernel `name` of the source registered as
// `name`; that source's only kernel; the kernel `function` of the source `library` for a name written
// "library::function"; the kernel `name` of the one registered source that has it. Registering a name
// again replaces its source; pipelines already built stay valid. Built-in operators always use their own
// sources. Cheap to copy, thread-safe.
class METALANE_API KernelRegistry {
 public:
  explicit KernelRegistry(std::shared_ptr<core::RegistryState> state) : state_(std::move(state)) {}
  // Never empty: a move copies.
  KernelRegistry(const KernelRegistry&) = default;
  KernelRegistry& operator=(const KernelRegistry&) = default;

  void register_source(const std::string& name, const std::string& source);
  // What `#include "name"` gives in every source of this registry.
  void register_header(const std::string& name, const std::string& text);
  // Throws KernelNotFoundError (no such kernel), ArgumentError (constants), CompileError.
  Pipeline pipeline(const std::string& name, const std::vector<ConstantValue>& constants = {},
                    MathMode math = MathMode::safe);
  // The kernels of the source registered as `name`, compiled or not. Throws like `pipeline`.
  std::vector<KernelSignature> kernels(const std::string& name);
  std::vector<std::string> names() const;
  // The one text that Metal's compiler is given for the source of the kernel `name`: headers in place, lines
  // marked. Throws KernelNotFoundError, CompileError.
  std::string metal_source(const std::string& name, MathMode math = MathMode::safe);
  const std::shared_ptr<core::RegistryState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<core::RegistryState> state_;
};

}  // namespace metalane
