// Command queues and how they run command buffers: one after another on the queue's own thread, by the
// device's private CPU device; handlers are called on a second thread.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <utility>

#include "accounting.h"
#include "commands.h"
#include "cpu_work.h"
#include "metal_double.h"

using namespace metal_double;

NSString* const MTLCommandBufferErrorDomain = @"MTLCommandBufferErrorDomain";
NSString* const MTLCommandBufferEncoderInfoErrorKey = @"MTLCommandBufferEncoderInfoErrorKey";

// ---- how a pass of an encoder failed

@interface MetalDoubleEncoderInfo : NSObject <MTLCommandBufferEncoderInfo> {
 @package
  NSString* _label;
  NSArray* _debugSignposts;
  MTLCommandEncoderErrorState _errorState;
}
@end

@implementation MetalDoubleEncoderInfo
METAL_DOUBLE_COUNTED("MTLCommandBufferEncoderInfo")
@synthesize label = _label;
@synthesize debugSignposts = _debugSignposts;
@synthesize errorState = _errorState;
- (void)destroy {
  [_label release];
  [_debugSignposts release];
}
@end

namespace metal_double {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Dispatches of one stretch without a barrier over everything, in a random order that its narrower barriers
// allow.
void append_shuffled(const EncodedPass& pass, std::size_t begin, std::size_t end, std::mt19937_64& random,
                     std::vector<std::size_t>& order) {
  const auto touches = [&pass](std::size_t dispatch, const BufferState* buffer) {
    const auto& buffers = pass.dispatches[dispatch].buffers;
    return pass.dispatches[dispatch].indirect.native == buffer ||
           std::any_of(buffers.begin(), buffers.end(),
                       [buffer](const auto& binding) { return binding.native == buffer; });
  };
  std::vector<std::vector<std::size_t>> later(end - begin);
  std::vector<std::size_t> waits_for(end - begin);
  for (const Barrier& barrier : pass.barriers) {
    if (barrier.everything || barrier.at <= begin || barrier.at >= end) continue;
    for (const BufferState* buffer : barrier.buffers) {
      for (std::size_t before = begin; before < barrier.at; ++before) {
        for (std::size_t after = barrier.at; touches(before, buffer) && after < end; ++after) {
          if (!touches(after, buffer)) continue;
          later[before - begin].push_back(after - begin);
          ++waits_for[after - begin];
        }
      }
    }
  }
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < waits_for.size(); ++i) {
    if (waits_for[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const std::size_t next = ready.back();
    ready.pop_back();
    order.push_back(begin + next);
    for (const std::size_t follower : later[next]) {
      if (--waits_for[follower] == 0) ready.push_back(follower);
    }
  }
}

struct Outcome {
  MTLCommandBufferError code = MTLCommandBufferErrorNone;
  std::string text;
  std::size_t pass = 0;  // the number of the pass that failed
  std::string label;     // of the launch that failed
};

MTLCommandBufferError code_of(const std::string& code) {
  if (code == "fault") return MTLCommandBufferErrorPageFault;
  if (code == "stack-overflow") return MTLCommandBufferErrorStackOverflow;
  if (code == "out-of-memory") return MTLCommandBufferErrorOutOfMemory;
  if (code == "grid") return MTLCommandBufferErrorInvalidResource;
  // A barrier that some threads never reach, and counts of threadgroups past all bounds, keep a GPU busy
  // until its watchdog barks.
  if (code == "timeout" || code == "barrier" || code == "indirect") return MTLCommandBufferErrorTimeout;
  return MTLCommandBufferErrorInternal;
}

void run_pass(CommandBufferState& commands, const EncodedPass& pass, std::uint64_t seed, Outcome& outcome) {
  std::vector<metalane::backend::Launch> launches;
  for (const std::size_t number : pass.order(seed)) {
    const Dispatch& dispatch = pass.dispatches[number];
    metalane::backend::Launch& launch = launches.emplace_back();
    launch.pipeline = dispatch.pipeline->compiled.get();
    launch.buffers = dispatch.buffers;
    launch.bytes = dispatch.bytes;
    launch.threadgroup_memory = dispatch.threadgroup_memory;
    launch.grid_kind = dispatch.kind;
    std::copy_n(dispatch.grid, 3, launch.grid);
    std::copy_n(dispatch.threads, 3, launch.threads_per_threadgroup);
    launch.indirect = dispatch.indirect;
    launch.label = dispatch.label;
  }
  const LaunchesEnd end = run_on(commands.queue->device.cpu(), launches, faults().watchdog);
  if (end.code.empty()) return;
  outcome.code = code_of(end.code);
  outcome.text = end.text;
  outcome.label = end.label;
}

// False when the device was lost first.
bool wait_for(EventCommand& command, const DeviceState& device) {
  std::unique_lock lock(command.event->mutex);
  while (command.event->value < command.value) {
    if (device.lost()) return false;
    command.event->changed.wait_for(lock, std::chrono::milliseconds(10));
  }
  return true;
}

void sleep_until(double deadline, const DeviceState& device) {
  for (double left = deadline - now(); left > 0 && !device.lost(); left = deadline - now())
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.01)));
}

// Why a command buffer cannot run at all.
void refuse_to_run(const CommandBufferState& commands, Outcome& outcome) {
  if (!commands.invalid.empty()) {
    outcome.code = MTLCommandBufferErrorInvalidResource;
    outcome.text = commands.invalid;
  } else if (!commands.has_what_it_uses()) {
    outcome.code = MTLCommandBufferErrorInvalidResource;
    outcome.text = "a buffer was released that the command buffer does not retain";
  } else if (const auto fault = faults().execution.take()) {
    outcome.code = static_cast<MTLCommandBufferError>(fault->value);
    outcome.text = "a fault that a test asked for";
  }
}

Outcome run_commands(CommandBufferState& commands) {
  const DeviceState& device = commands.queue->device;
  Outcome outcome;
  refuse_to_run(commands, outcome);
  std::size_t pass_number = 0;
  for (Command& command : commands.commands) {
    if (device.lost()) break;
    if (auto* event = std::get_if<EventCommand>(&command)) {
      // Nobody promises a signal of work that failed.
      if (event->wait && !wait_for(*event, device)) break;
      if (!event->wait && outcome.code == MTLCommandBufferErrorNone) event->event->signal(event->value);
      continue;
    }
    const EncodedPass& pass = *std::get<std::shared_ptr<EncodedPass>>(command);
    if (outcome.code == MTLCommandBufferErrorNone && !pass.dispatches.empty()) {
      outcome.pass = pass_number;
      run_pass(commands, pass, commands.seed + pass_number, outcome);
    }
    ++pass_number;
  }
  sleep_until(now() + faults().delay, device);
  if (device.lost()) {
    outcome.code = MTLCommandBufferErrorDeviceRemoved;
    outcome.text = "the device was removed";
  }
  return outcome;
}

MetalDoubleEncoderInfo* encoder_info(const EncodedPass& pass, std::size_t number, const Outcome& outcome) {
  MetalDoubleEncoderInfo* info = [[[MetalDoubleEncoderInfo alloc] init] autorelease];
  info->_label = [to_nsstring(pass.label) retain];
  info->_errorState = number < outcome.pass    ? MTLCommandEncoderErrorStateCompleted
                      : number == outcome.pass ? MTLCommandEncoderErrorStateFaulted
                                               : MTLCommandEncoderErrorStatePending;
  // Those that were reached: up to the launch that failed.
  std::size_t reached = number < outcome.pass ? pass.signposts.size() : 0;
  if (number == outcome.pass) {
    for (const Dispatch& dispatch : pass.dispatches) {
      if (dispatch.label != outcome.label) continue;
      reached = dispatch.signposts;
      break;
    }
  }
  NSMutableArray* signposts = [NSMutableArray array];
  for (std::size_t i = 0; i < reached; ++i) [signposts addObject:to_nsstring(pass.signposts[i])];
  info->_debugSignposts = [signposts copy];
  return info;
}

NSError* new_error(const CommandBufferState& commands, const Outcome& outcome) {
  NSMutableDictionary* information = [NSMutableDictionary dictionary];
  [information setObject:to_nsstring(outcome.text) forKey:NSLocalizedDescriptionKey];
  if ((commands.error_options & MTLCommandBufferErrorOptionEncoderExecutionStatus) != 0) {
    NSMutableArray* passes = [NSMutableArray array];
    for (const Command& command : commands.commands) {
      if (const auto* pass = std::get_if<std::shared_ptr<EncodedPass>>(&command))
        [passes addObject:encoder_info(**pass, [passes count], outcome)];
    }
    [information setObject:passes forKey:MTLCommandBufferEncoderInfoErrorKey];
  }
  return [[NSError alloc] initWithDomain:MTLCommandBufferErrorDomain
                                    code:static_cast<NSInteger>(outcome.code)
                                userInfo:information];
}

void set_status(CommandBufferState& commands, MTLCommandBufferStatus status) {
  const std::lock_guard lock(commands.mutex);
  commands.status = status;
  commands.changed.notify_all();
}

void call(std::vector<MTLCommandBufferHandler>& handlers, id<MTLCommandBuffer> object) {
  for (MTLCommandBufferHandler handler : handlers) {
    handler(object);
    Block_release(handler);
  }
  handlers.clear();
}

// On the completion thread: the end of a command buffer, as its handlers and waiters see it.
void finish(CommandBufferState& commands, bool failed) {
  commands.let_go();
  set_status(commands, failed ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted);
  {
    QueueState& queue = *commands.queue;
    const std::lock_guard lock(queue.mutex);
    --queue.made;
    --queue.in_flight;
    queue.fewer.notify_all();
  }
  call(commands.completed, commands.object);
  const std::lock_guard lock(commands.mutex);
  commands.finished = true;
  commands.changed.notify_all();
}

// On the execution thread.
void run(const std::shared_ptr<CommandBufferState>& commands) {
  @autoreleasepool {
    set_status(*commands, MTLCommandBufferStatusScheduled);
    call(commands->scheduled, commands->object);
    const double start = now();
    const Outcome outcome = run_commands(*commands);
    const bool failed = outcome.code != MTLCommandBufferErrorNone;
    {
      const std::lock_guard lock(commands->mutex);
      commands->start = start;
      commands->end = now();
      if (failed) commands->error = new_error(*commands, outcome);
    }
    commands->queue->completion.run([commands, failed] {
      @autoreleasepool {
        finish(*commands, failed);
        [commands->object release];
      }
    });
  }
}

// Runs what is committed and has nothing before it that is not.
void run_ready(const std::shared_ptr<QueueState>& queue) {
  for (;;) {
    std::shared_ptr<CommandBufferState> next;
    {
      const std::lock_guard lock(queue->mutex);
      queue->running = !queue->order.empty() && queue->order.front()->self != nullptr;
      if (!queue->running) return;
      next = std::move(queue->order.front()->self);
      queue->order.pop_front();
    }
    run(next);
  }
}

}  // namespace

std::vector<std::size_t> EncodedPass::order(std::uint64_t seed) const {
  std::vector<std::size_t> order;
  if (!concurrent) {
    order.resize(dispatches.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  std::mt19937_64 random(seed);
  std::size_t begin = 0;
  for (const Barrier& barrier : barriers) {
    if (!barrier.everything) continue;
    append_shuffled(*this, begin, barrier.at, random, order);
    begin = barrier.at;
  }
  append_shuffled(*this, begin, dispatches.size(), random, order);
  return order;
}

struct SerialThread::Shared {
  std::mutex mutex;
  std::condition_variable wakes;
  std::deque<std::function<void()>> tasks;
  bool quit = false;
};

SerialThread::SerialThread() : shared_(std::make_shared<Shared>()) {
  thread_ = std::thread([shared = shared_] {
    std::unique_lock lock(shared->mutex);
    for (;;) {
      shared->wakes.wait(lock, [&] { return shared->quit || !shared->tasks.empty(); });
      if (shared->tasks.empty()) return;
      std::function<void()> task = std::move(shared->tasks.front());
      shared->tasks.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  });
}

SerialThread::~SerialThread() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->quit = true;
    shared_->wakes.notify_all();
  }
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void SerialThread::run(std::function<void()> task) {
  const std::lock_guard lock(shared_->mutex);
  shared_->tasks.push_back(std::move(task));
  shared_->wakes.notify_one();
}

void enqueue(CommandBufferState& commands) {
  const std::lock_guard lock(commands.queue->mutex);
  commands.queue->order.push_back(&commands);
}

void commit(const std::shared_ptr<CommandBufferState>& commands) {
  const std::shared_ptr<QueueState>& queue = commands->queue;
  {
    const std::lock_guard lock(queue->mutex);
    commands->self = commands;
    ++queue->in_flight;
    if (std::exchange(queue->running, true)) return;
  }
  queue->execution.run([queue] { run_ready(queue); });
}

}  // namespace metal_double

// ---- queues

@implementation MTLCommandQueueDescriptor
METAL_DOUBLE_COUNTED("MTLCommandQueueDescriptor")
@synthesize maxCommandBufferCount = _maxCommandBufferCount;
- (id)init {
  self = [super init];
  _maxCommandBufferCount = 64;
  return self;
}
- (void)destroy {
}
- (id)copyWithZone:(NSZone*)zone {
  MTLCommandQueueDescriptor* copy = [[[self class] allocWithZone:zone] init];
  copy->_maxCommandBufferCount = _maxCommandBufferCount;
  return copy;
}
@end

@interface MetalDoubleQueue : NSObject <MTLCommandQueue> {
 @package
  std::shared_ptr<QueueState>* _state;
  NSString* _label;
  NSMutableSet* _residencySets;
}
@end

@implementation MetalDoubleQueue
METAL_DOUBLE_COUNTED("MTLCommandQueue")
@synthesize label = _label;
METAL_DOUBLE_OF_ITS_SYSTEM
- (void)destroy {
  delete _state;
  [_label release];
  [_residencySets release];
}
- (id<MTLDevice>)device {
  return device_object((*_state)->device);
}
- (id<MTLCommandBuffer>)commandBuffer {
  return new_command_buffer(self, *_state, true, MTLCommandBufferErrorOptionNone);
}
- (id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor*)descriptor {
  return new_command_buffer(self, *_state, descriptor.retainedReferences, descriptor.errorOptions);
}
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences {
  return new_command_buffer(self, *_state, false, MTLCommandBufferErrorOptionNone);
}
- (void)addResidencySet:(id<MTLResidencySet>)residencySet {
  require_system(METAL_DOUBLE_NO_RESIDENCY_SETS, "addResidencySet:");
  constexpr NSUInteger most = 32;
  if (residencySet == nil) return violation("addResidencySet: nil");
  @synchronized(self) {
    [_residencySets addObject:residencySet];
    if ([_residencySets count] > most) violation("addResidencySet: a queue takes 32 sets");
  }
}
- (void)addResidencySets:(const id<MTLResidencySet>[])residencySets count:(NSUInteger)count {
  for (NSUInteger i = 0; i < count; ++i) [self addResidencySet:residencySets[i]];
}
- (void)removeResidencySet:(id<MTLResidencySet>)residencySet {
  require_system(METAL_DOUBLE_NO_RESIDENCY_SETS, "removeResidencySet:");
  @synchronized(self) {
    if (![_residencySets containsObject:residencySet])
      violation("removeResidencySet: of a set that the queue does not have");
    [_residencySets removeObject:residencySet];
  }
}
- (void)removeResidencySets:(const id<MTLResidencySet>[])residencySets count:(NSUInteger)count {
  for (NSUInteger i = 0; i < count; ++i) [self removeResidencySet:residencySets[i]];
}
@end

namespace metal_double {

std::uint64_t commits_of(id queue_or_device) {
  if (is_double(queue_or_device, objc_getClass("MetalDoubleQueue")))
    return (*static_cast<MetalDoubleQueue*>(queue_or_device)->_state)->commits;
  for (std::uint32_t i = 0; i < max_devices; ++i) {
    if (device_object(device_state(i)) == queue_or_device) return device_state(i).commits;
  }
  return 0;
}

id<MTLCommandQueue> new_queue(DeviceState& device, NSUInteger max_command_buffers) {
  MetalDoubleQueue* queue = [[MetalDoubleQueue alloc] init];
  queue->_state = new std::shared_ptr<QueueState>(std::make_shared<QueueState>(device, max_command_buffers));
  queue->_residencySets = [[NSMutableSet alloc] init];
  return queue;
}

}  // namespace metal_double
