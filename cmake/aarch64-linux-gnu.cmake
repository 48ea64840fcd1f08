# Toolchain: Clang cross-compiling for 64-bit Arm Linux (with Debian's cross libraries), programs run by QEMU.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
find_program(CMAKE_CXX_COMPILER NAMES clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 REQUIRED)
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
find_program(qemu_aarch64 qemu-aarch64 REQUIRED)
set(CMAKE_CROSSCOMPILING_EMULATOR ${qemu_aarch64} -L /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
