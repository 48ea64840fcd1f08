// What the Objective-C runtime knows of the protocols and classes that the double's headers declare.
#import <Metal/Metal.h>
#import <objc/runtime.h>

#include <cstdlib>
#include <string>

#include "metal_double.h"

namespace {

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
    for (Protocol* protocol : {
           @protocol (MTLAllocation), @protocol (MTLBinaryArchive), @protocol (MTLBinding),
               @protocol (MTLBuffer), @protocol (MTLBufferBinding), @protocol (MTLCaptureScope),
               @protocol (MTLCommandBuffer), @protocol (MTLCommandBufferEncoderInfo),
               @protocol (MTLCommandEncoder), @protocol (MTLCommandQueue),
               @protocol (MTLComputeCommandEncoder), @protocol (MTLComputePipelineState),
               @protocol (MTLDevice), @protocol (MTLEvent), @protocol (MTLFunction), @protocol (MTLLibrary),
               @protocol (MTLResidencySet), @protocol (MTLResource), @protocol (MTLSharedEvent),
               @protocol (MTLThreadgroupBinding)
         }) {
      append_protocol(text, protocol);
    }
    text += "}, \"classes\": {";
    for (Class type : {[MTLArchitecture class],
                       [MTLArrayType class],
                       [MTLBinaryArchiveDescriptor class],
                       [MTLCaptureDescriptor class],
                       [MTLCaptureManager class],
                       [MTLCommandBufferDescriptor class],
                       [MTLCommandQueueDescriptor class],
                       [MTLCompileOptions class],
                       [MTLComputePipelineDescriptor class],
                       [MTLComputePipelineReflection class],
                       [MTLFunctionConstant class],
                       [MTLFunctionConstantValues class],
                       [MTLFunctionDescriptor class],
                       [MTLPipelineBufferDescriptor class],
                       [MTLPipelineBufferDescriptorArray class],
                       [MTLPointerType class],
                       [MTLResidencySetDescriptor class],
                       [MTLSharedEventHandle class],
                       [MTLSharedEventListener class],
                       [MTLStructMember class],
                       [MTLStructType class],
                       [MTLType class]}) {
      append_class(text, type);
    }
    return text + "}}";
  }();
  return all.c_str();
}
