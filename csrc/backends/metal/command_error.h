// How a command buffer's failure reads as metalane's error.
#pragma once

#import <Foundation/Foundation.h>

#include <exception>
#include <string>

namespace metalane::metal {

// `error`: of a command buffer with MTLCommandBufferStatusError, nil where Metal gave none. `label`: what the
// submission is called where Metal does not say which part failed. Of the same error always the same code:
//   1 internal (transient)         7 not-permitted (transient)   10 memoryless
//   2 timeout (transient)          8 out-of-memory (transient)   11 device-removed
//   3 fault                        9 invalid-resource            12 stack-overflow
//   4 access-revoked               others: "metal-<code>"
std::exception_ptr command_buffer_error(NSError* error, const std::string& label);

}  // namespace metalane::metal
