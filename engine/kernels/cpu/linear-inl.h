// One tile of 16 weight rows times a few activation rows. The order of additions of an output depends on K alone: the
// same bits come out whatever else is in the batch, and on every instruction set.
#include "formats-inl.h"

namespace {

template <class F, int J>
inline void exact_byte(const Block& b, int g, Isa::vf d, Isa::vf c, const float* const* x, int64_t k, int rows,
                       Isa::vf* sum) {
  Isa::vf w = Isa::fma(Isa::byte_to_float<J>(b.q[g]), d, c);  // exactly the dequantised weight
  for (int m = 0; m < rows; m++) sum[m] = Isa::fma(w, Isa::set(x[m][k + 4 * g + J]), sum[m]);
}

template <class F, int M>
inline void exact_rows(const LinearArgs* a, const uint8_t* tile, const float* const* x, int part, Isa::vf* acc) {
  for (int m = 0; m < M; m++) acc[m] = Isa::zero();
  for (int64_t kb = 0; kb < a->k_blocks; kb++) {
    Block b;
    if (M > 1) fetch_ahead<F>(tile, kb, part);
    F::load(tile, kb, part, b);
    const Isa::vf c = F::kHasMin ? b.m : Isa::mul(b.d, Isa::set(-(float)F::kOffset));
    const Isa::vf c_high = F::kSplit ? Isa::mul(b.d_high, Isa::set(-(float)F::kOffset)) : c;
    Isa::vf even[M], odd[M];
    for (int m = 0; m < M; m++) even[m] = odd[m] = Isa::zero();
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
      const Isa::vf dg = F::kSplit && g >= 4 ? b.d_high : b.d;
      const Isa::vf cg = F::kSplit && g >= 4 ? c_high : c;
      exact_byte<F, 0>(b, g, dg, cg, x, 32 * kb, M, even);
      exact_byte<F, 1>(b, g, dg, cg, x, 32 * kb, M, odd);
      exact_byte<F, 2>(b, g, dg, cg, x, 32 * kb, M, even);
      exact_byte<F, 3>(b, g, dg, cg, x, 32 * kb, M, odd);
    }
    for (int m = 0; m < M; m++) acc[m] = Isa::add(acc[m], Isa::add(even[m], odd[m]));
  }
}

template <class F, int M>
inline void float_rows(const LinearArgs* a, const uint8_t* tile, const float* const* x, int part, Isa::vf* acc) {
  for (int m = 0; m < M; m++) acc[m] = Isa::zero();
  for (int64_t kb = 0; kb < a->k_blocks; kb++) {
    Isa::vf even[M], odd[M];
    if (M > 1) fetch_ahead<F>(tile, kb, part);
    for (int m = 0; m < M; m++) even[m] = odd[m] = Isa::zero();
#pragma GCC unroll 4
    for (int64_t k = 32 * kb; k < 32 * kb + 32; k += 2) {
      const Isa::vf w0 = F::at(tile, k, part), w1 = F::at(tile, k + 1, part);
      for (int m = 0; m < M; m++) {
        even[m] = Isa::fma(w0, Isa::set(x[m][k]), even[m]);
        odd[m] = Isa::fma(w1, Isa::set(x[m][k + 1]), odd[m]);
      }
    }
    for (int m = 0; m < M; m++) acc[m] = Isa::add(acc[m], Isa::add(even[m], odd[m]));
  }
}

template <class F, int M>
inline void int8_rows(const LinearArgs* a, const uint8_t* tile, int64_t row, int part, Isa::vf* acc) {
  const int8_t* x = a->xq + row * a->xq_stride;
  const BlockMeta* meta = a->xmeta + row * a->k_blocks;
  for (int m = 0; m < M; m++) acc[m] = Isa::zero();
  for (int64_t kb = 0; kb < a->k_blocks; kb++) {
    Block b;
    if (M > 1) fetch_ahead<F>(tile, kb, part);
    F::load(tile, kb, part, b);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const int8_t* xb = x + m * a->xq_stride + 32 * kb;
      const BlockMeta& s = meta[m * a->k_blocks + kb];
      const Isa::vf dx = Isa::set(s.d);
      if (F::kSplit) {
        Isa::vi low = Isa::dot<0, 4, F::kMax>(b.q, xb, -F::kOffset * s.half[0]);
        Isa::vi high = Isa::dot<4, 8, F::kMax>(b.q, xb, -F::kOffset * s.half[1]);
        acc[m] = Isa::fma(Isa::to_float(low), Isa::mul(b.d, dx), acc[m]);
        acc[m] = Isa::fma(Isa::to_float(high), Isa::mul(b.d_high, dx), acc[m]);
      } else {
        Isa::vi sum = Isa::dot<0, 8, F::kMax>(b.q, xb, F::kOffset ? -F::kOffset * (s.half[0] + s.half[1]) : 0);
        acc[m] = Isa::fma(Isa::to_float(sum), Isa::mul(b.d, dx), acc[m]);
      }
      if (F::kHasMin) acc[m] = Isa::fma(b.m, Isa::set(s.sum), acc[m]);
    }
  }
}

// Scales that hold for all of K wait until its end: whole numbers are added until then, at most 2^31 for 2^16 columns.
template <class F, int M>
inline void whole_rows(const LinearArgs* a, const uint8_t* tile, int64_t row, int part, Isa::vf* acc) {
  const int8_t* x = a->xq + row * a->xq_stride;
  const BlockMeta* meta = a->xmeta + row * a->k_blocks;
  Isa::vi sum[M];
  Block b;
  for (int64_t kb = 0; kb < a->k_blocks; kb++) {
    if (M > 1) fetch_ahead<F>(tile, kb, part);
    F::load(tile, kb, part, b);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const BlockMeta& s = meta[m * a->k_blocks + kb];
      const int32_t offset = -F::kOffset * (s.half[0] + s.half[1]);
      const Isa::vi dot = Isa::dot<0, 8, F::kMax>(b.q, x + m * a->xq_stride + 32 * kb, offset);
      sum[m] = kb ? Isa::add_int(sum[m], dot) : dot;
    }
  }
  for (int m = 0; m < M; m++) acc[m] = Isa::mul(Isa::to_float(sum[m]), Isa::mul(b.d, Isa::set(meta[m * a->k_blocks].d)));
}

struct ExactMode {
  static constexpr int kRows = Isa::kRowsExact;
  template <class F, int M>
  static inline void rows(const LinearArgs* a, const uint8_t* tile, int64_t row, int part, Isa::vf* acc) {
    const float* x[M];
    for (int m = 0; m < M; m++) x[m] = a->x + (row + m) * a->x_stride;
    exact_rows<F, M>(a, tile, x, part, acc);
  }
};
struct FloatMode {
  static constexpr int kRows = Isa::kRowsExact;
  template <class F, int M>
  static inline void rows(const LinearArgs* a, const uint8_t* tile, int64_t row, int part, Isa::vf* acc) {
    const float* x[M];
    for (int m = 0; m < M; m++) x[m] = a->x + (row + m) * a->x_stride;
    float_rows<F, M>(a, tile, x, part, acc);
  }
};
struct Int8Mode {
  static constexpr int kRows = Isa::kRowsInt8;
  template <class F, int M>
  static inline void rows(const LinearArgs* a, const uint8_t* tile, int64_t row, int part, Isa::vf* acc) {
    int8_rows<F, M>(a, tile, row, part, acc);
  }
};

struct WholeMode {
  static constexpr int kRows = Isa::kRowsInt8;
  template <class F, int M>
  static inline void rows(const LinearArgs* a, const uint8_t* tile, int64_t row, int part, Isa::vf* acc) {
    whole_rows<F, M>(a, tile, row, part, acc);
  }
};

template <class Mode, class F, int M>
inline void tile_rows(const LinearArgs* a, const uint8_t* tile, int64_t row, float* out) {
  for (int part = 0; part < kTileRows; part += Isa::kLanes) {
    Isa::vf acc[M];
    Mode::template rows<F, M>(a, tile, row, part, acc);
    for (int m = 0; m < M; m++) Isa::store(out + kTileRows * m + part, acc[m]);
  }
}

// At most 8 rows: as many at once as registers hold, then the rest in halves.
template <class Mode, class F>
void linear_tile(const LinearArgs* a, int64_t tile, int64_t row, int count, float* out) {
  const uint8_t* w = a->weight + tile * a->tile_bytes;
  int m = 0;
  if (Mode::kRows >= 8)
    for (; m + 8 <= count; m += 8) tile_rows<Mode, F, (Mode::kRows >= 8 ? 8 : 1)>(a, w, row + m, out + kTileRows * m);
  for (; m + 4 <= count; m += 4) tile_rows<Mode, F, 4>(a, w, row + m, out + kTileRows * m);
  for (; m + 2 <= count; m += 2) tile_rows<Mode, F, 2>(a, w, row + m, out + kTileRows * m);
  for (; m < count; m++) tile_rows<Mode, F, 1>(a, w, row + m, out + kTileRows * m);
}

void fill_linear(KernelTable* t) {
  t->rows_exact = t->rows_int8 = 8;
  t->linear_exact[BAYARD_F32] = linear_tile<FloatMode, F32>;
  t->linear_exact[BAYARD_F16] = linear_tile<FloatMode, F16>;
  t->linear_exact[BAYARD_BF16] = linear_tile<FloatMode, Bf16>;
#define BAYARD_QUANTISED(kind, format)                       \
  t->linear_exact[kind] = linear_tile<ExactMode, format>;    \
  t->linear_int8[kind] = linear_tile<Int8Mode, format>
  BAYARD_QUANTISED(BAYARD_Q4_0, Q4_0);
  BAYARD_QUANTISED(BAYARD_Q4_1, Q4_1);
  BAYARD_QUANTISED(BAYARD_Q5_0, Q5_0);
  BAYARD_QUANTISED(BAYARD_Q5_1, Q5_1);
  BAYARD_QUANTISED(BAYARD_Q8_0, Q8_0);
  BAYARD_QUANTISED(BAYARD_Q4_K, Q4_K);
  BAYARD_QUANTISED(BAYARD_Q5_K, Q5_K);
  BAYARD_QUANTISED(BAYARD_Q6_K, Q6_K);
  BAYARD_QUANTISED(BAYARD_MXFP4, MxFp4);
  BAYARD_QUANTISED(BAYARD_I4_G128, I4Group);
  BAYARD_QUANTISED(BAYARD_I4Z_G128, I4ZeroGroup);
#undef BAYARD_QUANTISED
  t->linear_exact[BAYARD_I8_ROW] = linear_tile<ExactMode, I8Row>;
  t->linear_int8[BAYARD_I8_ROW] = linear_tile<WholeMode, I8Row>;
}

}  // namespace
