// Values of function constants, by index or by name.
#pragma once

#import <Metal/MTLTypes.h>

struct metal_double_constants;

@interface MTLFunctionConstantValues : NSObject <NSCopying> {
 @package
  struct metal_double_constants* _values;
}
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index;
- (void)setConstantValues:(const void*)values type:(MTLDataType)type withRange:(NSRange)range;
- (void)setConstantValue:(const void*)value type:(MTLDataType)type withName:(NSString*)name;
- (void)reset;
@end
