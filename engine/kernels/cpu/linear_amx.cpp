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

// Two tiles of weights and twice 16 rows at once: each of the four operands is read once for two products. Registers 0 to
// 3 hold the sums (row half, then weight tile), 4 and 5 activations, 6 and 7 weights.
inline void shape_pair(int tiles, int count) {
  const int low = count < 16 ? count : 16, high = count - low;
  TileShapes s = {};
  s.palette = 1;
  for (int t = 0; t < tiles; t++) {
    s.set(t, low, 64);
    s.set(6 + t, 16, 64);
    if (high) s.set(2 + t, high, 64);
  }
  s.set(4, low, 64);
  if (high) s.set(5, high, 64);
  STORES_ARE_DONE();
  _tile_loadconfig(&s);
}

inline void load_sums(int tiles, bool high, const float* sums) {
  _tile_loadd(0, sums, 64);
  if (high) _tile_loadd(2, sums + 256, 64);
  if (tiles == 1) return;
  _tile_loadd(1, sums + 512, 64);
  if (high) _tile_loadd(3, sums + 768, 64);
}

inline void store_sums(int tiles, bool high, float* sums) {
  _tile_stored(0, sums, 64);
  if (high) _tile_stored(2, sums + 256, 64);
  if (tiles == 1) return;
  _tile_stored(1, sums + 512, 64);
  if (high) _tile_stored(3, sums + 768, 64);
}

// The products of one step: 16 groups of 4 bytes along K. x and w point at the step's first byte; a macro, since a tile
// register's number is part of the instruction.
#define PAIR_STEP(product, x, x_stride, w, w2)         \
  do {                                                 \
    _tile_loadd(6, w, 64);                             \
    _tile_loadd(4, x, x_stride);                       \
    product(0, 4, 6);                                  \
    if (tiles == 2) {                                  \
      _tile_loadd(7, w2, 64);                          \
      product(1, 4, 7);                                \
    }                                                  \
    if (high) {                                        \
      _tile_loadd(5, (x) + 16 * (x_stride), x_stride); \
      product(2, 5, 6);                                \
      if (tiles == 2) product(3, 5, 7);                \
    }                                                  \
  } while (0)

void bf16_pair(const LinearArgs* a, int64_t tile, int tiles, int64_t row, int count, int64_t first, int64_t end,
               float* sums) {
  const bool high = count > 16;
  const int64_t stride = 2 * a->xb_stride;
  const uint8_t* x = (const uint8_t*)(a->xb + row * a->xb_stride);
  const uint8_t *w = a->weight + tile * a->tile_bytes, *w2 = w + a->tile_bytes;
  shape_pair(tiles, count);
  if (first) load_sums(tiles, high, sums);
  for (int64_t at = first; at < end; at++)
    PAIR_STEP(_tile_dpbf16ps, x + 64 * at, stride, w + 1024 * at, w2 + 1024 * at);
  store_sums(tiles, high, sums);
  _tile_release();
}

// int8 with one scale a row: sums of whole numbers along all of K, then scaled.
void i8_row_pair(const LinearArgs* a, int64_t tile, int tiles, int64_t row, int count, int64_t first, int64_t end,
                 float* sums) {
  const bool high = count > 16;
  const int64_t stride = a->xq_stride, whole = a->k_blocks / 2, steps = (a->k_blocks + 1) / 2;
  const uint8_t* x = (const uint8_t*)(a->xq + row * stride);
  const uint8_t *w = a->weight + tile * a->tile_bytes + 64, *w2 = w + a->tile_bytes;
  shape_pair(tiles, count);
  if (first) load_sums(tiles, high, sums);
  for (int64_t at = first; at < end && at < whole; at++)
    PAIR_STEP(_tile_dpbsud, x + 64 * at, stride, w + 1024 * at, w2 + 1024 * at);
  if (end == steps && steps > whole) {  // half a step is left: zeros fill it
    alignas(64) uint8_t rest[2][1024] = {}, rows[2 * 1024] = {};
    for (int t = 0; t < tiles; t++) __builtin_memcpy(rest[t], (t ? w2 : w) + 1024 * whole, 512);
    for (int m = 0; m < count; m++) __builtin_memcpy(rows + 64 * m, x + m * stride + 64 * whole, 32);
    STORES_ARE_DONE();
    PAIR_STEP(_tile_dpbsud, rows, (int64_t)64, rest[0], rest[1]);
  }
  store_sums(tiles, high, sums);
  _tile_release();
  if (end < steps) return;
  STORES_ARE_DONE();
  const BlockMeta* meta = a->xmeta + row * a->k_blocks;
  for (int t = 0; t < tiles; t++) {
    const Isa::vf d = Isa::load((const float*)((t ? w2 : w) - 64));
    for (int m = 0; m < count; m++) {
      float* at = sums + 16 * (kMaxRows * t + m);
      const BlockMeta& s = meta[m * a->k_blocks];
      const Isa::vi sum = _mm512_add_epi32(_mm512_loadu_si512(at), _mm512_set1_epi32(-128 * (int32_t)s.sum));
      Isa::store(at, Isa::mul(Isa::to_float(sum), Isa::mul(d, Isa::set(s.d))));
    }
  }
}

}  // namespace

extern "C" void bayard_fill_linear_amx(KernelTable* table) {
  fill_linear(table);
  table->linear_bf16 = bf16_pair;
  table->linear_i8_row = i8_row_pair;
  table->rows_int8 = 32;
  table->linear_int8[BAYARD_Q4_0] = int8_tile<Q4_0>;
  table->linear_int8[BAYARD_Q4_1] = int8_tile<Q4_1>;
  table->linear_int8[BAYARD_Q5_0] = int8_tile<Q5_0>;
  table->linear_int8[BAYARD_Q5_1] = int8_tile<Q5_1>;
  table->linear_int8[BAYARD_Q8_0] = int8_tile<Q8_0>;
  table->linear_int8[BAYARD_Q4_K] = int8_tile<Q4_K>;
  table->linear_int8[BAYARD_Q5_K] = int8_tile<Q5_K>;
  table->linear_int8[BAYARD_Q6_K] = int8_tile<Q6_K>;
  table->linear_int8[BAYARD_MXFP4] = int8_tile<MxFp4>;
  table->linear_int8[BAYARD_I4_G128] = int8_tile<I4Group>;
  table->linear_int8[BAYARD_I4Z_G128] = int8_tile<I4ZeroGroup>;
}
