// Libraries, functions and their constants, and how they are compiled: by the private CPU device, which has
// the built-in kernels compiled already.
#include "libraries.h"

#include <cstring>
#include <fstream>
#include <sstream>

#include "accounting.h"
#include "core/builtin.h"
#include "core/hash.h"
#include "cpu_work.h"
#include "metal_double.h"
#include "msl/metal_text.h"

using namespace metal_double;
using metalane::MathMode;
using metalane::backend::SourceText;

NSString* const MTLLibraryErrorDomain = @"MTLLibraryErrorDomain";

namespace {
NSString* const compiler_domain = @"CompilerError";
}

// ---- options

@implementation MTLCompileOptions
METAL_DOUBLE_COUNTED("MTLCompileOptions")
@synthesize preprocessorMacros = _preprocessorMacros;
@synthesize languageVersion = _languageVersion;
@synthesize libraryType = _libraryType;
@synthesize optimizationLevel = _optimizationLevel;
@synthesize preserveInvariance = _preserveInvariance;
@synthesize maxTotalThreadsPerThreadgroup = _maxTotalThreadsPerThreadgroup;
METAL_DOUBLE_OF_ITS_SYSTEM
- (id)init {
  self = [super init];
  _fastMathEnabled = YES;
  _mathMode = MTLMathModeFast;
  _languageVersion = MTLLanguageVersion3_1;
  return self;
}
- (void)destroy {
  [_preprocessorMacros release];
}
- (BOOL)fastMathEnabled {
  return _fastMathEnabled;
}
- (void)setFastMathEnabled:(BOOL)enabled {
  _fastMathEnabled = enabled;
  _mathMode = enabled ? MTLMathModeFast : MTLMathModeSafe;
  _mathFloatingPointFunctions =
      enabled ? MTLMathFloatingPointFunctionsFast : MTLMathFloatingPointFunctionsPrecise;
}
- (MTLMathMode)mathMode {
  require_system(METAL_DOUBLE_NO_MATH_MODE, "mathMode");
  return _mathMode;
}
- (void)setMathMode:(MTLMathMode)mode {
  require_system(METAL_DOUBLE_NO_MATH_MODE, "setMathMode:");
  _mathMode = mode;
  _fastMathEnabled = mode == MTLMathModeFast;
}
- (MTLMathFloatingPointFunctions)mathFloatingPointFunctions {
  require_system(METAL_DOUBLE_NO_MATH_MODE, "mathFloatingPointFunctions");
  return _mathFloatingPointFunctions;
}
- (void)setMathFloatingPointFunctions:(MTLMathFloatingPointFunctions)functions {
  require_system(METAL_DOUBLE_NO_MATH_MODE, "setMathFloatingPointFunctions:");
  _mathFloatingPointFunctions = functions;
}
- (id)copyWithZone:(NSZone*)zone {
  MTLCompileOptions* copy = [[[self class] allocWithZone:zone] init];
  copy->_preprocessorMacros = [_preprocessorMacros copy];
  copy->_fastMathEnabled = _fastMathEnabled;
  copy->_preserveInvariance = _preserveInvariance;
  copy->_mathMode = _mathMode;
  copy->_mathFloatingPointFunctions = _mathFloatingPointFunctions;
  copy->_languageVersion = _languageVersion;
  copy->_libraryType = _libraryType;
  copy->_optimizationLevel = _optimizationLevel;
  copy->_maxTotalThreadsPerThreadgroup = _maxTotalThreadsPerThreadgroup;
  return copy;
}
@end

// ---- constants

namespace {

struct ConstantBytes {
  MTLDataType type;
  std::vector<std::uint8_t> bytes;
};

struct ScalarKind {
  MTLDataType first;  // of four: the scalar, and vectors of 2, 3, 4
  metalane::ScalarType scalar;
  std::size_t size;
};
constexpr ScalarKind scalar_kinds[] = {
    {MTLDataTypeFloat, metalane::ScalarType::float32, 4},
    {MTLDataTypeHalf, metalane::ScalarType::float16, 2},
    {MTLDataTypeInt, metalane::ScalarType::int32, 4},
    {MTLDataTypeUInt, metalane::ScalarType::uint32, 4},
    {MTLDataTypeShort, metalane::ScalarType::int16, 2},
    {MTLDataTypeUShort, metalane::ScalarType::uint16, 2},
    {MTLDataTypeChar, metalane::ScalarType::int8, 1},
    {MTLDataTypeUChar, metalane::ScalarType::uint8, 1},
    {MTLDataTypeBool, metalane::ScalarType::boolean, 1},
    {MTLDataTypeLong, metalane::ScalarType::int64, 8},
    {MTLDataTypeULong, metalane::ScalarType::uint64, 8},
    {MTLDataTypeBFloat, metalane::ScalarType::bfloat16, 2},
};

const ScalarKind* kind_of(MTLDataType type) {
  for (const ScalarKind& kind : scalar_kinds) {
    if (type >= kind.first && type < kind.first + 4) return &kind;
  }
  return nullptr;
}

std::size_t components_of(const ScalarKind& kind, MTLDataType type) { return type - kind.first + 1; }

// Bytes from one value to the next of an array: a vector of 3 takes the room of 4.
std::size_t stride_of(const ScalarKind& kind, MTLDataType type) {
  const std::size_t components = components_of(kind, type);
  return kind.size * (components == 3 ? 4 : components);
}

template <typename T>
T load(const std::uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

metalane::ConstantNumber number_of(metalane::ScalarType scalar, const std::uint8_t* bytes) {
  switch (scalar) {
    case metalane::ScalarType::boolean:
      return load<std::uint8_t>(bytes) != 0;
    case metalane::ScalarType::int8:
      return std::int64_t{load<std::int8_t>(bytes)};
    case metalane::ScalarType::int16:
      return std::int64_t{load<std::int16_t>(bytes)};
    case metalane::ScalarType::int32:
      return std::int64_t{load<std::int32_t>(bytes)};
    case metalane::ScalarType::int64:
      return load<std::int64_t>(bytes);
    case metalane::ScalarType::uint8:
      return std::uint64_t{load<std::uint8_t>(bytes)};
    case metalane::ScalarType::uint16:
      return std::uint64_t{load<std::uint16_t>(bytes)};
    case metalane::ScalarType::uint32:
      return std::uint64_t{load<std::uint32_t>(bytes)};
    case metalane::ScalarType::uint64:
      return load<std::uint64_t>(bytes);
    case metalane::ScalarType::float16:
      return static_cast<double>(load<_Float16>(bytes));
    case metalane::ScalarType::bfloat16: {
      const std::uint32_t bits = std::uint32_t{load<std::uint16_t>(bytes)} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return static_cast<double>(value);
    }
    default:
      return static_cast<double>(load<float>(bytes));
  }
}

metalane::ConstantValue constant_value(const metalane::FunctionConstant& constant,
                                       const ConstantBytes& given) {
  const ScalarKind& kind = *kind_of(given.type);
  std::vector<metalane::ConstantNumber> numbers;
  for (std::size_t i = 0; i < components_of(kind, given.type); ++i)
    numbers.push_back(number_of(kind.scalar, given.bytes.data() + i * kind.size));
  metalane::ConstantValue value;
  value.key = constant.name;
  if (numbers.size() == 1) {
    std::visit([&value](auto number) { value.value = number; }, numbers.front());
  } else {
    value.value = std::move(numbers);
  }
  return value;
}

}  // namespace

struct metal_double_constants {
  std::map<std::uint64_t, ConstantBytes> by_index;
  std::map<std::string, ConstantBytes> by_name;
};

@implementation MTLFunctionConstantValues
METAL_DOUBLE_COUNTED("MTLFunctionConstantValues")
- (id)init {
  self = [super init];
  _values = new metal_double_constants;
  return self;
}
- (void)destroy {
  delete _values;
}
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index {
  [self setConstantValues:value type:type withRange:NSMakeRange(index, 1)];
}
- (void)setConstantValues:(const void*)values type:(MTLDataType)type withRange:(NSRange)range {
  const ScalarKind* kind = kind_of(type);
  if (kind == nullptr || values == nullptr) {
    violation("setConstantValues:type:withRange: null, or data type %lu, which no constant has",
              static_cast<unsigned long>(type));
    return;
  }
  const auto* bytes = static_cast<const std::uint8_t*>(values);
  for (NSUInteger i = 0; i < range.length; ++i) {
    const std::uint8_t* begin = bytes + i * stride_of(*kind, type);
    _values->by_index[range.location + i] = {type, {begin, begin + components_of(*kind, type) * kind->size}};
  }
}
- (void)setConstantValue:(const void*)value type:(MTLDataType)type withName:(NSString*)name {
  const ScalarKind* kind = kind_of(type);
  if (kind == nullptr || value == nullptr || name == nil) {
    violation("setConstantValue:type:withName: null, or data type %lu, which no constant has",
              static_cast<unsigned long>(type));
    return;
  }
  const auto* begin = static_cast<const std::uint8_t*>(value);
  _values->by_name[to_string(name)] = {type, {begin, begin + components_of(*kind, type) * kind->size}};
}
- (void)reset {
  *_values = {};
}
- (id)copyWithZone:(NSZone*)zone {
  MTLFunctionConstantValues* copy = [[[self class] allocWithZone:zone] init];
  *copy->_values = *_values;
  return copy;
}
@end

@implementation MTLFunctionDescriptor
METAL_DOUBLE_COUNTED("MTLFunctionDescriptor")
@synthesize name = _name;
@synthesize specializedName = _specializedName;
@synthesize constantValues = _constantValues;
@synthesize options = _options;
@synthesize binaryArchives = _binaryArchives;
+ (MTLFunctionDescriptor*)functionDescriptor {
  return [[[self alloc] init] autorelease];
}
- (void)destroy {
  [_name release];
  [_specializedName release];
  [_constantValues release];
  [_binaryArchives release];
}
- (id)copyWithZone:(NSZone*)zone {
  MTLFunctionDescriptor* copy = [[[self class] allocWithZone:zone] init];
  copy->_name = [_name copy];
  copy->_specializedName = [_specializedName copy];
  copy->_constantValues = [_constantValues copy];
  copy->_options = _options;
  copy->_binaryArchives = [_binaryArchives copy];
  return copy;
}
@end

@implementation MTLFunctionConstant
METAL_DOUBLE_COUNTED("MTLFunctionConstant")
@synthesize name = _name;
@synthesize type = _type;
@synthesize index = _index;
@synthesize required = _required;
- (void)destroy {
  [_name release];
}
@end

// ---- functions

@interface MetalDoubleFunction : NSObject <MTLFunction> {
 @package
  std::shared_ptr<const FunctionState>* _state;
  NSString* _label;
}
@end

@implementation MetalDoubleFunction
METAL_DOUBLE_COUNTED("MTLFunction")
@synthesize label = _label;
- (void)destroy {
  delete _state;
  [_label release];
}
- (id<MTLDevice>)device {
  return device_object(*(*_state)->library->device);
}
- (MTLFunctionType)functionType {
  return MTLFunctionTypeKernel;
}
- (NSString*)name {
  return to_nsstring((*_state)->name);
}
- (NSDictionary*)functionConstantsDictionary {
  NSMutableDictionary* constants = [NSMutableDictionary dictionary];
  for (const metalane::KernelSignature& kernel : (*_state)->library->kernels) {
    if (kernel.name != (*_state)->name) continue;
    for (const metalane::FunctionConstant& constant : kernel.constants) {
      MTLFunctionConstant* object = [[[MTLFunctionConstant alloc] init] autorelease];
      object->_name = [to_nsstring(constant.name) retain];
      object->_index = constant.index;
      object->_required = YES;
      for (const ScalarKind& kind : scalar_kinds) {
        if (kind.scalar == constant.type.scalar)
          object->_type = static_cast<MTLDataType>(kind.first + constant.type.components - 1);
      }
      [constants setObject:object forKey:object->_name];
    }
  }
  return constants;
}
@end

namespace metal_double {

std::shared_ptr<const FunctionState> state_of(id<MTLFunction> function) {
  return *static_cast<MetalDoubleFunction*>(function)->_state;
}

std::string pipeline_key(const FunctionState& function) {
  std::ostringstream text;
  text << std::hexfloat << function.library->hash << '\n' << function.name << '\n';
  for (const metalane::ConstantValue& constant : function.constants) {
    text << std::get<std::string>(constant.key) << '=';
    const auto print = [&text](auto number) { text << +number << ' '; };
    if (const auto* numbers = std::get_if<std::vector<metalane::ConstantNumber>>(&constant.value)) {
      for (const metalane::ConstantNumber& number : *numbers) std::visit(print, number);
    } else {
      std::visit(
          [&text](const auto& number) {
            if constexpr (std::is_arithmetic_v<std::decay_t<decltype(number)>>) text << +number;
          },
          constant.value);
    }
    text << '\n';
  }
  return metalane::core::sha256_hex(text.str());
}

std::shared_ptr<const metalane::backend::Pipeline> compile(const FunctionState& function, NSError** error) {
  metalane::backend::CompileRequest request;
  request.source = function.library->source;
  request.function = function.name;
  request.constants = function.constants;
  request.math = function.library->math;
  std::string problem;
  auto compiled = compile_on(function.library->device->cpu(), request, problem);
  if (compiled == nullptr) set_error(error, compiler_domain, 2, problem);
  return compiled;
}

}  // namespace metal_double

// ---- libraries

@interface MetalDoubleLibrary : NSObject <MTLLibrary> {
 @package
  std::shared_ptr<const LibraryState>* _state;
  NSString* _label;
}
@end

namespace {

const metalane::KernelSignature* find_kernel(const LibraryState& library, const std::string& name) {
  for (const metalane::KernelSignature& kernel : library.kernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

id<MTLFunction> new_function(std::shared_ptr<const LibraryState> library, const std::string& name,
                             MTLFunctionConstantValues* values, NSError** error) {
  const metalane::KernelSignature* kernel = find_kernel(*library, name);
  if (kernel == nullptr) {
    set_error(error, MTLLibraryErrorDomain, MTLLibraryErrorFunctionNotFound,
              "Function " + name + " was not found in the library");
    return nil;
  }
  auto state = std::make_shared<FunctionState>();
  state->library = std::move(library);
  state->name = name;
  for (const metalane::FunctionConstant& constant : kernel->constants) {
    const ConstantBytes* given = nullptr;
    if (values != nil) {
      const auto by_name = values->_values->by_name.find(constant.name);
      const auto by_index = values->_values->by_index.find(constant.index);
      if (by_name != values->_values->by_name.end()) given = &by_name->second;
      if (by_index != values->_values->by_index.end()) given = &by_index->second;
    }
    if (given == nullptr) continue;
    const ScalarKind& kind = *kind_of(given->type);
    if (kind.scalar != constant.type.scalar || components_of(kind, given->type) != constant.type.components) {
      set_error(error, MTLLibraryErrorDomain, MTLLibraryErrorCompileFailure,
                "Function constant " + constant.name + " of " + name + " is a " + constant.type.name +
                    "; its value was given as MTLDataType " + std::to_string(given->type));
      return nil;
    }
    state->constants.push_back(constant_value(constant, *given));
  }
  MetalDoubleFunction* function = [[MetalDoubleFunction alloc] init];
  function->_state = new std::shared_ptr<const FunctionState>(std::move(state));
  return function;
}

}  // namespace

@implementation MetalDoubleLibrary
METAL_DOUBLE_COUNTED("MTLLibrary")
@synthesize label = _label;
- (void)destroy {
  delete _state;
  [_label release];
}
- (id<MTLDevice>)device {
  return device_object(*(*_state)->device);
}
- (NSArray*)functionNames {
  NSMutableArray* names = [NSMutableArray array];
  for (const metalane::KernelSignature& kernel : (*_state)->kernels)
    [names addObject:to_nsstring(kernel.name)];
  return names;
}
- (MTLLibraryType)type {
  return MTLLibraryTypeExecutable;
}
- (NSString*)installName {
  return nil;
}
- (id<MTLFunction>)newFunctionWithName:(NSString*)name {
  return new_function(*_state, to_string(name), nil, nullptr);
}
- (id<MTLFunction>)newFunctionWithName:(NSString*)name
                        constantValues:(MTLFunctionConstantValues*)constantValues
                                 error:(NSError**)error {
  return new_function(*_state, to_string(name), constantValues, error);
}
- (id<MTLFunction>)newFunctionWithDescriptor:(MTLFunctionDescriptor*)descriptor error:(NSError**)error {
  return new_function(*_state, to_string(descriptor.name), descriptor.constantValues, error);
}
@end

namespace metal_double {
namespace {

std::mutex last_compilation_mutex;
std::string last_compilation;

// The library's own sources by the text that Metal is handed for them, so that their compiled modules run.
std::shared_ptr<const SourceText> find_builtin(const std::string& text) {
  static const auto* all = [] {
    auto* sources = new std::map<std::string, std::shared_ptr<const SourceText>>;
    std::map<std::string, std::string> headers;
    for (const auto& header : metalane::core::builtin_headers()) headers.emplace(header.name, header.text);
    for (const auto& builtin : metalane::core::builtin_sources()) {
      auto source = std::make_shared<SourceText>();
      source->name = builtin.family;
      source->text = builtin.text;
      source->headers = headers;
      source->builtin = true;
      for (const MathMode math : {MathMode::safe, MathMode::fast}) {
        const std::string handed = metalane::msl::metal_text(source->name, source->text, headers, math);
        sources->emplace(metalane::core::sha256_hex(handed), source);
      }
    }
    return sources;
  }();
  const auto found = all->find(metalane::core::sha256_hex(text));
  return found != all->end() ? found->second : nullptr;
}

MTLLanguageVersion newest_language() {
  return system_lacks(METAL_DOUBLE_NO_MATH_MODE) ? MTLLanguageVersion3_1 : MTLLanguageVersion4_0;
}

std::string describe(MTLCompileOptions* options) {
  return "mathMode=" + std::to_string(options->_mathMode) +
         " functions=" + std::to_string(options->_mathFloatingPointFunctions) +
         " fastMath=" + std::to_string(options->_fastMathEnabled) +
         " languageVersion=" + std::to_string(options->_languageVersion >> 16) + "." +
         std::to_string(options->_languageVersion & 0xffff);
}

}  // namespace

id<MTLLibrary> new_library(DeviceState& device, const std::string& text, MTLCompileOptions* given,
                           NSError** error) {
  count_event(Event::compilation);
  MTLCompileOptions* options = given != nil ? [given retain] : [[MTLCompileOptions alloc] init];
  const std::string asked_for = describe(options);
  const bool is_safe = options->_mathMode == MTLMathModeSafe;
  const MTLLanguageVersion language = options->_languageVersion;
  [options release];
  {
    const std::lock_guard lock(last_compilation_mutex);
    last_compilation = asked_for;
  }
  if (language > newest_language()) {
    set_error(error, MTLLibraryErrorDomain, MTLLibraryErrorUnsupported,
              "this system does not know the language version of " + asked_for);
    return nil;
  }
  if (const auto fault = faults().compilation.take()) {
    set_error(error, MTLLibraryErrorDomain, MTLLibraryErrorCompileFailure, fault->text);
    return nil;
  }
  auto state = std::make_shared<LibraryState>();
  state->device = &device;
  state->math = is_safe ? MathMode::safe : MathMode::fast;
  state->hash = metalane::core::sha256_hex(asked_for + "\n" + text);
  state->source = find_builtin(text);
  if (state->source == nullptr) {
    auto source = std::make_shared<SourceText>();
    source->name = "program_source";
    source->text = text;
    state->source = std::move(source);
  }
  std::string problem;
  if (!inspect_on(device.cpu(), *state->source, state->kernels, problem)) {
    set_error(error, MTLLibraryErrorDomain, MTLLibraryErrorCompileFailure, problem);
    return nil;
  }
  MetalDoubleLibrary* library = [[MetalDoubleLibrary alloc] init];
  library->_state = new std::shared_ptr<const LibraryState>(std::move(state));
  return library;
}

id<MTLLibrary> new_library_of_file(DeviceState& device, NSURL* url, NSError** error) {
  const std::string path = url != nil && [url isFileURL] ? to_string([url path]) : "";
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    set_error(error, MTLLibraryErrorDomain, MTLLibraryErrorFileNotFound, "library not found: " + path);
    return nil;
  }
  const std::string content((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const std::string magic = METAL_DOUBLE_LIBRARY_MAGIC;
  if (!content.starts_with(magic)) {
    set_error(error, MTLLibraryErrorDomain, MTLLibraryErrorInternal, "invalid library file: " + path);
    return nil;
  }
  MTLCompileOptions* options = [[MTLCompileOptions alloc] init];
  options.fastMathEnabled = NO;
  id<MTLLibrary> library = new_library(device, content.substr(magic.size()), options, error);
  [options release];
  return library;
}

}  // namespace metal_double

extern "C" const char* metal_double_last_compilation(void) {
  thread_local std::string text;
  const std::lock_guard lock(last_compilation_mutex);
  text = last_compilation;
  return text.c_str();
}
