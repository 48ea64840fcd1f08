// See host_ids.h.
#include "ops/host_ids.h"

#include <metalane/error.h>

#include <string>

#include "core/device_state.h"
#include "core/encoder_state.h"
#include "core/storage.h"

namespace metalane::ops {

namespace {

// Keeps the pages while the host looks at them.
class Pin {
 public:
  explicit Pin(core::Storage& storage) : storage_(storage), held_(storage.try_pin()) {}
  ~Pin() {
    if (held_) storage_.unpin();
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  bool held() const noexcept { return held_; }

 private:
  core::Storage& storage_;
  bool held_;
};

}  // namespace

void check_ids(const char* op, const CommandEncoder& encoder, const Buffer& ids, std::uint64_t count,
               std::uint32_t bound, const char* bound_name) {
  core::EncoderState& state = *encoder.state();
  core::Storage& storage = *ids.storage();
  const std::uint8_t* const address = storage.address() + ids.byte_offset();
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  const AddressRange range = {begin, begin + count * sizeof(std::uint32_t)};
  if (state.is_capturing() || !state.device()->timeline().is_settled(range)) return;
  const Pin pin(storage);
  if (!pin.held()) throw ArgumentError(op, "ids", "a buffer", "a released buffer");
  if (storage.source() != nullptr) storage.source()->check_readable(range);
  const auto* const values = reinterpret_cast<const std::uint32_t*>(address);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (values[i] < bound) continue;
    throw ArgumentError(op, "ids[" + std::to_string(i) + "]",
                        "below " + std::string(bound_name) + " (" + std::to_string(bound) + ")",
                        std::to_string(values[i]));
  }
}

}  // namespace metalane::ops
