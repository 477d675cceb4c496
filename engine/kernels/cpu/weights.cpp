#include "weights.h"

#include <cmath>
#include <cstring>

namespace bayard {
namespace {

const Format kFormats[BAYARD_KINDS] = {
    {"F32", 1, 4, 0, 2048, false, 0, 0},      {"F16", 1, 2, 0, 1024, false, 0, 0},
    {"BF16", 1, 2, 0, 1024, false, 0, 0},     {"Q4_0", 32, 18, 0, 288, true, 0, 0},
    {"Q4_1", 32, 20, 0, 320, true, 0, 0},     {"Q5_0", 32, 22, 0, 352, true, 0, 0},
    {"Q5_1", 32, 24, 0, 384, true, 0, 0},     {"Q8_0", 32, 34, 0, 544, true, 0, 0},
    {"Q4_K", 256, 144, 64, 288, true, 0, 0},  {"Q5_K", 256, 176, 64, 352, true, 0, 0},
    {"Q6_K", 256, 210, 32, 416, true, 0, 0},  {"MXFP4", 32, 17, 0, 272, true, 0, 0},
    {"I8_ROW", 1, 1, 0, 512, true, 4, 64},    {"I4_G128", 128, 68, 128, 256, true, 0, 0},
    {"I4Z_G128", 128, 72, 256, 256, true, 0, 0},
};

// Thirty-two weights of one row: q as unsigned numbers, scales as the file has them.
struct Unpacked {
  uint8_t q[32];
  uint16_t d, m;       // fp16 bits
  uint8_t scale[2];    // K kinds: of the block, Q6_K of its halves; MXFP4: the exponent
  uint8_t minimum;
  float scale32, offset32;  // of kinds with float32 scales
};

uint16_t u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

float f32(const uint8_t* p) {
  float v;
  std::memcpy(&v, p, 4);
  return v;
}

void nibbles(const uint8_t* p, uint8_t* q) {
  for (int j = 0; j < 16; j++) {
    q[j] = p[j] & 15;
    q[16 + j] = p[j] >> 4;
  }
}

void fifth(const uint8_t* p, uint8_t* q) {
  uint32_t bits;
  std::memcpy(&bits, p, 4);
  for (int j = 0; j < 32; j++) q[j] |= static_cast<uint8_t>(((bits >> j) & 1) << 4);
}

void k_scales(const uint8_t* p, int s, Unpacked* u) {
  if (s < 4) {
    u->scale[0] = p[s] & 63;
    u->minimum = p[s + 4] & 63;
  } else {
    u->scale[0] = static_cast<uint8_t>((p[s + 4] & 15) | ((p[s - 4] >> 6) << 4));
    u->minimum = static_cast<uint8_t>((p[s + 4] >> 4) | ((p[s] >> 6) << 4));
  }
}

// Block kb of 32 of a row.
void unpack(int kind, const uint8_t* row, int64_t kb, Unpacked* u) {
  const Format& f = kFormats[kind];
  const uint8_t* p = row + kb * kBlock / f.block_elements * f.block_bytes;
  const int s = static_cast<int>(kb & 7);
  switch (kind) {
    case BAYARD_Q4_0:
      u->d = u16(p);
      nibbles(p + 2, u->q);
      break;
    case BAYARD_Q4_1:
      u->d = u16(p);
      u->m = u16(p + 2);
      nibbles(p + 4, u->q);
      break;
    case BAYARD_Q5_0:
      u->d = u16(p);
      nibbles(p + 6, u->q);
      fifth(p + 2, u->q);
      break;
    case BAYARD_Q5_1:
      u->d = u16(p);
      u->m = u16(p + 2);
      nibbles(p + 8, u->q);
      fifth(p + 4, u->q);
      break;
    case BAYARD_Q8_0:
      u->d = u16(p);
      for (int j = 0; j < 32; j++) u->q[j] = p[2 + j] ^ 0x80;
      break;
    case BAYARD_Q4_K:
    case BAYARD_Q5_K: {
      u->d = u16(p);
      u->m = u16(p + 2);
      k_scales(p + 4, s, u);
      const uint8_t* low = p + (kind == BAYARD_Q4_K ? 16 : 48) + 32 * (s / 2);
      for (int j = 0; j < 32; j++) u->q[j] = s % 2 ? low[j] >> 4 : low[j] & 15;
      if (kind == BAYARD_Q5_K)
        for (int j = 0; j < 32; j++) u->q[j] |= static_cast<uint8_t>(((p[16 + j] >> s) & 1) << 4);
      break;
    }
    case BAYARD_Q6_K: {
      const int half = s / 4, t = s % 4;
      const uint8_t* low = p + 64 * half + 32 * (t % 2);
      const uint8_t* high = p + 128 + 32 * half;
      for (int j = 0; j < 32; j++)
        u->q[j] = static_cast<uint8_t>((t < 2 ? low[j] & 15 : low[j] >> 4) | (((high[j] >> (2 * t)) & 3) << 4));
      u->scale[0] = p[192 + 2 * s];
      u->scale[1] = p[193 + 2 * s];
      u->d = u16(p + 208);
      break;
    }
    case BAYARD_I4_G128:
    case BAYARD_I4Z_G128:
      u->scale32 = f32(p);
      if (kind == BAYARD_I4Z_G128) u->offset32 = f32(p + 4);
      nibbles(p + f.block_bytes - 64 + 16 * (kb & 3), u->q);
      break;
    default:  // MXFP4
      u->scale[0] = p[0];
      nibbles(p + 1, u->q);
  }
}

void put_nibbles(const uint8_t* q, int lane, uint8_t* p) {
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++)
      p[64 * i + 4 * lane + j] = static_cast<uint8_t>((q[4 * i + j] & 15) | (q[16 + 4 * i + j] << 4));
}

void put_fifth(const uint8_t* q, int lane, uint8_t* p) {
  for (int g = 0; g < 8; g++) {
    int bits = 0;
    for (int j = 0; j < 4; j++) bits |= ((q[4 * g + j] >> 4) & 1) << j;
    p[8 * g + lane / 2] |= static_cast<uint8_t>(bits << (4 * (lane & 1)));
  }
}

void put_half(uint16_t bits, int lane, uint8_t* p) { std::memcpy(p + 2 * lane, &bits, 2); }

void pack_block(int kind, const Unpacked& u, int64_t kb, int lane, uint8_t* tile) {
  const Format& f = kFormats[kind];
  const int64_t run = f.packed_head + 8 * f.packed_block;
  uint8_t* head = tile + (kb >> 3) * run;
  uint8_t* p = f.packed_head ? head + f.packed_head + (kb & 7) * f.packed_block : tile + kb * f.packed_block;
  switch (kind) {
    case BAYARD_Q4_0:
    case BAYARD_Q4_1:
    case BAYARD_Q5_0:
    case BAYARD_Q5_1: {
      put_half(u.d, lane, p);
      p += 32;
      if (kind == BAYARD_Q4_1 || kind == BAYARD_Q5_1) {
        put_half(u.m, lane, p);
        p += 32;
      }
      if (kind == BAYARD_Q5_0 || kind == BAYARD_Q5_1) {
        put_fifth(u.q, lane, p);
        p += 64;
      }
      put_nibbles(u.q, lane, p);
      break;
    }
    case BAYARD_Q8_0:
      put_half(u.d, lane, p);
      for (int g = 0; g < 8; g++) std::memcpy(p + 32 + 64 * g + 4 * lane, u.q + 4 * g, 4);
      break;
    case BAYARD_Q4_K:
    case BAYARD_Q5_K:
      put_half(u.d, lane, head);
      put_half(u.m, lane, head + 32);
      p[lane] = u.scale[0];
      p[16 + lane] = u.minimum;
      if (kind == BAYARD_Q5_K) put_fifth(u.q, lane, p + 32);
      put_nibbles(u.q, lane, p + (kind == BAYARD_Q5_K ? 96 : 32));
      break;
    case BAYARD_Q6_K:
      put_half(u.d, lane, head);
      p[lane] = u.scale[0];
      p[16 + lane] = u.scale[1];
      for (int g = 0; g < 8; g++)
        for (int j = 0; j < 4; j++)
          p[32 + 64 * (g / 4) + 4 * lane + j] |= static_cast<uint8_t>((u.q[4 * g + j] >> 4) << (2 * (g % 4)));
      put_nibbles(u.q, lane, p + 160);
      break;
    case BAYARD_I4_G128:
    case BAYARD_I4Z_G128: {
      uint8_t* scale = head + 64 * ((kb >> 2) & 1) + 4 * lane;
      std::memcpy(scale, &u.scale32, 4);
      if (kind == BAYARD_I4Z_G128) std::memcpy(scale + 128, &u.offset32, 4);
      put_nibbles(u.q, lane, p);
      break;
    }
    default:  // MXFP4
      p[lane] = u.scale[0];
      put_nibbles(u.q, lane, p + 16);
  }
}

float half_to_float(uint16_t h) {
  const int exponent = (h >> 10) & 31, fraction = h & 0x3ff;
  float v = exponent == 31  ? (fraction ? NAN : INFINITY)
            : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                            : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return h & 0x8000 ? -v : v;
}

float bf16_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float v;
  std::memcpy(&v, &bits, 4);
  return v;
}

const float kE2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};

}  // namespace

const Format& format(int kind) { return kFormats[kind]; }

int64_t tile_bytes(int kind, int64_t k) {
  const Format& f = kFormats[kind];
  const int64_t blocks = (k + kBlock - 1) / kBlock;
  return f.packed_first + f.packed_head * ((blocks + 7) / 8) + f.packed_block * blocks;
}

void pack_tiles(int kind, const uint8_t* rows, int64_t row_stride, int64_t n, int64_t k, int64_t first, int64_t end,
                uint8_t* packed) {
  const Format& f = kFormats[kind];
  const int64_t bytes = tile_bytes(kind, k), blocks = (k + kBlock - 1) / kBlock;
  for (int64_t t = first; t < end; t++) {
    uint8_t* tile = packed + t * bytes;
    std::memset(tile, 0, static_cast<size_t>(bytes));
    for (int lane = 0; lane < kTileRows && t * kTileRows + lane < n; lane++) {
      const uint8_t* row = rows + (t * kTileRows + lane) * row_stride;
      if (!f.integer) {
        const int64_t size = f.block_bytes;
        const int64_t side = kind == BAYARD_BF16 ? 2 : 1;  // numbers of a row that stay neighbours
        for (int64_t i = 0; i < k; i++)
          std::memcpy(tile + ((i / side * kTileRows + lane) * side + i % side) * size, row + i * size,
                      static_cast<size_t>(size));
        continue;
      }
      if (kind == BAYARD_I8_ROW) {
        std::memcpy(tile + 4 * lane, row, 4);
        for (int64_t i = 0; i < k; i++) tile[f.packed_first + i / 4 * 64 + 4 * lane + i % 4] = row[f.row_head + i] ^ 0x80;
        continue;
      }
      Unpacked u = {};
      for (int64_t kb = 0; kb < blocks; kb++) {
        unpack(kind, row, kb, &u);
        pack_block(kind, u, kb, lane, tile);
      }
    }
  }
}

void decode_row(int kind, const uint8_t* row, int64_t k, float* out) {
  if (kind == BAYARD_F32) {
    std::memcpy(out, row, static_cast<size_t>(k) * 4);
    return;
  }
  if (kind == BAYARD_F16 || kind == BAYARD_BF16) {
    for (int64_t i = 0; i < k; i++)
      out[i] = kind == BAYARD_F16 ? half_to_float(u16(row + 2 * i)) : bf16_to_float(u16(row + 2 * i));
    return;
  }
  if (kind == BAYARD_I8_ROW) {
    float d;
    std::memcpy(&d, row, 4);
    for (int64_t i = 0; i < k; i++) out[i] = d * static_cast<float>(static_cast<int8_t>(row[4 + i]));
    return;
  }
  Unpacked u = {};
  for (int64_t kb = 0; kb < k / kBlock; kb++) {
    unpack(kind, row, kb, &u);
    float* to = out + kb * kBlock;
    const float d = half_to_float(u.d), m = half_to_float(u.m);
    switch (kind) {
      case BAYARD_Q4_0:
        for (int j = 0; j < 32; j++) to[j] = d * static_cast<float>(u.q[j] - 8);
        break;
      case BAYARD_Q5_0:
        for (int j = 0; j < 32; j++) to[j] = d * static_cast<float>(u.q[j] - 16);
        break;
      case BAYARD_Q8_0:
        for (int j = 0; j < 32; j++) to[j] = d * static_cast<float>(u.q[j] - 128);
        break;
      case BAYARD_Q4_1:
      case BAYARD_Q5_1:
        for (int j = 0; j < 32; j++) to[j] = d * static_cast<float>(u.q[j]) + m;
        break;
      case BAYARD_Q4_K:
      case BAYARD_Q5_K: {
        const float scale = d * static_cast<float>(u.scale[0]), low = m * static_cast<float>(u.minimum);
        for (int j = 0; j < 32; j++) to[j] = scale * static_cast<float>(u.q[j]) - low;
        break;
      }
      case BAYARD_Q6_K:
        for (int j = 0; j < 32; j++)
          to[j] = d * static_cast<float>(static_cast<int8_t>(u.scale[j / 16])) * static_cast<float>(u.q[j] - 32);
        break;
      case BAYARD_I4_G128:
        for (int j = 0; j < 32; j++) to[j] = u.scale32 * static_cast<float>(u.q[j] - 8);
        break;
      case BAYARD_I4Z_G128:
        for (int j = 0; j < 32; j++)
          to[j] = static_cast<float>(static_cast<double>(u.scale32) * u.q[j] + static_cast<double>(u.offset32));
        break;
      default:  // MXFP4
        for (int j = 0; j < 32; j++) to[j] = std::ldexp(kE2m1[u.q[j]], u.scale[0] - 127);
    }
  }
}

}  // namespace bayard
