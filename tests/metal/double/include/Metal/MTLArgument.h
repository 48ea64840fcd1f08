// Reflection: what a compiled function takes, and how its structs are laid out.
#pragma once

#import <Metal/MTLTypes.h>

@class MTLArrayType;
@class MTLPointerType;
@class MTLStructType;

typedef NS_ENUM(NSInteger, MTLBindingType) {
  MTLBindingTypeBuffer = 0,
  MTLBindingTypeThreadgroupMemory = 1,
  MTLBindingTypeTexture = 2,
  MTLBindingTypeSampler = 3,
};

typedef NS_ENUM(NSUInteger, MTLBindingAccess) {
  MTLBindingAccessReadOnly = 0,
  MTLBindingAccessReadWrite = 1,
  MTLBindingAccessWriteOnly = 2,
};

@interface MTLType : NSObject {
 @package
  MTLDataType _dataType;
}
@property(readonly) MTLDataType dataType;
@end

@interface MTLStructMember : NSObject {
 @package
  NSString* _name;
  NSUInteger _offset;
  MTLDataType _dataType;
  MTLType* _type;
  NSUInteger _argumentIndex;
}
@property(readonly) NSString* name;
@property(readonly) NSUInteger offset;
@property(readonly) MTLDataType dataType;
@property(readonly) NSUInteger argumentIndex;
- (MTLStructType*)structType;
- (MTLArrayType*)arrayType;
- (MTLPointerType*)pointerType;
@end

@interface MTLStructType : MTLType {
 @package
  NSArray* _members;
}
@property(readonly) NSArray* members;
- (MTLStructMember*)memberByName:(NSString*)name;
@end

@interface MTLArrayType : MTLType {
 @package
  MTLDataType _elementType;
  NSUInteger _arrayLength;
  NSUInteger _stride;
  NSUInteger _argumentIndexStride;
  MTLType* _element;
}
@property(readonly) MTLDataType elementType;
@property(readonly) NSUInteger arrayLength;
@property(readonly) NSUInteger stride;
@property(readonly) NSUInteger argumentIndexStride;
- (MTLStructType*)elementStructType;
- (MTLArrayType*)elementArrayType;
- (MTLPointerType*)elementPointerType;
@end

@interface MTLPointerType : MTLType {
 @package
  MTLDataType _elementType;
  MTLBindingAccess _access;
  NSUInteger _alignment;
  NSUInteger _dataSize;
  BOOL _elementIsArgumentBuffer;
  MTLType* _element;
}
@property(readonly) MTLDataType elementType;
@property(readonly) MTLBindingAccess access;
@property(readonly) NSUInteger alignment;
@property(readonly) NSUInteger dataSize;
@property(readonly) BOOL elementIsArgumentBuffer;
- (MTLStructType*)elementStructType;
- (MTLArrayType*)elementArrayType;
@end

@protocol MTLBinding <NSObject>
@property(readonly) NSString* name;
@property(readonly) MTLBindingType type;
@property(readonly) MTLBindingAccess access;
@property(readonly) NSUInteger index;
@property(readonly, getter=isUsed) BOOL used;
@property(readonly, getter=isArgument) BOOL argument;
@end

@protocol MTLBufferBinding <MTLBinding>
@property(readonly) NSUInteger bufferAlignment;
@property(readonly) NSUInteger bufferDataSize;
@property(readonly) MTLDataType bufferDataType;
@property(readonly) MTLStructType* bufferStructType;
@property(readonly) MTLPointerType* bufferPointerType;
@end

@protocol MTLThreadgroupBinding <MTLBinding>
@property(readonly) NSUInteger threadgroupMemoryAlignment;
@property(readonly) NSUInteger threadgroupMemoryDataSize;
@end
