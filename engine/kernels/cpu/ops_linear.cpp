#include <algorithm>
#include <cstring>

#include "ops.h"
#include "weights.h"

namespace bayard {
namespace {

constexpr int64_t kOwnElements = 8192;        // prepared by each thread for itself rather than shared and awaited
constexpr int64_t kStripBytes = 20 * 1024;   // of prepared rows that pass a piece of weights together
constexpr int64_t kPieceBytes = 256 * 1024;  // of weights

// Where prepared rows lie: floats, or int8 and their scales.
struct Prepared {
  int64_t k_blocks, x_stride, q_stride;
  float* x;
  int8_t* q;
  BlockMeta* meta;
};

bool integer(const BayardLinear& op) { return op.mode == BAYARD_INT8 && format(op.weight->kind).integer; }

// Strides end in an odd number of cache lines, so that rows do not fall on the same sets.
int64_t prepared_row_bytes(const BayardLinear& op) {
  const int64_t blocks = (op.weight->k + kBlock - 1) / kBlock;
  const int64_t padded = blocks * kBlock;
  if (!integer(op)) return padded * 4 + 64;
  return padded + 64 + blocks * static_cast<int64_t>(sizeof(BlockMeta));
}

Prepared lay_out(const BayardLinear& op, int64_t m, uint8_t* memory) {
  Prepared p = {};
  p.k_blocks = (op.weight->k + kBlock - 1) / kBlock;
  const int64_t padded = p.k_blocks * kBlock;
  p.x_stride = padded + 16;
  p.q_stride = padded + 64;
  if (integer(op)) {
    p.q = reinterpret_cast<int8_t*>(memory);
    p.meta = reinterpret_cast<BlockMeta*>(memory + m * p.q_stride);
  } else {
    p.x = reinterpret_cast<float*>(memory);
  }
  return p;
}

// Rows [first, end) of x to their prepared place. `row` holds one row of floats.
void prepare(const BayardLinear& op, const Rows& x, int64_t first, int64_t end, const Prepared& p, float* row) {
  const KernelTable& t = kernels();
  const int64_t k = op.weight->k, padded = p.k_blocks * kBlock;
  for (int64_t m = first; m < end; m++) {
    const float* from = x.row(m);
    float* to = p.q ? row : p.x + m * p.x_stride;
    if (op.prepare == BAYARD_RMS_NORM) t.rms_norm_row(from, op.norm_weight, op.eps, k, to);
    else if (op.prepare == BAYARD_SILU_MUL) t.silu_mul_row(from, from + k, k, to);
    else if (op.prepare == BAYARD_GELU_MUL) t.gelu_mul_row(from, from + k, k, to);
    else if (p.q) to = const_cast<float*>(from);
    else std::memcpy(to, from, static_cast<size_t>(k) * 4);
    if (p.q) t.quantise_row(to, k, p.q + m * p.q_stride, p.meta + m * p.k_blocks);
    else std::fill(to + k, to + padded, 0.0f);
  }
}

void finish(const BayardLinear& op, const Rows* residual, const Rows& out, int64_t m, int64_t column, int count,
            const float* values) {
  float* to = out.row(m) + column;
  const float* add = residual ? residual->row(m) + column : nullptr;
  const float* bias = op.bias ? op.bias + column : nullptr;
  if (count == kTileRows && !bias) {
    if (add)
      for (int i = 0; i < kTileRows; i++) to[i] = values[i] + add[i];
    else
      std::memcpy(to, values, kTileRows * 4);
    return;
  }
  for (int i = 0; i < count; i++) {
    float v = values[i];
    if (bias) v += bias[i];
    if (add) v += add[i];
    to[i] = v;
  }
}

}  // namespace

int64_t piece(const Team& team, int64_t count, int64_t least) {
  return std::max(least, count / (8 * static_cast<int64_t>(team.size())));
}

int64_t linear_shared_bytes(const BayardLinear& op, int64_t m) { return m * prepared_row_bytes(op) + 64; }

void run_linear(Team& team, const BayardLinear& op, Rows x, const Rows* residual, Rows out, uint8_t* shared) {
  const BayardWeight& w = *op.weight;
  const int64_t m = x.count, row_bytes = prepared_row_bytes(op);
  if (m == 0) return;
  const bool own = m == 1 || m * w.k <= kOwnElements || team.size() == 1;
  const int64_t row_floats = (w.k + kBlock) * 4;
  uint8_t* mine = team.scratch(row_floats + 64 + (own ? m * row_bytes : 0));
  const Prepared p = lay_out(op, m, own ? mine + (row_floats + 63) / 64 * 64 : shared);
  if (own) {
    prepare(op, x, 0, m, p, reinterpret_cast<float*>(mine));
    // An output that is also an input must not change before all have read it.
    if (out.at == x.at) team.sync();
  } else {
    team.each(m, piece(team, m, 1), [&](int64_t first, int64_t end) {
      prepare(op, x, first, end, p, reinterpret_cast<float*>(mine));
    });
    team.sync();
  }

  LinearArgs args = {};
  args.weight = static_cast<const uint8_t*>(w.packed);
  args.tile_bytes = tile_bytes(w.kind, w.k);
  args.k_blocks = p.k_blocks;
  args.x = p.x;
  args.x_stride = p.x_stride;
  args.xq = p.q;
  args.xq_stride = p.q_stride;
  args.xmeta = p.meta;
  const LinearTileFn tile = p.q ? kernels().linear_int8[w.kind] : kernels().linear_exact[w.kind];

  // A piece of weights stays in the second-level cache while all rows pass it; a strip of rows stays in the first while
  // the piece's tiles pass it.
  const int64_t tiles = (w.n + kTileRows - 1) / kTileRows;
  const int64_t strip = std::max<int64_t>(1, kStripBytes / (kMaxRows * row_bytes)) * kMaxRows;
  const int64_t chunk = std::min(piece(team, tiles, 1), std::max<int64_t>(1, kPieceBytes / args.tile_bytes));
  const int64_t chunks = (tiles + chunk - 1) / chunk;
  // Few tiles for many threads: the rows are divided too.
  int64_t bands = 1;
  while (chunks * bands < 4 * team.size() && bands * 2 * strip <= m) bands *= 2;
  const int64_t band = ((m + bands - 1) / bands + kMaxRows - 1) / kMaxRows * kMaxRows;
  team.each(chunks * bands, 1, [&](int64_t first, int64_t end) {
    alignas(64) float values[kMaxRows * kTileRows];
    for (int64_t item = first; item < end; item++) {
      const int64_t m0 = item / chunks * band, m1 = std::min(m, m0 + band);
      const int64_t t0 = item % chunks * chunk, t1 = std::min(tiles, t0 + chunk);
      for (int64_t s0 = m0; s0 < m1; s0 += strip) {
        const int64_t s1 = std::min(m1, s0 + strip);
        for (int64_t t = t0; t < t1; t++) {
          const int count = static_cast<int>(std::min<int64_t>(kTileRows, w.n - t * kTileRows));
          for (int64_t row = s0; row < s1; row += kMaxRows) {
            const int rows = static_cast<int>(std::min<int64_t>(kMaxRows, s1 - row));
            tile(&args, t, row, rows, values);
            for (int i = 0; i < rows; i++)
              finish(op, residual, out, row + i, t * kTileRows, count, values + i * kTileRows);
          }
        }
      }
    }
  });
  team.sync();
}

}  // namespace bayard
