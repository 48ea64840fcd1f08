// See accounting.h; and the part of metal_double.h that reads and sets what is kept here.
#include "accounting.h"

#import <objc/runtime.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <unordered_map>

#include "devices.h"
#include "metal_double.h"

namespace metal_double {
namespace {

struct TypeCount {
  std::int64_t alive = 0, made = 0;
};

// Lives as long as the process: objects may be let go by static destructors.
struct Accounts {
  std::mutex mutex;
  std::map<std::string_view, TypeCount> types;  // the names are literals
  struct Dead {
    id object;
    Class type;
  };
  std::deque<Dead> dead;
  std::unordered_map<id, const char*> dead_types;

  std::mutex violations_mutex;
  std::vector<std::string> violations;

  std::mutex planted_mutex;
  std::vector<PlantedDifference> planted;

  std::atomic<std::int64_t> events[static_cast<int>(Event::count)] = {};
  std::atomic<std::uint32_t> system{0};
};

std::uint32_t system_of_environment() {
  const char* system = std::getenv("METAL_DOUBLE_SYSTEM");
  return system != nullptr && std::strcmp(system, "older") == 0 ? METAL_DOUBLE_OLDER : 0;
}

Accounts& accounts() {
  static Accounts* all = [] {
    auto* made = new Accounts;
    made->system = system_of_environment();
    if (const char* seed = std::getenv("METAL_DOUBLE_SEED")) faults().seed = std::strtoull(seed, nullptr, 0);
    return made;
  }();
  return *all;
}

constexpr std::size_t max_dead = 1000;

struct GatedMember {
  std::uint32_t lacking;
  const char* selector;
};
constexpr GatedMember gated_members[] = {
    {METAL_DOUBLE_NO_RESIDENCY_SETS, "newResidencySetWithDescriptor:error:"},
    {METAL_DOUBLE_NO_RESIDENCY_SETS, "addResidencySet:"},
    {METAL_DOUBLE_NO_RESIDENCY_SETS, "addResidencySets:count:"},
    {METAL_DOUBLE_NO_RESIDENCY_SETS, "removeResidencySet:"},
    {METAL_DOUBLE_NO_RESIDENCY_SETS, "removeResidencySets:count:"},
    {METAL_DOUBLE_NO_RESIDENCY_SETS, "useResidencySet:"},
    {METAL_DOUBLE_NO_RESIDENCY_SETS, "useResidencySets:count:"},
    {METAL_DOUBLE_NO_MATH_MODE, "mathMode"},
    {METAL_DOUBLE_NO_MATH_MODE, "setMathMode:"},
    {METAL_DOUBLE_NO_MATH_MODE, "mathFloatingPointFunctions"},
    {METAL_DOUBLE_NO_MATH_MODE, "setMathFloatingPointFunctions:"},
    {METAL_DOUBLE_NO_BINARY_ARCHIVES, "newBinaryArchiveWithDescriptor:error:"},
    {METAL_DOUBLE_NO_BINARY_ARCHIVES, "binaryArchives"},
    {METAL_DOUBLE_NO_BINARY_ARCHIVES, "setBinaryArchives:"},
};

}  // namespace

id object_born(id object, const char* type) {
  if (object == nil) return nil;
  Accounts& all = accounts();
  const std::lock_guard lock(all.mutex);
  TypeCount& count = all.types[type];
  ++count.alive;
  ++count.made;
  return object;
}

void object_died(id object, const char* type) {
  Accounts& all = accounts();
  Accounts::Dead oldest{nil, Nil};
  {
    const std::lock_guard lock(all.mutex);
    --all.types[type].alive;
    all.dead.push_back({object, object_getClass(object)});
    all.dead_types[object] = type;
    object_setClass(object, objc_getClass("MetalDoubleDead"));
    if (all.dead.size() > max_dead) {
      oldest = all.dead.front();
      all.dead.pop_front();
      all.dead_types.erase(oldest.object);
    }
  }
  if (oldest.object == nil) return;
  object_setClass(oldest.object, oldest.type);
  NSDeallocateObject(oldest.object);
}

// Devices live for ever, as Metal's do: what counts is who holds them.
static std::map<std::string_view, TypeCount> type_counts() {
  Accounts& all = accounts();
  std::map<std::string_view, TypeCount> counts;
  {
    const std::lock_guard lock(all.mutex);
    counts = all.types;
  }
  counts["MTLDevice"] = {devices_held(), devices_given()};
  return counts;
}

static const char* dead_type(id object) {
  Accounts& all = accounts();
  const std::lock_guard lock(all.mutex);
  const auto found = all.dead_types.find(object);
  return found != all.dead_types.end() ? found->second : "object";
}

void violation(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  Accounts& all = accounts();
  const std::lock_guard lock(all.violations_mutex);
  all.violations.emplace_back(text);
}

void count_event(Event event) { ++accounts().events[static_cast<int>(event)]; }
std::int64_t event_count(Event event) { return accounts().events[static_cast<int>(event)]; }

void Fault::arm(std::uint32_t skip, std::uint32_t count, std::int64_t value, const char* text) {
  const std::lock_guard lock(mutex_);
  skip_ = skip;
  count_ = count;
  value_ = value;
  text_ = text;
}

std::optional<Fault::Hit> Fault::take() {
  const std::lock_guard lock(mutex_);
  if (count_ == 0) return std::nullopt;
  if (skip_ != 0) {
    --skip_;
    return std::nullopt;
  }
  --count_;
  return Hit{value_, text_};
}

Faults& faults() {
  static auto* all = new Faults;
  return *all;
}

bool system_lacks(std::uint32_t what) { return (accounts().system & what) != 0; }

BOOL system_answers(SEL selector, BOOL otherwise) {
  const char* name = sel_getName(selector);
  for (const GatedMember& member : gated_members) {
    if (system_lacks(member.lacking) && std::strcmp(member.selector, name) == 0) return NO;
  }
  return otherwise;
}

void require_system(std::uint32_t lacking, const char* member) {
  if (system_lacks(lacking)) violation("%s: this system does not have it", member);
}

std::optional<std::uint64_t> planted(const std::string& argument, const std::string& member,
                                     const char* what) {
  Accounts& all = accounts();
  const std::lock_guard lock(all.planted_mutex);
  for (const PlantedDifference& difference : all.planted) {
    if (difference.argument == argument && difference.member == member && difference.what == what)
      return difference.value;
  }
  return std::nullopt;
}

std::string to_string(NSString* text) {
  if (text == nil) return {};
  const char* utf8 = [text UTF8String];
  return utf8 != nullptr ? utf8 : "";
}

NSString* to_nsstring(const std::string& text) {
  NSString* made = [NSString stringWithUTF8String:text.c_str()];
  return made != nil ? made : @"(text that is not UTF-8)";
}

NSError* make_error(NSString* domain, NSInteger code, const std::string& text) {
  return [NSError errorWithDomain:domain
                             code:code
                         userInfo:[NSDictionary dictionaryWithObject:to_nsstring(text)
                                                              forKey:NSLocalizedDescriptionKey]];
}

void set_error(NSError** error, NSString* domain, NSInteger code, const std::string& text) {
  if (error != nullptr) *error = make_error(domain, code, text);
}

}  // namespace metal_double

// What an object of the double becomes after its last release.
__attribute__((objc_root_class))
@interface MetalDoubleDead {
  Class isa;
}
@end

@implementation MetalDoubleDead
+ (void)initialize {
}
- (id)retain {
  metal_double::violation("-retain of a %s after its last release", metal_double::dead_type(self));
  return self;
}
- (oneway void)release {
  metal_double::violation("-release of a %s after its last release", metal_double::dead_type(self));
}
- (id)autorelease {
  metal_double::violation("-autorelease of a %s after its last release", metal_double::dead_type(self));
  return self;
}
- (NSMethodSignature*)methodSignatureForSelector:(SEL)selector {
  metal_double::violation("-%s to a %s after its last release", sel_getName(selector),
                          metal_double::dead_type(self));
  return [NSMethodSignature signatureWithObjCTypes:"@@:"];
}
- (void)forwardInvocation:(NSInvocation*)invocation {
  id nothing = nil;
  [invocation setReturnValue:&nothing];
}
@end

// The system's answer to what classes it has: bound before Foundation's within the library.
Class NSClassFromString(NSString* name) {
  using metal_double::system_lacks;
  const std::string text = metal_double::to_string(name);
  if (text.starts_with("MTLResidencySet") && system_lacks(METAL_DOUBLE_NO_RESIDENCY_SETS)) return Nil;
  if (text.starts_with("MTLBinaryArchive") && system_lacks(METAL_DOUBLE_NO_BINARY_ARCHIVES)) return Nil;
  return objc_lookUpClass(text.c_str());
}

using metal_double::accounts;
using metal_double::faults;

extern "C" {

int64_t metal_double_live_objects(const char* type) {
  int64_t total = 0;
  for (const auto& [name, count] : metal_double::type_counts()) {
    if (type == nullptr || name == type) total += count.alive;
  }
  return total;
}

int64_t metal_double_made_objects(const char* type) {
  int64_t total = 0;
  for (const auto& [name, count] : metal_double::type_counts()) {
    if (type == nullptr || name == type) total += count.made;
  }
  return total;
}

const char* metal_double_object_counts(void) {
  thread_local std::string text;
  text.clear();
  for (const auto& [name, count] : metal_double::type_counts()) {
    text += std::string(name) + " " + std::to_string(count.alive) + " " + std::to_string(count.made) + "\n";
  }
  return text.c_str();
}

size_t metal_double_violation_count(void) {
  auto& all = accounts();
  const std::lock_guard lock(all.violations_mutex);
  return all.violations.size();
}

const char* metal_double_violation(size_t index) {
  thread_local std::string text;
  auto& all = accounts();
  const std::lock_guard lock(all.violations_mutex);
  if (index >= all.violations.size()) return nullptr;
  text = all.violations[index];
  return text.c_str();
}

void metal_double_clear_violations(void) {
  auto& all = accounts();
  const std::lock_guard lock(all.violations_mutex);
  all.violations.clear();
}

int64_t metal_double_count(const char* what) {
  static constexpr const char* names[] = {"dispatches",
                                          "indirect dispatches",
                                          "barriers",
                                          "encoders",
                                          "concurrent encoders",
                                          "commits",
                                          "compilations",
                                          "pipelines",
                                          "archive hits",
                                          "archive misses",
                                          "captures",
                                          "debug groups",
                                          "pipelines set",
                                          "buffers set",
                                          "buffer offsets set",
                                          "bytes set",
                                          "threadgroup memory set",
                                          "event waits",
                                          "event signals",
                                          "residency adds",
                                          "residency removes",
                                          "residency commits",
                                          "residency requests"};
  static_assert(std::size(names) == static_cast<std::size_t>(metal_double::Event::count));
  for (std::size_t i = 0; i < std::size(names); ++i) {
    if (std::strcmp(names[i], what) == 0)
      return metal_double::event_count(static_cast<metal_double::Event>(i));
  }
  return -1;
}

void metal_double_set_system(uint32_t without) { accounts().system = without; }
uint32_t metal_double_system(void) { return accounts().system; }
void metal_double_set_device_count(uint32_t count) { metal_double::set_device_count(count); }

void metal_double_set_shuffle_seed(uint64_t seed) {
  accounts();
  faults().seed = seed;
}
uint64_t metal_double_shuffle_seed(void) {
  accounts();
  return faults().seed;
}

void metal_double_fail_allocations(uint32_t skip, uint32_t count) { faults().allocation.arm(skip, count); }
void metal_double_fail_command_buffers(uint32_t skip, uint32_t count) {
  faults().command_buffer.arm(skip, count);
}
void metal_double_fail_compilations(uint32_t count, const char* text) {
  faults().compilation.arm(0, count, 0, text);
}
void metal_double_fail_pipelines(uint32_t count, const char* text) {
  faults().pipeline.arm(0, count, 0, text);
}
void metal_double_fail_archive_writes(uint32_t count) { faults().archive_write.arm(0, count); }
void metal_double_fail_execution(uint32_t skip, uint32_t count, int64_t code) {
  faults().execution.arm(skip, count, code);
}
void metal_double_delay_completion(double seconds) { faults().delay = seconds; }
void metal_double_set_watchdog(double seconds) { faults().watchdog = seconds; }
void metal_double_set_max_buffer_length(uint64_t length) { faults().max_buffer_length = length; }
void metal_double_lose_device(uint32_t device) { metal_double::lose_device(device); }

void metal_double_plant_reflection(const char* argument, const char* member, const char* what,
                                   uint64_t value) {
  auto& all = accounts();
  const std::lock_guard lock(all.planted_mutex);
  all.planted.push_back({argument, member != nullptr ? member : "", what, value});
}

void metal_double_plant_pipeline(const char* what, uint64_t value) {
  metal_double_plant_reflection("", nullptr, what, value);
}

void metal_double_reset(void) {
  auto& all = accounts();
  {
    const std::lock_guard lock(all.planted_mutex);
    all.planted.clear();
  }
  for (metal_double::Fault* fault : {&faults().allocation, &faults().command_buffer, &faults().compilation,
                                     &faults().pipeline, &faults().archive_write, &faults().execution}) {
    fault->arm(0, 0);
  }
  faults().delay = 0;
  faults().watchdog = 30;
  faults().lost = 0;
  faults().max_buffer_length = 0;
  all.system = metal_double::system_of_environment();
  metal_double::set_device_count(2);
}

}  // extern "C"
