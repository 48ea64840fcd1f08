// See launch_status.h.
#include "core/launch_status.h"

#include <algorithm>
#include <cstring>

#include "core/device_state.h"
#include "core/storage.h"

namespace metalane::core {

namespace {

constexpr std::string_view prefix = "status_";
// Labels beyond these share the last word.
constexpr std::size_t most_words = 64;

}  // namespace

bool is_status_argument(const KernelArgument& argument) noexcept {
  return argument.name.starts_with(prefix) && argument.space == AddressSpace::device;
}

LaunchStatus::LaunchStatus(DeviceState& device) : words_(device.scratch_pool().take(most_words)) {
  std::memset(address(), 0, most_words * sizeof(std::uint32_t));
  words_.storage()->host_may_write(0, words_.nbytes());
}

std::uint32_t* LaunchStatus::address() const noexcept {
  return reinterpret_cast<std::uint32_t*>(words_.storage()->address());
}

backend::BufferBinding LaunchStatus::word(std::string_view label, const KernelArgument& argument) {
  auto known = std::find_if(meanings_.begin(), meanings_.end(),
                            [&](const Meaning& meaning) { return meaning.label == label; });
  if (known == meanings_.end()) {
    if (meanings_.size() < most_words) {
      std::string counted = argument.name.substr(prefix.size());
      std::replace(counted.begin(), counted.end(), '_', ' ');
      meanings_.push_back({std::string(label), std::move(counted)});
    } else {
      meanings_.back().label = "other operators";
    }
    known = meanings_.end() - 1;
  }
  const auto offset = static_cast<std::uint64_t>(known - meanings_.begin()) * sizeof(std::uint32_t);
  return {argument.index,        Access::read_write,         words_.storage()->address() + offset,
          sizeof(std::uint32_t), words_.storage()->native(), offset};
}

std::string LaunchStatus::text() const {
  std::string text;
  for (std::size_t i = 0; i < meanings_.size(); ++i) {
    if (address()[i] == 0) continue;
    text += (text.empty() ? "" : "; ") + meanings_[i].label + ": " + std::to_string(address()[i]) + " " +
            meanings_[i].counted;
  }
  return text;
}

}  // namespace metalane::core
