// Source text to MTLLibrary.
#import "backends/metal/library.h"

#include <metalane/error.h>

#import "backends/metal/boundary.h"
#include "core/hash.h"
#include "msl/metal_text.h"

namespace metalane::metal {

namespace {

Owned<MTLCompileOptions*> compile_options(const Features& features, MathMode math) {
  Owned<MTLCompileOptions*> options = Owned<MTLCompileOptions*>::adopt([[MTLCompileOptions alloc] init]);
  [options.get() setLanguageVersion:features.language_version];
  const bool fast = math == MathMode::fast;
  if (features.math_mode) {
    [options.get() setMathMode:fast ? MTLMathModeFast : MTLMathModeSafe];
    [options.get() setMathFloatingPointFunctions:fast ? MTLMathFloatingPointFunctionsFast
                                                      : MTLMathFloatingPointFunctionsPrecise];
  } else {
    [options.get() setFastMathEnabled:fast];
  }
  return options;
}

}  // namespace

std::shared_ptr<const Library> Libraries::of(const backend::SourceText& source, MathMode math,
                                             const std::string& kernel) {
  const std::string text = msl::metal_text(source.name, source.text, source.headers, math);
  const std::string hash = core::sha256_hex(text);
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    auto& entries = source.builtin ? builtin_ : others_;
    if (!source.builtin && entries.size() >= max_entries && !entries.contains(hash)) entries.clear();
    auto& place = entries[hash + (math == MathMode::safe ? "safe" : "fast")];
    if (place == nullptr) place = std::make_shared<Entry>();
    entry = place;
  }
  const std::lock_guard lock(entry->mutex);
  if (entry->library == nullptr) {
    auto library = std::make_shared<Library>();
    library->object = compile(source, text, math, kernel);
    library->text_hash = hash;
    entry->library = std::move(library);
  }
  return entry->library;
}

Owned<id<MTLLibrary>> Libraries::compile(const backend::SourceText& source, const std::string& text,
                                         MathMode math, const std::string& kernel) const {
  NSError* error = nil;
  auto library =
      Owned<id<MTLLibrary>>::adopt([device_ newLibraryWithSource:string_of(text)
                                                         options:compile_options(features_, math).get()
                                                           error:&error]);
  // An error beside a library holds warnings.
  if (!library) {
    throw CompileError(kernel, "kernel '" + kernel + "': Metal (language version " + features_.language_name +
                                   ") cannot compile its source:\n" + text_of(error));
  }
  [library.get() setLabel:string_of(source.name)];
  return library;
}

}  // namespace metalane::metal
