// KernelRegistry::metal_source: where core's sources meet the text that Metal is given.
#include <metalane/kernel.h>

#include "core/registry.h"
#include "msl/metal_text.h"

namespace metalane {

std::string KernelRegistry::metal_source(const std::string& name, MathMode math) {
  const std::shared_ptr<const backend::SourceText> source = state_->source_text(name);
  return msl::metal_text(source->name, source->text, source->headers, math);
}

}  // namespace metalane
