// Reflection, from the signature that the reader of Metal source gives, with the differences that tests
// plant.
#include "accounting.h"
#include "devices.h"

using namespace metal_double;
using metalane::ScalarType;

@implementation MTLType
METAL_DOUBLE_COUNTED("MTLType")
@synthesize dataType = _dataType;
- (void)destroy {
}
@end

@implementation MTLStructMember
METAL_DOUBLE_COUNTED("MTLStructMember")
@synthesize name = _name;
@synthesize offset = _offset;
@synthesize dataType = _dataType;
@synthesize argumentIndex = _argumentIndex;
- (void)destroy {
  [_name release];
  [_type release];
}
- (MTLStructType*)structType {
  return _dataType == MTLDataTypeStruct ? static_cast<MTLStructType*>(_type) : nil;
}
- (MTLArrayType*)arrayType {
  return _dataType == MTLDataTypeArray ? static_cast<MTLArrayType*>(_type) : nil;
}
- (MTLPointerType*)pointerType {
  return _dataType == MTLDataTypePointer ? static_cast<MTLPointerType*>(_type) : nil;
}
@end

@implementation MTLStructType
@synthesize members = _members;
- (void)destroy {
  [_members release];
}
- (MTLStructMember*)memberByName:(NSString*)name {
  for (MTLStructMember* member in _members) {
    if ([member->_name isEqualToString:name]) return member;
  }
  return nil;
}
@end

@implementation MTLArrayType
@synthesize elementType = _elementType;
@synthesize arrayLength = _arrayLength;
@synthesize stride = _stride;
@synthesize argumentIndexStride = _argumentIndexStride;
- (void)destroy {
  [_element release];
}
- (MTLStructType*)elementStructType {
  return _elementType == MTLDataTypeStruct ? static_cast<MTLStructType*>(_element) : nil;
}
- (MTLArrayType*)elementArrayType {
  return _elementType == MTLDataTypeArray ? static_cast<MTLArrayType*>(_element) : nil;
}
- (MTLPointerType*)elementPointerType {
  return _elementType == MTLDataTypePointer ? static_cast<MTLPointerType*>(_element) : nil;
}
@end

@implementation MTLPointerType
@synthesize elementType = _elementType;
@synthesize access = _access;
@synthesize alignment = _alignment;
@synthesize dataSize = _dataSize;
@synthesize elementIsArgumentBuffer = _elementIsArgumentBuffer;
- (void)destroy {
  [_element release];
}
- (MTLStructType*)elementStructType {
  return _elementType == MTLDataTypeStruct ? static_cast<MTLStructType*>(_element) : nil;
}
- (MTLArrayType*)elementArrayType {
  return _elementType == MTLDataTypeArray ? static_cast<MTLArrayType*>(_element) : nil;
}
@end

// An argument's binding. Buffers and threadgroup memory answer different protocols.
@interface MetalDoubleBinding : NSObject <MTLBinding> {
 @package
  NSString* _name;
  MTLBindingType _type;
  MTLBindingAccess _access;
  NSUInteger _index;
  BOOL _used;
  NSUInteger _alignment;
  NSUInteger _dataSize;
}
@end

@implementation MetalDoubleBinding
METAL_DOUBLE_COUNTED("MTLBinding")
- (void)destroy {
  [_name release];
}
- (NSString*)name {
  return _name;
}
- (MTLBindingType)type {
  return _type;
}
- (MTLBindingAccess)access {
  return _access;
}
- (NSUInteger)index {
  return _index;
}
- (BOOL)isUsed {
  return _used;
}
- (BOOL)isArgument {
  return YES;
}
@end

@interface MetalDoubleBufferBinding : MetalDoubleBinding <MTLBufferBinding> {
 @package
  MTLPointerType* _pointer;
}
@end

@implementation MetalDoubleBufferBinding
- (void)destroy {
  [_pointer release];
  [super destroy];
}
- (NSUInteger)bufferAlignment {
  return _alignment;
}
- (NSUInteger)bufferDataSize {
  return _dataSize;
}
- (MTLDataType)bufferDataType {
  return _pointer->_elementType;
}
- (MTLStructType*)bufferStructType {
  return [_pointer elementStructType];
}
- (MTLPointerType*)bufferPointerType {
  return _pointer;
}
@end

@interface MetalDoubleThreadgroupBinding : MetalDoubleBinding <MTLThreadgroupBinding>
@end

@implementation MetalDoubleThreadgroupBinding
- (NSUInteger)threadgroupMemoryAlignment {
  return _alignment;
}
- (NSUInteger)threadgroupMemoryDataSize {
  return _dataSize;
}
@end

@implementation MTLComputePipelineReflection
METAL_DOUBLE_COUNTED("MTLComputePipelineReflection")
@synthesize bindings = _bindings;
- (void)destroy {
  [_bindings release];
}
@end

namespace metal_double {
namespace {

NSUInteger value_or_planted(const std::string& argument, const std::string& member, const char* what,
                            NSUInteger value) {
  return planted(argument, member, what).value_or(value);
}

// The first of the four data types of a scalar and its vectors.
MTLDataType vectors_of(ScalarType scalar) {
  switch (scalar) {
    case ScalarType::boolean:
      return MTLDataTypeBool;
    case ScalarType::int8:
      return MTLDataTypeChar;
    case ScalarType::uint8:
      return MTLDataTypeUChar;
    case ScalarType::int16:
      return MTLDataTypeShort;
    case ScalarType::uint16:
      return MTLDataTypeUShort;
    case ScalarType::int32:
      return MTLDataTypeInt;
    case ScalarType::uint32:
      return MTLDataTypeUInt;
    case ScalarType::int64:
      return MTLDataTypeLong;
    case ScalarType::uint64:
      return MTLDataTypeULong;
    case ScalarType::float16:
      return MTLDataTypeHalf;
    case ScalarType::bfloat16:
      return MTLDataTypeBFloat;
    case ScalarType::float32:
      return MTLDataTypeFloat;
    case ScalarType::opaque:
    case ScalarType::structure:
      return MTLDataTypeNone;
  }
  return MTLDataTypeNone;
}

MTLDataType data_type_of(const metalane::TypeInfo& type) {
  if (type.scalar == ScalarType::structure) return MTLDataTypeStruct;
  if (type.columns > 1) {
    // Data types of matrices follow each other by columns, then rows.
    const MTLDataType first = type.scalar == ScalarType::float16 ? MTLDataTypeHalf2x2 : MTLDataTypeFloat2x2;
    return static_cast<MTLDataType>(first + (type.columns - 2) * 3 + type.components - 2);
  }
  const MTLDataType first = vectors_of(type.scalar);
  return first == MTLDataTypeNone ? first : static_cast<MTLDataType>(first + type.components - 1);
}

// A struct's description, owned by the caller; nil for other types.
MTLType* new_type(const std::string& argument, const std::string& path, const metalane::TypeInfo& type);

MTLStructMember* make_member(const std::string& argument, const std::string& prefix,
                             const metalane::StructField& field) {
  const std::string path = prefix.empty() ? field.name : prefix + "." + field.name;
  MTLStructMember* member = [[[MTLStructMember alloc] init] autorelease];
  member->_name = [to_nsstring(field.name) retain];
  member->_offset = value_or_planted(argument, path, "offset", field.offset);
  const MTLDataType type = data_type_of(field.type);
  MTLType* described = new_type(argument, path, field.type);
  if (field.count != 0) {
    MTLArrayType* array = [[MTLArrayType alloc] init];
    array->_dataType = MTLDataTypeArray;
    array->_elementType = type;
    array->_arrayLength = value_or_planted(argument, path, "arrayLength", field.count);
    array->_stride = field.size / field.count;
    array->_element = described;
    member->_dataType = MTLDataTypeArray;
    member->_type = array;
  } else {
    member->_dataType = type;
    member->_type = described;
  }
  member->_dataType =
      static_cast<MTLDataType>(value_or_planted(argument, path, "dataType", member->_dataType));
  return member;
}

MTLType* new_type(const std::string& argument, const std::string& path, const metalane::TypeInfo& type) {
  if (type.layout == nullptr) return nil;
  NSMutableArray* members = [NSMutableArray array];
  for (const metalane::StructField& field : type.layout->fields)
    [members addObject:make_member(argument, path, field)];
  MTLStructType* described = [[MTLStructType alloc] init];
  described->_dataType = MTLDataTypeStruct;
  described->_members = [members copy];
  return described;
}

MTLBindingAccess access_of(metalane::Access access) {
  if (!metalane::writes(access)) return MTLBindingAccessReadOnly;
  return metalane::reads(access) ? MTLBindingAccessReadWrite : MTLBindingAccessWriteOnly;
}

void fill(MetalDoubleBinding* binding, const metalane::KernelArgument& argument, MTLBindingType type) {
  const std::string& name = argument.name;
  binding->_name = [to_nsstring(name) retain];
  binding->_type = type;
  binding->_access =
      static_cast<MTLBindingAccess>(value_or_planted(name, "", "access", access_of(argument.access)));
  binding->_index = value_or_planted(name, "", "index", argument.index);
  binding->_used = value_or_planted(name, "", "used", argument.access != metalane::Access::none) != 0;
  binding->_alignment = argument.type.alignment;
  binding->_dataSize = value_or_planted(name, "", "dataSize", argument.type.size);
}

MetalDoubleBinding* make_buffer_binding(const metalane::KernelArgument& argument) {
  MetalDoubleBufferBinding* binding = [[[MetalDoubleBufferBinding alloc] init] autorelease];
  fill(binding, argument, MTLBindingTypeBuffer);
  MTLPointerType* pointer = [[MTLPointerType alloc] init];
  pointer->_dataType = MTLDataTypePointer;
  pointer->_elementType =
      static_cast<MTLDataType>(value_or_planted(argument.name, "", "dataType", data_type_of(argument.type)));
  pointer->_access = binding->_access;
  pointer->_alignment = binding->_alignment;
  pointer->_dataSize = binding->_dataSize;
  pointer->_element = new_type(argument.name, "", argument.type);
  binding->_pointer = pointer;
  return binding;
}

MetalDoubleBinding* make_threadgroup_binding(const metalane::KernelArgument& argument) {
  MetalDoubleThreadgroupBinding* binding = [[[MetalDoubleThreadgroupBinding alloc] init] autorelease];
  fill(binding, argument, MTLBindingTypeThreadgroupMemory);
  return binding;
}

}  // namespace

MTLComputePipelineReflection* make_reflection(const metalane::KernelSignature& signature) {
  NSMutableArray* bindings = [NSMutableArray array];
  for (const metalane::KernelArgument& argument : signature.arguments) {
    const bool is_threadgroup = argument.space == metalane::AddressSpace::threadgroup;
    [bindings addObject:is_threadgroup ? make_threadgroup_binding(argument) : make_buffer_binding(argument)];
  }
  MTLComputePipelineReflection* reflection = [[[MTLComputePipelineReflection alloc] init] autorelease];
  reflection->_bindings = [bindings copy];
  return reflection;
}

}  // namespace metal_double
