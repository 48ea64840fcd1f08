// A graph made ready for the backend: launches that are checked, with their barriers, in flat arrays.
#pragma once

#include <metalane/graph.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/timeline.h"

namespace metalane::core {

class GraphState;
class Storage;

class GraphProgram {
 public:
  struct Step {
    backend::Launch launch;  // its spans lead into this program, inline bytes into the graph
    bool barrier_before = false;
    std::int8_t status_argument = -1;  // see PipelineState
    std::int8_t labels_pushed = -1;    // >= 0: another label than the step before
  };

  // Throws what the checks of a launch throw.
  explicit GraphProgram(const GraphState& graph);
  GraphProgram(const GraphProgram&) = delete;
  GraphProgram& operator=(const GraphProgram&) = delete;

  const std::vector<Step>& steps() const noexcept { return steps_; }
  const std::vector<TouchedRange>& touched() const noexcept { return touched_; }
  const std::vector<std::shared_ptr<Storage>>& storages() const noexcept { return storages_; }

 private:
  std::vector<Step> steps_;
  std::vector<backend::BufferBinding> buffers_;
  std::vector<backend::BytesBinding> bytes_;
  std::vector<backend::ThreadgroupBinding> threadgroup_memory_;
  std::vector<std::string> labels_;
  std::vector<Pipeline> pipelines_;
  std::vector<std::shared_ptr<Storage>> storages_;  // each once
  std::vector<TouchedRange> touched_;
};

}  // namespace metalane::core
