// The tile instructions in plain C++, for hosts without them: force-included before linear_amx.cpp.
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace {

struct EmulatedTile {
  int rows, column_bytes;
  uint8_t bytes[16][64];
};
thread_local EmulatedTile emulated[8];
thread_local bool emulated_shaped = false;

inline EmulatedTile& emulated_tile(int t) {
  if (!emulated_shaped) abort();  // used before its shape was set, or after it was given back
  return emulated[t];
}
inline void emulated_config(const void* at) {
  const uint8_t* p = static_cast<const uint8_t*>(at);
  if (p[0] != 1) abort();
  for (int t = 0; t < 8; t++) {
    uint16_t width;
    memcpy(&width, p + 16 + 2 * t, 2);
    if (width > 64 || p[48 + t] > 16) abort();
    emulated[t] = {};
    emulated[t].rows = p[48 + t];
    emulated[t].column_bytes = width;
  }
  emulated_shaped = true;
}
inline void emulated_load(int t, const void* at, size_t stride) {
  EmulatedTile& tile = emulated_tile(t);
  if (!tile.rows) abort();
  for (int r = 0; r < tile.rows; r++)
    memcpy(tile.bytes[r], static_cast<const uint8_t*>(at) + r * stride, static_cast<size_t>(tile.column_bytes));
}
inline void emulated_store(int t, void* at, size_t stride) {
  EmulatedTile& tile = emulated_tile(t);
  for (int r = 0; r < tile.rows; r++)
    memcpy(static_cast<uint8_t*>(at) + r * stride, tile.bytes[r], static_cast<size_t>(tile.column_bytes));
}
inline void emulated_zero(int t) { memset(emulated_tile(t).bytes, 0, sizeof(emulated[t].bytes)); }
// Signed bytes of a times unsigned bytes of b, four at a time.
inline void emulated_dot(int sum, int a, int b) {
  EmulatedTile &s = emulated_tile(sum), &x = emulated_tile(a), &w = emulated_tile(b);
  if (x.column_bytes / 4 != w.rows || s.rows != x.rows || s.column_bytes != w.column_bytes) abort();
  for (int m = 0; m < s.rows; m++)
    for (int n = 0; n < s.column_bytes / 4; n++) {
      int32_t total;
      memcpy(&total, s.bytes[m] + 4 * n, 4);
      for (int k = 0; k < w.rows; k++)
        for (int j = 0; j < 4; j++) total += static_cast<int8_t>(x.bytes[m][4 * k + j]) * w.bytes[k][4 * n + j];
      memcpy(s.bytes[m] + 4 * n, &total, 4);
    }
}

// Pairs of bf16, in float32.
inline void emulated_dot_bf16(int sum, int a, int b) {
  EmulatedTile &s = emulated_tile(sum), &x = emulated_tile(a), &w = emulated_tile(b);
  if (x.column_bytes / 4 != w.rows || s.rows != x.rows || s.column_bytes != w.column_bytes) abort();
  const auto number = [](const uint8_t* p) {
    const uint32_t bits = static_cast<uint32_t>(p[0] | p[1] << 8) << 16;
    float v;
    memcpy(&v, &bits, 4);
    return v;
  };
  for (int m = 0; m < s.rows; m++)
    for (int n = 0; n < s.column_bytes / 4; n++) {
      float total;
      memcpy(&total, s.bytes[m] + 4 * n, 4);
      for (int k = 0; k < w.rows; k++)
        for (int j = 0; j < 2; j++) total += number(x.bytes[m] + 4 * k + 2 * j) * number(w.bytes[k] + 4 * n + 2 * j);
      memcpy(s.bytes[m] + 4 * n, &total, 4);
    }
}

}  // namespace

#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#undef _tile_release
#define _tile_loadconfig(at) emulated_config(at)
#define _tile_loadd(t, at, stride) emulated_load(t, at, stride)
#define _tile_stored(t, at, stride) emulated_store(t, at, stride)
#define _tile_zero(t) emulated_zero(t)
#define _tile_dpbsud(s, a, b) emulated_dot(s, a, b)
#define _tile_dpbf16ps(s, a, b) emulated_dot_bf16(s, a, b)
#define _tile_release() (emulated_shaped = false)
