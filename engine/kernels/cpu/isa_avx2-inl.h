// AVX2, FMA and F16C: 8 lanes, int8 dot products through 16-bit sums.
#include <immintrin.h>
#include <stdint.h>

namespace {

struct Isa {
  static constexpr int kLanes = 8;
  static constexpr int kRowsInt8 = 4;
  static constexpr int kRowsExact = 4;
  static constexpr int kRowsScore = 2;
  using vf = __m256;
  using vi = __m256i;

  static inline vf load(const float* p) { return _mm256_loadu_ps(p); }
  static inline void store(float* p, vf v) { _mm256_storeu_ps(p, v); }
  static inline vf set(float x) { return _mm256_set1_ps(x); }
  static inline vf zero() { return _mm256_setzero_ps(); }
  static inline vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
  static inline vf fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
  static inline vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
  static inline vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
  static inline vf sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
  static inline vf div(vf a, vf b) { return _mm256_div_ps(a, b); }
  static inline vf max(vf a, vf b) { return _mm256_max_ps(a, b); }
  static inline vf min(vf a, vf b) { return _mm256_min_ps(a, b); }
  static inline vf abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static inline vf round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static inline vf to_float(vi a) { return _mm256_cvtepi32_ps(a); }
  static inline vi add_int(vi a, vi b) { return _mm256_add_epi32(a, b); }
  static inline vi to_int(vf a) { return _mm256_cvtps_epi32(a); }
  static inline vf exp2i(vi n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static inline vf where_less(vf a, vf b, vf v, vf w) {
    return _mm256_blendv_ps(w, v, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }

  static inline vf load_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
  static inline vf load_bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
  }
  // The first and the second numbers of 8 pairs.
  static inline vf low_bf16(const uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)p), 16));
  }
  static inline vf high_bf16(const uint8_t* p) {
    vi high = _mm256_and_si256(_mm256_loadu_si256((const __m256i*)p), _mm256_set1_epi32((int)0xffff0000));
    return _mm256_castsi256_ps(high);
  }
  static inline void store_half(uint16_t* p, vf v) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static inline void store_bf16(uint16_t* p, vf v) {
    vi bits = _mm256_castps_si256(v);
    vi odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    vi sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    vi nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    sum = _mm256_blendv_epi8(sum, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan);
    sum = _mm256_srli_epi32(sum, 16);
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    _mm_storeu_si128((__m128i*)p, words);
  }
  static inline vi widen_u8(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
  static inline vf load_u8(const uint8_t* p) { return _mm256_cvtepi32_ps(widen_u8(p)); }
  static inline vf load_s8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
  }
  static inline vf load_e8m0_half(const uint8_t* p) {
    vi e = widen_u8(p);
    vi bits = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    vi subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, subnormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
  }
  static inline float sum16(const vf* p) {
    __m256 a = _mm256_add_ps(p[0], p[1]);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }
  static inline float top_lane(vf a) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }
  static inline void transpose(vf* r) {
    vf t[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
      t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
      t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++) r[i] = t[i];
  }
  static inline vi load_bytes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
  static inline vi low4(vi v) { return _mm256_and_si256(v, _mm256_set1_epi8(0x0f)); }
  static inline vi high4(vi v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(0x0f)); }
  static inline vi add_bit4(vi v, const uint8_t* p, int at) {
    int32_t bits;
    __builtin_memcpy(&bits, p + at / 8, 4);
    const vi spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                       2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const vi select = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    vi set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), select), select);
    return _mm256_or_si256(v, _mm256_and_si256(set, _mm256_set1_epi8(16)));
  }
  template <int I>
  static inline vi add_bits45(vi v, vi high) {
    vi moved;
    if (I == 0) moved = _mm256_slli_epi16(high, 4);
    if (I == 1) moved = _mm256_slli_epi16(high, 2);
    if (I == 2) moved = high;
    if (I == 3) moved = _mm256_srli_epi16(high, 2);
    return _mm256_or_si256(v, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
  }
  static inline vi lookup16(vi index, const int8_t* table) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), index);
  }
  template <int J>
  static inline vf byte_to_float(vi v) {
    vi b;
    if (J == 0) b = _mm256_and_si256(v, _mm256_set1_epi32(0xff));
    if (J == 1) b = _mm256_and_si256(_mm256_srli_epi32(v, 8), _mm256_set1_epi32(0xff));
    if (J == 2) b = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(0xff));
    if (J == 3) b = _mm256_srli_epi32(v, 24);
    return _mm256_cvtepi32_ps(b);
  }
  // A pair of products is at most 2 * Max * 127: as many pairs as fit 15 bits are added before they are widened. Bytes
  // above 127 would not fit even one pair: they go back to signed, and their sign moves to x.
  template <int G0, int G1, int Max>
  static inline vi dot(const vi* w, const int8_t* x, int32_t init) {
    constexpr int kPairs = Max > 127 ? 1 : (32767 / (2 * Max * 127));
    constexpr int kRun = kPairs >= G1 - G0 ? G1 - G0 : kPairs >= 4 ? 4 : kPairs >= 2 ? 2 : 1;
    const vi ones = _mm256_set1_epi16(1);
    vi acc = Max > 127 ? _mm256_setzero_si256() : _mm256_set1_epi32(init);
    for (int g = G0; g < G1; g += kRun) {
      vi run = _mm256_setzero_si256();
      for (int i = g; i < g + kRun; i++) {
        int32_t four;
        __builtin_memcpy(&four, x + 4 * i, 4);
        vi xs = _mm256_set1_epi32(four);
        vi pair;
        if (Max > 127) {
          vi ws = _mm256_xor_si256(w[i], _mm256_set1_epi8((char)0x80));
          pair = _mm256_maddubs_epi16(_mm256_abs_epi8(ws), _mm256_sign_epi8(xs, ws));
        } else {
          pair = _mm256_maddubs_epi16(w[i], xs);
        }
        run = i == g ? pair : _mm256_add_epi16(run, pair);
      }
      acc = _mm256_add_epi32(acc, _mm256_madd_epi16(run, ones));
    }
    return acc;
  }
};

}  // namespace
