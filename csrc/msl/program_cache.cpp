// See program_cache.h.
#include "msl/program_cache.h"

#include "core/hash.h"

namespace metalane::msl {

std::shared_ptr<const Program> ProgramCache::read(const std::string& name, const std::string& text,
                                                  const std::map<std::string, std::string>& headers) {
  std::string all;
  const auto append = [&all](const std::string& part) { all += std::to_string(part.size()) + ":" + part; };
  append(name);
  append(text);
  for (const auto& [header, header_text] : headers) {
    append(header);
    append(header_text);
  }
  const std::string key = core::sha256_hex(all);
  {
    const std::lock_guard lock(mutex_);
    const auto known = programs_.find(key);
    if (known != programs_.end()) return known->second;
  }
  std::shared_ptr<const Program> program = Program::read(name, text, headers);
  const std::lock_guard lock(mutex_);
  if (programs_.size() >= max_programs) programs_.clear();
  programs_.emplace(key, program);
  return program;
}

}  // namespace metalane::msl
