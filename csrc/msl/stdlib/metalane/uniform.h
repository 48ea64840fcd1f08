// uniform<T>: a value that is the same in all threads; here it is a plain one.
#ifndef METALANE_STDLIB_UNIFORM_H
#define METALANE_STDLIB_UNIFORM_H

#include "runtime.h"

METALANE_STDLIB_BEGIN

template <class T>
using uniform = T;

template <class T>
constexpr T make_uniform(T value) {
  return value;
}

METALANE_STDLIB_END

#endif
