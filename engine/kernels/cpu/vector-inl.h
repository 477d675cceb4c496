// What is done to one row at a time: norms, gates, rotary embedding, quantising, storing.
#include "math-inl.h"

namespace {

// Thirty-two numbers from block b of k, zeros after the end.
inline const float* block_of(const float* x, int64_t k, int64_t b, float* padded) {
  const float* p = x + b * kBlock;
  if (k - b * kBlock >= kBlock) return p;
  for (int64_t i = 0; i < kBlock; i++) padded[i] = b * kBlock + i < k ? p[i] : 0.0f;
  return padded;
}

// The largest size among 32 numbers, no less than amax; fault becomes NaN as soon as one is NaN or infinite.
inline float largest(const float* p, float amax, float* fault) {
  const V16 first = load16(p), second = load16(p + 16);
  V16 top, probe;
  for (int i = 0; i < kParts; i++) {
    top.v[i] = Isa::max(Isa::abs(first.v[i]), Isa::abs(second.v[i]));
    probe.v[i] = Isa::fma(first.v[i], Isa::zero(), Isa::mul(second.v[i], Isa::zero()));
  }
  float lanes[16];
  store16(lanes, top);
  for (int i = 0; i < 16; i++) amax = lanes[i] > amax ? lanes[i] : amax;
  *fault += sum16(probe);
  return amax;
}

inline float inverse_of(float amax) { return amax < 1e-30f ? 0.0f : 127.0f / amax; }  // a tiny one's would overflow
inline float step_of(float amax, float fault) { return (amax < 1e-30f ? 0.0f : amax / 127.0f) + fault; }

inline void round_block(const float* p, float times, int8_t* q, BlockMeta* meta) {
  const V16 first = load16(p), second = load16(p + 16);
  const Isa::vf inverse = Isa::set(times), bound = Isa::set(127.0f), lower = Isa::set(-127.0f);
  int32_t numbers[kBlock];
  for (int i = 0; i < kParts; i++) {
    Isa::vi a = Isa::to_int(Isa::max(Isa::min(Isa::mul(first.v[i], inverse), bound), lower));
    Isa::vi c = Isa::to_int(Isa::max(Isa::min(Isa::mul(second.v[i], inverse), bound), lower));
    __builtin_memcpy(numbers + i * Isa::kLanes, &a, sizeof a);
    __builtin_memcpy(numbers + 16 + i * Isa::kLanes, &c, sizeof c);
  }
  int32_t half[2] = {0, 0};
  for (int i = 0; i < 16; i++) half[0] += numbers[i];
  for (int i = 16; i < 32; i++) half[1] += numbers[i];
  for (int i = 0; i < kBlock; i++) q[i] = (int8_t)numbers[i];
  meta->half[0] = half[0];
  meta->half[1] = half[1];
}

void quantise_row(const float* x, int64_t k, int8_t* q, BlockMeta* meta) {
  const int64_t blocks = (k + kBlock - 1) / kBlock;
  for (int64_t b = 0; b < blocks; b++) {
    float padded[kBlock], fault = 0.0f;
    const float* p = block_of(x, k, b, padded);
    const float amax = largest(p, 0.0f, &fault);
    round_block(p, inverse_of(amax), q + b * kBlock, meta + b);
    meta[b].d = step_of(amax, fault);
    meta[b].sum = meta[b].d * (float)(meta[b].half[0] + meta[b].half[1]);
  }
}

void quantise_whole_row(const float* x, int64_t k, int8_t* q, BlockMeta* meta) {
  const int64_t blocks = (k + kBlock - 1) / kBlock;
  float padded[kBlock], amax = 0.0f, fault = 0.0f;
  for (int64_t b = 0; b < blocks; b++) amax = largest(block_of(x, k, b, padded), amax, &fault);
  const float inverse = inverse_of(amax), d = step_of(amax, fault);
  int32_t total = 0;
  for (int64_t b = 0; b < blocks; b++) {
    round_block(block_of(x, k, b, padded), inverse, q + b * kBlock, meta + b);
    total += meta[b].half[0] + meta[b].half[1];
  }
  for (int64_t b = 0; b < blocks; b++) {
    meta[b].d = d;
    meta[b].sum = (float)total;
  }
}

void rms_norm_row(const float* x, const float* weight, float eps, int64_t k, float* out) {
  V16 acc;
  for (int i = 0; i < kParts; i++) acc.v[i] = Isa::zero();
  int64_t at = 0;
  for (; at + 16 <= k; at += 16) {
    const V16 a = load16(x + at);
    for (int i = 0; i < kParts; i++) acc.v[i] = Isa::fma(a.v[i], a.v[i], acc.v[i]);
  }
  if (at < k) {
    const V16 a = load_tail(x + at, k - at);
    for (int i = 0; i < kParts; i++) acc.v[i] = Isa::fma(a.v[i], a.v[i], acc.v[i]);
  }
  const float scale = 1.0f / __builtin_sqrtf(sum16(acc) / (float)k + eps);
  const Isa::vf s = Isa::set(scale);
  for (at = 0; at + Isa::kLanes <= k; at += Isa::kLanes)
    Isa::store(out + at, Isa::mul(Isa::mul(Isa::load(x + at), s), Isa::load(weight + at)));
  for (; at < k; at++) out[at] = x[at] * scale * weight[at];
}

void add_row(const float* a, const float* b, int64_t k, float* out) {
  for (int64_t i = 0; i < k; i++) out[i] = a[i] + b[i];
}

// of(gate, up): a gate's function of one, times the other.
struct Silu {
  static inline Isa::vf of(Isa::vf g, Isa::vf up) {
    return Isa::mul(Isa::div(g, Isa::add(Isa::set(1.0f), exp_of(Isa::sub(Isa::zero(), g)))), up);
  }
};
// The gate at most 7 and up within 7 of zero, + 1. NaN comes through: it is the second of what is compared.
struct SwigluClamped {
  static inline Isa::vf of(Isa::vf g, Isa::vf up) {
    const Isa::vf most = Isa::set(7.0f);
    g = Isa::min(most, g);
    up = Isa::max(Isa::set(-7.0f), Isa::min(most, up));
    const Isa::vf share = Isa::add(Isa::set(1.0f), exp_of(Isa::mul(g, Isa::set(-1.702f))));
    return Isa::mul(Isa::div(g, share), Isa::add(up, Isa::set(1.0f)));
  }
};
// The tanh form: g times the sigmoid of twice its argument.
struct Gelu {
  static inline Isa::vf of(Isa::vf g, Isa::vf up) {
    Isa::vf cube = Isa::mul(Isa::mul(g, g), g);
    Isa::vf z = Isa::mul(Isa::set(-1.5957691216057308f), Isa::fma(cube, Isa::set(0.044715f), g));
    return Isa::mul(Isa::div(g, Isa::add(Isa::set(1.0f), exp_of(z))), up);
  }
};

template <class Gate>
void gate_mul_row(const float* gate, const float* up, int64_t k, float* out) {
  int64_t at = 0;
  for (; at + 16 <= k; at += 16) {
    V16 g = load16(gate + at);
    const V16 u = load16(up + at);
    for (int i = 0; i < kParts; i++) g.v[i] = Gate::of(g.v[i], u.v[i]);
    store16(out + at, g);
  }
  if (at < k) {
    V16 g = load_tail(gate + at, k - at);
    const V16 u = load_tail(up + at, k - at);
    for (int i = 0; i < kParts; i++) g.v[i] = Gate::of(g.v[i], u.v[i]);
    store_tail(out + at, g, k - at);
  }
}

// cos_sin: half cosines, then half sines. Pairs dimension i with i + half.
void rope_head(float* head, const float* cos_sin, int64_t half) {
  int64_t i = 0;
  for (; i + Isa::kLanes <= half; i += Isa::kLanes) {
    const Isa::vf a = Isa::load(head + i), b = Isa::load(head + half + i);
    const Isa::vf c = Isa::load(cos_sin + i), s = Isa::load(cos_sin + half + i);
    Isa::store(head + i, Isa::sub(Isa::mul(a, c), Isa::mul(b, s)));
    Isa::store(head + half + i, Isa::add(Isa::mul(b, c), Isa::mul(a, s)));
  }
  for (; i < half; i++) {
    const float a = head[i], b = head[half + i], c = cos_sin[i], s = cos_sin[half + i];
    head[i] = a * c - b * s;
    head[half + i] = b * c + a * s;
  }
}

void store_row(const float* x, int64_t k, int type, void* out) {
  if (type == BAYARD_F32) {
    __builtin_memcpy(out, x, (uint64_t)k * 4);
    return;
  }
  uint16_t* to = (uint16_t*)out;
  for (int64_t at = 0; at < k; at += Isa::kLanes) {
    float padded[Isa::kLanes] = {};
    uint16_t words[Isa::kLanes];
    const bool whole = at + Isa::kLanes <= k;
    if (!whole)
      for (int64_t i = at; i < k; i++) padded[i - at] = x[i];
    const Isa::vf v = Isa::load(whole ? x + at : padded);
    uint16_t* place = whole ? to + at : words;
    if (type == BAYARD_F16) Isa::store_half(place, v);
    else Isa::store_bf16(place, v);
    if (!whole)
      for (int64_t i = at; i < k; i++) to[i] = words[i - at];
  }
}

// The first of the largest; -1 if any is NaN, or, where all must be finite, infinite.
// Divided by its scale, not multiplied with its inverse: what the plain form of such a cache does.
void store_scaled(const float* x, int64_t k, int8_t* q, float* scale) {
  const int64_t blocks = (k + kBlock - 1) / kBlock;
  float padded[kBlock], amax = 1e-20f, fault = 0.0f;
  for (int64_t b = 0; b < blocks; b++) amax = largest(block_of(x, k, b, padded), amax, &fault);
  const float d = *scale > 0.0f ? *scale : amax / 127.0f;
  const Isa::vf divisor = Isa::set(d), bound = Isa::set(127.0f), lower = Isa::set(-127.0f);
  for (int64_t b = 0; b < blocks; b++) {
    const float* p = block_of(x, k, b, padded);
    int32_t numbers[kBlock];
    for (int64_t at = 0; at < kBlock; at += Isa::kLanes) {
      const Isa::vi n = Isa::to_int(Isa::max(Isa::min(Isa::div(Isa::load(p + at), divisor), bound), lower));
      __builtin_memcpy(numbers + at, &n, sizeof n);
    }
    for (int64_t i = 0; i < kBlock && b * kBlock + i < k; i++) q[b * kBlock + i] = (int8_t)numbers[i];
  }
  *scale = d + fault;
}

int64_t argmax_row(const float* x, int64_t k, bool finite) {
  float best = x[0];
  int64_t place = 0;
  bool fault = false;
  for (int64_t at = 0; at < k; at += 256) {
    const int64_t end = at + 256 < k ? at + 256 : k;
    float top = x[at];
    bool nan = false, wide = false;
    for (int64_t i = at; i < end; i++) {
      nan |= x[i] != x[i];
      wide |= x[i] - x[i] != 0.0f;
      top = x[i] > top ? x[i] : top;
    }
    fault |= nan || (finite && wide);
    if (top > best) {
      best = top;
      for (int64_t i = at; i < end; i++)
        if (x[i] == top) {
          place = i;
          break;
        }
    }
  }
  if (!fault && best == x[0]) place = 0;
  return fault ? -1 : place;
}

void exp_row(const float* x, int64_t k, float top, float divisor, float* out) {
  const Isa::vf largest = Isa::set(top), by = Isa::set(divisor);
  for (int64_t at = 0; at < k; at += 16) {
    const int64_t left = k - at;
    V16 v = left >= 16 ? load16(x + at) : load_tail(x + at, left);
    for (int i = 0; i < kParts; i++) v.v[i] = exp_down(Isa::div(Isa::sub(v.v[i], largest), by));
    if (left >= 16) store16(out + at, v);
    else store_tail(out + at, v, left);
  }
}

void fill_vector(KernelTable* t) {
  t->quantise_row = quantise_row;
  t->quantise_whole_row = quantise_whole_row;
  t->rms_norm_row = rms_norm_row;
  t->add_row = add_row;
  t->silu_mul_row = gate_mul_row<Silu>;
  t->gelu_mul_row = gate_mul_row<Gelu>;
  t->swiglu_clamped_row = gate_mul_row<SwigluClamped>;
  t->rope_head = rope_head;
  t->store_row = store_row;
  t->store_scaled = store_scaled;
  t->argmax_row = argmax_row;
  t->exp_row = exp_row;
}

}  // namespace
