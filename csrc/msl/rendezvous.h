// The functions of MSL at which lanes or threads wait for each other.
#pragma once

#include <string_view>

#include "msl/syntax.h"

namespace metalane::msl {

// Whether `name` is a barrier, a simd_, quad_ or simdgroup_ function whose lanes or threads wait.
bool is_rendezvous(std::string_view name);
// threadgroup_barrier, which takes all threads of the threadgroup; all others are a simdgroup's own.
bool is_threadgroup_barrier(std::string_view name);
// Loads and stores of matrices, whose lanes meet for some memory alone.
bool is_matrix_access(std::string_view name);

// The parenthesis behind a function's name at `i` and its template arguments; no_index where there is none.
Index call_parenthesis(const Unit& unit, Index i);
// Whether the identifier before a name makes a declaration of what could be a call: a type does.
bool declares_next(const Token& token);

}  // namespace metalane::msl
