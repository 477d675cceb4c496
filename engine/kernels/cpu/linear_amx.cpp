// AMX: products of 16 activation rows and a tile of 16 weight rows in one instruction. A packed group (4 bytes along K of
// 16 weight rows, or a pair of bf16) is a row of the second operand as it lies.
//
// int8: sums of whole numbers are exact and are scaled in the same order as elsewhere, so the bits are those of the other
// instruction sets; rows that do not fill a tile are left to AVX-512. bf16: activations are rounded, and the order of
// additions depends on K alone, so a row's bits do not depend on the batch; every number of rows goes through tiles.
#include "isa_avx512-inl.h"
#include "linear-inl.h"

namespace {

// Tile registers. Macros, since the compiler's intrinsics write them into assembler text.
#define TILE_SUM 0
#define TILE_SUM2 1
#define TILE_X 2
#define TILE_X2 3
#define TILE_HALF_X 4
#define TILE_WEIGHTS 5
#define TILE_WEIGHTS2 6
#define TILE_HALF_WEIGHTS 7

struct TileShapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t column_bytes[16];
  uint8_t rows[16];
  void set(int tile, int row_count, int bytes) {
    rows[tile] = (uint8_t)row_count;
    column_bytes[tile] = (uint16_t)bytes;
  }
};

// Loading a tile does not tell the compiler that it reads memory.
#define STORES_ARE_DONE() __asm__ volatile("" ::: "memory")

// acc[m] += d * dx[m] * (sums[m] - offset * (sum of the row's activations)), and the block's minimum; 16 rows.
template <class F, int Part>
__attribute__((always_inline)) inline void scale_rows(const int32_t* sums, const BlockMeta* meta, int64_t k_blocks, const Block& b, Isa::vf* acc) {
  const Isa::vf d = F::kSplit && Part ? b.d_high : b.d;
#pragma GCC unroll 16
  for (int m = 0; m < 16; m++) {
    const BlockMeta& s = meta[m * k_blocks];
    Isa::vi sum = _mm512_load_si512(sums + 16 * m);
    if (F::kOffset) {
      const int32_t half = F::kSplit ? s.half[Part] : s.half[0] + s.half[1];
      sum = _mm512_add_epi32(sum, _mm512_set1_epi32(-F::kOffset * half));
    }
    acc[m] = Isa::fma(Isa::to_float(sum), Isa::mul(d, Isa::set(s.d)), acc[m]);
    if (F::kHasMin) acc[m] = Isa::fma(b.m, Isa::set(s.sum), acc[m]);
  }
}

// 16 rows of int8 activations.
template <class F>
inline void int8_tile16(const LinearArgs* a, const uint8_t* w, int64_t row, float* out) {
  alignas(64) uint8_t bytes[2][8 * 64];  // in turn, so that a block need not wait for the one before
  alignas(64) int32_t sums[4][16 * 16];
  Isa::vf acc[16];
#pragma GCC unroll 16
  for (int m = 0; m < 16; m++) acc[m] = Isa::zero();
  const size_t stride = (size_t)a->xq_stride;
  const int8_t* x = a->xq + row * a->xq_stride;
  const BlockMeta* meta = a->xmeta + row * a->k_blocks;
  for (int64_t kb = 0; kb < a->k_blocks; kb++) {
    Block b;
    fetch_ahead<F>(w, kb, 0);
    F::load(w, kb, 0, b);
    uint8_t* plain = bytes[kb & 1];
    int32_t* sum = sums[2 * (kb & 1)];
    for (int g = 0; g < 8; g++) _mm512_store_si512(plain + 64 * g, b.q[g]);
    STORES_ARE_DONE();
    if (F::kSplit) {
      _tile_loadd(TILE_HALF_WEIGHTS, plain, 64);
      _tile_loadd(TILE_HALF_X, x + 32 * kb, stride);
      _tile_zero(TILE_SUM);
      _tile_dpbsud(TILE_SUM, TILE_HALF_X, TILE_HALF_WEIGHTS);
      _tile_stored(TILE_SUM, sum, 64);
      _tile_loadd(TILE_HALF_WEIGHTS, plain + 256, 64);
      _tile_loadd(TILE_HALF_X, x + 32 * kb + 16, stride);
      _tile_zero(TILE_SUM2);
      _tile_dpbsud(TILE_SUM2, TILE_HALF_X, TILE_HALF_WEIGHTS);
      _tile_stored(TILE_SUM2, sum + 256, 64);
      scale_rows<F, 0>(sum, meta + kb, a->k_blocks, b, acc);
      scale_rows<F, 1>(sum + 256, meta + kb, a->k_blocks, b, acc);
    } else if (kb & 1) {
      _tile_loadd(TILE_WEIGHTS2, plain, 64);
      _tile_loadd(TILE_X2, x + 32 * kb, stride);
      _tile_zero(TILE_SUM2);
      _tile_dpbsud(TILE_SUM2, TILE_X2, TILE_WEIGHTS2);
      _tile_stored(TILE_SUM2, sum, 64);
      scale_rows<F, 0>(sum, meta + kb, a->k_blocks, b, acc);
    } else {
      _tile_loadd(TILE_WEIGHTS, plain, 64);
      _tile_loadd(TILE_X, x + 32 * kb, stride);
      _tile_zero(TILE_SUM);
      _tile_dpbsud(TILE_SUM, TILE_X, TILE_WEIGHTS);
      _tile_stored(TILE_SUM, sum, 64);
      scale_rows<F, 0>(sum, meta + kb, a->k_blocks, b, acc);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < 16; m++) Isa::store(out + kTileRows * m, acc[m]);
}

template <class F>
void int8_tile(const LinearArgs* a, int64_t tile, int64_t row, int count, float* out) {
  const uint8_t* w = a->weight + tile * a->tile_bytes;
  int m = 0;
  if (count >= 16) {
    TileShapes s = {};
    s.palette = 1;
    s.set(TILE_SUM, 16, 64);
    s.set(TILE_SUM2, 16, 64);
    s.set(TILE_X, 16, 32);
    s.set(TILE_X2, 16, 32);
    s.set(TILE_HALF_X, 16, 16);
    s.set(TILE_WEIGHTS, 8, 64);
    s.set(TILE_WEIGHTS2, 8, 64);
    s.set(TILE_HALF_WEIGHTS, 4, 64);
    _tile_loadconfig(&s);
    for (; m + 16 <= count; m += 16) int8_tile16<F>(a, w, row + m, out + kTileRows * m);
    _tile_release();
  }
  if (m < count) linear_tile<Int8Mode, F>(a, tile, row + m, count - m, out + kTileRows * m);
}

// Up to 32 rows of bf16 activations; 32 numbers along K a product.
void bf16_tile(const LinearArgs* a, int64_t tile, int64_t row, int count, float* out) {
  const uint8_t* w = a->weight + tile * a->tile_bytes;
  const int first = count < 16 ? count : 16, second = count - first;
  TileShapes s = {};
  s.palette = 1;
  s.set(TILE_SUM, first, 64);
  s.set(TILE_X, first, 64);
  s.set(TILE_WEIGHTS, 16, 64);
  if (second) {
    s.set(TILE_SUM2, second, 64);
    s.set(TILE_X2, second, 64);
  }
  STORES_ARE_DONE();
  _tile_loadconfig(&s);
  const size_t stride = (size_t)a->xb_stride * 2;
  const uint16_t* x = a->xb + row * a->xb_stride;
  const uint16_t* x2 = x + 16 * a->xb_stride;
  _tile_zero(TILE_SUM);
  if (second) _tile_zero(TILE_SUM2);
  for (int64_t kb = 0; kb < a->k_blocks; kb++) {
    fetch_ahead<Bf16>(w, kb, 0);
    _tile_loadd(TILE_WEIGHTS, w + 1024 * kb, 64);
    _tile_loadd(TILE_X, x + 32 * kb, stride);
    _tile_dpbf16ps(TILE_SUM, TILE_X, TILE_WEIGHTS);
    if (second) {
      _tile_loadd(TILE_X2, x2 + 32 * kb, stride);
      _tile_dpbf16ps(TILE_SUM2, TILE_X2, TILE_WEIGHTS);
    }
  }
  _tile_stored(TILE_SUM, out, 4 * kTileRows);
  if (second) _tile_stored(TILE_SUM2, out + 16 * kTileRows, 4 * kTileRows);
  _tile_release();
}

}  // namespace

extern "C" void bayard_fill_linear_amx(KernelTable* table) {
  fill_linear(table);
  table->linear_bf16 = bf16_tile;
  table->rows_int8 = table->rows_bf16 = 32;
  table->linear_int8[BAYARD_Q4_0] = int8_tile<Q4_0>;
  table->linear_int8[BAYARD_Q4_1] = int8_tile<Q4_1>;
  table->linear_int8[BAYARD_Q5_0] = int8_tile<Q5_0>;
  table->linear_int8[BAYARD_Q5_1] = int8_tile<Q5_1>;
  table->linear_int8[BAYARD_Q8_0] = int8_tile<Q8_0>;
  table->linear_int8[BAYARD_Q4_K] = int8_tile<Q4_K>;
  table->linear_int8[BAYARD_Q5_K] = int8_tile<Q5_K>;
  table->linear_int8[BAYARD_Q6_K] = int8_tile<Q6_K>;
  table->linear_int8[BAYARD_MXFP4] = int8_tile<MxFp4>;
}
