// Kernels of a program: what each takes, and what the adapter needs to call it.
#pragma once

#include <metalane/kernel.h>

#include <optional>
#include <string>
#include <vector>

#include "msl/syntax.h"
#include "msl/types.h"

namespace metalane::msl {

// A thread-position or size attribute of a compute kernel.
bool is_thread_attribute(std::string_view name);

struct KernelParameter {
  std::string name;
  std::string attribute;  // "buffer", "threadgroup", or a thread attribute's name
  std::uint32_t index = 0;
  std::uint32_t count = 0;  // buffers of an array of buffers, at consecutive indices; 0: no array
  bool is_reference = false;
  TypeInfo type;  // of the pointee, or of the value
  Index at = no_index;
};

struct Kernel {
  KernelSignature signature;
  Index item = no_index;  // the function
  std::vector<TokenList> template_arguments;
  bool is_template = false;
  Range template_range;  // those of them that the instantiation spells, as tokens of the unit
  std::vector<KernelParameter> parameters;  // in the order of the function
  // Of each of signature.arguments: what [[function_constant(...)]] says; empty where the argument is always
  // there.
  std::vector<TokenList> guards;
  // Why this kernel cannot run on the CPU device, and where: thrown when it is asked for.
  struct Refusal {
    Index at;
    std::string what;
  };
  std::optional<Refusal> refusal;
};

// Whether the word at `i` is used as a type of textures, samplers, ray tracing, indirect commands or tensors.
bool unsupported_word(const Unit& unit, Index i);

// Throws CompileError where two kernels have one name.
std::vector<Kernel> read_kernels(const Unit& unit, const TypeTable& types);

struct FunctionConstantDeclaration {
  FunctionConstant constant;
  Index item = no_index;
};
// Throws CompileError for an index that is no number below 65536.
std::vector<FunctionConstantDeclaration> read_function_constants(const Unit& unit, const TypeTable& types);

// The identifier before `(` in the contents of an attribute: {"buffer", tokens of the argument}.
struct Attribute {
  std::string_view name;
  Index at = no_index;
  Range argument;
};
std::vector<Attribute> split_attributes(const Unit& unit, Range contents);

}  // namespace metalane::msl
