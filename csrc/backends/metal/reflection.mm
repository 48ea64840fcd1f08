// See reflection.h. Only what both sides state is compared: Metal's documentation does not say how it
// reflects packed, atomic and opaque types, and arguments that the compiler found unused may be left out.
#import "backends/metal/reflection.h"

#include <metalane/error.h>

#include <algorithm>

#import "backends/metal/boundary.h"

namespace metalane::metal {

namespace {

struct Place {
  const KernelSignature& signature;
  std::string path;  // "params.scale"

  [[noreturn]] void differs(const std::string& what, const std::string& reader,
                            const std::string& metal) const {
    throw CompileError(signature.name, "kernel '" + signature.name + "': " + path +
                                           ": Metal's reflection gives " + what + " " + metal +
                                           ", metalane's reader " + reader);
  }
  void compare(const std::string& what, std::uint64_t reader, std::uint64_t metal) const {
    if (reader != metal) differs(what, std::to_string(reader), std::to_string(metal));
  }
};

bool is_plain(const TypeInfo& type) {
  // "packed_float4" and "atomic_uint" share scalar and components with what they are not.
  return !type.name.starts_with("packed_") && !type.name.starts_with("atomic");
}

void compare_type(const Place& place, const TypeInfo& reader, MTLDataType metal) {
  const MTLDataType expected = data_type_of(reader);
  const bool known = metal != MTLDataTypeNone && metal != MTLDataTypePointer;
  if (!known || expected == MTLDataTypeNone || !is_plain(reader)) return;
  place.compare("data type", expected, metal);
}

void compare_struct(const Place& place, const StructLayout& reader, MTLStructType* metal);

void compare_member(const Place& place, const StructField& reader, MTLStructMember* metal) {
  place.compare("offset", reader.offset, [metal offset]);
  MTLStructType* structure = [metal structType];
  MTLArrayType* const array = [metal arrayType];
  MTLDataType element = [metal dataType];
  if (array != nil) {
    std::uint64_t count = [array arrayLength];
    MTLArrayType* innermost = array;
    // Dimensions multiply in the reader's count.
    while ([innermost elementType] == MTLDataTypeArray && [innermost elementArrayType] != nil) {
      innermost = [innermost elementArrayType];
      count *= [innermost arrayLength];
    }
    place.compare("array length", reader.count, count);
    element = [innermost elementType];
    structure = [innermost elementStructType];
  }
  if (structure != nil && reader.type.layout != nullptr) {
    compare_struct(place, *reader.type.layout, structure);
  } else {
    compare_type(place, reader.type, element);
  }
}

void compare_struct(const Place& place, const StructLayout& reader, MTLStructType* metal) {
  if (reader.is_union) return;
  for (MTLStructMember* member in [metal members]) {
    const std::string name = text_of([member name]);
    const Place here{place.signature, place.path + "." + name};
    const auto field = std::find_if(reader.fields.begin(), reader.fields.end(),
                                    [&name](const StructField& known) { return known.name == name; });
    if (field == reader.fields.end()) here.differs("a member", "none of that name", "\"" + name + "\"");
    if (field->bit_width == 0) compare_member(here, *field, member);
  }
}

void compare_buffer(const Place& place, const KernelArgument& reader, id<MTLBufferBinding> metal) {
  if ([metal access] != MTLBindingAccessReadOnly && !writes(reader.access) && reader.access != Access::none) {
    place.differs("access", "read only",
                  [metal access] == MTLBindingAccessReadWrite ? "read and write" : "write");
  }
  const std::uint64_t size = [metal bufferDataSize];
  if (size != 0 && reader.type.size != 0) place.compare("size", reader.type.size, size);
  MTLStructType* structure = [metal bufferStructType];
  if (structure == nil) structure = [[metal bufferPointerType] elementStructType];
  if (structure != nil && reader.type.layout != nullptr) {
    compare_struct(place, *reader.type.layout, structure);
  } else {
    compare_type(place, reader.type, [metal bufferDataType]);
  }
}

}  // namespace

MTLDataType data_type_of(const TypeInfo& type) {
  if (type.columns != 1 || type.components < 1 || type.components > 4) return MTLDataTypeNone;
  MTLDataType scalar = MTLDataTypeNone;
  switch (type.scalar) {
    case ScalarType::boolean:
      scalar = MTLDataTypeBool;
      break;
    case ScalarType::int8:
      scalar = MTLDataTypeChar;
      break;
    case ScalarType::uint8:
      scalar = MTLDataTypeUChar;
      break;
    case ScalarType::int16:
      scalar = MTLDataTypeShort;
      break;
    case ScalarType::uint16:
      scalar = MTLDataTypeUShort;
      break;
    case ScalarType::int32:
      scalar = MTLDataTypeInt;
      break;
    case ScalarType::uint32:
      scalar = MTLDataTypeUInt;
      break;
    case ScalarType::int64:
      scalar = MTLDataTypeLong;
      break;
    case ScalarType::uint64:
      scalar = MTLDataTypeULong;
      break;
    case ScalarType::float16:
      scalar = MTLDataTypeHalf;
      break;
    case ScalarType::bfloat16:
      scalar = MTLDataTypeBFloat;
      break;
    case ScalarType::float32:
      scalar = MTLDataTypeFloat;
      break;
    case ScalarType::structure:
      return MTLDataTypeStruct;
    case ScalarType::opaque:
      return MTLDataTypeNone;
  }
  // Vectors follow their scalar.
  return static_cast<MTLDataType>(scalar + type.components - 1);
}

void check_reflection(MTLComputePipelineReflection* reflection, const KernelSignature& signature) {
  for (id<MTLBinding> binding in [reflection bindings]) {
    const MTLBindingType kind = [binding type];
    const bool is_buffer = kind == MTLBindingTypeBuffer;
    if (!is_buffer && kind != MTLBindingTypeThreadgroupMemory) continue;
    // Threadgroup variables of the kernel's own are reflected, too.
    if (![binding isUsed] || ![binding isArgument]) continue;
    const Place place{signature, text_of([binding name])};
    const auto argument = std::find_if(
        signature.arguments.begin(), signature.arguments.end(), [&](const KernelArgument& known) {
          return known.index == [binding index] && (known.space != AddressSpace::threadgroup) == is_buffer;
        });
    if (argument == signature.arguments.end()) {
      place.differs(is_buffer ? "buffer index" : "threadgroup index", "none there",
                    std::to_string([binding index]));
    }
    if (argument->name != place.path)
      place.differs("name", "\"" + argument->name + "\"", "\"" + place.path + "\"");
    if (is_buffer) compare_buffer(place, *argument, static_cast<id<MTLBufferBinding>>(binding));
  }
}

}  // namespace metalane::metal
