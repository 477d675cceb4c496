// Sixteen lanes at a time, on whatever width the instruction set has: the order of every sum is that of 16 lanes, so
// that all instruction sets give the same bits.
#include "kernel_args.h"

namespace {

constexpr int kParts = 16 / Isa::kLanes;

struct V16 {
  Isa::vf v[kParts];
};

inline V16 load16(const float* p) {
  V16 r;
  for (int i = 0; i < kParts; i++) r.v[i] = Isa::load(p + i * Isa::kLanes);
  return r;
}
inline void store16(float* p, const V16& a) {
  for (int i = 0; i < kParts; i++) Isa::store(p + i * Isa::kLanes, a.v[i]);
}
// The first n (1..15) of 16 from p, the rest zero.
inline V16 load_tail(const float* p, int64_t n) {
  float padded[16] = {};
  for (int64_t i = 0; i < n; i++) padded[i] = p[i];
  return load16(padded);
}
inline void store_tail(float* p, const V16& a, int64_t n) {
  float padded[16];
  store16(padded, a);
  for (int64_t i = 0; i < n; i++) p[i] = padded[i];
}

inline float sum16(const V16& a) { return Isa::sum16(a.v); }

// e^r for |r| <= ln 2 / 2.
inline Isa::vf exp_near(Isa::vf r) {
  Isa::vf p = Isa::set(1.9875691500e-4f);
  p = Isa::fma(p, r, Isa::set(1.3981999507e-3f));
  p = Isa::fma(p, r, Isa::set(8.3334519073e-3f));
  p = Isa::fma(p, r, Isa::set(4.1665795894e-2f));
  p = Isa::fma(p, r, Isa::set(1.6666665459e-1f));
  p = Isa::fma(p, r, Isa::set(5.0000001201e-1f));
  return Isa::fma(Isa::mul(p, r), r, Isa::add(r, Isa::set(1.0f)));
}

// e^x to about one unit in the last place: 0 below -87.3, infinity above 88.7, NaN for NaN.
inline Isa::vf exp_of(Isa::vf x) {
  const Isa::vf low = Isa::set(-87.3f), high = Isa::set(88.73f);
  Isa::vf bounded = Isa::max(Isa::min(x, high), low);
  Isa::vf n = Isa::round(Isa::mul(bounded, Isa::set(1.44269504088896341f)));
  Isa::vf r = Isa::fnma(n, Isa::set(0.693359375f), x);
  r = Isa::fnma(n, Isa::set(-2.12194440e-4f), r);
  Isa::vf p = exp_near(r);
  // 2^n in two steps, so that n = 128 does not overflow before p below 1 brings it back.
  Isa::vf half = Isa::round(Isa::mul(n, Isa::set(0.5f)));
  p = Isa::mul(Isa::mul(p, Isa::exp2i(Isa::to_int(half))), Isa::exp2i(Isa::to_int(Isa::sub(n, half))));
  p = Isa::where_less(x, low, Isa::zero(), p);
  return Isa::where_less(high, x, Isa::set(__builtin_inff()), p);
}

// e^x for x <= 0 (or NaN): the same numbers, in fewer steps.
inline Isa::vf exp_down(Isa::vf x) {
  const Isa::vf low = Isa::set(-87.3f);
  Isa::vf n = Isa::round(Isa::mul(Isa::max(x, low), Isa::set(1.44269504088896341f)));
  Isa::vf r = Isa::fnma(n, Isa::set(0.693359375f), x);
  r = Isa::fnma(n, Isa::set(-2.12194440e-4f), r);
  return Isa::where_less(x, low, Isa::zero(), Isa::mul(exp_near(r), Isa::exp2i(Isa::to_int(n))));
}

inline float exp_one(float x) {
  float lanes[Isa::kLanes];
  Isa::store(lanes, exp_of(Isa::set(x)));
  return lanes[0];
}

inline Isa::vf tanh_of(Isa::vf y) {
  Isa::vf e = exp_of(Isa::add(y, y));
  return Isa::sub(Isa::set(1.0f), Isa::div(Isa::set(2.0f), Isa::add(Isa::set(1.0f), e)));
}

}  // namespace
