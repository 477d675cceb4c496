// Runs every kernel of libbayard_cpu on buffers of exactly the bytes it may touch, so that AddressSanitizer and
// UndefinedBehaviorSanitizer see what it does: all kinds, instruction sets and ragged shapes. Results of the instruction
// sets must be equal bit for bit. Prints what failed; exit status 1 if anything did.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "bayard_cpu.h"
#include "kernel_args.h"

namespace {

int g_failures = 0;
uint32_t g_seed = 1;

uint32_t random_bits() {
  g_seed = g_seed * 1664525u + 1013904223u;
  return g_seed >> 8;
}
float random_number() { return static_cast<float>(random_bits() % 20001) / 10000.0f - 1.0f; }

void expect(bool good, const char* what, const char* isa, int a, int b) {
  if (good) return;
  std::printf("%s on %s with %d, %d\n", what, isa, a, b);
  g_failures++;
}

// Exactly count values, at an odd place: 4 bytes past an aligned one.
template <class T>
class Exact {
 public:
  explicit Exact(size_t count) : count_(count), memory_(static_cast<char*>(std::malloc(4 + count * sizeof(T)))) {}
  ~Exact() { std::free(memory_); }
  T* at() { return reinterpret_cast<T*>(memory_ + 4); }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  size_t count_;
  char* memory_;
};

void fill(Exact<float>& x, size_t count) {
  for (size_t i = 0; i < count; i++) x.at()[i] = random_number();
}

struct Kind {
  int kind, block_elements, block_bytes;
  int scales[2];  // where fp16 scales lie in a block, -1 none
};
const Kind kKinds[] = {
    {BAYARD_F32, 1, 4, {-1, -1}},     {BAYARD_F16, 1, 2, {0, -1}},      {BAYARD_BF16, 1, 2, {0, -1}},
    {BAYARD_Q4_0, 32, 18, {0, -1}},   {BAYARD_Q4_1, 32, 20, {0, 2}},    {BAYARD_Q5_0, 32, 22, {0, -1}},
    {BAYARD_Q5_1, 32, 24, {0, 2}},    {BAYARD_Q8_0, 32, 34, {0, -1}},   {BAYARD_Q4_K, 256, 144, {0, 2}},
    {BAYARD_Q5_K, 256, 176, {0, 2}},  {BAYARD_Q6_K, 256, 210, {208, -1}}, {BAYARD_MXFP4, 32, 17, {-1, -1}},
    {BAYARD_I8_ROW, 1, 1, {-1, -1}},  {BAYARD_I4_G128, 128, 68, {-1, -1}}, {BAYARD_I4Z_G128, 128, 72, {-1, -1}},
};

// Activations rounded to bf16 give what exact ones give, nearly, and the same alone as among others.
void check_rounded(const char* isa, const BayardWeight& weight, const float* x, int m, float* out) {
  const int n = static_cast<int>(weight.n), k = static_cast<int>(weight.k);
  const BayardLinear exact = {&weight, nullptr, nullptr, 0, BAYARD_EXACT, BAYARD_PLAIN, 0};
  const BayardLinear rounded = {&weight, nullptr, nullptr, 0, BAYARD_BF16_ROUNDED, BAYARD_PLAIN, 0};
  std::vector<float> truth(static_cast<size_t>(m) * n), alone(static_cast<size_t>(n));
  expect(bayard_linear(&exact, x, k, m, nullptr, 0, truth.data(), n) == 0, "exact", isa, n, m);
  expect(bayard_linear(&rounded, x, k, m, nullptr, 0, out, n) == 0, "rounded", isa, n, m);
  double error = 0, size = 0;
  for (size_t i = 0; i < truth.size(); i++) {
    if (!(truth[i] - truth[i] == 0)) continue;  // random bits are not always numbers
    error += (truth[i] - out[i]) * (truth[i] - out[i]);
    size += truth[i] * truth[i];
  }
  // A few sums may cancel to nothing; many do not.
  if (truth.size() >= 16) expect(error <= 1e-4 * size, "rounded activations", isa, n, m);
  for (int row : {0, m - 1}) {
    const float* one = x + static_cast<int64_t>(row) * k;
    expect(bayard_linear(&rounded, one, k, 1, nullptr, 0, alone.data(), n) == 0, "one row", isa, n, m);
    const float* among = out + static_cast<int64_t>(row) * n;
    expect(std::memcmp(alone.data(), among, static_cast<size_t>(n) * 4) == 0, "a row alone", isa, n, m);
  }
}

void check_linear(const char* isa, const Kind& kind, int n, int k, int m, std::vector<float>* first) {
  const bool whole = kind.kind == BAYARD_I8_ROW;
  const size_t row_bytes = static_cast<size_t>(k / kind.block_elements * kind.block_bytes + (whole ? 4 : 0));
  Exact<uint8_t> rows(row_bytes * static_cast<size_t>(n));
  for (size_t i = 0; i < rows.bytes(); i++) rows.at()[i] = static_cast<uint8_t>(random_bits());
  for (int i = 0; whole && i < n; i++) {
    const float scale = random_number() * 0.01f;
    std::memcpy(rows.at() + static_cast<size_t>(i) * row_bytes, &scale, 4);
  }
  for (size_t b = 0; !whole && b < rows.bytes(); b += static_cast<size_t>(kind.block_bytes)) {
    for (int at : kind.scales) {
      const uint16_t small = static_cast<uint16_t>(0x2c00 | (random_bits() & 0x83ff));  // about 0.06 to 0.12
      if (at >= 0) std::memcpy(rows.at() + b + at, &small, 2);
    }
    if (kind.kind == BAYARD_MXFP4) rows.at()[b] = static_cast<uint8_t>(120 + random_bits() % 10);
    for (int at = 0; kind.block_elements == 128 && at < kind.block_bytes - 64; at += 4) {
      const float small = random_number() * 0.01f;
      std::memcpy(rows.at() + b + at, &small, 4);
    }
    const float plain = random_number();
    if (kind.kind == BAYARD_F32) std::memcpy(rows.at() + b, &plain, 4);
  }
  Exact<uint8_t> packed(static_cast<size_t>(bayard_packed_bytes(kind.kind, n, k)));
  expect(bayard_pack(kind.kind, rows.at(), static_cast<int64_t>(row_bytes), n, k, packed.at()) == 0, "pack", isa, n, k);
  Exact<float> x(static_cast<size_t>(m) * k), bias(n), out(static_cast<size_t>(m) * n), norm(k);
  fill(x, static_cast<size_t>(m) * k);
  fill(bias, n);
  fill(norm, k);
  const BayardWeight weight = {packed.at(), n, k, kind.kind, 0};
  if (kind.kind == BAYARD_BF16) check_rounded(isa, weight, x.at(), m, out.at());
  for (int mode : {BAYARD_EXACT, BAYARD_INT8}) {
    for (int prepare : {BAYARD_PLAIN, BAYARD_RMS_NORM}) {
      const BayardLinear op = {&weight, bias.at(), norm.at(), 1e-5f, mode, prepare, 0};
      const int code = bayard_linear(&op, x.at(), k, m, nullptr, 0, out.at(), n);
      expect(code == 0, "linear", isa, n, m);
      const float* values = out.at();
      first->insert(first->end(), values, values + static_cast<size_t>(m) * n);
    }
  }
  Exact<float> table(static_cast<size_t>(2) * k);
  const int64_t ids[2] = {n - 1, 0};
  expect(bayard_embedding(kind.kind, rows.at(), static_cast<int64_t>(row_bytes), n, k, ids, 2, table.at(), k) == 0,
         "embedding", isa, n, k);
}

void check_attention(const char* isa, int type, int dim, int context, int rows, int64_t window, std::vector<float>* all) {
  const int kv_heads = 2, heads = 6, page_tokens = 16, pages = (context + page_tokens - 1) / page_tokens;
  const size_t size = type == BAYARD_F32 ? 4 : type == BAYARD_I8_ROW ? 1 : 2, scales = type == BAYARD_I8_ROW ? 4 : 0;
  const size_t head = page_tokens * (static_cast<size_t>(dim) * size + scales), plane = kv_heads * head, page = 2 * plane;
  Exact<uint8_t> memory(page * static_cast<size_t>(pages));
  std::memset(memory.at(), 0, memory.bytes());
  BayardKv kv = {memory.at(), static_cast<int64_t>(page), static_cast<int64_t>(plane), static_cast<int64_t>(head),
                 static_cast<int64_t>(dim * size), pages, type, page_tokens};
  Exact<int32_t> table(static_cast<size_t>(pages));
  for (int i = 0; i < pages; i++) table.at()[i] = pages - 1 - i;
  const size_t width = static_cast<size_t>(kv_heads * dim);
  Exact<float> k(width * context), v(width * context);
  fill(k, width * context);
  fill(v, width * context);
  Exact<int64_t> to(static_cast<size_t>(context) + 1), offset(static_cast<size_t>(context) + 1);
  std::vector<int64_t> page_of(context), place_of(context);
  for (int i = 0; i < context; i++) {
    page_of[i] = pages - 1 - i / page_tokens;
    place_of[i] = i % page_tokens;
  }
  expect(bayard_kv_write(k.at(), static_cast<int64_t>(width), v.at(), static_cast<int64_t>(width), context, kv_heads, dim,
                         &kv, page_of.data(), place_of.data(), nullptr) == 0, "kv_write", isa, dim, context);
  const size_t q_width = static_cast<size_t>(heads * dim);
  Exact<float> q(q_width * rows), out(q_width * rows), sinks(heads);
  fill(q, q_width * rows);
  fill(sinks, heads);
  const int32_t starts[2] = {0, rows}, contexts[1] = {context};
  const BayardAttention op = {heads, kv_heads, dim, 0.125f, window ? 20.0f : 0.0f, 0, window,
                              window ? sinks.at() : nullptr};
  expect(bayard_attention(&op, q.at(), static_cast<int64_t>(q_width), &kv, table.at(), pages, pages, starts, contexts, 1,
                          rows, out.at(), static_cast<int64_t>(q_width)) == 0, "attention", isa, context, rows);
  all->insert(all->end(), out.at(), out.at() + q_width * rows);
}

void check_experts(const char* isa, int kind, int block_bytes, int tokens, std::vector<float>* all) {
  const int experts = 3, hidden = 32, inner = 64, choices = 2;
  const auto each_up = static_cast<size_t>(bayard_packed_bytes(kind, 2 * inner, hidden));
  const auto each_down = static_cast<size_t>(bayard_packed_bytes(kind, hidden, inner));
  Exact<uint8_t> rows(static_cast<size_t>(2 * inner * hidden / 32 * block_bytes)), up(experts * each_up), down(experts * each_down);
  for (int e = 0; e < experts; e++) {
    for (size_t i = 0; i < rows.bytes(); i++) rows.at()[i] = static_cast<uint8_t>(random_bits());
    for (size_t b = 0; b < rows.bytes(); b += static_cast<size_t>(block_bytes)) std::memset(rows.at() + b, 0x2c, 2);
    expect(bayard_pack(kind, rows.at(), hidden / 32 * block_bytes, 2 * inner, hidden, up.at() + e * each_up) == 0, "pack", isa, e, 0);
    expect(bayard_pack(kind, rows.at(), inner / 32 * block_bytes, hidden, inner, down.at() + e * each_down) == 0, "pack", isa, e, 1);
  }
  Exact<float> x(static_cast<size_t>(tokens * hidden)), out(static_cast<size_t>(tokens * hidden)), weights(static_cast<size_t>(tokens * choices));
  Exact<float> up_bias(experts * 2 * inner), down_bias(experts * hidden);
  fill(x, static_cast<size_t>(tokens * hidden));
  fill(weights, static_cast<size_t>(tokens * choices));
  fill(up_bias, experts * 2 * inner);
  fill(down_bias, experts * hidden);
  Exact<int32_t> ids(static_cast<size_t>(tokens * choices));
  for (int i = 0; i < tokens * choices; i++) ids.at()[i] = i % 2 ? static_cast<int32_t>(random_bits() % experts) : 2;
  for (int gate : {BAYARD_SILU_MUL, BAYARD_GELU_MUL, BAYARD_SWIGLU_CLAMPED}) {
    const BayardExperts op = {up.at(), down.at(), up_bias.at(), down_bias.at(), experts, hidden, inner, kind, kind, gate % 2, gate};
    expect(bayard_experts(&op, x.at(), hidden, tokens, ids.at(), weights.at(), choices, out.at(), hidden) == 0, "experts", isa, gate, tokens);
    all->insert(all->end(), out.at(), out.at() + tokens * hidden);
  }
}

void check_rows(const char* isa, int k, std::vector<float>* all) {
  Exact<float> x(3 * static_cast<size_t>(k)), y(3 * static_cast<size_t>(k)), weight(k), out(3 * static_cast<size_t>(k));
  fill(x, 3 * static_cast<size_t>(k));
  fill(y, 3 * static_cast<size_t>(k));
  fill(weight, k);
  expect(bayard_rms_norm(x.at(), k, 3, k, weight.at(), 1e-5f, out.at(), k) == 0, "rms_norm", isa, k, 3);
  all->insert(all->end(), out.at(), out.at() + 3 * k);
  expect(bayard_add_rms_norm(x.at(), k, y.at(), k, 3, k, weight.at(), 1e-5f, y.at(), k, out.at(), k) == 0,
         "add_rms_norm", isa, k, 3);
  Exact<float> pair(2 * static_cast<size_t>(k)), gated(k);
  fill(pair, 2 * static_cast<size_t>(k));
  for (int gate : {BAYARD_SILU_MUL, BAYARD_GELU_MUL, BAYARD_SWIGLU_CLAMPED}) {
    expect(bayard_gate_mul(gate, pair.at(), 2 * k, 1, k, gated.at(), k) == 0, "gate_mul", isa, k, gate);
    all->insert(all->end(), gated.at(), gated.at() + k);
  }
  int64_t place[3];
  expect(bayard_argmax(x.at(), k, 3, k, 1, place) == 0, "argmax", isa, k, 3);
  for (int64_t p : place) all->push_back(static_cast<float>(p));
  const float asked[3][8] = {
      {0.8f, 0.9f, 0, 0, 0.4f, 1.2f, 0.1f, 0.1f}, {1, 1, 0.1f, 5, 0.9f, 1, 0, 0}, {0, 1, 0, 0, 0, 1, 0, 0}};
  Exact<int32_t> counts(static_cast<size_t>(k));
  for (int i = 0; i < k; i++) counts.at()[i] = static_cast<int32_t>(random_bits() % 4);
  const int32_t rows[3] = {2, 0, 1}, tables[3] = {0, -1, -1};
  int32_t chosen[3];
  expect(bayard_choose(x.at(), k, 3, k, rows, asked[0], counts.at(), 1, tables, 3, chosen) == 0, "choose", isa, k, 3);
  for (int32_t p : chosen) all->push_back(static_cast<float>(p));
  if (k % 2 == 0) {
    const int64_t positions[3] = {0, 2, 1};
    Exact<float> table(3 * static_cast<size_t>(k));
    fill(table, 3 * static_cast<size_t>(k));
    expect(bayard_rope(x.at(), k, k, 3, 1, positions, table.at(), 3, k) == 0, "rope", isa, k, 3);
    all->insert(all->end(), x.at(), x.at() + 3 * k);
  }
}

std::vector<float> everything(const char* isa) {
  std::vector<float> all;
  g_seed = 1;
  // Several pieces of K, of tiles and of rows, for the forms that take tiles in pairs.
  check_linear(isa, kKinds[2], 83, 1100, 70, &all);
  check_linear(isa, kKinds[12], 83, 2150, 70, &all);
  for (const Kind& kind : kKinds)
    for (int n : {1, 16, 19, 50}) {
      const int k = kind.block_elements == 1 ? 33 : kind.block_elements == 32 ? 96 : kind.block_elements == 128 ? 384 : 512;
      for (int m : {1, 3, 8, 13, 37}) check_linear(isa, kind, n, k, m, &all);
    }
  for (int type : {BAYARD_F32, BAYARD_F16, BAYARD_BF16, BAYARD_I8_ROW})
    for (int dim : {16, 64, 80}) {
      check_attention(isa, type, dim, 1, 1, 0, &all);
      check_attention(isa, type, dim, 33, 33, 0, &all);
      check_attention(isa, type, dim, 300, 1, 0, &all);
      check_attention(isa, type, dim, 290, 40, 50, &all);
    }
  for (int tokens : {1, 11}) {
    check_experts(isa, BAYARD_Q4_0, 18, tokens, &all);
    check_experts(isa, BAYARD_Q8_0, 34, tokens, &all);
  }
  for (int k : {1, 2, 7, 8, 9, 15, 16, 17, 30, 64, 257}) check_rows(isa, k, &all);
  return all;
}

}  // namespace

int main() {
  for (int threads : {1, 3}) {
    bayard_set_threads(threads, 0);
    std::vector<float> first;
    for (const char* isa : {"scalar", "avx2", "avx512", "amx"}) {
      if (!bayard_isa_available(isa)) continue;
      expect(bayard_set_isa(isa) == 0, "set_isa", isa, 0, 0);
      const std::vector<float> all = everything(isa);
      if (first.empty()) first = all;
      const bool equal = all.size() == first.size() && std::memcmp(all.data(), first.data(), all.size() * 4) == 0;
      expect(equal, "bits differ from the first instruction set", isa, threads, 0);
      std::printf("%s, %d threads: %zu numbers\n", isa, threads, all.size());
    }
  }
  return g_failures ? 1 : 0;
}
