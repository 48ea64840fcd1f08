// Events, shared by queues and devices.
#include <chrono>

#include "accounting.h"
#include "devices.h"

using namespace metal_double;

namespace metal_double {

// Listeners are called without the lock, by whoever brings the value.
void EventState::signal(std::uint64_t new_value) {
  std::vector<Listener> due;
  {
    const std::lock_guard lock(mutex);
    value = new_value;
    for (std::size_t i = 0; i < listeners.size();) {
      if (listeners[i].value > value) {
        ++i;
        continue;
      }
      due.push_back(std::move(listeners[i]));
      listeners.erase(listeners.begin() + static_cast<std::ptrdiff_t>(i));
    }
    changed.notify_all();
  }
  for (const Listener& listener : due) listener.call(new_value);
}

}  // namespace metal_double

@interface MetalDoubleEvent : NSObject <MTLEvent> {
 @package
  std::shared_ptr<EventState>* _state;
  NSString* _label;
}
@end

@implementation MetalDoubleEvent
METAL_DOUBLE_COUNTED("MTLEvent")
@synthesize label = _label;
- (void)destroy {
  delete _state;
  [_label release];
}
- (id<MTLDevice>)device {
  // A shared event is no device's.
  return (*_state)->shared ? nil : device_object(*(*_state)->device);
}
@end

@interface MetalDoubleSharedEvent : MetalDoubleEvent <MTLSharedEvent>
@end

@implementation MetalDoubleSharedEvent
- (uint64_t)signaledValue {
  const std::lock_guard lock((*_state)->mutex);
  return (*_state)->value;
}
- (void)setSignaledValue:(uint64_t)value {
  (*_state)->signal(value);
}
- (void)notifyListener:(MTLSharedEventListener*)listener
               atValue:(uint64_t)value
                 block:(MTLSharedEventNotificationBlock)block {
  if (listener == nil || block == nullptr) {
    violation("notifyListener:atValue:block: nil");
    return;
  }
  MTLSharedEventNotificationBlock kept = Block_copy(block);
  id<MTLSharedEvent> event = [self retain];
  const std::function<void(std::uint64_t)> call = [kept, event](std::uint64_t reached) {
    kept(event, reached);
    Block_release(kept);
    [event release];
  };
  std::uint64_t reached = 0;
  {
    const std::lock_guard lock((*_state)->mutex);
    reached = (*_state)->value;
    if (reached < value) {
      (*_state)->listeners.push_back({value, call});
      return;
    }
  }
  call(reached);
}
- (MTLSharedEventHandle*)newSharedEventHandle {
  MTLSharedEventHandle* handle = [[MTLSharedEventHandle alloc] init];
  handle->_event = [self retain];
  return handle;
}
- (BOOL)waitUntilSignaledValue:(uint64_t)value timeoutMS:(uint64_t)milliseconds {
  // Longer than a year is for ever, and past what the clock adds up.
  const auto limit = std::chrono::milliseconds(std::min<std::uint64_t>(milliseconds, 365ull * 86400 * 1000));
  std::unique_lock lock((*_state)->mutex);
  return (*_state)->changed.wait_for(lock, limit, [&] { return (*_state)->value >= value; });
}
@end

@implementation MTLSharedEventListener
METAL_DOUBLE_COUNTED("MTLSharedEventListener")
- (void)destroy {
}
@end

@implementation MTLSharedEventHandle
METAL_DOUBLE_COUNTED("MTLSharedEventHandle")
- (void)destroy {
  [_event release];
}
- (NSString*)label {
  return [_event label];
}
@end

namespace metal_double {

std::shared_ptr<EventState> state_of(id<MTLEvent> event) {
  return *static_cast<MetalDoubleEvent*>(event)->_state;
}

id<MTLEvent> new_event(DeviceState& device, bool shared, std::shared_ptr<EventState> state) {
  if (state == nullptr) {
    state = std::make_shared<EventState>();
    state->device = &device;
    state->shared = shared;
  }
  MetalDoubleEvent* event = shared ? [[MetalDoubleSharedEvent alloc] init] : [[MetalDoubleEvent alloc] init];
  event->_state = new std::shared_ptr<EventState>(std::move(state));
  return event;
}

}  // namespace metal_double
