// How a built-in kernel reports what it met in its data without failing: a count, which becomes the ticket's
// status.
#pragma once

#include <metalane/buffer.h>
#include <metalane/kernel.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"

namespace metalane::core {

class DeviceState;

// A kernel declares `device atomic_uint* status_...`, adds to it, and its caller binds nothing there: the
// encoder binds a word of its own, set to 0. The rest of the name says what is counted:
// status_ids_out_of_range.
bool is_status_argument(const KernelArgument& argument) noexcept;

// The words of one submission. For one thread at a time.
class LaunchStatus {
 public:
  // Throws OutOfMemoryError.
  explicit LaunchStatus(DeviceState& device);
  // The word for launches under this label, as a binding of the argument.
  backend::BufferBinding word(std::string_view label, const KernelArgument& argument);
  // Once the submission has finished: "embedding_gather_ggml: 3 ids out of range", or nothing where all words
  // are 0.
  std::string text() const;

 private:
  std::uint32_t* address() const noexcept;

  struct Meaning {
    std::string label;
    std::string counted;
  };
  Buffer words_;
  std::vector<Meaning> meanings_;  // of words in use, in their order
};

}  // namespace metalane::core
