// Marks the symbols that libmetalane exports; everything else is hidden.
#pragma once

#if defined(METALANE_BUILDING)
#define METALANE_API __attribute__((visibility("default")))
#else
#define METALANE_API
#endif
