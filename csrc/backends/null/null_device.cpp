// See null_device.h.
#include "backends/null/null_device.h"

#include <metalane/error.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "msl/msl.h"

namespace metalane::null {

namespace {

constexpr std::size_t page = 4096;

}  // namespace

void Record::clear() {
  launches.clear();
  buffers.clear();
  bytes.clear();
  threadgroup_memory.clear();
  data.clear();
  text.clear();
}

// Writes what it is given to its record.
class NullSubmission final : public backend::Submission {
 public:
  explicit NullSubmission(std::shared_ptr<NullDevice> device)
      : device_(std::move(device)), record_(device_->take_record()) {}
  ~NullSubmission() override {
    if (record_ != nullptr) device_->dropped(std::move(record_));
  }

  void dispatch(const backend::Launch& launch) override {
    RecordedLaunch& recorded = record_->launches.emplace_back();
    const std::string& name = launch.pipeline->signature.name;
    recorded.first_name = static_cast<std::uint32_t>(record_->text.size());
    recorded.name_size = static_cast<std::uint32_t>(name.size());
    record_->text += name;
    recorded.first_buffer = static_cast<std::uint32_t>(record_->buffers.size());
    recorded.buffer_count = static_cast<std::uint32_t>(launch.buffers.size());
    record_->buffers.insert(record_->buffers.end(), launch.buffers.begin(), launch.buffers.end());
    recorded.first_bytes = static_cast<std::uint32_t>(record_->bytes.size());
    recorded.bytes_count = static_cast<std::uint32_t>(launch.bytes.size());
    for (const backend::BytesBinding& bytes : launch.bytes) {
      record_->bytes.push_back({bytes.index, static_cast<std::uint32_t>(record_->data.size()), bytes.nbytes});
      record_->data.insert(record_->data.end(), bytes.data, bytes.data + bytes.nbytes);
    }
    recorded.first_threadgroup = static_cast<std::uint32_t>(record_->threadgroup_memory.size());
    recorded.threadgroup_count = static_cast<std::uint32_t>(launch.threadgroup_memory.size());
    if (!launch.threadgroup_memory.empty()) {
      record_->threadgroup_memory.insert(record_->threadgroup_memory.end(), launch.threadgroup_memory.begin(),
                                         launch.threadgroup_memory.end());
    }
    recorded.grid_kind = launch.grid_kind;
    std::copy_n(launch.grid, 3, recorded.grid);
    std::copy_n(launch.threads_per_threadgroup, 3, recorded.threads_per_threadgroup);
    recorded.first_label = static_cast<std::uint32_t>(record_->text.size());
    recorded.label_size = static_cast<std::uint32_t>(launch.label.size());
    record_->text += launch.label;
    recorded.barrier_before = barrier_;
    barrier_ = false;
  }
  void barrier() override { barrier_ = true; }
  void push_label(std::string_view) override {}
  void pop_label() override {}
  void commit(std::optional<double>, std::function<void(backend::Completion)> done) override {
    device_->committed(std::move(record_));
    done({});
  }

 private:
  std::shared_ptr<NullDevice> device_;
  std::unique_ptr<Record> record_;
  bool barrier_ = false;
};

NullDevice::NullDevice() {
  capabilities_.kind = "null";
  capabilities_.name = "null device (records launches, runs nothing)";
  capabilities_.max_buffer_bytes = std::uint64_t{1} << 40;
}

backend::Allocation NullDevice::allocate(std::uint64_t nbytes, bool zero) {
  const std::uint64_t rounded = std::max<std::uint64_t>((nbytes + page - 1) / page * page, page);
  void* address = std::aligned_alloc(page, rounded);
  if (address == nullptr) {
    throw OutOfMemoryError("null device: " + std::to_string(nbytes) + " bytes cannot be allocated");
  }
  if (zero) std::memset(address, 0, nbytes);
  allocated_bytes_.fetch_add(nbytes, std::memory_order_relaxed);
  return {address, nbytes, nullptr};
}

backend::Allocation NullDevice::wrap(void* address, std::uint64_t nbytes, bool) {
  return {address, nbytes, nullptr};
}

void NullDevice::release(const backend::Allocation& allocation, bool wrapped) noexcept {
  if (wrapped) return;
  std::free(allocation.address);
  allocated_bytes_.fetch_sub(allocation.nbytes, std::memory_order_relaxed);
}

std::shared_ptr<const backend::Pipeline> NullDevice::compile(const backend::CompileRequest& request) {
  const auto program =
      msl::Program::read(request.source->name, request.source->text, request.source->headers);
  for (const KernelSignature& kernel : program->kernels()) {
    if (kernel.name != request.function) continue;
    auto pipeline = std::make_shared<backend::Pipeline>();
    pipeline->signature = program->signature(request.function, request.constants);
    if (kernel.max_total_threads_per_threadgroup != 0) {
      pipeline->max_total_threads_per_threadgroup = kernel.max_total_threads_per_threadgroup;
    }
    return pipeline;
  }
  throw KernelNotFoundError("\"" + request.source->name + "\" has no kernel \"" + request.function + "\"");
}

std::vector<KernelSignature> NullDevice::inspect(const backend::SourceText& source) {
  return msl::Program::read(source.name, source.text, source.headers)->kernels();
}

std::unique_ptr<backend::Submission> NullDevice::open(const backend::SubmissionOptions&) {
  return std::make_unique<NullSubmission>(shared_from_this());
}

std::unique_ptr<Record> NullDevice::take_record() {
  std::lock_guard lock(mutex_);
  if (spare_ == nullptr) return std::make_unique<Record>();
  spare_->clear();
  return std::move(spare_);
}

void NullDevice::committed(std::unique_ptr<Record> record) {
  std::lock_guard lock(mutex_);
  spare_ = std::move(last_);
  last_ = std::move(record);
}

void NullDevice::dropped(std::unique_ptr<Record> record) {
  std::lock_guard lock(mutex_);
  spare_ = std::move(record);
}

Record NullDevice::last_record() const {
  std::lock_guard lock(mutex_);
  return last_ != nullptr ? *last_ : Record{};
}

std::shared_ptr<backend::Device> open_device(const backend::OpenOptions&) {
  return std::make_shared<NullDevice>();
}

}  // namespace metalane::null
