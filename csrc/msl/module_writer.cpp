// Modules: function constants as values, and the entry that runs a kernel for one thread after another.
#include "msl/module_writer.h"

#include <metalane/error.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <unordered_map>

#include "msl/function_constants.h"
#include "msl/translator.h"

namespace metalane::msl {
namespace {

using ConstantTable = std::unordered_map<std::string_view, ConstantText>;

class ModuleWriter {
 public:
  explicit ModuleWriter(const ModuleRequest& request)
      : request_(request), unit_(request.unit), reached_(request.reachability.reach(request.kernel)) {
    for (const auto& declared : request.constants)
      constant_items_.emplace(declared.item, declared.constant.name);
  }

  std::string write() {
    if (const auto& refusal = request_.kernel.refusal)
      unit_.sources().fail(unit_.at(refusal->at), refusal->what);
    bind_constants();
    const Translation translation{unit_,
                                  reached_,
                                  request_.kernel.item,
                                  constants_,
                                  constant_items_,
                                  "metalane_kernel_tag",
                                  !request_.is_part};
    Translator translator(translation);
    translator.emit_program();
    const std::string program = translator.text();
    const std::string call = kernel_call(translator);

    std::string text;
    if (request_.is_part) {
      text += "namespace { namespace " + request_.symbol + " {\n";
    } else {
      text += "#pragma GCC visibility push(hidden)\n";
    }
    // Named in no scope of the user's, so that the tag never hides a declaration.
    text += "namespace { struct metalane_kernel_tag {}; }\n";
    text += program;
    text += "\n#line 1 \"" + std::string("entry of ") + "the kernel\"\n";
    text += helpers() + entry(call, translator.sites().empty()) + table(translator);
    if (!request_.is_part) text += check_table(translator.threadgroup_variables());
    return text;
  }

 private:
  void bind_constants() {
    for (const MatchedConstant& matched : match_constants(request_, reached_)) {
      const FunctionConstant& constant = *matched.constant;
      // Declared without a value all the same: the branch that Metal would not look at must still compile.
      constants_[constant.name] =
          matched.value != nullptr
              ? ConstantText{true, constant_text(request_.kernel, constant, *matched.value)}
              : ConstantText{false, constant.type.name + "()"};
    }
  }

  std::string kernel_call(Translator& translator) const {
    const Item& item = unit_.items()[request_.kernel.item];
    std::string name(unit_.at(item.name_at).text);
    for (Index up = item.parent; up != no_index; up = unit_.items()[up].parent) {
      const Item& scope = unit_.items()[up];
      std::string path;
      for (Index i = scope.tokens.begin; i + 1 < scope.body.begin; ++i) {
        const bool keyword = unit_.is_at(i, "namespace") || unit_.is_at(i, "inline");
        if (!keyword && unit_.at(i).kind != TokenKind::string && !unit_.is_at(i, "extern"))
          path += unit_.at(i).text;
      }
      if (!path.empty()) name = path + "::" + name;
    }
    const Kernel& kernel = request_.kernel;
    if (kernel.is_template && !(kernel.template_arguments.empty() && kernel.template_range.empty())) {
      name += "<" + template_arguments(translator) + ">";
    }
    std::string arguments;
    for (std::size_t i = 0; i < request_.kernel.parameters.size(); ++i) {
      if (i > 0) arguments += ", ";
      arguments += argument_text(request_.kernel.parameters[i], i);
    }
    return name + "(" + arguments + ");";
  }

  std::string template_arguments(Translator& translator) const {
    const Range spelled = request_.kernel.template_range;
    std::string text = spelled.empty() ? "" : translator.inline_text(spelled);
    // A ">>" behind the range closes the last argument's list too.
    if (!spelled.empty() && unit_.is_at(spelled.end, ">>")) text += " > ";
    const std::size_t count = unit_.split_commas(spelled).size();
    for (std::size_t i = count; i < request_.kernel.template_arguments.size(); ++i) {  // deduced ones
      if (i > 0) text += ", ";
      for (const Token& token : request_.kernel.template_arguments[i]) text += std::string(token.text) + " ";
    }
    return text;
  }

  static bool is_bound(const KernelParameter& parameter) {
    return parameter.attribute == "buffer" || parameter.attribute == "threadgroup";
  }

  static std::string address(const KernelParameter& parameter, std::uint32_t index) {
    const std::string number = std::to_string(index);
    return parameter.attribute == "buffer"
               ? "launch.buffers[" + number + "]"
               : "group->threadgroup_memory + launch.threadgroup_offsets[" + number + "]";
  }

  static std::string argument_text(const KernelParameter& parameter, std::size_t number) {
    if (parameter.count > 0) {
      std::string text = "metalane_buffers<" + std::to_string(parameter.count) + ">{{";
      for (std::uint32_t i = 0; i < parameter.count; ++i)
        text += (i > 0 ? ", " : "") + address(parameter, parameter.index + i);
      return text + "}}";
    }
    if (is_bound(parameter)) return "argument_" + std::to_string(number);
    const std::string type = parameter.type.scalar == ScalarType::uint16 ? "uint16_t" : "uint32_t";
    const std::vector<std::string> parts = components(parameter.attribute);
    if (parameter.type.components == 1) return type + "(" + parts[0] + ")";
    std::string text = "::metal::vec<" + type + ", " + std::to_string(parameter.type.components) + ">(";
    for (std::uint32_t i = 0; i < parameter.type.components; ++i) {
      // A scalar attribute asked for as a vector has its other components as a grid of one row has them.
      text += (i > 0 ? ", " : "") + type + "(" + (i < parts.size() ? parts[i] : "0") + ")";
    }
    return text + ")";
  }

  static std::vector<std::string> components(std::string_view attribute) {
    const auto three = [](const std::string& array) {
      return std::vector<std::string>{array + "[0]", array + "[1]", array + "[2]"};
    };
    if (attribute == "thread_position_in_grid") return {"base_x + x", "base_y + y", "base_z + z"};
    if (attribute == "thread_position_in_threadgroup") return {"x", "y", "z"};
    if (attribute == "threadgroup_position_in_grid") return three("group->position");
    if (attribute == "threads_per_threadgroup") return three("group->threads");
    if (attribute == "threads_per_grid" || attribute == "grid_size") return three("launch.grid_threads");
    if (attribute == "threadgroups_per_grid") return three("launch.grid_groups");
    if (attribute == "dispatch_threads_per_threadgroup") return three("launch.nominal_threads");
    if (attribute == "grid_origin") return {"0", "0", "0"};
    if (attribute == "thread_index_in_threadgroup") return {"thread"};
    if (attribute == "thread_index_in_simdgroup") return {"thread % METALANE_SIMD_WIDTH"};
    if (attribute == "thread_index_in_quadgroup") return {"thread % 4"};
    if (attribute == "simdgroup_index_in_threadgroup") return {"thread / METALANE_SIMD_WIDTH"};
    if (attribute == "quadgroup_index_in_threadgroup") return {"thread / 4"};
    if (attribute == "simdgroups_per_threadgroup") {
      return {"(group->thread_count + METALANE_SIMD_WIDTH - 1) / METALANE_SIMD_WIDTH"};
    }
    if (attribute == "quadgroups_per_threadgroup") return {"(group->thread_count + 3) / 4"};
    if (attribute == "dispatch_simdgroups_per_threadgroup") {
      return {"(nominal_count + METALANE_SIMD_WIDTH - 1) / METALANE_SIMD_WIDTH"};
    }
    if (attribute == "dispatch_quadgroups_per_threadgroup") return {"(nominal_count + 3) / 4"};
    return {"METALANE_SIMD_WIDTH"};  // threads_per_simdgroup, thread_execution_width
  }

  static std::string helpers() {
    return R"(namespace {
struct metalane_pointer {
  void* address;
  template <class T> operator T*() const { return static_cast<T*>(address); }
};
struct metalane_reference {
  void* address;
  template <class T> operator T&() const { return *static_cast<T*>(address); }
};
// An array of buffers: each thread has pointers of its own.
template <int N>
struct metalane_buffers {
  void* addresses[N];
  template <class T> operator T*() { return reinterpret_cast<T*>(addresses); }
  template <class T> operator ::metal::array<T, N>() const {
    ::metal::array<T, N> pointers{};
    for (int i = 0; i < N; ++i) pointers[i] = static_cast<T>(addresses[i]);
    return pointers;
  }
};
)";
  }

  std::string entry(const std::string& call, bool never_waits) const {
    std::string text = R"(void metalane_entry(metalane_group* group) {
  ::metal::detail::current_group() = group;
  const metalane_launch& launch = *group->launch;
  const uint32_t size_x = group->threads[0], size_y = group->threads[1];
  const uint32_t base_x = group->position[0] * launch.nominal_threads[0];
  const uint32_t base_y = group->position[1] * launch.nominal_threads[1];
  const uint32_t base_z = group->position[2] * launch.nominal_threads[2];
  const uint32_t nominal_count =
      launch.nominal_threads[0] * launch.nominal_threads[1] * launch.nominal_threads[2];
  (void)base_x, (void)base_y, (void)base_z, (void)nominal_count;
)";
    for (std::size_t i = 0; i < request_.kernel.parameters.size(); ++i) {
      const KernelParameter& parameter = request_.kernel.parameters[i];
      if (!is_bound(parameter) || parameter.count > 0) continue;
      text += std::string("  const ") + (parameter.is_reference ? "metalane_reference" : "metalane_pointer") +
              " argument_" + std::to_string(i) + "{" + address(parameter, parameter.index) + "};\n";
    }
    // A kernel that never waits takes all its threads at once, and is a plain loop.
    if (never_waits) {
      return text + R"(  const uint32_t begin = group->next_thread, end = group->end_thread;
  if (begin >= end) return;
  group->next_thread = end;
  uint32_t x = begin % size_x, y = begin / size_x % size_y, z = begin / size_x / size_y;
  for (uint32_t thread = begin; thread < end; ++thread) {
    group->current_thread = thread;
    )" + call +
             R"(
#if defined(METALANE_CHECK)
    asm volatile("" : : : "memory");  // each thread has accesses of its own
#endif
    if (++x == size_x) {
      x = 0;
      if (++y == size_y) y = 0, ++z;
    }
  }
  group->finished_threads += end - begin;
}
)";
    }
    // The highest lane first: see lockstep.h.
    return text + R"(  while (group->next_thread < group->end_thread) {
    const uint32_t turn = group->next_thread++;
    const uint32_t thread = turn / METALANE_SIMD_WIDTH * METALANE_SIMD_WIDTH + group->end_thread - 1 - turn;
    group->current_thread = thread;
    group->path = nullptr;
    const uint32_t row = thread / size_x;
    const uint32_t x = thread - row * size_x, y = row % size_y, z = row / size_y;
    (void)x, (void)y, (void)z;
    )" + call +
           R"(
    ++group->finished_threads;
  }
}
)";
  }

  std::string table(const Translator& translator) const {
    const std::vector<Site>& sites = translator.sites();
    std::string text = "const metalane_site metalane_sites[] = {\n";
    for (const Site& site : sites) {
      text += "  {\"" + std::string(site.operation) + "\", " + quoted(unit_.sources().name(site.place.file)) +
              ", " + std::to_string(site.place.line) + ", " + std::to_string(site.place.column) + "},\n";
    }
    if (sites.empty()) text += "  {nullptr, nullptr, 0, 0},\n";
    text += R"(};
void metalane_attach(const metalane_runtime* runtime) { ::metal::detail::runtime() = runtime; }
uint32_t metalane_bytes() { return ::metal::detail::threadgroup_bytes<metalane_kernel_tag>(); }
)";
    const std::string value = "{METALANE_MODULE_ABI_VERSION, " + quoted(request_.kernel.signature.name) +
                              ", metalane_sites, " + std::to_string(sites.size()) +
                              ", metalane_attach, metalane_bytes, metalane_entry, " +
                              (translator.keeps_paths() ? "1};\n" : "0};\n");
    if (request_.is_part) return text + "const metalane_module metalane_module_table = " + value + "}\n}}\n";
    return text + "}\n#pragma GCC visibility pop\nextern \"C\" __attribute__((visibility(\"default\"))) " +
           "const metalane_module " + request_.symbol + ";\nconst metalane_module " + request_.symbol +
           " = " + value;
  }

  // What the checker asks of a module: see check_abi.h.
  std::string check_table(const std::vector<std::string_view>& variables) const {
    std::string names, files;
    for (const std::string_view name : variables) names += quoted(name) + ", ";
    for (std::size_t i = 0; i < unit_.sources().file_count(); ++i)
      files += quoted(unit_.sources().name(static_cast<std::uint16_t>(i))) + ", ";
    return "#if defined(METALANE_CHECK)\nnamespace {\nconst char* const metalane_variable_names[] = {" +
           names + "nullptr};\nconst char* const metalane_source_files[] = {" + files +
           R"(nullptr};
void metalane_check_attach(const metalane_check_host* host) { ::metal::detail::check_host() = host; }
uint32_t metalane_check_count() { return ::metal::detail::check_variable_count; }
const metalane_check_variable* metalane_check_list() { return ::metal::detail::check_variables; }
}
extern "C" __attribute__((visibility("default"))) const metalane_check_module metalane_check_v1;
const metalane_check_module metalane_check_v1 = {METALANE_CHECK_ABI_VERSION, metalane_check_attach,
    metalane_check_count, metalane_check_list, metalane_variable_names, metalane_source_files};
extern "C" __attribute__((visibility("default"))) const void* metalane_check_storage();
const void* metalane_check_storage() { return &::metal::detail::current_group(); }
#endif
)";
  }

  const ModuleRequest& request_;
  const Unit& unit_;
  std::vector<bool> reached_;
  std::unordered_map<Index, std::string_view> constant_items_;
  ConstantTable constants_;
};

}  // namespace

// The host compiler's own macros that are ordinary names in MSL are taken back; braces may narrow as in MSL.
std::string module_prologue() {
  return R"(#include <metal_stdlib>
#undef linux
#undef unix
#undef i386
#undef asm
#pragma GCC diagnostic ignored "-Wnarrowing"
)";
}

std::string write_module(const ModuleRequest& request) { return ModuleWriter(request).write(); }

}  // namespace metalane::msl
