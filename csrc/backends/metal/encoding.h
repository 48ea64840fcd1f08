// A recorded submission as commands of Metal.
#pragma once

#import <Metal/Metal.h>

#include <string>
#include <string_view>
#include <unordered_map>

#include "backends/metal/launch_list.h"
#import "backends/metal/owned.h"

namespace metalane::metal {

// NSStrings of labels: serving loops use the same ones again and again. For one thread at a time.
class Labels {
 public:
  NSString* of(std::string_view text);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  static constexpr std::size_t max_labels = 4096;
  std::unordered_map<std::string, Owned<NSString*>, Hash, std::equal_to<>> known_;
};

// State that the encoder has already is not set again.
void encode(const LaunchList& list, id<MTLComputeCommandEncoder> encoder, Labels& labels);

}  // namespace metalane::metal
