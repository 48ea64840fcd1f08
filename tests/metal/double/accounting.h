// What the double keeps of the whole process: objects by type, violations of Metal's rules, counts of events,
// faults to come, the system that is played.
#pragma once

#import <Foundation/Foundation.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace metal_double {

// Objects. `type` is the class's or the protocol's name, a literal. After object_died() the object answers
// nothing any more: a message to it is a violation. Its memory is given back once a thousand more objects
// have died.
id object_born(id object, const char* type);
void object_died(id object, const char* type);

// Violations of Metal's rules: they never end the process.
void violation(const char* format, ...) __attribute__((format(printf, 1, 2)));

enum class Event : std::uint8_t {
  dispatch,
  indirect_dispatch,
  barrier,
  encoder,
  concurrent_encoder,
  commit,
  compilation,
  pipeline,
  archive_hit,
  archive_miss,
  capture,
  debug_group,
  set_pipeline,
  set_buffer,
  set_buffer_offset,
  set_bytes,
  set_threadgroup_memory,
  event_wait,
  event_signal,
  residency_add,
  residency_remove,
  residency_commit,
  residency_request,
  count,
};
void count_event(Event event);
std::int64_t event_count(Event event);

// A fault that hits `count` calls after letting `skip` pass.
class Fault {
 public:
  void arm(std::uint32_t skip, std::uint32_t count, std::int64_t value = 0, const char* text = "");
  struct Hit {
    std::int64_t value;
    std::string text;
  };
  // Whether this call is one that fails.
  std::optional<Hit> take();

 private:
  std::mutex mutex_;
  std::uint32_t skip_ = 0, count_ = 0;
  std::int64_t value_ = 0;
  std::string text_;
};

struct Faults {
  Fault allocation, command_buffer, compilation, pipeline, archive_write, execution;
  std::atomic<double> delay{0};
  std::atomic<double> watchdog{30};                 // seconds that a command buffer may run
  std::atomic<std::uint32_t> lost{0};               // bit i: device i
  std::atomic<std::uint64_t> max_buffer_length{0};  // 0: the system's
  std::atomic<std::uint64_t> seed{1};
};
Faults& faults();

// Whether the system that is played lacks something (METAL_DOUBLE_NO_... of metal_double.h).
bool system_lacks(std::uint32_t what);
// Whether objects of the system that is played answer `selector`; what `otherwise` says for members that it
// has.
BOOL system_answers(SEL selector, BOOL otherwise);
// Records a violation when a member is used that the system does not have.
void require_system(std::uint32_t lacking, const char* member);

// Differences planted into reflection.
struct PlantedDifference {
  std::string argument, member, what;
  std::uint64_t value;
};
std::optional<std::uint64_t> planted(const std::string& argument, const std::string& member,
                                     const char* what);

std::string to_string(NSString* text);
NSString* to_nsstring(const std::string& text);
NSError* make_error(NSString* domain, NSInteger code, const std::string& text);
// Sets an out-parameter where the caller gave one.
void set_error(NSError** error, NSString* domain, NSInteger code, const std::string& text);

}  // namespace metal_double

// The members by which every class of the double counts its objects; its own clean-up stands in -destroy.
#define METAL_DOUBLE_COUNTED(type)                                      \
  +(id)allocWithZone : (NSZone*)zone {                                  \
    return metal_double::object_born([super allocWithZone:zone], type); \
  }                                                                     \
  -(void)dealloc {                                                      \
    [self destroy];                                                     \
    metal_double::object_died(self, type);                              \
  }

// In an @implementation: the class and its objects have the methods that the played system has.
#define METAL_DOUBLE_OF_ITS_SYSTEM                                                              \
  +(BOOL)instancesRespondToSelector : (SEL)selector {                                           \
    return metal_double::system_answers(selector, [super instancesRespondToSelector:selector]); \
  }                                                                                             \
  -(BOOL)respondsToSelector : (SEL)selector {                                                   \
    return metal_double::system_answers(selector, [super respondsToSelector:selector]);         \
  }
