// Asks Metal once, when a device is opened.
#import "backends/metal/features.h"

namespace metalane::metal {

Features features_of(id<MTLDevice> device) {
  Features features;
  const struct {
    MTLGPUFamily family;
    const char* name;
  } families[] = {
      {MTLGPUFamilyApple7, "apple7"},   {MTLGPUFamilyApple8, "apple8"}, {MTLGPUFamilyApple9, "apple9"},
      {MTLGPUFamilyApple10, "apple10"}, {MTLGPUFamilyMac2, "mac2"},     {MTLGPUFamilyCommon3, "common3"},
      {MTLGPUFamilyMetal3, "metal3"},   {MTLGPUFamilyMetal4, "metal4"},
  };
  for (const auto& known : families) {
    if ([device supportsFamily:known.family]) features.families.emplace_back(known.name);
  }
  // M1 and later.
  features.apple_gpu = [device supportsFamily:MTLGPUFamilyApple7] && [device hasUnifiedMemory];
  features.math_mode = [MTLCompileOptions instancesRespondToSelector:@selector(setMathMode:)];
  features.binary_archives = NSClassFromString(@"MTLBinaryArchiveDescriptor") != nil &&
                             [device respondsToSelector:@selector(newBinaryArchiveWithDescriptor:error:)];
  features.residency_sets = NSClassFromString(@"MTLResidencySetDescriptor") != nil &&
                            [device respondsToSelector:@selector(newResidencySetWithDescriptor:error:)];
  features.architecture = [device respondsToSelector:@selector(architecture)];
  // Language 3.2 came with mathMode (macOS 15) and 3.1, which has bfloat, with architecture (macOS 14). Later
  // ones are not asked for: what the reader and the other devices know is 3.2.
  if (features.math_mode) {
    features.language_version = MTLLanguageVersion3_2;
    features.language_name = "3.2";
  } else if (features.architecture) {
    features.language_version = MTLLanguageVersion3_1;
    features.language_name = "3.1";
  } else {
    features.language_name = "3.0";
  }
  return features;
}

}  // namespace metalane::metal
