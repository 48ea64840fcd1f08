// How an argument error reads.
#include <metalane/error.h>

namespace metalane {

ArgumentError::ArgumentError(const std::string& op, const std::string& argument, const std::string& expected,
                             const std::string& given)
    : Error(op + ": " + argument + " must be " + expected + ", got " + given),
      op_(op),
      argument_(argument),
      expected_(expected),
      given_(given) {}

}  // namespace metalane
