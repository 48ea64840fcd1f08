// A function of a library to be made, with its constants.
#pragma once

#import <Metal/MTLFunctionConstantValues.h>

typedef NS_OPTIONS(NSUInteger, MTLFunctionOptions) {
  MTLFunctionOptionNone = 0,
};

@interface MTLFunctionDescriptor : NSObject <NSCopying> {
 @package
  NSString* _name;
  NSString* _specializedName;
  MTLFunctionConstantValues* _constantValues;
  MTLFunctionOptions _options;
  NSArray* _binaryArchives;
}
+ (MTLFunctionDescriptor*)functionDescriptor;
@property(nonatomic, copy) NSString* name;
@property(nonatomic, copy) NSString* specializedName;
@property(nonatomic, copy) MTLFunctionConstantValues* constantValues;
@property(nonatomic) MTLFunctionOptions options;
@property(nonatomic, copy) NSArray* binaryArchives;
@end
