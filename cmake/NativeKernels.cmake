# Native CPU kernels: one file an instruction set, with that set's flags, chosen at run time.
# GCC 12 warns of the undefined operands in its own AVX-512 header.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(avx512 "-O3;-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx2;-mfma;-mf16c;-Wno-uninitialized;-Wno-maybe-uninitialized")
  foreach(family dflash2_selector ggml)
    set_source_files_properties(csrc/backends/cpu/native_${family}_avx2.cpp PROPERTIES COMPILE_OPTIONS
      "-O3;-mavx2;-mfma;-mf16c")
    set_source_files_properties(csrc/backends/cpu/native_${family}_avx512.cpp PROPERTIES COMPILE_OPTIONS
      "${avx512}")
  endforeach()
endif()

# GCC keeps loads for the next turn of a loop in registers, where AVX-512's repeat values as they load them.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set_property(SOURCE csrc/backends/cpu/native_ggml_avx512.cpp APPEND PROPERTY COMPILE_OPTIONS -fno-predictive-commoning)
endif()

# The GGML kernels' templates take minutes a file with sanitizers: like the kernels compiled from shaders, they go without.
if(METALANE_SANITIZE)
  file(GLOB ggml_kernels csrc/backends/cpu/native_ggml_*.cpp)
  set_property(SOURCE ${ggml_kernels} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=all -O1 -g0)
endif()
