// As much of Apple's Foundation as csrc/backends/metal uses, declared as there: for type checks against
// Apple's Objective-C runtime where no SDK is. Nothing is defined, and nothing links.
#pragma once

#include <objc/NSObject.h>
#include <objc/objc.h>
#include <stdint.h>
#include <string.h>

#define FOUNDATION_EXPORT extern "C"
#define NS_ENUM(type, name) \
  enum name : type name;    \
  enum name : type
// In C++ options are integers, so that they can be combined.
#define NS_OPTIONS(type, name) \
  type name;                   \
  enum : type
#define NS_RETURNS_RETAINED __attribute__((ns_returns_retained))
#define NSUIntegerMax UINTPTR_MAX

typedef double NSTimeInterval;
typedef NSUInteger NSStringEncoding;
enum : NSStringEncoding { NSUTF8StringEncoding = 4, NSISOLatin1StringEncoding = 5 };

typedef struct {
  NSUInteger location;
  NSUInteger length;
} NSRange;

static inline NSRange NSMakeRange(NSUInteger location, NSUInteger length) {
  NSRange range = {location, length};
  return range;
}

struct _NSZone;
@protocol NSCopying
- (id)copyWithZone:(struct _NSZone*)zone;
@end

typedef struct {
  unsigned long state;
  id __unsafe_unretained* itemsPtr;
  unsigned long* mutationsPtr;
  unsigned long extra[5];
} NSFastEnumerationState;

@protocol NSFastEnumeration
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState*)state
                                  objects:(id __unsafe_unretained[])buffer
                                    count:(NSUInteger)length;
@end

@interface NSString : NSObject <NSCopying>
@property(readonly) NSUInteger length;
@property(readonly) const char* UTF8String;
- (instancetype)initWithBytes:(const void*)bytes
                       length:(NSUInteger)length
                     encoding:(NSStringEncoding)encoding;
+ (instancetype)stringWithUTF8String:(const char*)text;
- (BOOL)isEqualToString:(NSString*)other;
@end

@interface NSNumber : NSObject
@property(readonly) NSInteger integerValue;
@property(readonly) NSUInteger unsignedIntegerValue;
@end

@interface NSArray<ObjectType> : NSObject <NSCopying, NSFastEnumeration>
@property(readonly) NSUInteger count;
@property(readonly) ObjectType firstObject;
@property(readonly) ObjectType lastObject;
+ (instancetype)arrayWithObject:(ObjectType)object;
- (ObjectType)objectAtIndex:(NSUInteger)index;
@end

@interface NSDictionary<KeyType, ObjectType> : NSObject <NSCopying, NSFastEnumeration>
@property(readonly) NSUInteger count;
- (ObjectType)objectForKey:(KeyType)key;
@end

@interface NSURL : NSObject <NSCopying>
@property(readonly) NSString* path;
+ (NSURL*)fileURLWithPath:(NSString*)path;
@end

@interface NSError : NSObject <NSCopying>
@property(readonly) NSInteger code;
@property(readonly) NSString* domain;
@property(readonly) NSString* localizedDescription;
@property(readonly) NSDictionary* userInfo;
@end

@interface NSException : NSObject <NSCopying>
@property(readonly) NSString* name;
@property(readonly) NSString* reason;
@end

@interface NSAutoreleasePool : NSObject
- (void)drain;
@end

@interface NSProcessInfo : NSObject
@property(class, readonly) NSProcessInfo* processInfo;
@property(readonly) NSString* operatingSystemVersionString;
@end

FOUNDATION_EXPORT Class NSClassFromString(NSString* name);
