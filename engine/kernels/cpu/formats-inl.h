// The packed form of each weight kind: how one block of a 16-row tile becomes numbers in lanes.
//
// A tile holds 16 rows; lane n is row n. A block is 32 weights along K of every row, in 8 groups of 4: a lane's group
// is 4 bytes, so 64 bytes hold a group of the whole tile. Four-bit kinds keep group i in the low and group i + 4 in the
// high nibbles of the i-th 64 bytes. Scales of the 16 rows lie side by side. Every number is (q - kOffset) * d + m,
// with q an unsigned byte. Written by weights.cpp. Any instruction set reads the same bytes.
#include "kernel_args.h"

namespace {

struct Block {
  Isa::vi q[8];
  Isa::vf d, d_high;  // scale of groups 0..3 and 4..7; d_high only where kSplit
  Isa::vf m;          // only where kHasMin
};

// The weights some blocks on, fetched while this block is computed with: with several rows to a tile (not with one) the
// CPU's own fetching ahead falls behind. kBytes is what a block takes, heads shared by several blocks spread over them.
template <class F>
__attribute__((always_inline)) inline void fetch_ahead(const uint8_t* tile, int64_t kb, int part) {
  constexpr int64_t kAhead = 2048;
  if (part) return;
  const uint8_t* p = tile + kb * F::kBytes + kAhead;
  for (int at = 0; at < F::kBytes; at += 64) __builtin_prefetch(p + at);
}

// part: first lane of the tile that this pass computes.
inline void nibbles(const uint8_t* p, int part, Isa::vi* q) {
  for (int i = 0; i < 4; i++) {
    Isa::vi v = Isa::load_bytes(p + 64 * i + 4 * part);
    q[i] = Isa::low4(v);
    q[i + 4] = Isa::high4(v);
  }
}
inline void fifth_bits(const uint8_t* p, int part, Isa::vi* q) {
  for (int g = 0; g < 8; g++) q[g] = Isa::add_bit4(q[g], p + 8 * g, 4 * part);
}
inline Isa::vf half_at(const uint8_t* p, int part) { return Isa::load_half((const uint16_t*)(p + 2 * part)); }

struct Q4_0 {
  static constexpr int kBytes = 288;
  static constexpr int kOffset = 8, kMax = 15;
  static constexpr bool kHasMin = false, kSplit = false;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* p = tile + kb * 288;
    b.d = half_at(p, part);
    nibbles(p + 32, part, b.q);
  }
};
struct Q4_1 {
  static constexpr int kBytes = 320;
  static constexpr int kOffset = 0, kMax = 15;
  static constexpr bool kHasMin = true, kSplit = false;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* p = tile + kb * 320;
    b.d = half_at(p, part);
    b.m = half_at(p + 32, part);
    nibbles(p + 64, part, b.q);
  }
};
struct Q5_0 {
  static constexpr int kBytes = 352;
  static constexpr int kOffset = 16, kMax = 31;
  static constexpr bool kHasMin = false, kSplit = false;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* p = tile + kb * 352;
    b.d = half_at(p, part);
    nibbles(p + 96, part, b.q);
    fifth_bits(p + 32, part, b.q);
  }
};
struct Q5_1 {
  static constexpr int kBytes = 384;
  static constexpr int kOffset = 0, kMax = 31;
  static constexpr bool kHasMin = true, kSplit = false;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* p = tile + kb * 384;
    b.d = half_at(p, part);
    b.m = half_at(p + 32, part);
    nibbles(p + 128, part, b.q);
    fifth_bits(p + 64, part, b.q);
  }
};
struct Q8_0 {
  static constexpr int kBytes = 544;
  static constexpr int kOffset = 128, kMax = 255;
  static constexpr bool kHasMin = false, kSplit = false;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* p = tile + kb * 544;
    b.d = half_at(p, part);
    for (int g = 0; g < 8; g++) b.q[g] = Isa::load_bytes(p + 32 + 64 * g + 4 * part);
  }
};
struct Q4_K {
  static constexpr int kBytes = 296;
  static constexpr int kOffset = 0, kMax = 15;
  static constexpr bool kHasMin = true, kSplit = false;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* super = tile + (kb >> 3) * 2368;
    const uint8_t* p = super + 64 + (kb & 7) * 288;
    b.d = Isa::mul(half_at(super, part), Isa::load_u8(p + part));
    b.m = Isa::sub(Isa::zero(), Isa::mul(half_at(super + 32, part), Isa::load_u8(p + 16 + part)));
    nibbles(p + 32, part, b.q);
  }
};
struct Q5_K {
  static constexpr int kBytes = 360;
  static constexpr int kOffset = 0, kMax = 31;
  static constexpr bool kHasMin = true, kSplit = false;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* super = tile + (kb >> 3) * 2880;
    const uint8_t* p = super + 64 + (kb & 7) * 352;
    b.d = Isa::mul(half_at(super, part), Isa::load_u8(p + part));
    b.m = Isa::sub(Isa::zero(), Isa::mul(half_at(super + 32, part), Isa::load_u8(p + 16 + part)));
    nibbles(p + 96, part, b.q);
    fifth_bits(p + 32, part, b.q);
  }
};
struct Q6_K {
  static constexpr int kBytes = 420;
  static constexpr int kOffset = 32, kMax = 63;
  static constexpr bool kHasMin = false, kSplit = true;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* super = tile + (kb >> 3) * 3360;
    const uint8_t* p = super + 32 + (kb & 7) * 416;
    Isa::vf d = half_at(super, part);
    b.d = Isa::mul(d, Isa::load_s8(p + part));
    b.d_high = Isa::mul(d, Isa::load_s8(p + 16 + part));
    nibbles(p + 160, part, b.q);
    Isa::vi low = Isa::load_bytes(p + 32 + 4 * part), high = Isa::load_bytes(p + 96 + 4 * part);
    b.q[0] = Isa::add_bits45<0>(b.q[0], low);
    b.q[1] = Isa::add_bits45<1>(b.q[1], low);
    b.q[2] = Isa::add_bits45<2>(b.q[2], low);
    b.q[3] = Isa::add_bits45<3>(b.q[3], low);
    b.q[4] = Isa::add_bits45<0>(b.q[4], high);
    b.q[5] = Isa::add_bits45<1>(b.q[5], high);
    b.q[6] = Isa::add_bits45<2>(b.q[6], high);
    b.q[7] = Isa::add_bits45<3>(b.q[7], high);
  }
};
// One scale a row: [16 float32 scales], then a block after the other.
struct I8Row {
  static constexpr int kBytes = 512;
  static constexpr int kOffset = 128, kMax = 255;
  static constexpr bool kHasMin = false, kSplit = false;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* p = tile + 64 + kb * 512;
    b.d = Isa::load((const float*)(tile + 4 * part));
    for (int g = 0; g < 8; g++) b.q[g] = Isa::load_bytes(p + 64 * g + 4 * part);
  }
};
// Four bits with float32 scales of 128 numbers: [scales of the first 128, of the second][offsets likewise], 8 blocks.
struct I4Group {
  static constexpr int kBytes = 272;
  static constexpr int kOffset = 8, kMax = 15;
  static constexpr bool kHasMin = false, kSplit = false;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* super = tile + (kb >> 3) * 2176;
    b.d = Isa::load((const float*)(super + 64 * ((kb >> 2) & 1) + 4 * part));
    nibbles(super + 128 + (kb & 7) * 256, part, b.q);
  }
};
struct I4ZeroGroup {
  static constexpr int kBytes = 288;
  static constexpr int kOffset = 0, kMax = 15;
  static constexpr bool kHasMin = true, kSplit = false;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* super = tile + (kb >> 3) * 2304;
    const uint8_t* scale = super + 64 * ((kb >> 2) & 1) + 4 * part;
    b.d = Isa::load((const float*)scale);
    b.m = Isa::load((const float*)(scale + 128));
    nibbles(super + 256 + (kb & 7) * 256, part, b.q);
  }
};
// The code book of E2M1, doubled and moved up by 12.
const int8_t kE2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
struct MxFp4 {
  static constexpr int kBytes = 272;
  static constexpr int kOffset = 12, kMax = 24;
  static constexpr bool kHasMin = false, kSplit = false;
  static inline void load(const uint8_t* tile, int64_t kb, int part, Block& b) {
    const uint8_t* p = tile + kb * 272;
    b.d = Isa::load_e8m0_half(p + part);
    nibbles(p + 16, part, b.q);
    for (int g = 0; g < 8; g++) b.q[g] = Isa::lookup16(b.q[g], kE2m1);
  }
};
// Float kinds: [k][16 rows], one row of 16 after the other; BF16 in pairs along k, [k / 2][16 rows][2].
struct F32 {
  static constexpr int kBytes = 2048;
  static inline Isa::vf at(const uint8_t* tile, int64_t k, int part) {
    return Isa::load((const float*)(tile + 64 * k + 4 * part));
  }
};
struct F16 {
  static constexpr int kBytes = 1024;
  static inline Isa::vf at(const uint8_t* tile, int64_t k, int part) { return half_at(tile + 32 * k, part); }
};
struct Bf16 {
  static constexpr int kBytes = 1024;
  static inline Isa::vf at(const uint8_t* tile, int64_t k, int part) {
    const uint8_t* pairs = tile + 64 * (k >> 1) + 4 * part;
    return k & 1 ? Isa::high_bf16(pairs) : Isa::low_bf16(pairs);
  }
};

}  // namespace
