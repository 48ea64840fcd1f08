// Which lanes may meet at a rendezvous: the numbers of places, and where a thread's path is kept.
//
// Lanes meet at one place of the text if they came there by the same calls, in the same iterations of the
// same loops, as lanes of a GPU do, which diverge and come together again behind each branch. Of several
// places at which lanes wait, the earliest goes first, so that lanes behind catch up.
//
// Most of that costs nothing. Places are numbered in the order in which a thread comes by them, functions
// that are called once as if they stood where they are called, so that "earliest" is the lowest number. And a
// loop whose every iteration ends at a rendezvous keeps its lanes together by itself. For the rest a thread
// keeps its path (metalane_path in stdlib/module_abi.h): an element for each call of a function that waits
// and is called from several places, and for each other loop with a rendezvous in it, with the number of the
// iteration.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "msl/control_flow.h"

namespace metalane::msl {

// A place in the emitted text that has a number: a rendezvous, a call or a loop.
struct Site {
  std::string_view operation;
  Token place;
};

// Text to put before the token with that index, or behind it.
using Insertions = std::unordered_map<Index, std::string>;

class LanePaths {
 public:
  // `emitted`: one flag an item of the unit.
  LanePaths(const Unit& unit, const std::vector<bool>& emitted, Index kernel, const Lockstep& lockstep,
            const std::unordered_map<Index, const Item*>& local_records);

  // Numbered places, in their order.
  const std::vector<Site>& sites() const { return sites_; }
  // The number of the rendezvous whose name stands at `i`, or of the meeting before it. Places outside the
  // bodies of functions get theirs when they are asked for.
  std::uint32_t rendezvous(Index i) { return number(rendezvous_, i, unit_.at(i).text); }
  std::uint32_t meeting(Index i) { return number(meetings_, i, "simdgroup_barrier"); }
  // Whether a function other than the kernel has a `return` before a place where lanes may meet.
  bool callee_returns_early(Index kernel) const;
  // Whether threads keep a path.
  bool kept() const { return !before_.empty(); }
  const Insertions& before() const { return before_; }
  const Insertions& behind() const { return behind_; }

 private:
  using Numbers = std::unordered_map<Index, std::uint32_t>;
  struct Function {
    std::string_view name;
    Index body_begin;
    ControlFlow flow;
    bool waits = false;         // lanes of a simdgroup meet in it, or in what it calls
    bool ends_waiting = false;  // all threads that return from it have come by its last rendezvous
  };
  struct Name {
    std::vector<std::size_t> functions;
    std::vector<std::size_t> callers;  // a function once a call
    bool waits = false;
    std::size_t not_ending_waiting = 0;
    std::size_t entered = 0;  // of `functions`, by callers_first()
    bool placed = false;      // numbered where the only call stands, or the first that keeps no element
  };
  // One that is being read, in the traversals that take calls for what they call.
  struct Visit {
    std::size_t function;
    std::size_t event = 0;
    std::size_t loop = 0;
  };

  std::uint32_t number(Numbers& numbers, Index i, std::string_view operation);
  void read_functions(const std::vector<bool>& emitted, const Lockstep& lockstep,
                      const std::unordered_map<Index, const Item*>& local_records);
  void find_waiting();
  void find_ends();
  bool waits(const Event& event) const;
  bool holds(const Event& event) const;
  std::size_t last_holding(const ControlFlow& flow, std::size_t begin, std::size_t end) const;
  bool is_kept(const ControlFlow& flow, const Loop& loop) const;
  bool is_kept(const Event& call) const;
  std::vector<std::size_t> callers_first(Index kernel_body);
  void number_function(std::size_t function);
  void insert_loop(const Loop& loop, std::uint32_t number);
  void insert_call(const Event& call, std::uint32_t number);
  Index call_begin(Index name) const;

  const Unit& unit_;
  std::vector<Function> functions_;
  std::unordered_map<std::string_view, Name> names_;
  std::vector<bool> numbered_;  // by function
  std::vector<Site> sites_;
  Numbers rendezvous_, meetings_;
  Insertions before_, behind_, calls_;
};

}  // namespace metalane::msl
