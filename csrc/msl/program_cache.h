// Sources read lately, by content.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "msl/msl.h"

namespace metalane::msl {

// Thread-safe.
class ProgramCache {
 public:
  // As Program::read.
  std::shared_ptr<const Program> read(const std::string& name, const std::string& text,
                                      const std::map<std::string, std::string>& headers);

 private:
  static constexpr std::size_t max_programs = 64;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Program>> programs_;
};

}  // namespace metalane::msl
