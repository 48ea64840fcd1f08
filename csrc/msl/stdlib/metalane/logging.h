// os_log: Metal keeps a kernel's messages only for a log state that the host attaches; here there is none.
#ifndef METALANE_STDLIB_LOGGING_H
#define METALANE_STDLIB_LOGGING_H

#include "runtime.h"

METALANE_STDLIB_BEGIN

enum os_log_type {
  OS_LOG_TYPE_DEFAULT,
  OS_LOG_TYPE_DEBUG,
  OS_LOG_TYPE_INFO,
  OS_LOG_TYPE_ERROR,
  OS_LOG_TYPE_FAULT
};

struct os_log {
  constexpr os_log(const char*, const char*) {}
  template <class... T>
  constexpr void log_with_type(os_log_type, const char*, T...) const {}
#define METALANE_LOG(name) \
  template <class... T>    \
  constexpr void name(const char*, T...) const {}
  METALANE_LOG(log)
  METALANE_LOG(log_debug)
  METALANE_LOG(log_info)
  METALANE_LOG(log_error)
  METALANE_LOG(log_fault)
#undef METALANE_LOG
};

constexpr os_log os_log_default{"", ""};

METALANE_STDLIB_END

#endif
