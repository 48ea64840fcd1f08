// One reference on an Objective-C object, retained and released by hand: the same under every runtime, and
// without ARC.
#pragma once

#import <Foundation/Foundation.h>

#include <utility>

namespace metalane::metal {

// T: id<MTLBuffer>, NSString*, ... A new..., alloc or copy method gives its caller a reference: adopt() takes
// it over. Other methods give none: keep() retains.
template <typename T>
class Owned {
 public:
  Owned() = default;
  static Owned adopt(T object) noexcept { return Owned(object); }
  static Owned keep(T object) noexcept { return Owned([object retain]); }
  Owned(const Owned& other) noexcept : object_([other.object_ retain]) {}
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nil)) {}
  Owned& operator=(Owned other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() { [object_ release]; }

  T get() const noexcept { return object_; }
  explicit operator bool() const noexcept { return object_ != nil; }
  // The reference without its owner; who takes it releases it, or lets it leak.
  T leave() noexcept { return std::exchange(object_, nil); }

 private:
  explicit Owned(T object) noexcept : object_(object) {}
  T object_ = nil;
};

}  // namespace metalane::metal
