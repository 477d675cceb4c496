// AMX: int8 products of 16 activation rows and a tile of 16 weight rows in one instruction. A packed group (4 bytes along
// K of 16 weight rows) is a row of the second operand as it lies. Sums of whole numbers are exact and are scaled in the
// same order as elsewhere, so the bits are those of the other instruction sets. Few rows and float activations are left
// to AVX-512.
#include "isa_avx512-inl.h"
#include "linear-inl.h"

namespace {

// Tile registers: sums, activations and half-block activations of rows 0..15 and of rows 16..31; weights and half a
// block of weights. Macros, since the compiler's intrinsics write them into assembler text.
#define TILE_SUM 0
#define TILE_SUM2 1
#define TILE_X 2
#define TILE_X2 3
#define TILE_HALF 4
#define TILE_HALF2 5
#define TILE_WEIGHTS 6
#define TILE_HALF_WEIGHTS 7
constexpr int kFewRows = 8;

template <int N>
struct Number {
  static constexpr int value = N;
};

struct TileShapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t column_bytes[16];
  uint8_t rows[16];
};

void set_shapes(int first, int second) {
  TileShapes s = {};
  s.palette = 1;
  const auto shape = [&](int tile, int rows, int column_bytes) {
    s.rows[tile] = static_cast<uint8_t>(rows);
    s.column_bytes[tile] = static_cast<uint16_t>(column_bytes);
  };
  shape(TILE_SUM, first, 64);
  shape(TILE_X, first, 32);
  shape(TILE_HALF, first, 16);
  if (second) {
    shape(TILE_SUM2, second, 64);
    shape(TILE_X2, second, 32);
    shape(TILE_HALF2, second, 16);
  }
  shape(TILE_WEIGHTS, 8, 64);
  shape(TILE_HALF_WEIGHTS, 4, 64);
  _tile_loadconfig(&s);
}

// out[m] += d * dx[m] * (sums[m] - offset * (sum of the row's activations)), and the block's minimum.
template <class F, int Part>
inline void scale_rows(const int32_t* sums, int count, const BlockMeta* meta, int64_t k_blocks, const Block& b,
                       float* out) {
  for (int m = 0; m < count; m++) {
    const BlockMeta& s = meta[m * k_blocks];
    const int32_t half = F::kSplit ? s.half[Part] : s.half[0] + s.half[1];
    const Isa::vi sum = _mm512_add_epi32(_mm512_loadu_si512(sums + 16 * m), _mm512_set1_epi32(-F::kOffset * half));
    Isa::vf acc = Isa::load(out + kTileRows * m);
    acc = Isa::fma(Isa::to_float(sum), Isa::mul(F::kSplit && Part ? b.d_high : b.d, Isa::set(s.d)), acc);
    if (F::kHasMin) acc = Isa::fma(b.m, Isa::set(s.sum), acc);
    Isa::store(out + kTileRows * m, acc);
  }
}

template <class F>
void amx_tile(const LinearArgs* a, int64_t tile, int64_t row, int count, float* out) {
  if (count < kFewRows) {
    linear_tile<Int8Mode, F>(a, tile, row, count, out);
    return;
  }
  const uint8_t* w = a->weight + tile * a->tile_bytes;
  const int first = count < 16 ? count : 16, second = count - first;
  set_shapes(first, second);
  alignas(64) uint8_t bytes[8 * 64];
  alignas(64) int32_t sums[2 * 16 * 16];
  for (int m = 0; m < count; m++) Isa::store(out + kTileRows * m, Isa::zero());
  const size_t stride = static_cast<size_t>(a->xq_stride);
  for (int64_t kb = 0; kb < a->k_blocks; kb++) {
    Block b;
    fetch_ahead<F>(w, kb, 0);
    F::load(w, kb, 0, b);
    for (int g = 0; g < 8; g++) _mm512_store_si512(bytes + 64 * g, b.q[g]);
    __asm__ volatile("" ::: "memory");  // loading a tile does not tell the compiler that it reads memory
    const int8_t* x = a->xq + row * a->xq_stride + 32 * kb;
    const int8_t* x2 = x + 16 * a->xq_stride;
    const BlockMeta* meta = a->xmeta + row * a->k_blocks + kb;
    const BlockMeta* meta2 = meta + 16 * a->k_blocks;
    if (F::kSplit) {
      const auto half = [&](auto part) {
        constexpr int kPart = decltype(part)::value;
        _tile_loadd(TILE_HALF_WEIGHTS, bytes + 256 * kPart, 64);
        _tile_zero(TILE_SUM);
        _tile_loadd(TILE_HALF, x + 16 * kPart, stride);
        _tile_dpbsud(TILE_SUM, TILE_HALF, TILE_HALF_WEIGHTS);
        _tile_stored(TILE_SUM, sums, 64);
        if (second) {
          _tile_zero(TILE_SUM2);
          _tile_loadd(TILE_HALF2, x2 + 16 * kPart, stride);
          _tile_dpbsud(TILE_SUM2, TILE_HALF2, TILE_HALF_WEIGHTS);
          _tile_stored(TILE_SUM2, sums + 256, 64);
        }
        scale_rows<F, kPart>(sums, first, meta, a->k_blocks, b, out);
        if (second) scale_rows<F, kPart>(sums + 256, second, meta2, a->k_blocks, b, out + 16 * kTileRows);
      };
      half(Number<0>());
      half(Number<1>());
      continue;
    }
    _tile_loadd(TILE_WEIGHTS, bytes, 64);
    _tile_zero(TILE_SUM);
    _tile_loadd(TILE_X, x, stride);
    _tile_dpbsud(TILE_SUM, TILE_X, TILE_WEIGHTS);
    _tile_stored(TILE_SUM, sums, 64);
    if (second) {
      _tile_zero(TILE_SUM2);
      _tile_loadd(TILE_X2, x2, stride);
      _tile_dpbsud(TILE_SUM2, TILE_X2, TILE_WEIGHTS);
      _tile_stored(TILE_SUM2, sums + 256, 64);
    }
    scale_rows<F, 0>(sums, first, meta, a->k_blocks, b, out);
    if (second) scale_rows<F, 0>(sums + 256, second, meta2, a->k_blocks, b, out + 16 * kTileRows);
  }
  _tile_release();
}

}  // namespace

extern "C" void bayard_fill_linear_amx(KernelTable* table) {
  fill_linear(table);
  table->rows_int8 = 32;
  table->linear_int8[BAYARD_Q4_0] = amx_tile<Q4_0>;
  table->linear_int8[BAYARD_Q4_1] = amx_tile<Q4_1>;
  table->linear_int8[BAYARD_Q5_0] = amx_tile<Q5_0>;
  table->linear_int8[BAYARD_Q5_1] = amx_tile<Q5_1>;
  table->linear_int8[BAYARD_Q8_0] = amx_tile<Q8_0>;
  table->linear_int8[BAYARD_Q4_K] = amx_tile<Q4_K>;
  table->linear_int8[BAYARD_Q5_K] = amx_tile<Q5_K>;
  table->linear_int8[BAYARD_Q6_K] = amx_tile<Q6_K>;
  table->linear_int8[BAYARD_MXFP4] = amx_tile<MxFp4>;
}
