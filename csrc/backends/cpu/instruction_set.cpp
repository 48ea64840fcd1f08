// Reads the processor's features: by CPUID on x86-64, from the auxiliary vector or by sysctl on arm64.
#include "backends/cpu/instruction_set.h"

#include <metalane/cpu.h>
#include <metalane/error.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <sys/auxv.h>
#endif

namespace metalane::cpu {
namespace {

struct IsaName {
  Isa isa;
  const char* name;
};
constexpr IsaName isas[] = {
    {Isa::baseline, "baseline"}, {Isa::neon, "neon"}, {Isa::avx2, "avx2"}, {Isa::avx512, "avx512"}};

#if defined(__x86_64__)
struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf read_leaf(unsigned number, unsigned part = 0) {
  Leaf leaf;
  __get_cpuid_count(number, part, &leaf.eax, &leaf.ebx, &leaf.ecx, &leaf.edx);
  return leaf;
}

// Which register states the system saves; 0 where it saves none beyond SSE.
std::uint64_t saved_states(const Leaf& features) {
  if ((features.ecx & bit_OSXSAVE) == 0) return 0;
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

struct Levels {
  bool v3 = false, v4 = false;
};

// The psABI's x86-64-v3 and x86-64-v4, as far as compilers use them.
Levels find_levels() {
  constexpr unsigned movbe = 1u << 22, f16c = 1u << 29, fma = 1u << 12, avx = 1u << 28, popcnt = 1u << 23;
  constexpr unsigned bmi1 = 1u << 3, avx2 = 1u << 5, bmi2 = 1u << 8, lzcnt = 1u << 5;
  constexpr unsigned avx512f = 1u << 16, avx512dq = 1u << 17, avx512cd = 1u << 28, avx512bw = 1u << 30,
                     avx512vl = 1u << 31;
  const auto has = [](unsigned word, unsigned bits) { return (word & bits) == bits; };
  const Leaf one = read_leaf(1), seven = read_leaf(7), extended = read_leaf(0x80000001);
  const std::uint64_t saved = saved_states(one);
  Levels levels;
  levels.v3 = (saved & 0x6) == 0x6 && has(one.ecx, movbe | f16c | fma | avx | popcnt) &&
              has(seven.ebx, bmi1 | avx2 | bmi2) && has(extended.ecx, lzcnt);
  levels.v4 = levels.v3 && (saved & 0xe6) == 0xe6 &&
              has(seven.ebx, avx512f | avx512dq | avx512cd | avx512bw | avx512vl);
  return levels;
}

const Levels& levels() {
  static const Levels found = find_levels();
  return found;
}
#elif defined(__APPLE__)
// 0 where the system knows no such number.
std::uint32_t system_number(const char* name) {
  std::uint32_t value = 0;
  std::size_t nbytes = sizeof value;
  return sysctlbyname(name, &value, &nbytes, nullptr, 0) == 0 ? value : 0;
}
#endif

}  // namespace

bool supports_level(std::string_view level) {
#if defined(__x86_64__)
  if (level == "x86-64-v3") return levels().v3;
  if (level == "x86-64-v4") return levels().v4;
#endif
  return level == "baseline";
}

bool supports(Isa isa) {
  switch (isa) {
    case Isa::baseline:
      return true;
    case Isa::neon:
#if defined(__aarch64__)
      return true;
#else
      return false;
#endif
    case Isa::avx2:
      return supports_level("x86-64-v3");
    case Isa::avx512:
      return supports_level("x86-64-v4");
  }
  return false;
}

Isa best_isa() {
  return std::find_if(std::rbegin(isas), std::rend(isas),
                      [](const IsaName& one) { return supports(one.isa); })
      ->isa;
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (auto one = std::rbegin(isas); one != std::rend(isas); ++one) {
    if (supports(one->isa)) names.emplace_back(one->name);
  }
  return names;
}

Isa isa_from(const std::string& name) {
  std::string here;
  for (const IsaName& one : isas) {
    if (!supports(one.isa)) continue;
    if (name == one.name) return one.isa;
    here += (here.empty() ? "" : ", ") + std::string(one.name);
  }
  throw ArgumentError("Device", "isa", "one that this processor has: " + here, "\"" + name + "\"");
}

std::string_view level_of(Isa isa) {
  return isa == Isa::avx512 ? "x86-64-v4" : isa == Isa::avx2 ? "x86-64-v3" : "baseline";
}

const std::string& instruction_set_id() {
  static const std::string id = [] {
    char text[160];
#if defined(__x86_64__)
    // -march=native looks at family and model (not stepping) for tuning, and at the feature words.
    const Leaf one = read_leaf(1), seven = read_leaf(7), seven_one = read_leaf(7, 1);
    const Leaf extended = read_leaf(0x80000001);
    constexpr unsigned os_bit =
        1u << 27;  // OSXSAVE may change with the kernel's settings, saved_states tells
    std::snprintf(text, sizeof text, "x86-64:%x-%x.%x-%x.%x.%x-%x.%x-%x.%x-%llx", one.eax & ~0xfu,
                  one.ecx & ~os_bit, one.edx, seven.ebx, seven.ecx, seven.edx, seven_one.eax, seven_one.edx,
                  extended.ecx, extended.edx, static_cast<unsigned long long>(saved_states(one)));
#elif defined(__APPLE__)
    // -mcpu=native asks for the family alone.
    std::snprintf(text, sizeof text, "arm64:%x", system_number("hw.cpufamily"));
#else
    std::snprintf(text, sizeof text, "%s:%lx-%lx", "aarch64", getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
#endif
    return std::string(text);
  }();
  return id;
}

std::string processor_name() {
#if defined(__x86_64__)
  if (read_leaf(0x80000000).eax >= 0x80000004) {
    char name[49] = {};
    for (unsigned part = 0; part < 3; ++part) {
      const Leaf leaf = read_leaf(0x80000002 + part);
      std::memcpy(name + part * 16, &leaf, 16);
    }
    std::string_view view(name);
    const std::size_t begin = view.find_first_not_of(' ');
    if (begin != std::string_view::npos) {
      return std::string(view.substr(begin, view.find_last_not_of(' ') - begin + 1));
    }
  }
  return "x86-64 processor";
#elif defined(__APPLE__)
  char name[128];
  std::size_t nbytes = sizeof name;
  return sysctlbyname("machdep.cpu.brand_string", name, &nbytes, nullptr, 0) == 0 ? name : "arm64 processor";
#else
  return "aarch64 processor";
#endif
}

}  // namespace metalane::cpu
