// Finds the calls and loops that need an element of a thread's path, and numbers places callers first.
#include "msl/lane_paths.h"

#include <algorithm>
#include <utility>

#include "msl/rendezvous.h"

namespace metalane::msl {
namespace {

constexpr std::size_t none = std::size_t(-1);

bool accesses_matrix(const Unit& unit, const Event& event) {
  return event.kind == EventKind::rendezvous && is_matrix_access(unit.at(event.at).text);
}

}  // namespace

LanePaths::LanePaths(const Unit& unit, const std::vector<bool>& emitted, Index kernel,
                     const Lockstep& lockstep, const std::unordered_map<Index, const Item*>& local_records)
    : unit_(unit) {
  read_functions(emitted, lockstep, local_records);
  find_waiting();
  find_ends();
  numbered_.resize(functions_.size());
  for (const std::size_t function : callers_first(unit.items()[kernel].body.begin)) number_function(function);
  for (const auto& [i, text] : calls_) before_[i] += text;  // inside the loop that begins there
}

std::uint32_t LanePaths::number(Numbers& numbers, Index i, std::string_view operation) {
  const auto [found, added] = numbers.emplace(i, static_cast<std::uint32_t>(sites_.size()));
  if (added) sites_.push_back({operation, unit_.at(i)});
  return found->second;
}

void LanePaths::read_functions(const std::vector<bool>& emitted, const Lockstep& lockstep,
                               const std::unordered_map<Index, const Item*>& local_records) {
  std::vector<const Item*> items;
  for (Index index = 0; index < unit_.items().size(); ++index) {
    const Item& item = unit_.items()[index];
    if (!emitted[index] || item.kind != ItemKind::function || item.body.end == 0) continue;
    names_[unit_.at(item.name_at).text].functions.push_back(items.size());
    items.push_back(&item);
  }
  const auto is_own = [this](std::string_view name) { return names_.count(name) != 0; };
  const FlowContext context{unit_, lockstep, local_records, is_own};
  for (const Item* item : items) {
    functions_.push_back({unit_.at(item->name_at).text, item->body.begin, read_control_flow(context, *item)});
    for (const Event& event : functions_.back().flow.events) {
      if (event.kind == EventKind::call)
        names_[unit_.at(event.at).text].callers.push_back(functions_.size() - 1);
    }
  }
}

// Whether lanes of a simdgroup may meet at the event, or in what it calls.
bool LanePaths::waits(const Event& event) const {
  const std::string_view name = unit_.at(event.at).text;
  return event.kind == EventKind::meeting ||
         (event.kind == EventKind::rendezvous && !is_threadgroup_barrier(name)) ||
         (event.kind == EventKind::call && names_.at(name).waits);
}

void LanePaths::find_waiting() {
  std::vector<std::size_t> open;
  const auto mark = [&](std::size_t function) {
    if (std::exchange(functions_[function].waits, true)) return;
    Name& name = names_[functions_[function].name];
    if (!std::exchange(name.waits, true)) open.insert(open.end(), name.callers.begin(), name.callers.end());
  };
  for (std::size_t i = 0; i < functions_.size(); ++i) {
    const std::vector<Event>& events = functions_[i].flow.events;
    if (std::any_of(events.begin(), events.end(), [&](const Event& event) { return waits(event); })) mark(i);
    for (; !open.empty();) {
      const std::size_t caller = open.back();
      open.pop_back();
      mark(caller);
    }
  }
}

// Whether a thread surely waits at the event. Lanes meet at loads and stores of matrices for threadgroup
// memory alone.
bool LanePaths::holds(const Event& event) const {
  return event.kind == EventKind::call ? waits(event)
                                       : event.kind != EventKind::loop && !accesses_matrix(unit_, event);
}

std::size_t LanePaths::last_holding(const ControlFlow& flow, std::size_t begin, std::size_t end) const {
  while (end > begin && !holds(flow.events[end - 1])) --end;
  return end > begin ? end - 1 : none;
}

void LanePaths::find_ends() {
  for (auto& [_, name] : names_) name.not_ending_waiting = name.functions.size();
  std::vector<std::size_t> open(functions_.size());
  for (std::size_t i = 0; i < open.size(); ++i) open[i] = i;
  while (!open.empty()) {
    Function& function = functions_[open.back()];
    open.pop_back();
    const ControlFlow& flow = function.flow;
    const std::size_t last = last_holding(flow, 0, flow.events.size());
    if (function.ends_waiting || last == none || flow.events[last].depth != 0 || last >= flow.returned)
      continue;
    const Event& event = flow.events[last];
    if (event.kind == EventKind::call && names_[unit_.at(event.at).text].not_ending_waiting != 0) continue;
    function.ends_waiting = true;
    Name& name = names_[function.name];
    if (--name.not_ending_waiting == 0) open.insert(open.end(), name.callers.begin(), name.callers.end());
  }
}

bool LanePaths::callee_returns_early(Index kernel) const {
  return std::any_of(functions_.begin(), functions_.end(), [&](const Function& function) {
    const std::vector<Event>& events = function.flow.events;
    if (function.body_begin == unit_.items()[kernel].body.begin || function.flow.returned >= events.size())
      return false;
    return std::any_of(events.begin() + static_cast<std::ptrdiff_t>(function.flow.returned), events.end(),
                       [this](const Event& event) { return waits(event); });
  });
}

// A loop needs no element if its lanes come by the last rendezvous in it before each next iteration.
bool LanePaths::is_kept(const ControlFlow& flow, const Loop& loop) const {
  const auto begin = flow.events.begin() + static_cast<std::ptrdiff_t>(loop.begin);
  const auto end = flow.events.begin() + static_cast<std::ptrdiff_t>(loop.end);
  if (std::none_of(begin, end, [&](const Event& event) { return waits(event); })) return false;
  const std::size_t last = last_holding(flow, loop.begin, loop.end);
  for (std::size_t i = last == none ? loop.begin : last + 1; i < loop.end; ++i) {
    if (accesses_matrix(unit_, flow.events[i]) && flow.events[i].depth != loop.depth) return true;
  }
  if (loop.has_continue && (last == none || last < loop.tail)) return true;
  if (last == none) return false;
  const Event& event = flow.events[last];
  return event.depth != loop.depth ||
         (event.kind == EventKind::call && names_.at(unit_.at(event.at).text).not_ending_waiting != 0);
}

bool LanePaths::is_kept(const Event& call) const {
  const Name& name = names_.at(unit_.at(call.at).text);
  return name.waits && name.callers.size() > 1;
}

// An order in which functions come before what they call. In a circle of calls no order can.
std::vector<std::size_t> LanePaths::callers_first(Index kernel_body) {
  std::vector<std::size_t> roots(functions_.size()), order;
  for (std::size_t i = 0; i < roots.size(); ++i) roots[i] = i;
  std::stable_partition(roots.begin(), roots.end(),
                        [&](std::size_t i) { return functions_[i].body_begin != kernel_body; });
  std::vector<bool> seen(functions_.size());
  // The kernel comes last here, and first once the order is turned round.
  for (const std::size_t root : roots) {
    std::vector<Visit> open;
    if (!seen[root]) open.push_back({root});
    seen[root] = true;
    while (!open.empty()) {
      Visit& visit = open.back();
      const std::vector<Event>& events = functions_[visit.function].flow.events;
      if (visit.event == events.size()) {
        order.push_back(visit.function);
        open.pop_back();
        continue;
      }
      const Event& event = events[visit.event];
      Name* name = event.kind == EventKind::call ? &names_.at(unit_.at(event.at).text) : nullptr;
      if (name == nullptr || name->entered == name->functions.size()) {
        ++visit.event;
        continue;
      }
      const std::size_t called = name->functions[name->entered++];
      if (!seen[called]) open.push_back({called});
      seen[called] = true;
    }
  }
  std::reverse(order.begin(), order.end());
  return order;
}

// In the order of evaluation, functions that are called once where they are called.
void LanePaths::number_function(std::size_t function) {
  std::vector<Visit> open;
  const auto enter = [&](std::size_t called) {
    if (numbered_[called]) return;
    numbered_[called] = true;
    open.push_back({called});
  };
  enter(function);
  while (!open.empty()) {
    Visit& visit = open.back();
    const ControlFlow& flow = functions_[visit.function].flow;
    if (visit.event == flow.events.size()) {
      open.pop_back();
      continue;
    }
    const Event& event = flow.events[visit.event++];
    const auto next = static_cast<std::uint32_t>(sites_.size());
    const Token& place = unit_.at(event.at);
    switch (event.kind) {
      case EventKind::rendezvous:
        rendezvous(event.at);
        break;
      case EventKind::meeting:
        meeting(event.at);
        break;
      case EventKind::loop: {
        const Loop& loop = flow.loops[visit.loop++];
        if (!is_kept(flow, loop)) break;
        sites_.push_back({place.text, place});
        insert_loop(loop, next);
        break;
      }
      case EventKind::call: {
        Name& name = names_.at(place.text);
        if (is_kept(event)) {
          sites_.push_back({place.text, place});
          insert_call(event, next);
        } else if (!std::exchange(name.placed, true)) {
          std::for_each(name.functions.rbegin(), name.functions.rend(), enter);
        }
        break;
      }
    }
  }
}

void LanePaths::insert_loop(const Loop& loop, std::uint32_t number) {
  const std::string name = "metalane_path_" + std::to_string(number);
  // Braces make one statement of it: a branch's, or another loop's.
  before_[loop.tokens.begin] +=
      " { ::metal::detail::path_element " + name + "(" + std::to_string(number) + "u);";
  before_[loop.body.begin] += " { " + name + ".next_turn();";
  const auto close = [&](Index last) { behind_[last] = " }" + behind_[last]; };
  close(loop.tokens.end - 1);
  close(loop.body.end - 1);
}

// A function object called on the spot: the element is there while the call runs, whose result stays what it
// is.
void LanePaths::insert_call(const Event& call, std::uint32_t number) {
  std::string& text = calls_[call_begin(call.at)];
  text =
      "[&]() __attribute__((always_inline)) -> decltype(auto) { ::metal::detail::path_element "
      "metalane_call(" +
      std::to_string(number) + "u); return " + text;  // calls that end later are round those before
  behind_[call.close] = "; }()";
}

// Where the call begins whose function's name stands at `name`: "a.b[i]->f(x)", "A<T>::f(x)".
Index LanePaths::call_begin(Index name) const {
  const auto is_word = [&](Index i) { return declares_next(unit_.at(i)); };
  const auto arguments_begin = [&](Index end) {  // of template arguments that end before `end`
    return unit_.is_at(end - 1, ">") && unit_.match(end - 1) != no_index ? unit_.match(end - 1) : end;
  };
  Index begin = name;
  for (;;) {
    Index at = unit_.is_at(begin - 1, "template") ? begin - 1 : begin;
    if (unit_.is_at(at - 1, "::")) {
      const Index scope = arguments_begin(--at);
      begin = is_word(scope - 1) ? scope - 1 : at;
    } else if (unit_.is_at(at - 1, ".") || unit_.is_at(at - 1, "->")) {
      --at;
      while (unit_.is_at(at - 1, "]") || unit_.is_at(at - 1, ")")) at = unit_.match(at - 1);
      const Index object = arguments_begin(at);
      begin = is_word(object - 1) ? object - 1 : at;
    } else {
      return begin;
    }
  }
}

}  // namespace metalane::msl
