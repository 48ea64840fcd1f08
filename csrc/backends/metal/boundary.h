// The boundary between C++ and Objective-C: strings, errors, and the scope in which Metal is called.
#pragma once

#import <Foundation/Foundation.h>
#include <metalane/error.h>

#include <string>
#include <utility>

namespace metalane::metal {

// "" for nil.
inline std::string text_of(NSString* text) {
  const char* bytes = [text UTF8String];
  return bytes != nullptr ? bytes : "";
}

// Autoreleased. Bytes that are no UTF-8 would make it nil, so that they are read as Latin-1.
inline NSString* string_of(const std::string& text) {
  NSString* string = [[[NSString alloc] initWithBytes:text.data()
                                               length:text.size()
                                             encoding:NSUTF8StringEncoding] autorelease];
  if (string != nil) return string;
  return [[[NSString alloc] initWithBytes:text.data() length:text.size()
                                 encoding:NSISOLatin1StringEncoding] autorelease];
}

// What an error says; never empty.
inline std::string text_of(NSError* error) {
  const std::string text = text_of([error localizedDescription]);
  return text.empty() ? "Metal gave no reason" : text;
}

// A scope for what Metal autoreleases; threads of C++ have none. A class, because @autoreleasepool keeps what
// it holds when a C++ exception passes.
class AutoreleaseScope {
 public:
  AutoreleaseScope() : pool_([[NSAutoreleasePool alloc] init]) {}
  ~AutoreleaseScope() { [pool_ drain]; }
  AutoreleaseScope(const AutoreleaseScope&) = delete;
  AutoreleaseScope& operator=(const AutoreleaseScope&) = delete;

 private:
  NSAutoreleasePool* pool_;
};

// Runs `body`, which calls Metal. An Objective-C exception becomes DeviceError; C++ exceptions pass. No C++
// exception is caught in Objective-C++: with GCC's runtime, which the test double runs on, a catch clause
// there does not see them.
template <typename Body>
auto call_metal(const char* what, Body&& body) {
  const AutoreleaseScope scope;
  std::string reason;
  @try {
    return body();
  } @catch (NSException* exception) {
    reason = text_of([exception name]) + ": " + text_of([exception reason]);
  }
  throw DeviceError(std::string("metal device: ") + what + ": " + reason);
}

}  // namespace metalane::metal
