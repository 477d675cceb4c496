// Plain C++, one lane at a time: any CPU, and the form the others are compared with bit for bit.
#include <stdint.h>

namespace {

struct Isa {
  static constexpr int kLanes = 1;
  static constexpr int kRowsInt8 = 4;
  static constexpr int kRowsExact = 4;
  static constexpr int kRowsScore = 2;
  using vf = float;
  using vi = int32_t;  // one number, or the 4 bytes of a lane

  static inline vi bits_of(vf a) { vi b; __builtin_memcpy(&b, &a, 4); return b; }
  static inline vf from_bits(vi a) { vf b; __builtin_memcpy(&b, &a, 4); return b; }
  static inline int byte_of(vi v, int j) { return (int)(((uint32_t)v >> (8 * j)) & 0xff); }

  static inline vf load(const float* p) { vf v; __builtin_memcpy(&v, p, 4); return v; }
  static inline void store(float* p, vf v) { __builtin_memcpy(p, &v, 4); }
  static inline vf set(float x) { return x; }
  static inline vf zero() { return 0.0f; }
  static inline vf fma(vf a, vf b, vf c) { return __builtin_fmaf(a, b, c); }
  static inline vf fnma(vf a, vf b, vf c) { return __builtin_fmaf(-a, b, c); }
  static inline vf mul(vf a, vf b) { return a * b; }
  static inline vf add(vf a, vf b) { return a + b; }
  static inline vf sub(vf a, vf b) { return a - b; }
  static inline vf div(vf a, vf b) { return a / b; }
  static inline vf max(vf a, vf b) { return a > b ? a : b; }
  static inline vf min(vf a, vf b) { return a < b ? a : b; }
  static inline vf abs(vf a) { return from_bits(bits_of(a) & 0x7fffffff); }
  static inline vf round(vf a) { return __builtin_rintf(a); }
  static inline vf to_float(vi a) { return (float)a; }
  static inline vi add_int(vi a, vi b) { return a + b; }
  // What the vector instruction gives out of range too.
  static inline vi to_int(vf a) {
    return a >= -2147483648.0f && a < 2147483648.0f ? (vi)__builtin_rintf(a) : INT32_MIN;
  }
  static inline vf exp2i(vi n) { return from_bits((vi)((uint32_t)(n + 127) << 23)); }
  static inline vf where_less(vf a, vf b, vf v, vf w) { return a < b ? v : w; }

  static inline vf load_half(const uint16_t* p) {
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff;
    if (exponent == 31) return from_bits((vi)(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0)));
    if (exponent) return from_bits((vi)(sign | (exponent + 112) << 23 | fraction << 13));
    vf small = (float)fraction * 5.9604644775390625e-08f;  // 2^-24
    return sign ? -small : small;
  }
  static inline vf load_bf16(const uint16_t* p) {
    uint16_t h;
    __builtin_memcpy(&h, p, 2);
    return from_bits((vi)((uint32_t)h << 16));
  }
  // The first and the second number of a pair.
  static inline vf low_bf16(const uint8_t* p) { return load_bf16((const uint16_t*)p); }
  static inline vf high_bf16(const uint8_t* p) { return load_bf16((const uint16_t*)(p + 2)); }
  static inline void store_half(uint16_t* p, vf v) {
    uint32_t b = (uint32_t)bits_of(v), sign = (b >> 16) & 0x8000, rest = b & 0x7fffffff;
    uint32_t h;
    if (rest > 0x7f800000) h = 0x7e00 | ((rest >> 13) & 0x3ff);
    else if (rest >= 0x47800000) h = 0x7c00;
    else if (rest >= 0x38800000) {
      uint32_t even = (rest >> 13) & 1;
      h = (rest + 0xfff + even - 0x38000000) >> 13;
    } else {
      h = (uint32_t)(vi)__builtin_rintf(from_bits((vi)rest) * 16777216.0f);  // 2^24
    }
    uint16_t out = (uint16_t)(sign | h);
    __builtin_memcpy(p, &out, 2);
  }
  static inline void store_bf16(uint16_t* p, vf v) {
    uint32_t b = (uint32_t)bits_of(v);
    if ((b & 0x7fffffff) > 0x7f800000) b |= 0x400000;
    else b += 0x7fff + ((b >> 16) & 1);
    uint16_t out = (uint16_t)(b >> 16);
    __builtin_memcpy(p, &out, 2);
  }
  static inline vf load_u8(const uint8_t* p) { return (float)*p; }
  static inline vf load_s8(const uint8_t* p) { return (float)(int8_t)*p; }
  static inline vf load_e8m0_half(const uint8_t* p) {
    uint32_t e = *p;
    return from_bits((vi)(e < 2 ? 0x200000u << e : (e - 1) << 23));
  }
  static inline float sum16(const vf* p) {
    float s[8];
    for (int i = 0; i < 8; i++) s[i] = p[i] + p[i + 8];
    for (int width = 4; width > 0; width /= 2)
      for (int i = 0; i < width; i++) s[i] = s[i] + s[i + width];
    return s[0];
  }
  static inline float top_lane(vf a) { return a; }
  static inline void transpose(vf*) {}
  static inline vi load_bytes(const uint8_t* p) { vi v; __builtin_memcpy(&v, p, 4); return v; }
  static inline vi low4(vi v) { return v & 0x0f0f0f0f; }
  static inline vi high4(vi v) { return (vi)((uint32_t)v >> 4) & 0x0f0f0f0f; }
  static inline vi add_bit4(vi v, const uint8_t* p, int at) {
    uint32_t bits = (uint32_t)(p[at / 8] >> (at % 8)), sum = (uint32_t)v;
    for (int j = 0; j < 4; j++) sum |= ((bits >> j) & 1) << (8 * j + 4);
    return (vi)sum;
  }
  template <int I>
  static inline vi add_bits45(vi v, vi high) {
    uint32_t h = (uint32_t)high & (0x03030303u << (2 * I));
    return v | (vi)(I < 2 ? h << (4 - 2 * I) : h >> (2 * I - 4));
  }
  static inline vi lookup16(vi index, const int8_t* table) {
    uint32_t sum = 0;
    for (int j = 0; j < 4; j++) sum |= (uint32_t)(uint8_t)table[byte_of(index, j) & 15] << (8 * j);
    return (vi)sum;
  }
  template <int J>
  static inline vf byte_to_float(vi v) { return (float)byte_of(v, J); }
  template <int G0, int G1, int Max>
  static inline vi dot(const vi* w, const int8_t* x, int32_t init) {
    vi acc = init;
    for (int g = G0; g < G1; g++)
      for (int j = 0; j < 4; j++) acc += byte_of(w[g], j) * x[4 * g + j];
    return acc;
  }
};

}  // namespace
