// Linux: mremap, memfd and the loader's list. Elsewhere there is no checker.
#include "backends/cpu/check_system.h"

#if defined(__linux__)
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#endif

namespace metalane::cpu {

#if defined(__linux__)
namespace {

struct CodeSearch {
  std::uint64_t address;
  CodeRange range;
};

int find_in_object(dl_phdr_info* info, std::size_t, void* context) {
  auto& search = *static_cast<CodeSearch*>(context);
  CodeRange range;
  range.image_begin = ~std::uint64_t{0};
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const std::uint64_t begin = info->dlpi_addr + header.p_vaddr, end = begin + header.p_memsz;
    range.image_begin = std::min(range.image_begin, begin);
    range.image_end = std::max(range.image_end, end);
    if ((header.p_flags & PF_X) == 0 || search.address < begin || search.address >= end) continue;
    range.load_address = info->dlpi_addr;
    range.begin = begin;
    range.end = end;
  }
  if (range.end == 0) return 0;
  search.range = range;
  return 1;
}

}  // namespace

// An old size of 0 asks for a second mapping of the same shared pages.
bool map_again(void* to, void* from, std::size_t nbytes) noexcept {
  return mremap(from, 0, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED;
}

int open_memory(const char* name) noexcept { return memfd_create(name, MFD_CLOEXEC); }

CodeRange find_code(std::uint64_t address) {
  CodeSearch search{address, {}};
  dl_iterate_phdr(&find_in_object, &search);
  return search.range;
}

#else

bool map_again(void*, void*, std::size_t) noexcept { return false; }
int open_memory(const char*) noexcept { return -1; }
CodeRange find_code(std::uint64_t) { return {}; }

#endif

}  // namespace metalane::cpu
