// The test harness of the C++ tests: named cases, CHECK macros that count and go on, one summary line.
#pragma once

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace check {

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline int& passed() {
  static int count = 0;
  return count;
}

inline int& failed() {
  static int count = 0;
  return count;
}

struct Registration {
  Registration(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

// Never inlined: tests are mostly calls of it, and their compile time counts, with sanitizers above all.
[[gnu::noinline]] inline void report(bool ok, const char* file, int line, std::string_view text) {
  if (ok) {
    ++passed();
  } else {
    ++failed();
    std::printf("%s:%d: FAILED %.*s\n", file, line, static_cast<int>(text.size()), text.data());
  }
}

template <typename T>
std::string shown(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

template <typename A, typename B>
[[gnu::noinline]] void equal(const A& given, const B& expected, const char* file, int line,
                             const char* expression) {
  const bool ok = given == expected;
  report(ok, file, line,
         ok ? std::string()
            : std::string(expression) + ": got " + shown(given) + ", expected " + shown(expected));
}

// What CHECK_THROWS does with the outcome of its statement.
[[gnu::noinline]] inline void threw(bool ok, const char* file, int line, const char* what,
                                    std::string_view text, const std::string& outcome) {
  report(ok, file, line,
         ok ? std::string() : std::string(what) + " with \"" + std::string(text) + "\", but: " + outcome);
}

// Runs every case, or those whose name contains argv[1]; the exit status says whether all checks held.
inline int run_all(int argc, char** argv) {
  int cases_run = 0;
  for (const Case& test : cases()) {
    if (argc > 1 && std::string_view(test.name).find(argv[1]) == std::string_view::npos) continue;
    ++cases_run;
    try {
      test.run();
    } catch (const std::exception& error) {
      report(false, test.name, 0, std::string("ended by an exception: ") + error.what());
    }
  }
  if (cases_run == 0) report(false, "cases", 0, "no case was run");
  std::printf("%d passed, %d failed\n", passed(), failed());
  return failed() == 0 ? 0 : 1;
}

}  // namespace check

#define TEST_CASE(name)                                            \
  static void name();                                              \
  static const check::Registration name##_registered(#name, name); \
  static void name()

#define CHECK(condition) check::report(bool(condition), __FILE__, __LINE__, #condition)
#define CHECK_EQ(given, expected) check::equal((given), (expected), __FILE__, __LINE__, #given)
// `statement` must throw `Exception` whose what() contains `text`.
#define CHECK_THROWS(statement, Exception, text)                                               \
  do {                                                                                         \
    std::string outcome = "nothing was thrown";                                                \
    bool ok = false;                                                                           \
    try {                                                                                      \
      statement;                                                                               \
    } catch (const Exception& error) {                                                         \
      ok = std::string(error.what()).find(text) != std::string::npos;                          \
      outcome = error.what();                                                                  \
    }                                                                                          \
    check::threw(ok, __FILE__, __LINE__, #statement " must throw " #Exception, text, outcome); \
  } while (false)

#define CHECK_MAIN() \
  int main(int argc, char** argv) { return check::run_all(argc, argv); }
