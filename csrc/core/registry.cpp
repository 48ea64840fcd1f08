// See registry.h.
#include "core/registry.h"

#include <metalane/error.h>

#include <algorithm>
#include <cstdio>

#include "core/builtin.h"
#include "core/device_state.h"
#include "core/fork.h"
#include "core/hash.h"
#include "core/interrupt.h"

namespace metalane {

namespace {

const core::PipelineState& state_of(const Pipeline& pipeline) {
  if (!pipeline) throw ArgumentError("Pipeline: the handle is empty");
  return *pipeline.state();
}

}  // namespace

const KernelSignature& Pipeline::signature() const { return state_of(*this).compiled->signature; }
const std::string& Pipeline::key() const { return state_of(*this).key; }
std::uint32_t Pipeline::max_total_threads_per_threadgroup() const {
  return state_of(*this).compiled->max_total_threads_per_threadgroup;
}
std::uint32_t Pipeline::thread_execution_width() const {
  return state_of(*this).compiled->thread_execution_width;
}
std::uint32_t Pipeline::static_threadgroup_memory() const {
  return state_of(*this).compiled->static_threadgroup_memory;
}

void KernelRegistry::register_source(const std::string& name, const std::string& source) {
  state_->register_source(name, source);
}
void KernelRegistry::register_header(const std::string& name, const std::string& text) {
  state_->register_header(name, text);
}
Pipeline KernelRegistry::pipeline(const std::string& name, const std::vector<ConstantValue>& constants,
                                  MathMode math) {
  return state_->pipeline(name, constants, math);
}
std::vector<KernelSignature> KernelRegistry::kernels(const std::string& name) {
  return state_->kernels(name);
}
std::vector<std::string> KernelRegistry::names() const { return state_->names(); }

namespace core {

namespace {

std::string constant_key(const ConstantValue& constant) {
  std::string text = std::holds_alternative<std::string>(constant.key)
                         ? std::get<std::string>(constant.key)
                         : std::to_string(std::get<std::uint32_t>(constant.key));
  // The type is part of the value: true, 1 and 1.0 may mean different things to a source.
  struct Print {
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(std::int64_t value) const { return std::to_string(value); }
    std::string operator()(std::uint64_t value) const { return std::to_string(value) + "u"; }
    std::string operator()(double value) const {
      char digits[64];
      std::snprintf(digits, sizeof digits, "%a", value);
      return digits;
    }
    std::string operator()(const std::vector<ConstantNumber>& components) const {
      std::string list = "(";
      for (const ConstantNumber& component : components) {
        list += (list.size() > 1 ? "," : "") + std::visit(*this, component);
      }
      return list + ")";
    }
  };
  return text + ":" + std::visit(Print{}, constant.value);
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

bool is_builtin(const std::string& kernel_name) {
  const auto kernels = builtin_kernels();
  return std::any_of(kernels.begin(), kernels.end(),
                     [&](const BuiltinKernel& kernel) { return kernel_name == kernel.name; });
}

std::map<std::string, std::string> with_builtin_headers(std::map<std::string, std::string> headers) {
  for (const BuiltinHeader& header : builtin_headers()) headers.emplace(header.name, header.text);
  return headers;
}

}  // namespace

PipelineState::PipelineState(std::shared_ptr<const backend::Pipeline> compiled_,
                             std::shared_ptr<const backend::Device> device_, std::string key_,
                             PipelineOrigin origin_, bool builtin)
    : compiled(std::move(compiled_)),
      device(std::move(device_)),
      key(std::move(key_)),
      origin(std::move(origin_)) {
  const auto& arguments = compiled->signature.arguments;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const KernelArgument& argument = arguments[i];
    if (argument.space == AddressSpace::threadgroup) {
      threadgroup_mask |= 1u << argument.index;
    } else if (builtin && is_status_argument(argument)) {
      status_argument = static_cast<std::int8_t>(i);
    } else {
      const std::uint64_t alignment = argument.type.alignment;
      checks[argument.index] = {static_cast<std::int8_t>(i), argument.access, argument.is_reference,
                                static_cast<std::uint32_t>(alignment == 0 ? 0 : alignment - 1),
                                argument.type.size};
      buffer_mask |= 1u << argument.index;
      if (argument.access != Access::none) required_mask |= 1u << argument.index;
    }
  }
}

RegistryState::RegistryState(std::shared_ptr<backend::Device> device)
    : device_(std::move(device)),
      fork_generation_(core::fork_generation()),
      builtins_(builtin_kernels().size()) {}

bool RegistryState::Source::has(const std::string& kernel) const {
  return std::find(kernel_names.begin(), kernel_names.end(), kernel) != kernel_names.end();
}

void RegistryState::check_process() const {
  if (fork_generation() != fork_generation_) {
    throw DeviceError(
        "KernelRegistry: its device was opened before this process was forked; open a new Device here");
  }
}

void RegistryState::register_source(const std::string& name, const std::string& source) {
  if (name.empty()) throw ArgumentError("KernelRegistry.register_source", "name", "not empty", "\"\"");
  check_process();
  std::unique_lock lock(mutex_);
  texts_[name] = source;
  sources_.erase(name);
  defaults_.clear();
  ++changes_;
}

void RegistryState::register_header(const std::string& name, const std::string& text) {
  if (name.empty()) throw ArgumentError("KernelRegistry.register_header", "name", "not empty", "\"\"");
  check_process();
  std::unique_lock lock(mutex_);
  headers_[name] = text;
  sources_.clear();
  defaults_.clear();
  ++changes_;
}

std::vector<std::string> RegistryState::names() const {
  check_process();
  std::shared_lock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, text] : texts_) names.push_back(name);
  for (const BuiltinKernel& kernel : builtin_kernels()) {
    if (!texts_.contains(kernel.name)) names.emplace_back(kernel.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::shared_ptr<const RegistryState::Source> RegistryState::read(
    const std::string& name, const std::string& text, const std::map<std::string, std::string>& headers,
    bool builtin) {
  auto source = std::make_shared<Source>();
  auto source_text = std::make_shared<backend::SourceText>();
  source_text->name = name;
  source_text->text = text;
  source_text->headers = with_builtin_headers(headers);
  source_text->builtin = builtin;
  std::string all = text;
  for (const auto& [header, header_text] : source_text->headers) {
    all += '\0' + header + '\0' + header_text;
  }
  source->hash = sha256_hex(all);
  for (const KernelSignature& kernel : device_->inspect(*source_text))
    source->kernel_names.push_back(kernel.name);
  source->text = std::move(source_text);
  return source;
}

std::shared_ptr<const RegistryState::Source> RegistryState::registered(const std::string& name) {
  std::string text;
  std::map<std::string, std::string> headers;
  {
    std::shared_lock lock(mutex_);
    if (auto found = sources_.find(name); found != sources_.end()) return found->second;
    auto registered_text = texts_.find(name);
    if (registered_text == texts_.end()) return nullptr;
    text = registered_text->second;
    headers = headers_;
  }
  std::shared_ptr<const Source> source = read(name, text, headers, false);
  std::unique_lock lock(mutex_);
  // Somebody may have registered another text meanwhile; then this reading is ours alone.
  if (auto now = texts_.find(name); now != texts_.end() && now->second == text && headers_ == headers) {
    sources_[name] = source;
  }
  return source;
}

RegistryState::Target RegistryState::find_builtin(const std::string& name) {
  for (const BuiltinKernel& kernel : builtin_kernels()) {
    if (name != kernel.name) continue;
    const std::string family = kernel.family;
    {
      std::shared_lock lock(mutex_);
      if (auto found = builtin_sources_.find(family); found != builtin_sources_.end())
        return {found->second, name};
    }
    for (const BuiltinSource& builtin : builtin_sources()) {
      if (family != builtin.family) continue;
      std::shared_ptr<const Source> source = read(family, builtin.text, {}, true);
      std::unique_lock lock(mutex_);
      return {builtin_sources_.emplace(family, source).first->second, name};
    }
  }
  throw KernelNotFoundError("no kernel named \"" + name + "\" is built in");
}

RegistryState::Target RegistryState::find(const std::string& name) {
  if (auto source = registered(name)) {
    if (source->has(name)) return {source, name};
    if (source->kernel_names.size() == 1) return {source, source->kernel_names[0]};
    throw KernelNotFoundError("the source registered as \"" + name +
                              "\" has no kernel of that name; it has: " + join(source->kernel_names) +
                              ". Name one as \"" + name + "::kernel\"");
  }
  if (const std::size_t split = name.find("::"); split != std::string::npos) {
    const std::string function = name.substr(split + 2);
    if (auto source = registered(name.substr(0, split))) {
      if (source->has(function)) return {source, function};
      throw KernelNotFoundError("the source registered as \"" + name.substr(0, split) +
                                "\" has no kernel \"" + function +
                                "\"; it has: " + join(source->kernel_names));
    }
  }
  const Holders holders = holders_of(name);
  if (holders.sources.size() == 1) return {holders.sources[0], name};
  if (holders.sources.size() > 1) {
    throw KernelNotFoundError("several registered sources have a kernel \"" + name +
                              "\": " + join(holders.names) + ". Name one as \"" + holders.names[0] +
                              "::" + name + "\"");
  }
  if (is_builtin(name)) return find_builtin(name);
  throw KernelNotFoundError(
      "no kernel named \"" + name + "\" is registered; there are: " + join(names()) +
      (holders.unreadable.empty() ? "" : "; sources that cannot be read: " + join(holders.unreadable)));
}

RegistryState::Holders RegistryState::holders_of(const std::string& name) {
  std::vector<std::string> libraries;
  {
    std::shared_lock lock(mutex_);
    for (const auto& [library, text] : texts_) libraries.push_back(library);
  }
  Holders holders;
  for (const std::string& library : libraries) {
    try {
      auto source = registered(library);
      if (source == nullptr || !source->has(name)) continue;
      holders.names.push_back(library);
      holders.sources.push_back(std::move(source));
    } catch (const CompileError&) {
      holders.unreadable.push_back(library);  // it has no kernels; asking for it by its own name says why
    }
  }
  return holders;
}

Pipeline RegistryState::build(const Target& target, const std::vector<ConstantValue>& constants,
                              MathMode math) {
  std::string key = "name=" + target.function + " source=" + target.source->hash +
                    " math=" + (math == MathMode::safe ? "safe" : "fast") +
                    " device=" + device_->capabilities().kind;
  std::vector<std::string> constant_keys;
  for (const ConstantValue& constant : constants) constant_keys.push_back(constant_key(constant));
  std::sort(constant_keys.begin(), constant_keys.end());
  for (const std::string& constant : constant_keys) key += " constant=" + constant;
  key += " compiler=" + device_->compiler_key();

  std::shared_ptr<Entry> entry;
  {
    std::unique_lock lock(mutex_);
    auto& place = entries_[key];
    if (place == nullptr) place = std::make_shared<Entry>();
    entry = place;
  }
  std::unique_lock lock(entry->mutex);
  while (entry->building) {
    entry->built.wait_for(lock, interrupt_interval);
    lock.unlock();
    check_interrupt();
    lock.lock();
  }
  if (entry->pipeline) return entry->pipeline;
  entry->building = true;
  lock.unlock();
  // Ends with an exception, too: the next thread tries again.
  struct Building {
    Entry& entry;
    Pipeline pipeline;
    ~Building() {
      const std::lock_guard lock(entry.mutex);
      entry.pipeline = pipeline;
      entry.building = false;
      entry.built.notify_all();
    }
  };
  Building building{*entry, {}};
  const backend::CompileRequest request{target.source->text, target.function, constants, math};
  building.pipeline = Pipeline(std::make_shared<const PipelineState>(
      device_->compile(request), device_, std::move(key),
      PipelineOrigin{target.source->hash, constants, math}, request.source->builtin));
  return building.pipeline;
}

Pipeline RegistryState::pipeline(const std::string& name, const std::vector<ConstantValue>& constants,
                                 MathMode math) {
  check_process();
  return build(find(name), constants, math);
}

Pipeline RegistryState::pipeline_of_source(const std::string& name, const PipelineOrigin& origin) {
  check_process();
  Holders holders = holders_of(name);
  if (is_builtin(name)) {
    holders.sources.insert(holders.sources.begin(), find_builtin(name).source);
    holders.names.insert(holders.names.begin(), "the built-in one");
  }
  for (const std::shared_ptr<const Source>& source : holders.sources) {
    if (source->hash == origin.source_hash) return build({source, name}, origin.constants, origin.math);
  }
  throw KernelNotFoundError("no source with the hash " + origin.source_hash + " has a kernel \"" + name +
                            "\"; other sources that do: " + join(holders.names));
}

std::vector<KernelSignature> RegistryState::kernels(const std::string& name) {
  check_process();
  if (auto source = registered(name)) return device_->inspect(*source->text);
  return device_->inspect(*find_builtin(name).source->text);
}

std::shared_ptr<const backend::SourceText> RegistryState::source_text(const std::string& name) {
  check_process();
  if (auto source = registered(name)) return source->text;
  return find(name).source->text;
}

Pipeline RegistryState::default_pipeline(std::string_view name) {
  std::uint64_t changes = 0;
  {
    std::shared_lock lock(mutex_);
    if (auto found = defaults_.find(name); found != defaults_.end()) return found->second;
    changes = changes_;
  }
  Pipeline built = pipeline(std::string(name), {}, MathMode::safe);
  std::unique_lock lock(mutex_);
  if (changes == changes_) defaults_.emplace(std::string(name), built);
  return built;
}

const Pipeline& RegistryState::builtin_pipeline(std::size_t index) {
  if (const Pipeline* known = builtins_[index].load(std::memory_order_acquire)) return *known;
  check_process();
  Pipeline built = build(find_builtin(builtin_kernels()[index].name), {}, MathMode::safe);
  std::unique_lock lock(mutex_);
  if (const Pipeline* known = builtins_[index].load(std::memory_order_relaxed)) return *known;
  built_.push_front(std::move(built));
  builtins_[index].store(&built_.front(), std::memory_order_release);
  return built_.front();
}

BuiltinPipeline::BuiltinPipeline(std::string_view name) {
  const auto kernels = builtin_kernels();
  const auto found =
      std::find_if(kernels.begin(), kernels.end(), [&](const auto& kernel) { return name == kernel.name; });
  if (found == kernels.end()) {
    throw KernelNotFoundError("no kernel named \"" + std::string(name) + "\" is built in");
  }
  index_ = static_cast<std::size_t>(found - kernels.begin());
}

const Pipeline& BuiltinPipeline::on(DeviceState& device) const {
  return device.registry()->builtin_pipeline(index_);
}

}  // namespace core

}  // namespace metalane
