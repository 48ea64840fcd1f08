// Vectors, packed vectors, matrices and arrays of metal_stdlib: layout, constructors, swizzles, operators.
#include <cmath>
#include <cstring>
#include <metal_stdlib>

#include "check.h"

using namespace metal;

static_assert(sizeof(float2) == 8 && alignof(float2) == 8);
static_assert(sizeof(float3) == 16 && alignof(float3) == 16);
static_assert(sizeof(float4) == 16 && alignof(float4) == 16);
static_assert(sizeof(packed_float3) == 12 && alignof(packed_float3) == 4);
static_assert(sizeof(half3) == 8 && alignof(half3) == 8 && sizeof(packed_half3) == 6);
static_assert(sizeof(uchar4) == 4 && alignof(uchar4) == 4 && sizeof(uchar3) == 4);
static_assert(sizeof(ulong4) == 32 && alignof(ulong4) == 32 && sizeof(bool2) == 2);
static_assert(sizeof(bfloat) == 2 && sizeof(bfloat4) == 8);
static_assert(sizeof(float3x3) == 48 && sizeof(float4x2) == 32 && alignof(float4x2) == 8);
static_assert(__is_trivial(float4) && __is_trivial(bfloat) && __is_trivial(packed_float3) &&
              __is_trivial(half4x4));
static_assert(is_same_v<decltype(float4() < 1.0f), bool4>);
static_assert(is_same_v<decltype(half() * half()), half> && is_same_v<decltype(half() * 1.0f), float>);
static_assert(is_same_v<decltype(half() * 2), half>);
static_assert(is_same_v<decltype(bfloat() * bfloat()), bfloat> && is_same_v<decltype(bfloat() * 2), bfloat>);
static_assert(is_same_v<decltype(bfloat() * 1.0f), float>);
static_assert(is_same_v<decltype(max(ushort(), ushort())), ushort>);
static_assert(is_same_v<decltype(exp(half())), half> && is_same_v<decltype(exp(1)), float>);

constexpr float4 constant_vector = float4(1, 2, 3, 4) * 2.0f + 1.0f;
static_assert(constant_vector[2] == 7.0f);

template <class A, class B>
static bool same(const A& a, const B& b) {
  return all(a == b);
}

TEST_CASE(constructors_take_any_grouping) {
  const float2 a(1, 2), b(3, 4);
  const float4 expected(1, 2, 3, 4);
  CHECK(same(float4(a, b), expected));
  CHECK(same(float4(1, float2(2, 3), 4), expected));
  CHECK(same(float4(a, 3, 4), expected));
  CHECK(same(float4(1, 2, b), expected));
  CHECK(same(float4(float3(1, 2, 3), 4), expected));
  CHECK(same(float4(1, float3(2, 3, 4)), expected));
  CHECK(same(float4(packed_float3(1, 2, 3), 4), expected));
  CHECK(same(float4(expected.xy(), expected.zw()), expected));
  CHECK(same(float3(7), float3(7, 7, 7)));
  CHECK(same(int4(float4(1.9f, -1.9f, 0, 3)), int4(1, -1, 0, 3)));
  CHECK(same(float4(uchar4(1, 2, 3, 255)), float4(1, 2, 3, 255)));
  CHECK(same(bfloat2(float2(1.0f, 1.00390625f)), bfloat2(1.0f, 1.0f)));
  const float4 braces = {1, 2, 3, 4};
  CHECK(same(braces, expected));
  const float4 splat = 2;
  CHECK(same(splat, float4(2, 2, 2, 2)));
}

TEST_CASE(components_are_lvalues) {
  float4 v(1, 2, 3, 4);
  float* y = &v.y;
  *y = 20;
  v[2] = 30;
  v.a = 40;
  CHECK(same(v, float4(1, 20, 30, 40)));
  CHECK_EQ(v.r, 1.0f);
  CHECK_EQ(v.b, 30.0f);
  CHECK_EQ(&v.x + 3, &v.w);
}

TEST_CASE(swizzles_read) {
  const float4 c(1, 2, 3, 4);
  CHECK(same(c.wzyx(), float4(4, 3, 2, 1)));
  CHECK(same(c.bgr(), float3(3, 2, 1)));
  CHECK(same(c.xx(), float2(1, 1)));
  CHECK(same(float2(5, 6).yxyx(), float4(6, 5, 6, 5)));
  CHECK(same(float3(5, 6, 7).zzx(), float3(7, 7, 5)));
  float4 v = c;
  CHECK(same(v.zw() * 2 + v.xy(), float2(7, 10)));
  CHECK(same(v.x > 0 ? v.xy() : v.wz(), float2(1, 2)));
  CHECK(same(v.xyz().zyx(), float3(3, 2, 1)));
  CHECK_EQ(dot(v.xy(), v.zw()), 11.0f);
  CHECK(same(max(v.xy(), 1.5f), float2(1.5f, 2)));
  CHECK(same(as_type<uint2>(v.xy()), uint2(0x3f800000u, 0x40000000u)));
  CHECK(same(int2(v.yw()), int2(2, 4)));
}

TEST_CASE(swizzles_write) {
  float4 v(1, 2, 3, 4);
  v.xy() = v.yx();
  CHECK(same(v, float4(2, 1, 3, 4)));
  v.wx() = float2(9, 8);
  CHECK(same(v, float4(8, 1, 3, 9)));
  v.yz() += 1;
  v.zy() *= float2(2, 3);
  CHECK(same(v, float4(8, 6, 8, 9)));
  v.rgb() = 0.0f;
  CHECK(same(v, float4(0, 0, 0, 9)));
  ++v.xw();
  v.yz()--;
  CHECK(same(v, float4(1, -1, -1, 10)));
  packed_float3 p(1, 2, 3);
  p.xz() = float2(7, 8);
  CHECK(same(float3(p), float3(7, 2, 8)));
}

template <class T>
static T plus_one(T x) {
  T result = x + 1;
  x = result;
  return x;
}

TEST_CASE(a_stored_swizzle_is_a_value) {
  float4 v(1, 2, 3, 4);
  auto q = v.xy();
  v.x = 100;
  CHECK(same(float2(q), float2(1, 2)));
  q = float2(50, 60);
  q += 1;
  CHECK(same(v, float4(100, 2, 3, 4)));
  CHECK(same(float2(q), float2(51, 61)));
  CHECK(same(float2(plus_one(v.yz())), float2(3, 4)));
  CHECK(same(v, float4(100, 2, 3, 4)));
}

TEST_CASE(unions_of_vectors_are_plain) {
  union Both {
    float4 f;
    uint4 u;
  };
  Both a;
  a.f = float4(1, 2, 3, 4);
  Both b;
  b = a;
  CHECK_EQ(b.u.x, 0x3f800000u);
}

TEST_CASE(operators) {
  CHECK(same(uint4(1, 2, 3, 0xffffffffu) + 1, uint4(2, 3, 4, 0)));
  CHECK(same(2.0f / float2(4, 8), float2(0.5f, 0.25f)));
  CHECK(same(-int2(1, -2), int2(-1, 2)));
  CHECK(same(int2(7, -7) / int2(0, 2), int2(0, -3)));
  CHECK(same(int2(-2147483647 - 1, 5) / -1, int2(-2147483647 - 1, -5)));
  CHECK(same(ushort2(65535, 2) * ushort2(65535, 3), ushort2(1, 6)));
  CHECK(same(uint2(1, 1) << uint2(33, 31), uint2(2, 0x80000000u)));
  CHECK(same(int2(-8, 8) >> 1, int2(-4, 4)));
  CHECK(same(!bool2(true, false), bool2(false, true)));
  CHECK(same((float2(1, 2) < 2.0f) || (float2(1, 5) > 4.0f), bool2(true, true)));
  packed_float3 p(1, 2, 3);
  const packed_float3 q(1, 1, 1);
  p += q;
  CHECK(same(p + q, float3(3, 4, 5)));
  CHECK(same(p * 2.0f, float3(4, 6, 8)));
  float3 from_packed = p;
  p = from_packed - 1.0f;
  CHECK_EQ(p.z, 3.0f);
}

TEST_CASE(half_rounds_after_each_operation) {
  // 2048 + 1 is a tie in half, so that adding two ones one after another changes nothing.
  const half big(2048), one(1);
  CHECK_EQ(float(big + one + one), 2048.0f);
  CHECK_EQ(float(half(65504) + half(16)), float(INFINITY));
}

TEST_CASE(bfloat_rounds_to_nearest_even) {
  CHECK_EQ(bfloat(1.00390625f).bits, 0x3f80u);  // tie, to even below
  CHECK_EQ(bfloat(1.01171875f).bits, 0x3f82u);  // tie, to even above
  CHECK_EQ(bfloat(as_type<float>(0x3f808001u)).bits, 0x3f81u);
  CHECK_EQ(bfloat(as_type<float>(0x7f7fffffu)).bits, 0x7f80u);
  CHECK(isnan(bfloat(as_type<float>(0x7f800001u))));
  CHECK_EQ(bfloat(as_type<float>(0xff800001u)).bits, 0xffc0u);
  CHECK_EQ(bfloat(as_type<float>(0x00008000u)).bits, 0x0000u);
  CHECK_EQ(bfloat(as_type<float>(0x00018000u)).bits, 0x0002u);
  // Just above a tie by less than a float can say, and the tie itself.
  CHECK_EQ(bfloat(0x40400001).bits, bfloat(0x40800000).bits);
  CHECK_EQ(bfloat(0x40400000).bits, bfloat(0x40000000).bits);
  CHECK_EQ(bfloat(-0x40400001).bits, bfloat(-0x40800000).bits);
  CHECK_EQ(bfloat(0x8080000000000001ul).bits, bfloat(0x8100000000000000ul).bits);
  CHECK_EQ(bfloat(-0x7fffffffffffffffl - 1).bits, 0xdf00u);
  CHECK_EQ(float(bfloat(256) + bfloat(1)), 256.0f);
  CHECK_EQ(bfloat(256) + 1.0f, 257.0f);
  bfloat x(1.5f);
  x *= 2;
  x += 0.5f;
  CHECK_EQ(float(x++), 3.5f);
  CHECK(x > 4 && x == bfloat(4.5f) && !(x < 4.0f));
}

TEST_CASE(matrices) {
  const float2x2 a(float2(1, 2), float2(3, 4));  // columns
  const float2x2 b(5, 6, 7, 8);
  CHECK(a * b == float2x2(23, 34, 31, 46));
  CHECK(same(a * float2(1, 1), float2(4, 6)));
  CHECK(same(float2(1, 1) * a, float2(3, 7)));
  CHECK(transpose(a) == float2x2(1, 3, 2, 4));
  CHECK_EQ(determinant(a), -2.0f);
  CHECK_EQ(determinant(float3x3(2, 0, 1, 1, 3, 0, 0, 1, 4)), 25.0f);
  CHECK_EQ(determinant(float4x4(3.0f)), 81.0f);
  const float3x2 wide(1, 2, 3, 4, 5, 6);
  const float2x3 tall = transpose(wide);
  CHECK(wide * tall == float2x2(35, 44, 44, 56));
  float4x4 m(1.0f);
  m[3].xy() = float2(5, 6);
  CHECK(same(m * float4(0, 0, 0, 1), float4(5, 6, 0, 1)));
  m *= 2.0f;
  CHECK_EQ(m[0][0], 2.0f);
  CHECK((half2x2(a)[1].y) == half(4));
}

TEST_CASE(geometry) {
  CHECK(same(cross(float3(1, 0, 0), float3(0, 1, 0)), float3(0, 0, 1)));
  CHECK_EQ(length(float3(2, 3, 6)), 7.0f);
  CHECK_EQ(distance(float2(1, 1), float2(4, 5)), 5.0f);
  CHECK_EQ(distance_squared(float2(1, 1), float2(4, 5)), 25.0f);
  CHECK(same(normalize(float2(0, 8)), float2(0, 1)));
  CHECK(same(reflect(float2(1, -1), float2(0, 1)), float2(1, 1)));
  CHECK(same(faceforward(float2(0, 1), float2(0, 1), float2(0, 1)), float2(0, -1)));
  CHECK(same(refract(float2(0, -1), float2(0, 1), 1.0f), float2(0, -1)));
  CHECK(same(refract(float2(1, 0), float2(0, 1), 2.0f), float2(0, 0)));
  CHECK_EQ(float(length(half2(200, 200))), float(half(std::sqrt(80000.0f))));
  CHECK_EQ(dot(int3(1, 2, 3), int3(4, 5, 6)), 32);
}

TEST_CASE(common_functions) {
  CHECK_EQ(mix(1.0f, 3.0f, 0.25f), 1.5f);
  CHECK(same(mix(float2(0, 10), float2(10, 0), 0.5f), float2(5, 5)));
  CHECK_EQ(smoothstep(0.0f, 2.0f, 1.0f), 0.5f);
  CHECK(same(smoothstep(0.0f, 1.0f, float2(-1, 2)), float2(0, 1)));
  CHECK(same(select(float2(1, 2), float2(3, 4), bool2(false, true)), float2(1, 4)));
  CHECK(same(select(float2(1, 2), float2(3, 4), true), float2(3, 4)));
  CHECK(any(bool3(false, true, false)) && !all(bool3(true, true, false)));
  CHECK_EQ(nextafter(1.0f, 2.0f), 1.0f + 0x1p-23f);
  CHECK_EQ(nextafter(0.0f, -1.0f), -0x1p-149f);
  CHECK_EQ(nextafter(-1.0f, 2.0f), -1.0f + 0x1p-24f);
  CHECK(nextafter(half(1), half(0)) == half(1.0f - 0x1p-11f));
  CHECK(isnormal(1.0f) && !isnormal(0x1p-130f) && !isnormal(half(0x1p-15f)) && !isnormal(INFINITY));
}

TEST_CASE(packing) {
  CHECK_EQ(pack_float_to_unorm4x8(float4(0, 1, 0.5f, 2)), 0xff80ff00u);
  CHECK_EQ(pack_float_to_snorm4x8(float4(0, 1, -1, -2)), 0x81817f00u);
  CHECK_EQ(pack_float_to_unorm2x16(float2(1, 0)), 0x0000ffffu);
  CHECK_EQ(pack_float_to_snorm2x16(float2(-1, 1)), 0x7fff8001u);
  CHECK_EQ(pack_float_to_unorm10a2(float4(1, 0, 1, 1)), 0xfff003ffu);
  CHECK_EQ(pack_float_to_unorm565(float3(1, 0, 1)), 0xf81fu);
  CHECK_EQ(pack_float_to_unorm4x8(float4(NAN)), 0u);
  CHECK(same(unpack_unorm4x8_to_float(0xff000000u), float4(0, 0, 0, 1)));
  CHECK(same(unpack_snorm4x8_to_float(0x80817f00u), float4(0, 1, -1, -1)));
  CHECK(same(unpack_snorm2x16_to_float(0x80007fffu), float2(1, -1)));
  CHECK(same(unpack_unorm10a2_to_half(0xfff003ffu), half4(1, 0, 1, 1)));
  CHECK(same(unpack_unorm565_to_float(0xf81f), float3(1, 0, 1)));
  for (uint byte = 0; byte < 256; ++byte) {
    const uint word = byte * 0x01010101u;
    CHECK_EQ(pack_float_to_unorm4x8(unpack_unorm4x8_to_float(word)), word);
    CHECK_EQ(pack_float_to_srgb_unorm4x8(unpack_unorm4x8_srgb_to_float(word)), word);
  }
}

TEST_CASE(limits_and_traits) {
  CHECK_EQ(numeric_limits<float>::max(), FLT_MAX);
  CHECK_EQ(numeric_limits<float>::lowest(), -FLT_MAX);
  CHECK_EQ(numeric_limits<float>::epsilon(), FLT_EPSILON);
  CHECK_EQ(float(numeric_limits<half>::max()), 65504.0f);
  CHECK_EQ(float(numeric_limits<half>::min()), 0x1p-14f);
  CHECK_EQ(float(numeric_limits<bfloat>::max()), 0x1.fep127f);
  CHECK_EQ(float(numeric_limits<bfloat>::epsilon()), 0x1p-7f);
  CHECK(isinf(numeric_limits<half>::infinity()) && isnan(numeric_limits<bfloat>::quiet_NaN()));
  CHECK_EQ(numeric_limits<long>::min(), LONG_MIN);
  CHECK_EQ(int(numeric_limits<char>::min()), -128);
  CHECK_EQ(int(numeric_limits<uchar>::max()), 255);
  CHECK_EQ(numeric_limits<int>::digits10, 9);
  CHECK_EQ(numeric_limits<ulong>::digits10, 19);
  CHECK_EQ(numeric_limits<float>::max_digits10, 9);
  CHECK_EQ(numeric_limits<half>::max_digits10, HALF_DECIMAL_DIG);
  static_assert(is_same_v<make_unsigned_t<short>, ushort> && is_floating_point_v<bfloat>);
  static_assert(is_same<remove_cv_t<const volatile int>, int>::value && is_integral_v<const uchar>);
  static_assert(is_convertible_v<half, float> && !is_convertible_v<float4, float>);
  static_assert(is_same_v<decay_t<int (&)[3]>, int*> && is_pointer_v<int* const>);
  static_assert(is_unsigned_v<uint> && is_signed_v<half> && !is_signed_v<bool>);
}

TEST_CASE(arrays) {
  array<int, 4> a = {{1, 2, 3, 4}};
  int sum = 0;
  for (const int x : a) sum += x;
  CHECK_EQ(sum, 10);
  a[3] = 7;
  CHECK_EQ(a.back(), 7);
  CHECK_EQ(a.size(), size_t(4));
  a.fill(5);
  CHECK_EQ(a.front(), 5);
}

CHECK_MAIN()
