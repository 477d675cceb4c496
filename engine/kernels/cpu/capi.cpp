// The C ABI over ops and programs: checks what a caller can get wrong, then runs it on the pool.
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "bayard_cpu.h"
#include "dispatch.h"
#include "ops.h"
#include "program.h"
#include "topology.h"
#include "weights.h"

using namespace bayard;

struct BayardProgram {
  std::unique_ptr<Program> program;
};

namespace {

std::mutex g_mutex;  // one call at a time; also guards the pool's and the kernels' replacement
std::unique_ptr<Pool> g_pool;
std::vector<uint8_t> g_shared;

Pool& pool() {
  if (!g_pool) g_pool = std::make_unique<Pool>(0, true);
  return *g_pool;
}

constexpr int64_t kSmall = 32768;  // elements or weight bytes that one thread does sooner than two

int threads_for(int64_t work) {
  const int64_t want = work / kSmall + 1;
  return want < pool().threads() ? static_cast<int>(want) : pool().threads();
}

// Runs body(team) on the pool. No exception leaves: what cannot be allocated is a code.
template <class Body>
int run(int64_t work, int64_t shared_bytes, const Body& body) {
  try {
    const auto size = static_cast<size_t>(shared_bytes + 64);
    if (g_shared.size() < size) g_shared.resize(size);
    pool().run([](Team& team, void* p) { (*static_cast<const Body*>(p))(team); },
               const_cast<void*>(static_cast<const void*>(&body)), threads_for(work));
  } catch (const std::bad_alloc&) {
    return BAYARD_NO_MEMORY;
  }
  return BAYARD_OK;
}

uint8_t* shared() {
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(g_shared.data()) + 63) / 64 * 64);
}

bool kind_ok(int kind) { return kind >= 0 && kind < BAYARD_KINDS; }
bool matrix_ok(int kind, int64_t n, int64_t k) {
  return n >= 1 && k >= 1 && n < (int64_t{1} << 40) / k && k % format(kind).block_elements == 0 &&
         (kind != BAYARD_I8_ROW || k <= 1 << 16);  // what sums in 32 bits can hold
}
bool kv_ok(const BayardKv& kv) {
  return (kv.type >= BAYARD_F32 && kv.type <= BAYARD_BF16) || kv.type == BAYARD_I8_ROW;
}
bool gate_ok(int gate) { return gate >= BAYARD_SILU_MUL && gate <= BAYARD_SWIGLU_CLAMPED; }
Rows rows(const float* p, int64_t stride, int64_t count) { return Rows{const_cast<float*>(p), stride, count}; }

}  // namespace

int bayard_abi_version(void) { return BAYARD_ABI_VERSION; }

int64_t bayard_struct_bytes(const char* name) {
#define BAYARD_SIZE(type) \
  if (std::strcmp(name, #type) == 0) return static_cast<int64_t>(sizeof(type))
  BAYARD_SIZE(BayardWeight);
  BAYARD_SIZE(BayardLinear);
  BAYARD_SIZE(BayardExperts);
  BAYARD_SIZE(BayardKv);
  BAYARD_SIZE(BayardAttention);
  BAYARD_SIZE(BayardOp);
  BAYARD_SIZE(BayardGroup);
  BAYARD_SIZE(BayardStep);
  BAYARD_SIZE(BayardLink);
  BAYARD_SIZE(BayardStored);
#undef BAYARD_SIZE
  return -1;
}

const char* bayard_error_text(int code) {
  switch (code) {
    case BAYARD_OK: return "ok";
    case BAYARD_UNKNOWN_ISA: return "no such instruction set; known are scalar, avx2, avx512, amx";
    case BAYARD_ISA_UNAVAILABLE: return "this CPU, its kernel or this build lacks that instruction set";
    case BAYARD_BAD_KIND: return "no such weight or cache kind";
    case BAYARD_BAD_SHAPE: return "sizes that do not fit together";
    case BAYARD_NO_MEMORY: return "out of memory";
    case BAYARD_BAD_OP: return "a program's op names a slot or code that does not exist";
    case BAYARD_BAD_INDEX: return "a token, position, page or row number is out of range";
    default: return "unknown code";
  }
}

int bayard_set_isa(const char* name) {
  std::lock_guard<std::mutex> lock(g_mutex);
  return choose_isa(name);
}
const char* bayard_isa(void) { return kernels().name; }
int bayard_isa_available(const char* name) { return isa_available(name) ? 1 : 0; }
int bayard_has_bf16(void) { return kernels().linear_bf16 ? 1 : 0; }

int bayard_set_threads(int threads, int pin) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (threads < 0 || threads > 4096) return BAYARD_BAD_SHAPE;
  g_pool.reset();
  g_pool = std::make_unique<Pool>(threads, pin != 0);
  return BAYARD_OK;
}
int bayard_threads(void) {
  std::lock_guard<std::mutex> lock(g_mutex);
  return pool().threads();
}
int bayard_usable_cores(void) { return usable_cores(); }

int bayard_places(const char* root, const int32_t* allowed, int64_t count, int32_t* cpus, int32_t* nodes) {
  const std::vector<Place> found = places(root, std::vector<int>(allowed, allowed + count));
  for (size_t i = 0; i < found.size(); i++) {
    cpus[i] = found[i].cpu;
    nodes[i] = found[i].node;
  }
  return static_cast<int>(found.size());
}
int bayard_quota(const char* root) { return cgroup_quota(root); }
int bayard_interleave(void* memory, int64_t bytes) { return interleave(memory, bytes); }

int64_t bayard_packed_bytes(int kind, int64_t n, int64_t k) {
  if (!kind_ok(kind) || !matrix_ok(kind, n, k)) return -1;
  return (n + kTileRows - 1) / kTileRows * tile_bytes(kind, k);
}

int bayard_pack(int kind, const void* source, int64_t row_stride_bytes, int64_t n, int64_t k, void* packed) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!kind_ok(kind)) return BAYARD_BAD_KIND;
  if (!matrix_ok(kind, n, k)) return BAYARD_BAD_SHAPE;
  const int64_t tiles = (n + kTileRows - 1) / kTileRows;
  return run(n * k, 0, [&](Team& team) {
    team.each(tiles, piece(team, tiles, 1), [&](int64_t first, int64_t end) {
      pack_tiles(kind, static_cast<const uint8_t*>(source), row_stride_bytes, n, k, first, end,
                 static_cast<uint8_t*>(packed));
    });
    team.sync();
  });
}

int bayard_linear(const BayardLinear* op, const float* x, int64_t x_stride, int64_t m, const float* residual,
                  int64_t residual_stride, float* out, int64_t out_stride) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!kind_ok(op->weight->kind)) return BAYARD_BAD_KIND;
  if (m < 0 || !matrix_ok(op->weight->kind, op->weight->n, op->weight->k)) return BAYARD_BAD_SHAPE;
  if (m == 0) return BAYARD_OK;
  const Rows add = rows(residual, residual_stride, m);
  return run(op->weight->n * op->weight->k, linear_shared_bytes(*op, m), [&](Team& team) {
    run_linear(team, *op, rows(x, x_stride, m), residual ? &add : nullptr, Rows{out, out_stride, m}, shared());
  });
}

int bayard_experts(const BayardExperts* op, const float* x, int64_t x_stride, int64_t m, const int32_t* ids,
                   const float* weights, int64_t choices, float* out, int64_t out_stride) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!kind_ok(op->gate_up_kind) || !kind_ok(op->down_kind)) return BAYARD_BAD_KIND;
  if (!gate_ok(op->gate)) return BAYARD_BAD_OP;
  if (m < 0 || choices < 1 || op->experts < 1 || !matrix_ok(op->gate_up_kind, 2 * op->inner, op->hidden) ||
      !matrix_ok(op->down_kind, op->hidden, op->inner))
    return BAYARD_BAD_SHAPE;
  try {
    ExpertOrder order;
    if (!order.make(ids, m, choices, op->experts)) return BAYARD_BAD_INDEX;
    return run(3 * m * choices * op->hidden * op->inner, experts_shared_bytes(*op, m * choices), [&](Team& team) {
      run_experts(team, *op, rows(x, x_stride, m), order, weights, choices, Rows{out, out_stride, m}, shared());
    });
  } catch (const std::bad_alloc&) {
    return BAYARD_NO_MEMORY;
  }
}

int bayard_embedding(int kind, const void* table, int64_t row_stride_bytes, int64_t n, int64_t k, const int64_t* ids,
                     int64_t count, float* out, int64_t out_stride) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!kind_ok(kind)) return BAYARD_BAD_KIND;
  if (!matrix_ok(kind, n, k)) return BAYARD_BAD_SHAPE;
  for (int64_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= n) return BAYARD_BAD_INDEX;
  const BayardWeight weight = {table, n, k, kind, 0};
  return run(count * k, 0, [&](Team& team) {
    run_embedding(team, weight, row_stride_bytes, ids, Rows{out, out_stride, count});
  });
}

int bayard_rms_norm(const float* x, int64_t x_stride, int64_t m, int64_t k, const float* weight, float eps, float* out,
                    int64_t out_stride) {
  std::lock_guard<std::mutex> lock(g_mutex);
  return run(m * k, 0, [&](Team& team) {
    run_norm(team, rows(x, x_stride, m), k, weight, eps, Rows{out, out_stride, m});
  });
}

int bayard_add_rms_norm(const float* x, int64_t x_stride, const float* residual, int64_t residual_stride, int64_t m,
                        int64_t k, const float* weight, float eps, float* total, int64_t total_stride, float* out,
                        int64_t out_stride) {
  std::lock_guard<std::mutex> lock(g_mutex);
  return run(m * k, 0, [&](Team& team) {
    run_add_norm(team, rows(x, x_stride, m), rows(residual, residual_stride, m), k, weight, eps,
                 Rows{total, total_stride, m}, Rows{out, out_stride, m});
  });
}

int bayard_gate_mul(int prepare, const float* gate_up, int64_t stride, int64_t m, int64_t k, float* out,
                    int64_t out_stride) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!gate_ok(prepare)) return BAYARD_BAD_OP;
  return run(4 * m * k, 0, [&](Team& team) {
    run_gate_mul(team, prepare, rows(gate_up, stride, m), k, Rows{out, out_stride, m});
  });
}

int bayard_rope(float* heads, int64_t row_stride, int64_t head_stride, int64_t count, int64_t num_heads,
                const int64_t* positions, const float* cos_sin, int64_t cos_rows, int64_t rotary) {
  std::lock_guard<std::mutex> lock(g_mutex);
  for (int64_t i = 0; i < count; i++)
    if (positions[i] < 0 || positions[i] >= cos_rows) return BAYARD_BAD_INDEX;
  return run(count * num_heads * rotary, 0, [&](Team& team) {
    run_rope(team, Rows{heads, row_stride, count}, head_stride, num_heads, positions, cos_sin, rotary);
  });
}

int bayard_kv_write(const float* k, int64_t k_stride, const float* v, int64_t v_stride, int64_t count, int64_t kv_heads,
                    int64_t dim, const BayardKv* kv, const int64_t* pages, const int64_t* offsets,
                    const float* scales) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!kv_ok(*kv)) return BAYARD_BAD_KIND;
  for (int64_t i = 0; i < count; i++)
    if (pages[i] < 0 || pages[i] >= kv->pages || offsets[i] < 0 || offsets[i] >= kv->page_tokens)
      return BAYARD_BAD_INDEX;
  return run(count * kv_heads * dim, 0, [&](Team& team) {
    run_kv_write(team, rows(k, k_stride, count), rows(v, v_stride, count), kv_heads, dim, *kv, pages, offsets,
                 scales);
  });
}

int bayard_attention(const BayardAttention* op, const float* q, int64_t q_stride, const BayardKv* kv,
                     const int32_t* block_tables, int64_t table_stride, int64_t table_width,
                     const int32_t* query_starts, const int32_t* context_lens, int64_t sequences, int64_t count,
                     float* out, int64_t out_stride) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!kv_ok(*kv)) return BAYARD_BAD_KIND;
  if (op->head_dim < 16 || op->head_dim % 16 || op->kv_heads < 1 || op->heads % op->kv_heads) return BAYARD_BAD_SHAPE;
  const AttentionStep step = {block_tables, table_stride, table_width, query_starts, context_lens, sequences};
  if (int code = check_attention(*kv, step, count)) return code;
  int64_t work = 0;
  for (int64_t s = 0; s < sequences; s++)
    work += static_cast<int64_t>(query_starts[s + 1] - query_starts[s]) * context_lens[s] * op->heads * op->head_dim;
  const int threads = threads_for(work);
  return run(work, attention_shared_bytes(*op, step, threads), [&](Team& team) {
    run_attention(team, *op, rows(q, q_stride, count), *kv, step, Rows{out, out_stride, count}, shared());
  });
}

int bayard_argmax(const float* x, int64_t stride, int64_t m, int64_t k, int finite, int64_t* out) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (k < 1) return BAYARD_BAD_SHAPE;
  return run(m * k, 0, [&](Team& team) { run_argmax(team, rows(x, stride, m), k, finite != 0, out); });
}

int bayard_choose(const float* logits, int64_t stride, int64_t num_rows, int64_t k, const int32_t* rows_wanted,
                  const float* settings, const int32_t* counts, int64_t tables, const int32_t* count_rows, int64_t count,
                  int32_t* out) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (k < 1) return BAYARD_BAD_SHAPE;
  for (int64_t i = 0; i < count; i++)
    if (rows_wanted[i] < 0 || rows_wanted[i] >= num_rows || count_rows[i] < -1 || count_rows[i] >= tables)
      return BAYARD_BAD_INDEX;
  return run(8 * count * k, 0, [&](Team& team) {
    run_choose(team, rows(logits, stride, num_rows), k, rows_wanted, settings, counts, count_rows, count, out);
  });
}

int bayard_program_create(const int64_t* slot_widths, int64_t slots, const BayardOp* ops, int64_t num_ops,
                          BayardProgram** out) {
  try {
    Program* made = nullptr;
    if (int code = Program::create(slot_widths, slots, ops, num_ops, &made)) return code;
    *out = new BayardProgram{std::unique_ptr<Program>(made)};
  } catch (const std::bad_alloc&) {
    return BAYARD_NO_MEMORY;
  }
  return BAYARD_OK;
}

void bayard_program_free(BayardProgram* program) { delete program; }

int bayard_program_run(BayardProgram* program, const BayardStep* step) {
  std::lock_guard<std::mutex> lock(g_mutex);
  return program->program->run(pool(), *step);
}

int bayard_program_profile(BayardProgram* program, int on, int64_t* ns, int64_t num_ops) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto& measured = program->program->nanoseconds();
  if (ns) {
    if (num_ops != static_cast<int64_t>(measured.size())) return BAYARD_BAD_SHAPE;
    std::memcpy(ns, measured.data(), measured.size() * sizeof(int64_t));
  }
  program->program->profile(on != 0);
  return BAYARD_OK;
}

int64_t bayard_program_bytes(const BayardProgram* program) { return program->program->bytes(); }
