// What the Objective-C runtime knows of the protocols and classes that the double's headers declare.
#import <Metal/Metal.h>
#import <objc/runtime.h>

#include <cstdlib>
#include <string>

#include "metal_double.h"

namespace {

// The runtime has the protocols that classes adopt.
constexpr const char* protocols[] = {"MTLAllocation",
                                     "MTLBinaryArchive",
                                     "MTLBinding",
                                     "MTLBuffer",
                                     "MTLBufferBinding",
                                     "MTLCaptureScope",
                                     "MTLCommandBuffer",
                                     "MTLCommandBufferEncoderInfo",
                                     "MTLCommandEncoder",
                                     "MTLCommandQueue",
                                     "MTLComputeCommandEncoder",
                                     "MTLComputePipelineState",
                                     "MTLDevice",
                                     "MTLEvent",
                                     "MTLFunction",
                                     "MTLLibrary",
                                     "MTLResidencySet",
                                     "MTLResource",
                                     "MTLSharedEvent",
                                     "MTLThreadgroupBinding"};
constexpr const char* classes[] = {"MTLArchitecture",
                                   "MTLArrayType",
                                   "MTLBinaryArchiveDescriptor",
                                   "MTLCaptureDescriptor",
                                   "MTLCaptureManager",
                                   "MTLCommandBufferDescriptor",
                                   "MTLCommandQueueDescriptor",
                                   "MTLCompileOptions",
                                   "MTLComputePipelineDescriptor",
                                   "MTLComputePipelineReflection",
                                   "MTLFunctionConstant",
                                   "MTLFunctionConstantValues",
                                   "MTLFunctionDescriptor",
                                   "MTLPipelineBufferDescriptor",
                                   "MTLPipelineBufferDescriptorArray",
                                   "MTLPointerType",
                                   "MTLResidencySetDescriptor",
                                   "MTLSharedEventHandle",
                                   "MTLSharedEventListener",
                                   "MTLStructMember",
                                   "MTLStructType",
                                   "MTLType"};

void append_member(std::string& text, const char* kind, SEL selector, const char* types) {
  if (text.back() != '{') text += ", ";
  text += std::string("\"") + kind + sel_getName(selector) + "\": \"" + types + "\"";
}

void append_protocol(std::string& text, Protocol* protocol) {
  text += std::string(text.back() == '{' ? "" : ", ") + "\"" + protocol_getName(protocol) + "\": {";
  unsigned count = 0;
  objc_method_description* members = protocol_copyMethodDescriptionList(protocol, YES, YES, &count);
  for (unsigned i = 0; i < count; ++i) append_member(text, "-", members[i].name, members[i].types);
  std::free(members);
  text += "}";
}

void append_methods(std::string& text, const char* kind, Class type) {
  unsigned count = 0;
  Method* methods = class_copyMethodList(type, &count);
  for (unsigned i = 0; i < count; ++i)
    append_member(text, kind, method_getName(methods[i]), method_getTypeEncoding(methods[i]));
  std::free(methods);
}

void append_class(std::string& text, Class type) {
  text += std::string(text.back() == '{' ? "" : ", ") + "\"" + class_getName(type) + "\": {";
  append_methods(text, "-", type);
  append_methods(text, "+", object_getClass(type));
  text += "}";
}

}  // namespace

extern "C" const char* metal_double_interface(void) {
  static const std::string all = [] {
    std::string text = "{\"protocols\": {";
    for (const char* name : protocols) append_protocol(text, objc_getProtocol(name));
    text += "}, \"classes\": {";
    for (const char* name : classes) append_class(text, objc_getClass(name));
    return text + "}}";
  }();
  return all.c_str();
}

extern "C" const char* metal_double_build_directory(void) { return METAL_DOUBLE_BUILD_DIRECTORY; }
