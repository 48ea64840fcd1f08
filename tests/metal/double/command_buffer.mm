// Command buffers: their life cycle up to the commit.
#include "accounting.h"
#include "commands.h"
#include "metal_double.h"

using namespace metal_double;

@implementation MTLCommandBufferDescriptor
METAL_DOUBLE_COUNTED("MTLCommandBufferDescriptor")
@synthesize retainedReferences = _retainedReferences;
@synthesize errorOptions = _errorOptions;
- (id)init {
  self = [super init];
  _retainedReferences = YES;
  return self;
}
- (void)destroy {
}
- (id)copyWithZone:(NSZone*)zone {
  MTLCommandBufferDescriptor* copy = [[[self class] allocWithZone:zone] init];
  copy->_retainedReferences = _retainedReferences;
  copy->_errorOptions = _errorOptions;
  return copy;
}
@end

namespace metal_double {
namespace {
std::atomic<std::uint64_t> command_buffers{0};
}

CommandBufferState::CommandBufferState(std::shared_ptr<QueueState> on, bool retains, NSUInteger options)
    : queue(std::move(on)),
      retained(retains),
      error_options(options),
      number(++command_buffers),
      seed(faults().seed * 1000003 + number * 97) {}

CommandBufferState::~CommandBufferState() {
  let_go();
  for (const auto* handlers : {&scheduled, &completed}) {
    for (MTLCommandBufferHandler handler : *handlers) Block_release(handler);
  }
  [error release];
}

void CommandBufferState::use(id<MTLBuffer> buffer) {
  std::shared_ptr<BufferState> state = state_of(buffer);
  if (!used_.insert(state.get()).second) return;
  if (retained) {
    objects_.push_back([buffer retain]);
  } else {
    ++state->unretained;
  }
  buffers_.push_back(std::move(state));
}

void CommandBufferState::use(id<MTLComputePipelineState> pipeline) {
  std::shared_ptr<PipelineState> state = state_of(pipeline);
  if (!used_.insert(state.get()).second) return;
  if (retained) {
    objects_.push_back([pipeline retain]);
  } else {
    ++state->unretained;
  }
  pipelines_.push_back(std::move(state));
}

void CommandBufferState::let_go() {
  if (!retained) {
    for (const auto& buffer : buffers_) --buffer->unretained;
    for (const auto& pipeline : pipelines_) --pipeline->unretained;
  }
  for (id object : objects_) [object release];
  objects_.clear();
  buffers_.clear();
  pipelines_.clear();
}

bool CommandBufferState::has_what_it_uses() const {
  return std::all_of(buffers_.begin(), buffers_.end(),
                     [](const auto& buffer) { return buffer->alive.load(); });
}

void CommandBufferState::refuse(const std::string& problem) {
  violation("%s", problem.c_str());
  if (invalid.empty()) invalid = problem;
}

}  // namespace metal_double

namespace {

// The violation, which also keeps the command buffer from running.
void refuse(CommandBufferState& state, const char* member, const std::string& problem) {
  state.refuse("-[MTLCommandBuffer " + std::string(member) + "]: " + problem);
}

bool is_committed(CommandBufferState& state) {
  const std::lock_guard lock(state.mutex);
  return state.status >= MTLCommandBufferStatusCommitted;
}

const EncodedPass* open_pass(const CommandBufferState& state) {
  if (state.commands.empty()) return nullptr;
  const auto* pass = std::get_if<std::shared_ptr<EncodedPass>>(&state.commands.back());
  return pass != nullptr && !(*pass)->ended ? pass->get() : nullptr;
}

// Whether something may be encoded now; a violation where not.
bool may_encode(CommandBufferState& state, const char* member) {
  if (is_committed(state)) {
    violation("-[MTLCommandBuffer %s]: after commit", member);
    return false;
  }
  if (open_pass(state) == nullptr) return true;
  refuse(state, member, "an encoder is open");
  return false;
}

}  // namespace

@interface MetalDoubleCommandBuffer : NSObject <MTLCommandBuffer> {
 @package
  std::shared_ptr<CommandBufferState>* _state;
  id<MTLCommandQueue> _queue;
  NSString* _label;
  NSUInteger _groups;
}
@end

@implementation MetalDoubleCommandBuffer
METAL_DOUBLE_COUNTED("MTLCommandBuffer")
@synthesize label = _label;
METAL_DOUBLE_OF_ITS_SYSTEM
- (void)destroy {
  CommandBufferState& state = **_state;
  if (!is_committed(state)) {
    if (open_pass(state) != nullptr) refuse(state, "dealloc", "released with an open encoder");
    const std::lock_guard lock(state.queue->mutex);
    --state.queue->made;
    std::erase(state.queue->order, &state);
    state.queue->fewer.notify_all();
  }
  delete _state;
  [_queue release];
  [_label release];
}
- (id<MTLDevice>)device {
  return device_object((*_state)->queue->device);
}
- (id<MTLCommandQueue>)commandQueue {
  return _queue;
}
- (BOOL)retainedReferences {
  return (*_state)->retained;
}
- (MTLCommandBufferErrorOption)errorOptions {
  return (*_state)->error_options;
}
- (CFTimeInterval)kernelStartTime {
  return self.GPUStartTime;
}
- (CFTimeInterval)kernelEndTime {
  return self.GPUEndTime;
}
- (CFTimeInterval)GPUStartTime {
  const std::lock_guard lock((*_state)->mutex);
  return (*_state)->start;
}
- (CFTimeInterval)GPUEndTime {
  const std::lock_guard lock((*_state)->mutex);
  return (*_state)->end;
}
- (MTLCommandBufferStatus)status {
  const std::lock_guard lock((*_state)->mutex);
  return (*_state)->status;
}
- (NSError*)error {
  const std::lock_guard lock((*_state)->mutex);
  // An error is there once the status says so.
  return (*_state)->status == MTLCommandBufferStatusError ? [[(*_state)->error retain] autorelease] : nil;
}
- (void)enqueue {
  CommandBufferState& state = **_state;
  {
    const std::lock_guard lock(state.mutex);
    if (state.status != MTLCommandBufferStatusNotEnqueued)
      return violation("-[MTLCommandBuffer enqueue]: enqueued before");
    state.status = MTLCommandBufferStatusEnqueued;
  }
  enqueue(state);
}
- (void)commit {
  CommandBufferState& state = **_state;
  if (is_committed(state)) return violation("-[MTLCommandBuffer commit]: a second time");
  if (open_pass(state) != nullptr) refuse(state, "commit", "an encoder is open");
  if (_groups != 0) refuse(state, "commit", "a debug group is open");
  if (self.status == MTLCommandBufferStatusNotEnqueued) [self enqueue];
  {
    const std::lock_guard lock(state.mutex);
    state.status = MTLCommandBufferStatusCommitted;
  }
  count_event(Event::commit);
  ++state.queue->commits;
  ++state.queue->device.commits;
  [self retain];  // until its handlers have returned
  commit(*_state);
}
- (void)addScheduledHandler:(MTLCommandBufferHandler)block {
  if (is_committed(**_state)) return violation("-[MTLCommandBuffer addScheduledHandler:]: after commit");
  if (block == nullptr) return violation("-[MTLCommandBuffer addScheduledHandler:]: nil");
  (*_state)->scheduled.push_back(Block_copy(block));
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)block {
  if (is_committed(**_state)) return violation("-[MTLCommandBuffer addCompletedHandler:]: after commit");
  if (block == nullptr) return violation("-[MTLCommandBuffer addCompletedHandler:]: nil");
  (*_state)->completed.push_back(Block_copy(block));
}
- (void)waitUntilScheduled {
  if (!is_committed(**_state)) return violation("-[MTLCommandBuffer waitUntilScheduled]: before commit");
  CommandBufferState& state = **_state;
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&state] { return state.status >= MTLCommandBufferStatusScheduled; });
}
- (void)waitUntilCompleted {
  if (!is_committed(**_state)) return violation("-[MTLCommandBuffer waitUntilCompleted]: before commit");
  CommandBufferState& state = **_state;
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&state] { return state.finished; });
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  return [self computeCommandEncoderWithDispatchType:MTLDispatchTypeSerial];
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)dispatchType {
  if (!may_encode(**_state, "computeCommandEncoder")) return nil;
  auto pass = std::make_shared<EncodedPass>();
  pass->concurrent = dispatchType == MTLDispatchTypeConcurrent;
  (*_state)->commands.emplace_back(pass);
  return [new_encoder(*_state, std::move(pass)) autorelease];
}
- (void)encodeEvent:(id<MTLEvent>)event value:(uint64_t)value waits:(BOOL)waits member:(const char*)member {
  if (!may_encode(**_state, member)) return;
  if (!is_double(event, objc_getClass("MetalDoubleEvent"))) return refuse(**_state, member, "not an event");
  std::shared_ptr<EventState> state = state_of(event);
  if (!state->shared && state->device != &(*_state)->queue->device)
    return refuse(**_state, member, "the event is another device's and not shared");
  count_event(waits ? Event::event_wait : Event::event_signal);
  (*_state)->commands.emplace_back(EventCommand{std::move(state), value, waits != NO});
}
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value {
  [self encodeEvent:event value:value waits:YES member:"encodeWaitForEvent:value:"];
}
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value {
  [self encodeEvent:event value:value waits:NO member:"encodeSignalEvent:value:"];
}
- (void)pushDebugGroup:(NSString*)string {
  if (string == nil) return refuse(**_state, "pushDebugGroup:", "nil");
  count_event(Event::debug_group);
  ++_groups;
}
- (void)popDebugGroup {
  if (_groups == 0) return refuse(**_state, "popDebugGroup", "no debug group is open");
  --_groups;
}
- (void)useResidencySet:(id<MTLResidencySet>)residencySet {
  require_system(METAL_DOUBLE_NO_RESIDENCY_SETS, "useResidencySet:");
  if (residencySet == nil) refuse(**_state, "useResidencySet:", "nil");
}
- (void)useResidencySets:(const id<MTLResidencySet>[])residencySets count:(NSUInteger)count {
  for (NSUInteger i = 0; i < count; ++i) [self useResidencySet:residencySets[i]];
}
@end

namespace metal_double {

// Waits, as Metal does, while the queue has as many as it takes.
id<MTLCommandBuffer> new_command_buffer(id<MTLCommandQueue> owner, const std::shared_ptr<QueueState>& queue,
                                        bool retained, NSUInteger options) {
  if (faults().command_buffer.take()) return nil;
  {
    std::unique_lock lock(queue->mutex);
    queue->fewer.wait(lock,
                      [&] { return queue->made < queue->max_command_buffers || queue->in_flight == 0; });
    if (queue->made >= queue->max_command_buffers) {
      violation("-[MTLCommandQueue commandBuffer]: would wait for ever: none of its %lu command buffers is "
                "committed",
                static_cast<unsigned long>(queue->made));
      return nil;
    }
    ++queue->made;
  }
  MetalDoubleCommandBuffer* buffer = [[[MetalDoubleCommandBuffer alloc] init] autorelease];
  buffer->_state =
      new std::shared_ptr<CommandBufferState>(std::make_shared<CommandBufferState>(queue, retained, options));
  (*buffer->_state)->object = buffer;
  buffer->_queue = [owner retain];
  return buffer;
}

}  // namespace metal_double
