// What the statements of a function do around its rendezvous and calls: in which order they come, which of
// them lanes may skip, and which loops they stand in.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "msl/lockstep.h"
#include "msl/syntax.h"

namespace metalane::msl {

enum class EventKind : std::uint8_t {
  rendezvous,
  call,     // of a function that the source defines, by its name
  meeting,  // of lanes, before the statement at `at`: see lockstep.h
  loop,     // what it repeats comes behind it
};

struct Event {
  EventKind kind;
  Index at;             // the function's name, or the loop's keyword
  Index close;          // the parenthesis that ends the call
  std::uint32_t depth;  // loops, branches and conditional operands around it
};

struct Loop {
  Range tokens;
  Range body;            // the statement that is repeated
  std::size_t begin;     // its events, the loop's own not among them: [begin, end)
  std::size_t tail = 0;  // the first event behind the body, of what comes before the next iteration
  std::size_t end = 0;
  std::uint32_t depth;  // of what every iteration comes by
  bool has_continue = false;
};

// Events stand in the order of evaluation: a call behind its arguments, a loop's condition and increment
// behind its body. Anything that is not recognised counts as part of an expression.
struct ControlFlow {
  std::vector<Event> events;
  std::vector<Loop> loops;                 // outer ones first
  std::size_t returned = std::size_t(-1);  // events up to the end of the first `return`
};

struct FlowContext {
  const Unit& unit;
  const Lockstep& lockstep;
  const std::unordered_map<Index, const Item*>& local_records;  // by their first token
  std::function<bool(std::string_view)> is_own_function;
};

// Reads the body of `function`. Throws CompileError where statements nest too deeply.
ControlFlow read_control_flow(const FlowContext& context, const Item& function);

}  // namespace metalane::msl
