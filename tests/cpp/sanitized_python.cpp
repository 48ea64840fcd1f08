// Python with the sanitizers' runtime linked in, for an extension module built with them. Preloading the
// runtime would do as well for Python, but not for the compilers that it starts, which have limits of memory.
#include <Python.h>

// CPython keeps much of what it allocates to the end.
extern "C" int __lsan_is_turned_off() { return 1; }

int main(int argc, char** argv) { return Py_BytesMain(argc, argv); }
