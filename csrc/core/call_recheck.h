// Whether an operator, called again with other parameters, records the launches that a graph has of it.
#pragma once

#include <metalane/graph.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"

namespace metalane::core {

class GraphState;
struct CheckedLaunch;
struct RecordedCall;

// An encoder that has one compares launches instead of recording them.
class CallRecheck {
 public:
  // Bytes for one binding of a node.
  struct Patch {
    std::uint32_t node = 0;
    std::uint32_t index = 0;
    std::vector<std::uint8_t> bytes;
  };

  // `params`: of the call's own size. `label` is for errors.
  CallRecheck(const GraphState& graph, const RecordedCall& call, std::string label,
              std::span<const std::uint8_t> params);
  // Calls the operator. Throws what it throws, and ArgumentError where it would need another launch.
  std::vector<Patch> run();
  void meet(const Pipeline& pipeline, const CheckedLaunch& launch);

 private:
  [[noreturn]] void fail(const std::string& kept) const;
  std::string changed_fields() const;

  const GraphState& graph_;
  const RecordedCall& call_;
  std::string label_;
  std::span<const std::uint8_t> params_;
  std::size_t met_ = 0;
  std::vector<Patch> patches_;
};

}  // namespace metalane::core
