// Marks the symbols that libmetalane exports; everything else is hidden.
#pragma once

// Also in programs that use the library: exceptions cross the boundary, and a hidden type_info is another
// type to some C++ runtimes.
#define METALANE_API __attribute__((visibility("default")))
