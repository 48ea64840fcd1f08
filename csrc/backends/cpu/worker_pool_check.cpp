// Launches under the checker: one threadgroup after another, and what becomes of findings.
#include <algorithm>
#include <new>

#include "backends/cpu/checker.h"
#include "backends/cpu/worker_pool.h"

namespace metalane::cpu {

void WorkerPool::run_checked(Worker& worker, std::size_t number) {
  const CpuPipeline& pipeline = *job_.record->pipeline;
  LaunchShape shape;
  std::copy(std::begin(job_.groups), std::end(job_.groups), shape.groups);
  std::copy(std::begin(job_.nominal), std::end(job_.nominal), shape.nominal);
  std::copy(std::begin(job_.launch.grid_threads), std::end(job_.launch.grid_threads), shape.grid);
  std::string why = "no memory for the checker";
  bool ready = false;
  try {
    ready = checker_->begin_launch(number, *job_.record, shape, job_.launch, worker.runner, why);
  } catch (const std::bad_alloc&) {
    // `why` says so.
  }
  if (!ready) {
    checker_->end_launch();
    fail("out-of-memory", true, kernel_name() + ": " + why);
    return;
  }
  worker.guard.arm(true);
  for (std::uint64_t at = 0; at < job_.total; ++at) {
    std::uint32_t position[3], threads[3];
    shape.position(at, position);
    shape.threads(position, threads);
    checker_->begin_group(at);
    const auto outcome = worker.runner.run(*pipeline.module, job_.launch, position, threads);
    checker_->end_group();
    if (!go_on_after(worker, outcome, at)) break;
  }
  worker.guard.disarm();
  checker_->end_launch();
}

// A threadgroup that was left for a finding ends alone where findings go to a list.
bool WorkerPool::go_on_after(Worker& worker, ThreadgroupRunner::Outcome outcome, std::uint64_t at) {
  if (checker_->out_of_memory()) {
    fail("out-of-memory", true, kernel_name() + ": no memory for what the checker keeps");
    return false;
  }
  if (outcome == ThreadgroupRunner::Outcome::done) return true;
  const bool incomplete =
      outcome == ThreadgroupRunner::Outcome::incomplete_barrier && checker_->options().divergence;
  if (incomplete) {
    checker_->incomplete_barrier(worker.runner.incomplete_barrier(),
                                 worker.runner.describe_barrier(*job_.record->pipeline->module));
  }
  const bool found =
      incomplete || (outcome == ThreadgroupRunner::Outcome::left && checker_->left_for_finding());
  if (found) {
    check_ends_ = !checker_->options().as_list;
    return !check_ends_;
  }
  report(worker, outcome, at);
  return false;
}

// Errors fail the submission; warnings alone do not.
void WorkerPool::end_check() {
  std::vector<CheckFinding> findings = checker_->end_submission();
  const auto error = std::find_if(findings.begin(), findings.end(), [](const CheckFinding& finding) {
    return finding.severity == CheckSeverity::error;
  });
  if (error == findings.end() || checker_->options().as_list) return;
  const std::lock_guard lock(mutex_);
  if (stop_reason_ != StopReason::none) return;
  stop_reason_ = StopReason::failed;
  failure_ = Failure{"check", error->access.kernel, false, describe(findings), std::move(findings)};
}

}  // namespace metalane::cpu
