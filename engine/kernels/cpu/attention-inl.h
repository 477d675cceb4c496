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

inline Isa::vf load_kv(const uint8_t* row, int64_t d, int type) {
  if (type == BAYARD_F32) return Isa::load((const float*)row + d);
  if (type == BAYARD_F16) return Isa::load_half((const uint16_t*)row + d);
  return Isa::load_bf16((const uint16_t*)row + d);
}

// keys [first, end) of the tile from `tile` -> kt [D][32], v [32][D]; the other columns of kt are zero.
template <int Type>
void load_tile(const AttentionArgs* a, const AttentionTask* t, int64_t tile, int64_t first, int64_t end, float* kt,
               float* v) {
  const int dim = a->head_dim;
  for (int part = 0; part < kTile; part += Isa::kLanes) {
    const uint8_t* rows[Isa::kLanes];
    bool any = false;
    for (int i = 0; i < Isa::kLanes; i++) {
      const int64_t key = tile + part + i;
      rows[i] = key >= first && key < end ? kv_row(a, t, key) : nullptr;
      any |= rows[i] != nullptr;
    }
    for (int d = 0; d < dim; d += Isa::kLanes) {
      Isa::vf block[Isa::kLanes];
      for (int i = 0; i < Isa::kLanes; i++) block[i] = rows[i] ? load_kv(rows[i], d, Type) : Isa::zero();
      if (any) Isa::transpose(block);
      for (int i = 0; i < Isa::kLanes; i++) Isa::store(kt + (d + i) * kTile + part, block[i]);
    }
  }
  for (int64_t key = first; key < end; key++) {
    const uint8_t* row = kv_row(a, t, key) + a->v_offset;
    float* to = v + (key - tile) * dim;
    for (int d = 0; d < dim; d += Isa::kLanes) Isa::store(to + d, load_kv(row, d, Type));
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

// o [R][D] += p [R][32] times v over keys [first, end) of the tile.
template <int R, int C>
inline void value_rows(const float* p, const float* v, int dim, int first, int end, float* o) {
  for (int d = 0; d < dim; d += C * Isa::kLanes) {
    Isa::vf acc[R][C];
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) acc[r][c] = Isa::load(o + r * dim + d + c * Isa::kLanes);
    for (int key = first; key < end; key++) {
      for (int c = 0; c < C; c++) {
        const Isa::vf value = Isa::load(v + key * dim + d + c * Isa::kLanes);
        for (int r = 0; r < R; r++) acc[r][c] = Isa::fma(Isa::set(p[r * kTile + key]), value, acc[r][c]);
      }
    }
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) Isa::store(o + r * dim + d + c * Isa::kLanes, acc[r][c]);
  }
}

template <int R>
inline void value_rows_any(const float* p, const float* v, int dim, int first, int end, float* o) {
  if (dim % (2 * Isa::kLanes) == 0) value_rows<R, 2>(p, v, dim, first, end, o);
  else value_rows<R, 1>(p, v, dim, first, end, o);
}

// scores of one row's tile -> weights; lanes outside [low, high) weigh nothing. Returns the factor for what was summed.
inline float weigh(const AttentionArgs* a, float* s, int low, int high, float* m, float* l) {
  const Isa::vf scale = Isa::set(a->scale);
  for (int i = 0; i < kTileVecs; i++) {
    Isa::vf x = Isa::mul(Isa::load(s + i * Isa::kLanes), scale);
    if (a->softcap > 0) x = Isa::mul(tanh_of(Isa::div(x, Isa::set(a->softcap))), Isa::set(a->softcap));
    Isa::store(s + i * Isa::kLanes, x);
  }
  for (int i = 0; i < low; i++) s[i] = kNone;
  for (int i = high; i < kTile; i++) s[i] = kNone;
  Isa::vf top = Isa::set(*m);
  for (int i = 0; i < kTileVecs; i++) top = Isa::max(Isa::load(s + i * Isa::kLanes), top);
  float lanes[Isa::kLanes];
  Isa::store(lanes, top);
  float high_score = *m;
  for (int i = 0; i < Isa::kLanes; i++) high_score = lanes[i] > high_score ? lanes[i] : high_score;
  const Isa::vf shift = Isa::set(high_score);
  for (int i = 0; i < kTileVecs; i++)
    Isa::store(s + i * Isa::kLanes, exp_of(Isa::sub(Isa::load(s + i * Isa::kLanes), shift)));
  for (int i = 0; i < low; i++) s[i] = 0.0f;
  for (int i = high; i < kTile; i++) s[i] = 0.0f;
  V16 sum = load16(s);
  const V16 second = load16(s + 16);
  for (int i = 0; i < kParts; i++) sum.v[i] = Isa::add(sum.v[i], second.v[i]);
  const float factor = *m == high_score ? 1.0f : exp_one(*m - high_score);
  *l = *l * factor + sum16(sum);
  *m = high_score;
  return factor;
}

inline void scale_row(float* o, int dim, float factor) {
  if (factor == 1.0f) return;
  for (int d = 0; d < dim; d += Isa::kLanes) Isa::store(o + d, Isa::mul(Isa::load(o + d), Isa::set(factor)));
}

int64_t attention_scratch_floats(int rows, int group, int dim) {
  return 2 * (int64_t)kTile * dim + (int64_t)rows * group * kTile;
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
  for (int64_t tile = begin / kTile * kTile; tile < end; tile += kTile) {
    const int64_t first = tile > begin ? tile : begin, stop = tile + kTile < end ? tile + kTile : end;
    if (a->kv_type == BAYARD_F32) load_tile<BAYARD_F32>(a, t, tile, first, stop, kt, v);
    else if (a->kv_type == BAYARD_F16) load_tile<BAYARD_F16>(a, t, tile, first, stop, kt, v);
    else load_tile<BAYARD_BF16>(a, t, tile, first, stop, kt, v);
    for (int r = 0; r < total;) {
      const float* q[4];
      const int count = total - r >= 4 ? 4 : total - r;
      for (int i = 0; i < count; i++)
        q[i] = a->q + (t->row + (r + i) / group) * a->q_stride + (t->kv_head * group + (r + i) % group) * dim;
      float* s = scores + r * kTile;
      if (count == 4) score_rows<4>(q, kt, dim, s);
      else if (count == 3) score_rows<3>(q, kt, dim, s);
      else if (count == 2) score_rows<2>(q, kt, dim, s);
      else score_rows<1>(q, kt, dim, s);
      for (int i = 0; i < count; i++) {
        const int64_t position = t->position + (r + i) / group;
        int64_t low = first - tile, high = position + 1 < stop ? position + 1 - tile : stop - tile;
        if (a->window > 0 && position - a->window + 1 - tile > low) low = position - a->window + 1 - tile;
        if (low > kTile) low = kTile;
        if (high < low) high = low;
        const float factor = weigh(a, s + i * kTile, (int)low, (int)high, state->m + r + i, state->l + r + i);
        scale_row(state->o + (int64_t)(r + i) * dim, dim, factor);
      }
      float* o = state->o + (int64_t)r * dim;
      const int k0 = (int)(first - tile), k1 = (int)(stop - tile);
      if (count == 4) value_rows_any<4>(s, v, dim, k0, k1, o);
      else if (count == 3) value_rows_any<3>(s, v, dim, k0, k1, o);
      else if (count == 2) value_rows_any<2>(s, v, dim, k0, k1, o);
      else value_rows_any<1>(s, v, dim, k0, k1, o);
      r += count;
    }
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
