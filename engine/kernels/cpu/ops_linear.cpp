#include "linear_work.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "weights.h"

namespace bayard {
namespace {

constexpr int64_t kOwnElements = 8192;        // prepared by each thread for itself rather than shared and awaited
constexpr int64_t kStripBytes = 20 * 1024;    // of prepared rows that pass a piece of weights together
constexpr int64_t kPieceBytes = 256 * 1024;   // of weights
// Tile registers multiply faster than the caches between cores deliver: a piece is so many tiles and rows that few bytes
// are read for a product, and passes K in runs of steps whose weights and rows stay in the second-level cache.
constexpr int64_t kWidePieceBytes = 1 << 20;  // of blocks' weights in tile registers, with many rows
constexpr int64_t kPairTiles = 16, kPairRows = 256, kPairSteps = 32;
constexpr int64_t kPairLeastRows = 8;         // of I8_ROW: below, the other form is as fast

bool integer(const BayardLinear& op) { return op.mode == BAYARD_INT8 && format(op.weight->kind).integer; }
bool rounded(const BayardLinear& op) {
  return op.mode == BAYARD_BF16_ROUNDED && op.weight->kind == BAYARD_BF16 && kernels().linear_bf16;
}
bool pairs(const BayardLinear& op, int64_t m) {
  if (rounded(op)) return true;
  return integer(op) && op.weight->kind == BAYARD_I8_ROW && kernels().linear_i8_row && m >= kPairLeastRows;
}

// 16 values of one row, then what is added to them.
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

struct Piece {
  int64_t tile, tile_end, row, row_end, first;  // first: the prepared row of row 0
};

// A piece of a product by the kernels that take two tiles at once. done(row, tile, values) has a tile's sums of a row.
template <class Done>
void multiply_pairs(const LinearArgs& args, const Piece& p, LinearPairFn kernel, int64_t blocks_a_step, const Done& done) {
  static thread_local std::vector<float> memory;
  const int64_t steps = (args.k_blocks + blocks_a_step - 1) / blocks_a_step;
  const int64_t columns = (p.tile_end - p.tile + 1) / 2, strips = (p.row_end - p.row + kMaxRows - 1) / kMaxRows;
  const int64_t run = strips == 1 ? steps : kPairSteps;  // one strip reads the weights once however K is cut
  const auto size = static_cast<size_t>(columns * strips * kPairSums + 16);
  if (memory.size() < size) memory.resize(size);
  float* sums = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  for (int64_t begin = 0; begin < steps; begin += run) {
    const int64_t end = std::min(steps, begin + run);
    for (int64_t i = 0; i < strips * columns; i++) {
      const int64_t row = p.row + i / columns * kMaxRows, at = p.tile + i % columns * 2;
      const int rows = static_cast<int>(std::min<int64_t>(kMaxRows, p.row_end - row));
      const int tiles = static_cast<int>(std::min<int64_t>(2, p.tile_end - at));
      float* values = sums + i * kPairSums;
      kernel(&args, at, tiles, p.first + row, rows, begin, end, values);
      if (end < steps) continue;
      for (int t = 0; t < tiles; t++)
        for (int m = 0; m < rows; m++) done(row + m, at + t, values + (t * kMaxRows + m) * kTileRows);
    }
  }
}

}  // namespace

int64_t piece(const Team& team, int64_t count, int64_t least) {
  return std::max(least, count / (8 * static_cast<int64_t>(team.size())));
}

// Strides end in an odd number of cache lines, so that rows do not fall on the same sets.
int64_t prepared_row_bytes(const BayardLinear& op) {
  const int64_t blocks = (op.weight->k + kBlock - 1) / kBlock;
  const int64_t padded = blocks * kBlock;
  if (rounded(op)) return padded * 2 + 64;
  if (!integer(op)) return padded * 4 + 64;
  return padded + 64 + blocks * static_cast<int64_t>(sizeof(BlockMeta));
}

Prepared lay_out(const BayardLinear& op, int64_t m, uint8_t* memory) {
  Prepared p = {};
  p.k_blocks = (op.weight->k + kBlock - 1) / kBlock;
  const int64_t padded = p.k_blocks * kBlock;
  p.x_stride = padded + 16;
  p.q_stride = padded + 64;
  p.b_stride = padded + 32;
  if (rounded(op)) {
    p.b = reinterpret_cast<uint16_t*>(memory);
  } else if (integer(op)) {
    p.q = reinterpret_cast<int8_t*>(memory);
    p.meta = reinterpret_cast<BlockMeta*>(memory + m * p.q_stride);
  } else {
    p.x = reinterpret_cast<float*>(memory);
  }
  return p;
}

void prepare_row(const BayardLinear& op, const float* from, const Prepared& p, int64_t to, float* scratch) {
  const KernelTable& t = kernels();
  const int64_t k = op.weight->k;
  const float* row = from;
  float* place = p.x ? p.x + to * p.x_stride : scratch;
  if (op.prepare == BAYARD_RMS_NORM) t.rms_norm_row(from, op.norm_weight, op.eps, k, place);
  else if (op.prepare != BAYARD_PLAIN) gate_row(op.prepare)(from, from + k, k, place);
  else if (p.x) std::memcpy(place, from, static_cast<size_t>(k) * 4);
  if (op.prepare != BAYARD_PLAIN) row = place;
  if (p.q) {
    const auto quantise = op.weight->kind == BAYARD_I8_ROW ? t.quantise_whole_row : t.quantise_row;
    quantise(row, k, p.q + to * p.q_stride, p.meta + to * p.k_blocks);
  } else if (p.b) {
    uint16_t* rounded_row = p.b + to * p.b_stride;
    t.store_row(row, k, BAYARD_BF16, rounded_row);
    std::fill(rounded_row + k, rounded_row + p.k_blocks * kBlock, static_cast<uint16_t>(0));
  } else {
    std::fill(place + k, place + p.k_blocks * kBlock, 0.0f);
  }
}

Cut cut(const Team& team, const BayardLinear& op, int64_t m, int64_t least_items) {
  // A piece of weights stays in the second-level cache while all rows pass it; a strip of rows stays in the first while
  // the piece's tiles pass it.
  Cut c = {};
  c.tiles = (op.weight->n + kTileRows - 1) / kTileRows;
  const KernelTable& t = kernels();
  c.pairs = pairs(op, m);
  c.rows = c.pairs ? kMaxRows : integer(op) ? t.rows_int8 : t.rows_exact;
  if (c.pairs) {
    c.strip = kMaxRows;
    c.chunk = kPairTiles;
    c.band = kPairRows;
    while (true) {
      c.chunks = (c.tiles + c.chunk - 1) / c.chunk;
      c.bands = (m + c.band - 1) / c.band;
      if (c.items() >= least_items || (c.chunk == 1 && c.band == kMaxRows)) return c;
      if (c.band > kMaxRows && m > kMaxRows && (c.band >= kTileRows * c.chunk || c.chunk == 1)) c.band /= 2;
      else if (c.chunk > 1) c.chunk /= 2;
      else c.band = kMaxRows;
    }
  }
  c.strip = std::max<int64_t>(1, kStripBytes / (c.rows * prepared_row_bytes(op))) * c.rows;
  const int64_t cached = kPieceBytes / tile_bytes(op.weight->kind, op.weight->k);
  c.chunk = std::min(piece(team, c.tiles, 1), std::max<int64_t>(1, cached));
  if (c.rows == kMaxRows && m > c.strip && least_items > 1) {
    const int64_t wide = kWidePieceBytes / tile_bytes(op.weight->kind, op.weight->k);
    const int64_t divided = c.tiles * (m / c.strip) / least_items;  // where rows are divided as far as they can be
    c.chunk = std::max(c.chunk, std::min(wide, divided));
  }
  c.chunks = (c.tiles + c.chunk - 1) / c.chunk;
  // Few tiles for many threads: the rows are divided too.
  c.bands = 1;
  while (c.items() < least_items && c.bands * 2 * c.strip <= m) c.bands *= 2;
  c.band = ((m + c.bands - 1) / c.bands + c.rows - 1) / c.rows * c.rows;
  return c;
}

void multiply(const BayardLinear& op, const Prepared& p, const Cut& c, int64_t item, int64_t first, int64_t m,
              const Rows* residual, const Rows& out) {
  const BayardWeight& w = *op.weight;
  LinearArgs args = {};
  args.weight = static_cast<const uint8_t*>(w.packed);
  args.tile_bytes = tile_bytes(w.kind, w.k);
  args.k_blocks = p.k_blocks;
  args.x = p.x;
  args.x_stride = p.x_stride;
  args.xq = p.q;
  args.xq_stride = p.q_stride;
  args.xmeta = p.meta;
  args.xb = p.b;
  args.xb_stride = p.b_stride;
  const KernelTable& t = kernels();
  const LinearTileFn tile = p.q ? t.linear_int8[w.kind] : t.linear_exact[w.kind];
  const int64_t m0 = item / c.chunks * c.band, m1 = std::min(m, m0 + c.band);
  const int64_t t0 = item % c.chunks * c.chunk, t1 = std::min(c.tiles, t0 + c.chunk);
  if (c.pairs) {
    multiply_pairs(args, {t0, t1, m0, m1, first}, p.b ? t.linear_bf16 : t.linear_i8_row, p.b ? 1 : 2,
                   [&](int64_t row, int64_t at, const float* values) {
                     const int count = static_cast<int>(std::min<int64_t>(kTileRows, w.n - at * kTileRows));
                     finish(op, residual, out, row, at * kTileRows, count, values);
                   });
    return;
  }
  alignas(64) float values[kMaxRows * kTileRows];
  for (int64_t s0 = m0; s0 < m1; s0 += c.strip) {
    const int64_t s1 = std::min(m1, s0 + c.strip);
    for (int64_t at = t0; at < t1; at++) {
      const int count = static_cast<int>(std::min<int64_t>(kTileRows, w.n - at * kTileRows));
      for (int64_t row = s0; row < s1; row += c.rows) {
        const int rows = static_cast<int>(std::min<int64_t>(c.rows, s1 - row));
        tile(&args, at, first + row, rows, values);
        for (int i = 0; i < rows; i++) finish(op, residual, out, row + i, at * kTileRows, count, values + i * kTileRows);
      }
    }
  }
}

int64_t linear_shared_bytes(const BayardLinear& op, int64_t m) { return m * prepared_row_bytes(op) + 64; }

void run_linear(Team& team, const BayardLinear& op, Rows x, const Rows* residual, Rows out, uint8_t* shared) {
  const BayardWeight& w = *op.weight;
  const int64_t m = x.count, row_bytes = prepared_row_bytes(op);
  if (m == 0) return;
  const bool own = m == 1 || m * w.k <= kOwnElements || team.size() == 1;
  const int64_t row_floats = (w.k + kBlock) * 4;
  uint8_t* mine = team.scratch(row_floats + 64 + (own ? m * row_bytes : 0));
  float* row = reinterpret_cast<float*>(mine);
  const Prepared p = lay_out(op, m, own ? mine + (row_floats + 63) / 64 * 64 : shared);
  if (own) {
    for (int64_t i = 0; i < m; i++) prepare_row(op, x.row(i), p, i, row);
    // An output that is also an input must not change before all have read it.
    if (out.at == x.at) team.sync();
  } else {
    team.each(m, piece(team, m, 1), [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; i++) prepare_row(op, x.row(i), p, i, row);
    });
    team.sync();
  }
  const Cut c = cut(team, op, m, 4 * team.size());
  team.each(c.items(), 1, [&](int64_t first, int64_t end) {
    for (int64_t item = first; item < end; item++) multiply(op, p, c, item, 0, m, residual, out);
  });
  team.sync();
}

}  // namespace bayard
