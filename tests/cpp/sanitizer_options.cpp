// How the sanitizers' runtimes behave in every program of a build that has them; variables like ASAN_OPTIONS come on top.
extern "C" {

// Fake stacks would follow threads; kernels run on fibers.
const char* __asan_default_options() { return "detect_stack_use_after_return=0"; }
const char* __tsan_default_options() { return "halt_on_error=1"; }
const char* __ubsan_default_options() { return "print_stacktrace=1"; }

// On the test double of Metal: GCC's Objective-C runtime and GNUstep never free what they register of classes. Objects
// are counted by the double itself.
const char* __lsan_default_suppressions() { return "leak:libobjc.so\nleak:libgnustep-base.so\n"; }
}
