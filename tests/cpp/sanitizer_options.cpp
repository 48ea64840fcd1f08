// How the sanitizers' runtimes behave in every program of a build that has them; variables like ASAN_OPTIONS
// come on top.
extern "C" {

// Fake stacks would follow threads, where kernels run on fibers. The dynamic thread storage of threads in
// Objective-C is watched at garbled bounds (seen with Clang 16), at which LeakSanitizer itself faults.
const char* __asan_default_options() { return "detect_stack_use_after_return=0:intercept_tls_get_addr=0"; }
const char* __tsan_default_options() { return "halt_on_error=1"; }
const char* __ubsan_default_options() { return "print_stacktrace=1"; }
const char* __lsan_default_options() { return "print_suppressions=0"; }

// On the test double of Metal: GCC's Objective-C runtime and GNUstep never free what they register of
// classes. Objects are counted by the double itself.
const char* __lsan_default_suppressions() { return "leak:libobjc.so\nleak:libgnustep-base.so\n"; }
}
