// AVX-512 (F, BW, DQ, VL, VNNI): 16 lanes, int8 dot products in one instruction.
#include <immintrin.h>
#include <stdint.h>

namespace {

struct Isa {
  static constexpr int kLanes = 16;
  static constexpr int kRowsInt8 = 8;   // activation rows a register tile holds
  static constexpr int kRowsExact = 8;
  static constexpr int kRowsScore = 8;
  using vf = __m512;
  using vi = __m512i;

  static inline vf load(const float* p) { return _mm512_loadu_ps(p); }
  static inline void store(float* p, vf v) { _mm512_storeu_ps(p, v); }
  static inline vf set(float x) { return _mm512_set1_ps(x); }
  static inline vf zero() { return _mm512_setzero_ps(); }
  static inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
  static inline vf fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
  static inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
  static inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
  static inline vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
  static inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
  // As the instruction: b where either is NaN.
  static inline vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
  static inline vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
  static inline vf abs(vf a) { return _mm512_abs_ps(a); }
  static inline vf round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static inline vf to_float(vi a) { return _mm512_cvtepi32_ps(a); }
  static inline vi add_int(vi a, vi b) { return _mm512_add_epi32(a, b); }
  static inline vi to_int(vf a) { return _mm512_cvtps_epi32(a); }
  static inline vf exp2i(vi n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
  }
  // v where a < b (false for NaN), else w.
  static inline vf where_less(vf a, vf b, vf v, vf w) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), w, v);
  }

  static inline vf load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
  static inline vf load_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
  }
  // The first and the second numbers of 16 pairs.
  static inline vf low_bf16(const uint8_t* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
  static inline vf high_bf16(const uint8_t* p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000)));
  }
  static inline void store_half(uint16_t* p, vf v) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  // Rounds to nearest even; NaN stays NaN.
  static inline void store_bf16(uint16_t* p, vf v) {
    vi bits = _mm512_castps_si512(v);
    vi odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    vi sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    sum = _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
  }
  static inline vf load_u8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
  }
  static inline vf load_s8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
  }
  // E8M0 scales: 2^(e - 127), halved, since the code book holds doubled values.
  static inline vf load_e8m0_half(const uint8_t* p) {
    vi e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
    vi bits = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __mmask16 small = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
    bits = _mm512_mask_sllv_epi32(bits, small, _mm512_set1_epi32(0x200000), e);
    return _mm512_castsi512_ps(bits);
  }
  // Sum of 16 lanes by halving: i + 8, then i + 4, i + 2, i + 1.
  static inline float sum16(const vf* p) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(p[0]), _mm512_extractf32x8_ps(p[0], 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }
  static inline float top_lane(vf a) { return _mm512_reduce_max_ps(a); }
  // Rows become columns.
  static inline void transpose(vf* r) {
    vf t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
      t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
      t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
      t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
      r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
      r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
      r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
      r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
  }
  // Lanes' 4-byte groups.
  static inline vi load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static inline vi low4(vi v) { return _mm512_and_si512(v, _mm512_set1_epi8(0x0f)); }
  static inline vi high4(vi v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(0x0f)); }
  // Adds 16 to the bytes of v whose bit is set; a tile's 64 bits lie at p, this part's from bit `at`.
  static inline vi add_bit4(vi v, const uint8_t* p, int at) {
    (void)at;
    __mmask64 bits;
    __builtin_memcpy(&bits, p, 8);
    return _mm512_mask_add_epi8(v, bits, v, _mm512_set1_epi8(16));
  }
  // Bits 2i, 2i + 1 of each byte of high become bits 4, 5 of the result's.
  template <int I>
  static inline vi add_bits45(vi v, vi high) {
    vi moved;
    if (I == 0) moved = _mm512_slli_epi16(high, 4);
    if (I == 1) moved = _mm512_slli_epi16(high, 2);
    if (I == 2) moved = high;
    if (I == 3) moved = _mm512_srli_epi16(high, 2);
    return _mm512_or_si512(v, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)));
  }
  static inline vi lookup16(vi index, const int8_t* table) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), index);
  }
  // Byte J of each lane as a float.
  template <int J>
  static inline vf byte_to_float(vi v) {
    vi b;
    if (J == 0) b = _mm512_and_si512(v, _mm512_set1_epi32(0xff));
    if (J == 1) b = _mm512_and_si512(_mm512_srli_epi32(v, 8), _mm512_set1_epi32(0xff));
    if (J == 2) b = _mm512_and_si512(_mm512_srli_epi32(v, 16), _mm512_set1_epi32(0xff));
    if (J == 3) b = _mm512_srli_epi32(v, 24);
    return _mm512_cvtepi32_ps(b);
  }
  // init + sum over groups [G0, G1) of unsigned w times signed x; Max is the largest w.
  template <int G0, int G1, int Max>
  static inline vi dot(const vi* w, const int8_t* x, int32_t init) {
    vi acc = _mm512_set1_epi32(init);
    for (int g = G0; g < G1; g++) {
      int32_t four;
      __builtin_memcpy(&four, x + 4 * g, 4);
      acc = _mm512_dpbusd_epi32(acc, w[g], _mm512_set1_epi32(four));
    }
    return acc;
  }
};

}  // namespace
