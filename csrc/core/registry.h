// Sources by name, and the pipelines built from them, found or built under a complete key.
#pragma once

#include <metalane/kernel.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <forward_list>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/backend.h"
#include "core/fork.h"

namespace metalane::core {

class DeviceState;

inline constexpr std::uint32_t max_buffers = 31;  // Metal's buffer argument table

// What a launch checks of the buffer or bytes at one index; the signature tells the rest, for errors.
struct ArgumentCheck {
  std::int8_t argument = -1;  // index into signature.arguments; -1: nothing there
  Access access = Access::none;
  bool is_reference = false;
  std::uint32_t alignment_mask = 0;  // of the element type; 0 where the alignment is not known
  std::uint64_t size = 0;            // of the type pointed to; 0: not known
};

// What of a pipeline's key does not depend on the device.
struct PipelineOrigin {
  std::string source_hash;
  std::vector<ConstantValue> constants;
  MathMode math = MathMode::safe;
};

// A compiled kernel with what the encoder looks up for every launch.
struct PipelineState {
  std::shared_ptr<const backend::Pipeline> compiled;
  std::shared_ptr<const backend::Device> device;
  std::string key;
  PipelineOrigin origin;
  std::array<ArgumentCheck, max_buffers> checks;  // by buffer index
  std::uint32_t buffer_mask = 0;                  // bit i: [[buffer(i)]] can be bound
  std::uint32_t required_mask = 0;                // bit i: it must be: function constants leave it there
  std::uint32_t threadgroup_mask = 0;             // bit i: [[threadgroup(i)]] must be bound
  std::int8_t status_argument = -1;  // the one that the encoder binds (launch_status.h); -1: none

  // `builtin`: of a source that the library carries.
  PipelineState(std::shared_ptr<const backend::Pipeline> compiled,
                std::shared_ptr<const backend::Device> device, std::string key, PipelineOrigin origin,
                bool builtin);
};

// One device's registry. Thread-safe; one lock finds or places an entry, the entry's own lock builds it, so
// that different kernels compile at once and one kernel compiles once.
class RegistryState {
 public:
  METALANE_API explicit RegistryState(std::shared_ptr<backend::Device> device);

  void register_source(const std::string& name, const std::string& source);
  void register_header(const std::string& name, const std::string& text);
  Pipeline pipeline(const std::string& name, const std::vector<ConstantValue>& constants, MathMode math);
  // The kernel `name` of that very source, be it built in or registered under whatever name. Throws
  // KernelNotFoundError, which says what other sources have such a kernel; else like `pipeline`.
  METALANE_API Pipeline pipeline_of_source(const std::string& name, const PipelineOrigin& origin);
  std::vector<KernelSignature> kernels(const std::string& name);
  std::vector<std::string> names() const;
  // The source that `pipeline(name)` takes its kernel from, or that is registered as `name`.
  METALANE_API std::shared_ptr<const backend::SourceText> source_text(const std::string& name);

  // pipeline(name) without constants and with safe math, by one hash lookup once it was built.
  METALANE_API Pipeline default_pipeline(std::string_view name);
  // The same for a kernel that the library carries, whatever was registered under its name; `index` is its
  // place in builtin_kernels(). One load once it was built. The reference stays valid for the registry's
  // life.
  const Pipeline& builtin_pipeline(std::size_t index);

 private:
  struct Source {
    std::shared_ptr<const backend::SourceText> text;
    std::string hash;  // of text and headers
    std::vector<std::string> kernel_names;
    bool has(const std::string& kernel) const;
  };
  struct Entry {
    std::mutex mutex;
    std::condition_variable built;
    bool building = false;  // by one thread, the others wait
    Pipeline pipeline;
  };
  struct TransparentHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using PipelineMap = std::unordered_map<std::string, Pipeline, TransparentHash, std::equal_to<>>;
  struct Target {
    std::shared_ptr<const Source> source;
    std::string function;
  };

  // Registered sources that have a kernel of that name.
  struct Holders {
    std::vector<std::shared_ptr<const Source>> sources;
    std::vector<std::string> names;       // as they are registered
    std::vector<std::string> unreadable;  // of sources that may or may not have it
  };

  void check_process() const;
  Holders holders_of(const std::string& name);
  Target find(const std::string& name);
  Target find_builtin(const std::string& name);
  std::shared_ptr<const Source> registered(const std::string& name);
  std::shared_ptr<const Source> read(const std::string& name, const std::string& text,
                                     const std::map<std::string, std::string>& headers, bool builtin);
  Pipeline build(const Target& target, const std::vector<ConstantValue>& constants, MathMode math);

  std::shared_ptr<backend::Device> device_;
  std::uint64_t fork_generation_;
  mutable std::shared_mutex mutex_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::string> headers_;
  std::map<std::string, std::shared_ptr<const Source>> sources_;  // read ones, dropped when a text changes
  std::map<std::string, std::shared_ptr<const Source>> builtin_sources_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
  PipelineMap defaults_;
  std::vector<std::atomic<const Pipeline*>> builtins_;  // by place in builtin_kernels(); null: not built yet
  std::forward_list<Pipeline> built_;                   // what builtins_ points to
  std::uint64_t changes_ = 0;                           // of texts_ and headers_
};

// A kernel that the library carries, as operators name it.
class BuiltinPipeline {
 public:
  // Throws KernelNotFoundError. Costs a search: keep the object.
  explicit BuiltinPipeline(std::string_view name);
  // Its pipeline on a device, built on the first call. Throws like KernelRegistry::pipeline.
  const Pipeline& on(DeviceState& device) const;

 private:
  std::size_t index_;  // in builtin_kernels()
};

}  // namespace metalane::core
