// Attention of a few query rows over one split of the keys. All query heads of a KV head go together, so each K and V
// row is read once for the group. Keys come in tiles of 32 that start at multiples of 32 from the sequence's first
// token, and splits start at multiples of kSplitTokens: what a row's result is made of does not depend on its company.
#include "math-inl.h"

namespace {

constexpr int kTile = 32;
constexpr int kTileVecs = kTile / Isa::kLanes;
constexpr float kNone = -1e30f;  // the maximum of no scores: finite, so that differences are numbers

inline const uint8_t* kv_row(const AttentionArgs* a, const AttentionTask* t, int64_t key) {
  const int64_t page = t->pages[key / a->page_tokens];
  return a->kv + page * a->page_stride + t->kv_head * a->head_stride + (key % a->page_tokens) * a->token_stride;
}

// The scale of an int8 row of K; that of V is v_offset further.
inline const uint8_t* kv_scale(const AttentionArgs* a, const AttentionTask* t, int64_t key) {
  const uint8_t* head = a->kv + t->pages[key / a->page_tokens] * a->page_stride + t->kv_head * a->head_stride;
  return head + a->page_tokens * a->token_stride + 4 * (key % a->page_tokens);
}
inline Isa::vf scale_at(const uint8_t* p) {
  float scale;
  __builtin_memcpy(&scale, p, 4);
  return Isa::set(scale);
}

inline Isa::vf load_kv(const uint8_t* row, int64_t d, int type) {
  if (type == BAYARD_F32) return Isa::load((const float*)row + d);
  if (type == BAYARD_F16) return Isa::load_half((const uint16_t*)row + d);
  if (type == BAYARD_I8_ROW) return Isa::load_s8(row + d);  // not yet scaled
  return Isa::load_bf16((const uint16_t*)row + d);
}

struct Tile {
  int64_t begin, first, stop;  // keys [first, stop) of the tile that begins at `begin`
  const uint8_t* value[kTile]; // where V of each of those keys is read
  int value_type;
};

// K of the tile's keys -> kt [D][32], the other columns zero; and where V is: in its pages, or copied to v [32][D] as
// floats if `copy`.
template <int Type>
void load_tile(const AttentionArgs* a, const AttentionTask* t, Tile* tile, bool copy, float* kt, float* v) {
  const int dim = a->head_dim;
  for (int part = 0; part < kTile; part += Isa::kLanes) {
    const uint8_t* rows[Isa::kLanes];
    bool any = false;
    for (int i = 0; i < Isa::kLanes; i++) {
      const int64_t key = tile->begin + part + i;
      rows[i] = key >= tile->first && key < tile->stop ? kv_row(a, t, key) : nullptr;
      tile->value[part + i] = rows[i] ? rows[i] + a->v_offset : nullptr;
      any |= rows[i] != nullptr;
    }
    for (int d = 0; d < dim; d += Isa::kLanes) {
      Isa::vf block[Isa::kLanes];
      for (int i = 0; i < Isa::kLanes; i++) {
        block[i] = rows[i] ? load_kv(rows[i], d, Type) : Isa::zero();
        if (Type == BAYARD_I8_ROW && rows[i])
          block[i] = Isa::mul(block[i], scale_at(kv_scale(a, t, tile->begin + part + i)));
      }
      if (any) Isa::transpose(block);
      for (int i = 0; i < Isa::kLanes; i++) Isa::store(kt + (d + i) * kTile + part, block[i]);
    }
  }
  tile->value_type = copy ? BAYARD_F32 : Type;
  if (!copy) return;
  for (int64_t key = tile->first - tile->begin; key < tile->stop - tile->begin; key++) {
    float* to = v + key * dim;
    Isa::vf scale = Isa::zero();
    if (Type == BAYARD_I8_ROW) scale = scale_at(kv_scale(a, t, tile->begin + key) + a->v_offset);
    for (int d = 0; d < dim; d += Isa::kLanes) {
      const Isa::vf value = load_kv(tile->value[key], d, Type);
      Isa::store(to + d, Type == BAYARD_I8_ROW ? Isa::mul(value, scale) : value);
    }
    tile->value[key] = (const uint8_t*)to;
  }
}

template <int R>
inline void score_rows(const float* const* q, const float* kt, int dim, float* scores) {
  Isa::vf acc[R][kTileVecs];
  for (int r = 0; r < R; r++)
    for (int i = 0; i < kTileVecs; i++) acc[r][i] = Isa::zero();
  for (int d = 0; d < dim; d++) {
    Isa::vf k[kTileVecs];
    for (int i = 0; i < kTileVecs; i++) k[i] = Isa::load(kt + d * kTile + i * Isa::kLanes);
    for (int r = 0; r < R; r++) {
      const Isa::vf x = Isa::set(q[r][d]);
      for (int i = 0; i < kTileVecs; i++) acc[r][i] = Isa::fma(x, k[i], acc[r][i]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int i = 0; i < kTileVecs; i++) Isa::store(scores + r * kTile + i * Isa::kLanes, acc[r][i]);
}

// o [R][D] = o * factor + p [R][32] times V of the tile's keys.
template <int R, int C, int Type>
inline void value_rows(const float* p, const Tile& tile, int dim, const float* factor, float* o) {
  const int first = (int)(tile.first - tile.begin), end = (int)(tile.stop - tile.begin);
  for (int d = 0; d < dim; d += C * Isa::kLanes) {
    Isa::vf acc[R][C];
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++)
        acc[r][c] = Isa::mul(Isa::load(o + r * dim + d + c * Isa::kLanes), Isa::set(factor[r]));
    for (int key = first; key < end; key++) {
      Isa::vf weight[R];
      for (int r = 0; r < R; r++) weight[r] = Isa::set(p[r * kTile + key]);
      for (int c = 0; c < C; c++) {
        const Isa::vf value = load_kv(tile.value[key], d + c * Isa::kLanes, Type);
        for (int r = 0; r < R; r++) acc[r][c] = Isa::fma(weight[r], value, acc[r][c]);
      }
    }
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) Isa::store(o + r * dim + d + c * Isa::kLanes, acc[r][c]);
  }
}

template <int R, int C>
inline void value_rows_of(const float* p, const Tile& tile, int dim, const float* factor, float* o) {
  if (tile.value_type == BAYARD_F32) value_rows<R, C, BAYARD_F32>(p, tile, dim, factor, o);
  else if (tile.value_type == BAYARD_F16) value_rows<R, C, BAYARD_F16>(p, tile, dim, factor, o);
  else value_rows<R, C, BAYARD_BF16>(p, tile, dim, factor, o);
}

// Scores of R rows -> their weights, which are 0 outside [low, high); m and l go on, factor is for what was summed.
template <int R>
inline void weigh(const AttentionArgs* a, float* scores, const int* low, const int* high, float* m, float* l,
                  float* factor) {
  float top[16] = {}, before[16] = {};
  const Isa::vf scale = Isa::set(a->scale);
  for (int r = 0; r < R; r++) {
    float* s = scores + r * kTile;
    Isa::vf x[kTileVecs];
    for (int i = 0; i < kTileVecs; i++) x[i] = Isa::mul(Isa::load(s + i * Isa::kLanes), scale);
    if (a->softcap > 0)
      for (int i = 0; i < kTileVecs; i++)
        x[i] = Isa::mul(tanh_of(Isa::div(x[i], Isa::set(a->softcap))), Isa::set(a->softcap));
    for (int i = 0; i < kTileVecs; i++) Isa::store(s + i * Isa::kLanes, x[i]);
    if (low[r] > 0 || high[r] < kTile) {
      for (int i = 0; i < low[r]; i++) s[i] = kNone;
      for (int i = high[r]; i < kTile; i++) s[i] = kNone;
      for (int i = 0; i < kTileVecs; i++) x[i] = Isa::load(s + i * Isa::kLanes);
    }
    Isa::vf most = Isa::set(m[r]);
    for (int i = 0; i < kTileVecs; i++) most = Isa::max(x[i], most);
    before[r] = m[r];
    top[r] = m[r] = Isa::top_lane(most);
  }
  V16 change = load16(before);
  const V16 now = load16(top);
  for (int i = 0; i < kParts; i++) change.v[i] = exp_down(Isa::sub(change.v[i], now.v[i]));
  store16(before, change);
  for (int r = 0; r < R; r++) {
    float* s = scores + r * kTile;
    const Isa::vf shift = Isa::set(top[r]);
    for (int i = 0; i < kTileVecs; i++)
      Isa::store(s + i * Isa::kLanes, exp_down(Isa::sub(Isa::load(s + i * Isa::kLanes), shift)));
    if (low[r] > 0 || high[r] < kTile) {
      for (int i = 0; i < low[r]; i++) s[i] = 0.0f;
      for (int i = high[r]; i < kTile; i++) s[i] = 0.0f;
    }
    V16 sum = load16(s);
    const V16 second = load16(s + 16);
    for (int i = 0; i < kParts; i++) sum.v[i] = Isa::add(sum.v[i], second.v[i]);
    factor[r] = before[r];
    l[r] = l[r] * before[r] + sum16(sum);
  }
}

// Query rows r .. r + R of the task against one tile.
template <int R>
void tile_rows(const AttentionArgs* a, const AttentionTask* t, const Tile& tile, const float* kt, float* scores, int r,
               AttentionState* state) {
  const int dim = a->head_dim, group = a->heads / a->kv_heads;
  const float* q[R];
  int low[R], high[R];
  for (int i = 0; i < R; i++) {
    const int row = (r + i) / group;
    q[i] = a->q + (t->row + row) * a->q_stride + (t->kv_head * group + (r + i) % group) * dim;
    const int64_t position = t->position + row;
    int64_t from = tile.first, to = position + 1 < tile.stop ? position + 1 : tile.stop;
    if (a->window > 0 && position - a->window + 1 > from) from = position - a->window + 1;
    if (from > tile.begin + kTile) from = tile.begin + kTile;
    if (to < from) to = from;
    low[i] = (int)(from - tile.begin);
    high[i] = (int)(to - tile.begin);
  }
  float factor[R];
  score_rows<R>(q, kt, dim, scores);
  weigh<R>(a, scores, low, high, state->m + r, state->l + r, factor);
  float* o = state->o + (int64_t)r * dim;
  constexpr int kWide = R <= 4 ? 4 : 2;
  if (dim % (kWide * Isa::kLanes) == 0) value_rows_of<R, kWide>(scores, tile, dim, factor, o);
  else value_rows_of<R, 1>(scores, tile, dim, factor, o);
}

// Pages lie anywhere: the CPU does not find the next tile by itself, and that is half the time of a long context. The
// tile may be of the next split: most often the same thread does that one too. Inlined by force: a function that only
// prefetches has no effect that GCC knows of, and its calls are dropped.
__attribute__((always_inline)) inline void prefetch_tile(const AttentionArgs* a, const AttentionTask* t, int64_t first,
                                                         int64_t end) {
  const int64_t bytes = (int64_t)a->head_dim * (a->kv_type == BAYARD_F32 ? 4 : a->kv_type == BAYARD_I8_ROW ? 1 : 2);
  for (int64_t key = first; key < end; key++) {
    const uint8_t* row = kv_row(a, t, key);
    for (int64_t at = 0; at < bytes; at += 64) {
      __builtin_prefetch(row + at);
      __builtin_prefetch(row + a->v_offset + at);
    }
  }
}

int64_t attention_scratch_floats(int rows, int group, int dim) {
  (void)rows;
  (void)group;
  return 2 * (int64_t)kTile * dim + 8 * kTile;
}

void attention_split(const AttentionArgs* a, const AttentionTask* t, float* scratch, AttentionState* state) {
  const int dim = a->head_dim, group = a->heads / a->kv_heads, total = t->rows * group;
  float* kt = scratch;
  float* v = kt + kTile * dim;
  float* scores = v + kTile * dim;
  for (int i = 0; i < total; i++) {
    state->m[i] = kNone;
    state->l[i] = 0.0f;
  }
  for (int64_t i = 0; i < (int64_t)total * dim; i++) state->o[i] = 0.0f;
  const int64_t last = t->position + t->rows - 1;
  int64_t begin = t->key_begin, end = t->key_end < last + 1 ? t->key_end : last + 1;
  if (a->window > 0 && t->position - a->window + 1 > begin) begin = t->position - a->window + 1;
  // V is read once for 8 rows: for more, or to be scaled, it is worth turning into floats first.
  const bool copy = a->kv_type == BAYARD_I8_ROW || (total > 8 && a->kv_type != BAYARD_F32);
  for (int64_t at = begin / kTile * kTile; at < end; at += kTile) {
    Tile tile;
    tile.begin = at;
    tile.first = at > begin ? at : begin;
    tile.stop = at + kTile < end ? at + kTile : end;
    if (a->kv_type == BAYARD_F32) load_tile<BAYARD_F32>(a, t, &tile, copy, kt, v);
    else if (a->kv_type == BAYARD_F16) load_tile<BAYARD_F16>(a, t, &tile, copy, kt, v);
    else if (a->kv_type == BAYARD_I8_ROW) load_tile<BAYARD_I8_ROW>(a, t, &tile, copy, kt, v);
    else load_tile<BAYARD_BF16>(a, t, &tile, copy, kt, v);
    prefetch_tile(a, t, tile.stop, tile.stop + kTile < last + 1 ? tile.stop + kTile : last + 1);
    int r = 0;
    constexpr int kMost = Isa::kRowsScore;
    for (; kMost >= 8 && r + 8 <= total; r += 8) tile_rows<(kMost >= 8 ? 8 : 1)>(a, t, tile, kt, scores, r, state);
    for (; kMost >= 4 && r + 4 <= total; r += 4) tile_rows<(kMost >= 4 ? 4 : 1)>(a, t, tile, kt, scores, r, state);
    for (; kMost >= 4 && r + 3 == total; r += 3) tile_rows<(kMost >= 4 ? 3 : 1)>(a, t, tile, kt, scores, r, state);
    for (; r + 2 <= total; r += 2) tile_rows<2>(a, t, tile, kt, scores, r, state);
    for (; r < total; r++) tile_rows<1>(a, t, tile, kt, scores, r, state);
  }
}

// Adds the second state to the first.
void attention_merge(float* m, float* l, float* o, const float* m2, const float* l2, const float* o2, int dim) {
  const float top = *m > *m2 ? *m : *m2;
  const float f = exp_one(*m - top), g = exp_one(*m2 - top);
  *l = __builtin_fmaf(*l2, g, *l * f);
  const Isa::vf fv = Isa::set(f), gv = Isa::set(g);
  for (int d = 0; d < dim; d += Isa::kLanes)
    Isa::store(o + d, Isa::fma(Isa::load(o2 + d), gv, Isa::mul(Isa::load(o + d), fv)));
  *m = top;
}

void fill_attention(KernelTable* t) {
  t->attention_scratch_floats = attention_scratch_floats;
  t->attention_split = attention_split;
  t->attention_merge = attention_merge;
}

}  // namespace
