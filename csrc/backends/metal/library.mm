// Source text to MTLLibrary.
#import "backends/metal/library.h"

#include <dlfcn.h>
#include <metalane/error.h>

#include <filesystem>
#include <system_error>

#import "backends/metal/boundary.h"
#include "core/hash.h"
#include "msl/metal_text.h"

namespace metalane::metal {

namespace {

// The metallib of a built-in family beside this library, made from this very text (cmake/Metallib.cmake);
// empty where there is none.
std::string metallib_path(const std::string& family, const std::string& hash) {
  Dl_info self;
  if (dladdr(reinterpret_cast<const void*>(&metallib_path), &self) == 0) return {};
  const std::filesystem::path path =
      std::filesystem::path(self.dli_fname).parent_path() / "metallib" / family / (hash + ".metallib");
  std::error_code missing;
  return std::filesystem::exists(path, missing) ? path.string() : std::string();
}

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
    const std::string key = hash + (math == MathMode::safe ? " safe" : " fast");
    if (!source.builtin && entries.size() >= max_entries && !entries.contains(key)) entries.clear();
    auto& place = entries[key];
    if (place == nullptr) place = std::make_shared<Entry>();
    entry = place;
  }
  const std::lock_guard lock(entry->mutex);
  if (entry->library == nullptr) {
    auto library = std::make_shared<Library>();
    library->object = compile(source, text, hash, math, kernel);
    if (!archive_key_.empty()) {
      library->archive = Archive::open(
          device_, archive_key_ + " math=" + (math == MathMode::safe ? "safe" : "fast") + " source=" + hash);
    }
    entry->library = std::move(library);
  }
  return entry->library;
}

Owned<id<MTLLibrary>> Libraries::compile(const backend::SourceText& source, const std::string& text,
                                         const std::string& hash, MathMode math,
                                         const std::string& kernel) const {
  if (source.builtin && math == MathMode::safe) {
    if (const std::string path = metallib_path(source.name, hash); !path.empty()) {
      // Where Metal does not take it (it may be for a later system), the source is at hand.
      auto ready =
          Owned<id<MTLLibrary>>::adopt([device_ newLibraryWithURL:[NSURL fileURLWithPath:string_of(path)]
                                                            error:nullptr]);
      if (ready) return ready;
    }
  }
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
