// bf16 products in AVX-512 registers: a packed pair of 16 weight rows is an operand as it lies. Activations are rounded;
// the order of additions depends on K alone, so a row's bits do not depend on the batch.
#include <immintrin.h>

#include "kernel_args.h"

namespace {

// Tiles x M sums in registers along K from step `first` to `end`; a step is 16 pairs.
template <int Tiles, int M>
inline void rows(const uint8_t* w, int64_t tile_bytes, const uint16_t* x, int64_t x_stride, int64_t first, int64_t end,
                 float* sums) {
  __m512 sum[Tiles][M];
#pragma GCC unroll 2
  for (int t = 0; t < Tiles; t++)
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
      sum[t][m] = first ? _mm512_loadu_ps(sums + (t * kMaxRows + m) * kTileRows) : _mm512_setzero_ps();
  for (int64_t pair = 16 * first; pair < 16 * end; pair++) {
    __m512i weights[Tiles];
#pragma GCC unroll 2
    for (int t = 0; t < Tiles; t++) weights[t] = _mm512_loadu_si512(w + t * tile_bytes + 64 * pair);
    // Far enough ahead for memory, near enough to stay in the first-level cache.
    if (M > 1)
      for (int t = 0; t < Tiles; t++) __builtin_prefetch(w + t * tile_bytes + 64 * pair + 2048);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      int32_t two;
      __builtin_memcpy(&two, x + m * x_stride + 2 * pair, 4);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 2
      for (int t = 0; t < Tiles; t++) sum[t][m] = _mm512_dpbf16_ps(sum[t][m], (__m512bh)weights[t], both);
    }
  }
#pragma GCC unroll 2
  for (int t = 0; t < Tiles; t++)
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) _mm512_storeu_ps(sums + (t * kMaxRows + m) * kTileRows, sum[t][m]);
}

template <int Tiles>
inline void all_rows(const LinearArgs* a, const uint8_t* w, int64_t row, int count, int64_t first, int64_t end,
                     float* sums) {
  const uint16_t* x = a->xb + row * a->xb_stride;
  const int64_t stride = a->xb_stride, bytes = a->tile_bytes;
  int m = 0;
  for (; m + 8 <= count; m += 8) rows<Tiles, 8>(w, bytes, x + m * stride, stride, first, end, sums + m * kTileRows);
  for (; m + 4 <= count; m += 4) rows<Tiles, 4>(w, bytes, x + m * stride, stride, first, end, sums + m * kTileRows);
  for (; m < count; m++) rows<Tiles, 1>(w, bytes, x + m * stride, stride, first, end, sums + m * kTileRows);
}

void bf16_pair(const LinearArgs* a, int64_t tile, int tiles, int64_t row, int count, int64_t first, int64_t end,
               float* sums) {
  const uint8_t* w = a->weight + tile * a->tile_bytes;
  if (tiles == 2) all_rows<2>(a, w, row, count, first, end, sums);
  else all_rows<1>(a, w, row, count, first, end, sums);
}

}  // namespace

extern "C" void bayard_fill_linear_avx512bf16(KernelTable* table) { table->linear_bf16 = bf16_pair; }
