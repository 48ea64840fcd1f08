// Every error that metalane raises. All derive from metalane::Error and carry a finished sentence in what().
#pragma once

#include <metalane/export.h>

#include <stdexcept>
#include <string>

namespace metalane {

class METALANE_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A bad argument. Python: also ValueError.
class METALANE_API ArgumentError : public Error {
 public:
  // Reads "<op>: <argument> must be <expected>, got <given>".
  ArgumentError(const std::string& op, const std::string& argument, const std::string& expected,
                const std::string& given);
  // For a fact that does not fit the pattern above (an encoder that is closed, say).
  explicit ArgumentError(const std::string& message) : Error(message) {}

  const std::string& op() const noexcept { return op_; }
  const std::string& argument() const noexcept { return argument_; }
  const std::string& expected() const noexcept { return expected_; }
  const std::string& given() const noexcept { return given_; }

 private:
  std::string op_, argument_, expected_, given_;
};

// A wrong element type or argument type. Python: also TypeError.
class METALANE_API DTypeError : public ArgumentError {
 public:
  using ArgumentError::ArgumentError;
};

// Memory that could not be had. Python: also MemoryError.
class METALANE_API OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

// A kernel, source or header that is not registered. Python: also KeyError.
class METALANE_API KernelNotFoundError : public Error {
 public:
  using Error::Error;
};

// A tensor that a file does not have. Python: also KeyError.
class METALANE_API TensorNotFoundError : public Error {
 public:
  using Error::Error;
};

// A GGUF file that cannot be read: no such file, malformed, or shrunk since it was opened.
class METALANE_API GgufError : public Error {
 public:
  // Reads "<path>: <field>: <problem>".
  GgufError(std::string path, std::string field, const std::string& problem)
      : Error(path + ": " + field + ": " + problem), path_(std::move(path)), field_(std::move(field)) {}
  const std::string& path() const noexcept { return path_; }
  // The field of the format at fault: "version", "tensors[\"output.weight\"].offset", ...
  const std::string& field() const noexcept { return field_; }

 private:
  std::string path_, field_;
};

// A source that does not compile; what() holds kernel, file, line and the compiler's text.
class METALANE_API CompileError : public Error {
 public:
  CompileError(std::string kernel, const std::string& message) : Error(message), kernel_(std::move(kernel)) {}
  const std::string& kernel() const noexcept { return kernel_; }

 private:
  std::string kernel_;
};

// A device that cannot be had or used (unknown kind, inherited through fork). Python: also RuntimeError.
class METALANE_API DeviceError : public Error {
 public:
  using Error::Error;
};

// Work that failed on the device.
class METALANE_API CommandBufferError : public Error {
 public:
  CommandBufferError(std::string code, std::string label, bool is_transient, const std::string& message)
      : Error(message), code_(std::move(code)), label_(std::move(label)), is_transient_(is_transient) {}
  // What happened, in one word: "fault", "stack-overflow", "timeout", "barrier", "cancelled", or the
  // device's own code.
  const std::string& code() const noexcept { return code_; }
  // The label of the launch or of the submission that failed.
  const std::string& label() const noexcept { return label_; }
  // True where the same work may succeed when submitted again.
  bool is_transient() const noexcept { return is_transient_; }

 private:
  std::string code_, label_;
  bool is_transient_;
};

// A wait that ran out of time; what was waited for goes on. Python: also the built-in TimeoutError.
class METALANE_API TimeoutError : public Error {
 public:
  using Error::Error;
};

}  // namespace metalane
