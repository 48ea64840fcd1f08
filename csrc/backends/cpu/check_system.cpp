// Linux: mremap, memfd and the loader's list. Elsewhere there is no checker.
#include "backends/cpu/check_system.h"

#if defined(__linux__)
#include <link.h>
#include <sys/mman.h>
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
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const std::uint64_t begin = info->dlpi_addr + header.p_vaddr;
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    if (search.address < begin || search.address >= begin + header.p_memsz) continue;
    search.range = {info->dlpi_addr, begin, begin + header.p_memsz};
    return 1;
  }
  return 0;
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
