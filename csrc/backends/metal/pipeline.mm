// Function constants, MTLComputePipelineState, and what is checked of it.
#import "backends/metal/pipeline.h"

#include <metalane/error.h>

#include <algorithm>

#import "backends/metal/boundary.h"
#import "backends/metal/reflection.h"

namespace metalane::metal {

namespace {

[[noreturn]] void refuse(const std::string& kernel, const std::string& what) {
  throw CompileError(kernel, "kernel '" + kernel + "': " + what);
}

Owned<id<MTLFunction>> find_function(const Library& library, const backend::CompileRequest& request,
                                     const msl::Program& program) {
  const std::string& kernel = request.function;
  NSString* const name = string_of(kernel);
  NSError* error = nil;
  Owned<id<MTLFunction>> function;
  const std::vector<msl::BoundConstant> constants = program.bind_constants(kernel, request.constants);
  if (constants.empty()) {
    function = Owned<id<MTLFunction>>::adopt([library.object.get() newFunctionWithName:name]);
  } else {
    auto values = Owned<MTLFunctionConstantValues*>::adopt([[MTLFunctionConstantValues alloc] init]);
    for (const msl::BoundConstant& bound : constants) {
      [values.get() setConstantValue:bound.bytes.data()
                                type:data_type_of(bound.constant.type)
                             atIndex:bound.constant.index];
    }
    function = Owned<id<MTLFunction>>::adopt([library.object.get() newFunctionWithName:name
                                                                        constantValues:values.get()
                                                                                 error:&error]);
  }
  if (!function)
    refuse(kernel, "Metal's library has no such function" + (error ? ": " + text_of(error) : ""));
  return function;
}

}  // namespace

MetalPipeline::~MetalPipeline() {
  if (core::fork_generation() != fork_generation_) {
    static_cast<void>(state.leave());  // Metal's objects belong to the process that made them
    return;
  }
  const AutoreleaseScope scope;
  state = {};
}

std::shared_ptr<MetalPipeline> build_pipeline(id<MTLDevice> device, const Library& library,
                                              const backend::CompileRequest& request,
                                              const msl::Program& program) {
  const std::string& kernel = request.function;
  auto pipeline = std::make_shared<MetalPipeline>();
  pipeline->signature = program.signature(kernel, request.constants);
  const Owned<id<MTLFunction>> function = find_function(library, request, program);
  auto descriptor = Owned<MTLComputePipelineDescriptor*>::adopt([[MTLComputePipelineDescriptor alloc] init]);
  [descriptor.get() setComputeFunction:function.get()];
  [descriptor.get() setLabel:string_of(kernel)];
  constexpr MTLPipelineOption options = MTLPipelineOptionBindingInfo | MTLPipelineOptionBufferTypeInfo;
  MTLComputePipelineReflection* reflection = nil;
  if (library.archive != nullptr)
    pipeline->state = library.archive->find(device, descriptor.get(), options, &reflection);
  NSError* error = nil;
  if (!pipeline->state) {
    pipeline->state = Owned<id<MTLComputePipelineState>>::adopt([device
        newComputePipelineStateWithDescriptor:descriptor.get()
                                      options:options
                                   reflection:&reflection
                                        error:&error]);
    if (pipeline->state && library.archive != nullptr) library.archive->add(descriptor.get());
  }
  if (!pipeline->state) refuse(kernel, "Metal cannot build its pipeline: " + text_of(error));
  check_reflection(reflection, pipeline->signature);

  const id<MTLComputePipelineState> state = pipeline->state.get();
  pipeline->thread_execution_width = static_cast<std::uint32_t>([state threadExecutionWidth]);
  if (pipeline->thread_execution_width != 32) {
    refuse(kernel, "its simdgroups have " + std::to_string(pipeline->thread_execution_width) +
                       " threads on this GPU; metalane's kernels count on 32");
  }
  pipeline->max_total_threads_per_threadgroup =
      static_cast<std::uint32_t>([state maxTotalThreadsPerThreadgroup]);
  if (const std::uint32_t limit = pipeline->signature.max_total_threads_per_threadgroup; limit != 0) {
    pipeline->max_total_threads_per_threadgroup =
        std::min(limit, pipeline->max_total_threads_per_threadgroup);
  }
  pipeline->static_threadgroup_memory = static_cast<std::uint32_t>([state staticThreadgroupMemoryLength]);
  const NSUInteger most = [device maxThreadgroupMemoryLength];
  if (pipeline->static_threadgroup_memory > most) {
    refuse(kernel, "its threadgroup variables take " + std::to_string(pipeline->static_threadgroup_memory) +
                       " bytes, the limit is " + std::to_string(most));
  }
  return pipeline;
}

}  // namespace metalane::metal
