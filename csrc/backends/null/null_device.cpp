// See null_device.h.
#include "backends/null/null_device.h"

#include <metalane/error.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "msl/msl.h"

namespace metalane::null {

namespace {

constexpr std::size_t page = 4096;

}  // namespace

// A submission's launches, one behind another in one piece of memory: a replay writes each of them in tens of
// nanoseconds, and nothing is allocated once the memory has grown.
class Record {
 public:
  void clear() {
    used_ = 0;
    text_.clear();
    pipeline_ = nullptr;
    name_ = label_ = {};
  }

  void add(const backend::Launch& launch, bool barrier_before) {
    std::size_t size = sizeof(Head) + launch.buffers.size() * sizeof(RecordedBuffer) +
                       launch.threadgroup_memory.size() * sizeof(backend::ThreadgroupBinding);
    for (const backend::BytesBinding& bytes : launch.bytes) size += sizeof(BytesHead) + padded(bytes.nbytes);
    reserve(size);
    // Launches in a row mostly share their kernel and their label: such a text is written once.
    if (launch.pipeline != pipeline_) {
      pipeline_ = launch.pipeline;
      name_ = write(launch.pipeline->signature.name);
    }
    if (view(label_) != launch.label) label_ = write(launch.label);
    // Written field by field where it stays: a copy of what was just written so would wait for those writes.
    auto* const head = new (memory_.get() + used_) Head{name_, label_};
    std::copy_n(launch.grid, 3, head->grid);
    std::copy_n(launch.threads_per_threadgroup, 3, head->threads_per_threadgroup);
    head->grid_kind = launch.grid_kind;
    head->barrier_before = barrier_before;
    head->buffers = static_cast<std::uint8_t>(launch.buffers.size());
    head->threadgroup_memory = static_cast<std::uint8_t>(launch.threadgroup_memory.size());
    head->bytes = static_cast<std::uint8_t>(launch.bytes.size());
    std::byte* to = memory_.get() + used_ + sizeof(Head);
    used_ += size;
    for (const backend::BufferBinding& buffer : launch.buffers) {
      new (to) RecordedBuffer{reinterpret_cast<std::uint64_t>(buffer.address), buffer.nbytes, buffer.index};
      to += sizeof(RecordedBuffer);
    }
    for (const backend::ThreadgroupBinding& memory : launch.threadgroup_memory) {
      new (to) backend::ThreadgroupBinding(memory);
      to += sizeof(memory);
    }
    for (const backend::BytesBinding& bytes : launch.bytes) {
      new (to) BytesHead{bytes.index, bytes.nbytes};
      std::memcpy(to + sizeof(BytesHead), bytes.data, bytes.nbytes);
      to += sizeof(BytesHead) + padded(bytes.nbytes);
    }
  }

  std::vector<RecordedLaunch> launches() const {
    std::vector<RecordedLaunch> launches;
    for (std::size_t at = 0; at < used_;) {
      const Head head = take<Head>(at);
      RecordedLaunch& launch = launches.emplace_back();
      launch.kernel = view(head.name);
      launch.label = view(head.label);
      launch.grid_kind = head.grid_kind;
      std::copy_n(head.grid, 3, launch.grid);
      std::copy_n(head.threads_per_threadgroup, 3, launch.threads_per_threadgroup);
      launch.barrier_before = head.barrier_before;
      for (int i = 0; i < head.buffers; ++i) launch.buffers.push_back(take<RecordedBuffer>(at));
      for (int i = 0; i < head.threadgroup_memory; ++i) {
        launch.threadgroup_memory.push_back(take<backend::ThreadgroupBinding>(at));
      }
      for (int i = 0; i < head.bytes; ++i) {
        const BytesHead bytes = take<BytesHead>(at);
        const auto* const first = reinterpret_cast<const std::uint8_t*>(memory_.get() + at);
        launch.bytes.emplace_back(bytes.index, std::vector<std::uint8_t>(first, first + bytes.nbytes));
        at += padded(bytes.nbytes);
      }
    }
    return launches;
  }

 private:
  // Of text_.
  struct Text {
    std::uint32_t first = 0, size = 0;
  };
  // Of a launch; its buffers, threadgroup memory and bytes lie behind.
  struct Head {
    Text name, label;
    std::uint32_t grid[3] = {}, threads_per_threadgroup[3] = {};
    Grid::Kind grid_kind = {};
    bool barrier_before = false;
    std::uint8_t buffers = 0, threadgroup_memory = 0, bytes = 0;  // counts: at most 31 arguments
  };
  // Of bytes, which lie behind.
  struct BytesHead {
    std::uint32_t index, nbytes;
  };

  // Everything lies at a multiple of 8.
  static std::size_t padded(std::size_t size) { return (size + 7) / 8 * 8; }
  static_assert(sizeof(Head) % 8 == 0 && sizeof(RecordedBuffer) % 8 == 0 && sizeof(BytesHead) % 8 == 0);
  static_assert(sizeof(backend::ThreadgroupBinding) % 8 == 0);

  void reserve(std::size_t size) {
    if (used_ + size <= capacity_) return;
    const std::size_t capacity = std::max(2 * capacity_, used_ + size + page);
    auto memory = std::make_unique_for_overwrite<std::byte[]>(capacity);
    if (used_ != 0) std::memcpy(memory.get(), memory_.get(), used_);
    memory_ = std::move(memory);
    capacity_ = capacity;
  }

  template <typename Thing>
  Thing take(std::size_t& at) const {
    Thing thing;
    std::memcpy(&thing, memory_.get() + at, sizeof(Thing));
    at += sizeof(Thing);
    return thing;
  }

  Text write(std::string_view text) {
    const Text place = {static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(text.size())};
    text_ += text;
    return place;
  }
  std::string_view view(Text text) const { return std::string_view(text_).substr(text.first, text.size); }

  std::unique_ptr<std::byte[]> memory_;
  std::size_t used_ = 0, capacity_ = 0;
  std::string text_;
  const backend::Pipeline* pipeline_ = nullptr;  // of the launch before, with its name and label
  Text name_, label_;
};

// Writes what it is given to its record.
class NullSubmission final : public backend::Submission {
 public:
  explicit NullSubmission(std::shared_ptr<NullDevice> device)
      : device_(std::move(device)), record_(device_->take_record()) {}
  ~NullSubmission() override {
    if (record_ != nullptr) device_->dropped(std::move(record_));
  }

  void dispatch(const backend::Launch& launch) override {
    record_->add(launch, barrier_);
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

NullDevice::~NullDevice() = default;

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

std::vector<RecordedLaunch> NullDevice::last_record() const {
  std::lock_guard lock(mutex_);
  return last_ != nullptr ? last_->launches() : std::vector<RecordedLaunch>();
}

std::shared_ptr<backend::Device> open_device(const backend::OpenOptions&) {
  return std::make_shared<NullDevice>();
}

}  // namespace metalane::null
