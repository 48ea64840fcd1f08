# Toolchain: zig's Clang (PyPI's ziglang) cross-compiling for macOS on arm64. It compiles and links; nothing runs.
#
# zig brings libc++, the headers of macOS' C library and a stub of libSystem, but no framework. METALANE_ZIG is its
# program, and METALANE_ADAPT the tool metalane-adapt of a build for this machine.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(METALANE_METAL OFF CACHE BOOL "Metal.framework is on a Mac only")
find_program(METALANE_ZIG zig REQUIRED)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES METALANE_ZIG)
set(CMAKE_CXX_COMPILER ${METALANE_ZIG} c++ -target aarch64-macos.13.0)
# The system's archiver may know ELF alone.
set(CMAKE_AR ${METALANE_ZIG} CACHE FILEPATH "")
set(CMAKE_CXX_ARCHIVE_CREATE "<CMAKE_AR> ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "<CMAKE_AR> ar q <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "<CMAKE_AR> ranlib <TARGET>")
