// What a command buffer holds, from its encoding to its end on the queue's threads.
#pragma once

#import <Metal/Metal.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <variant>
#include <vector>

#include "core/backend.h"
#include "devices.h"

namespace metal_double {

// A launch with everything that it binds.
struct Dispatch {
  std::shared_ptr<PipelineState> pipeline;
  std::vector<metalane::backend::BufferBinding> buffers;  // `native` is the BufferState
  std::vector<metalane::backend::BytesBinding> bytes;
  std::vector<std::vector<std::uint8_t>> byte_data;  // what they point to
  std::vector<metalane::backend::ThreadgroupBinding> threadgroup_memory;
  metalane::Grid::Kind kind = metalane::Grid::Kind::threadgroups;
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t threads[3] = {1, 1, 1};
  metalane::backend::BufferBinding indirect;
  std::string label;
  std::size_t signposts = 0;  // how many of the encoder's came before it
};

// What comes before the dispatch `at` waits for: everything, or what touches the named buffers.
struct Barrier {
  std::size_t at = 0;
  bool everything = true;
  std::vector<const BufferState*> buffers;
};

struct EncodedPass {
  std::string label;
  bool concurrent = false;
  std::vector<Dispatch> dispatches;
  std::vector<Barrier> barriers;
  std::vector<std::string> signposts;
  bool ended = false;  // by endEncoding
  // The order in which the dispatches run: one that the barriers allow, drawn from `seed`.
  std::vector<std::size_t> order(std::uint64_t seed) const;
};

struct EventCommand {
  std::shared_ptr<EventState> event;
  std::uint64_t value;
  bool wait;
};

using Command = std::variant<std::shared_ptr<EncodedPass>, EventCommand>;

// One thread that runs what it is given, in order.
class SerialThread {
 public:
  SerialThread();
  // Ends the thread when nothing is left to do; may be called by the thread itself.
  ~SerialThread();
  void run(std::function<void()> task);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

struct CommandBufferState;

struct QueueState {
  explicit QueueState(DeviceState& owner, std::size_t most) : device(owner), max_command_buffers(most) {}
  DeviceState& device;
  const std::size_t max_command_buffers;
  std::atomic<std::uint64_t> commits{0};
  std::mutex mutex;
  std::condition_variable fewer;          // command buffers
  std::size_t made = 0;                   // that have not ended
  std::size_t in_flight = 0;              // of these, committed
  std::deque<CommandBufferState*> order;  // enqueued and not started
  bool running = false;                   // the execution thread looks through them
  SerialThread execution;
  SerialThread completion;
};

struct CommandBufferState {
  CommandBufferState(std::shared_ptr<QueueState> on, bool retains, NSUInteger options);
  ~CommandBufferState();

  const std::shared_ptr<QueueState> queue;
  const bool retained;
  const NSUInteger error_options;
  const std::uint64_t number;  // of the process
  const std::uint64_t seed;
  std::vector<Command> commands;
  std::string invalid;                       // the first violation of its encoding: it will not run
  id<MTLCommandBuffer> object = nil;         // which owns this
  std::shared_ptr<CommandBufferState> self;  // from commit to start

  // What has to live until the end: buffers and pipelines, once each.
  void use(id<MTLBuffer> buffer);
  void use(id<MTLComputePipelineState> pipeline);
  void let_go();
  bool has_what_it_uses() const;
  void refuse(const std::string& problem);

  std::mutex mutex;
  std::condition_variable changed;
  MTLCommandBufferStatus status = MTLCommandBufferStatusNotEnqueued;
  NSError* error = nil;
  bool finished = false;  // and its handlers have returned
  double start = 0, end = 0;
  std::vector<MTLCommandBufferHandler> scheduled, completed;

 private:
  std::unordered_set<const void*> used_;
  std::vector<id> objects_;  // retained
  std::vector<std::shared_ptr<BufferState>> buffers_;
  std::vector<std::shared_ptr<PipelineState>> pipelines_;
};

// Give it to its queue, where it runs once all that was enqueued before has.
void enqueue(CommandBufferState& commands);
void commit(const std::shared_ptr<CommandBufferState>& commands);

id<MTLCommandBuffer> new_command_buffer(id<MTLCommandQueue> owner, const std::shared_ptr<QueueState>& queue,
                                        bool retained, NSUInteger options);
// An encoder that writes into `pass`, which is one of `commands`.
id<MTLComputeCommandEncoder> new_encoder(std::shared_ptr<CommandBufferState> commands,
                                         std::shared_ptr<EncodedPass> pass);

}  // namespace metal_double
