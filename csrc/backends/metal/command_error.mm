// Codes of MTLCommandBufferErrorDomain, and the part that Metal says failed.
#import "backends/metal/command_error.h"

#import <Metal/Metal.h>
#include <metalane/error.h>

#import "backends/metal/boundary.h"

namespace metalane::metal {

namespace {

struct Kind {
  NSInteger code;
  const char* name;
  bool is_transient;
};

// Internal errors are transient because Metal reports under this code what another process's failure has
// cost.
constexpr Kind kinds[] = {
    {MTLCommandBufferErrorInternal, "internal", true},
    {MTLCommandBufferErrorTimeout, "timeout", true},
    {MTLCommandBufferErrorPageFault, "fault", false},
    {MTLCommandBufferErrorAccessRevoked, "access-revoked", false},
    {MTLCommandBufferErrorNotPermitted, "not-permitted", true},
    {MTLCommandBufferErrorOutOfMemory, "out-of-memory", true},
    {MTLCommandBufferErrorInvalidResource, "invalid-resource", false},
    {MTLCommandBufferErrorMemoryless, "memoryless", false},
    {MTLCommandBufferErrorDeviceRemoved, "device-removed", false},
    {MTLCommandBufferErrorStackOverflow, "stack-overflow", false},
};

// The encoder that failed rather than one that suffered with it, and in it the last thing that had begun.
std::string failed_label(NSError* error) {
  std::string label;
  for (id<MTLCommandBufferEncoderInfo> info in
       [[error userInfo] objectForKey:MTLCommandBufferEncoderInfoErrorKey]) {
    const bool faulted = [info errorState] == MTLCommandEncoderErrorStateFaulted;
    if (!faulted && ([info errorState] != MTLCommandEncoderErrorStateAffected || !label.empty())) continue;
    NSString* const signpost = [[info debugSignposts] lastObject];
    label = text_of(signpost != nil ? signpost : [info label]);
    if (faulted) break;
  }
  return label;
}

}  // namespace

std::exception_ptr command_buffer_error(NSError* error, const std::string& submission) {
  const NSInteger code = [error code];
  Kind kind{code, nullptr, false};
  for (const Kind& known : kinds) {
    if (known.code == code) kind = known;
  }
  std::string label = failed_label(error);
  if (label.empty()) label = submission;
  return std::make_exception_ptr(
      CommandBufferError(kind.name != nullptr ? kind.name : "metal-" + std::to_string(code), label,
                         kind.is_transient, label + ": " + text_of(error)));
}

}  // namespace metalane::metal
