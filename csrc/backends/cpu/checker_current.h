// The checker that watches this OS thread, and the scope in which no signal may leave its code.
#pragma once

#include "backends/cpu/checker.h"

namespace metalane::cpu {

// Set while a checked launch runs here. Initial-exec: one instruction to read.
extern __attribute__((tls_model("initial-exec"))) thread_local Checker* current_checker;

// Round whatever allocates or takes locks: a fiber that is left there would keep them.
class Checker::Unleavable {
 public:
  explicit Unleavable(Checker& checker) : runner_(*checker.runner_), outer_(runner_.set_leavable(false)) {}
  ~Unleavable() { runner_.set_leavable(outer_); }
  Unleavable(const Unleavable&) = delete;
  Unleavable& operator=(const Unleavable&) = delete;

 private:
  ThreadgroupRunner& runner_;
  const bool outer_;
};

}  // namespace metalane::cpu
