#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>

namespace bayard {
namespace {

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

bool slot_ok(int32_t slot, int64_t slots) { return (slot >= 0 && slot < slots) || slot == BAYARD_LOGITS; }

// Widths an op reads and writes; 0 where it has no say.
struct Needs {
  int64_t in, out;
};

Needs needs(const BayardOp& op) {
  const BayardAttention& a = op.attention;
  const int64_t qkv = static_cast<int64_t>(a.heads + 2 * a.kv_heads) * a.head_dim;
  switch (op.code) {
    case BAYARD_OP_EMBEDDING: return {0, op.weight.k};
    case BAYARD_OP_LINEAR: {
      const bool gated = op.linear.prepare >= BAYARD_SILU_MUL;
      return {op.weight.k * (gated ? 2 : 1), op.out_column + op.weight.n};
    }
    case BAYARD_OP_ROPE_KV: return {qkv, 0};
    case BAYARD_OP_ATTENTION: return {qkv, static_cast<int64_t>(a.heads) * a.head_dim};
    default: return {0, 0};
  }
}

}  // namespace

int Program::create(const int64_t* widths, int64_t slots, const BayardOp* ops, int64_t count, Program** out) {
  auto program = std::make_unique<Program>();
  program->widths_.assign(widths, widths + slots);
  program->ops_.assign(ops, ops + count);
  for (BayardOp& op : program->ops_) {
    if (op.code < 0 || op.code > BAYARD_OP_SOFTCAP) return BAYARD_BAD_OP;
    if (op.code != BAYARD_OP_EMBEDDING && !slot_ok(op.in, slots)) return BAYARD_BAD_OP;
    if (op.code != BAYARD_OP_ROPE_KV && !slot_ok(op.out, slots)) return BAYARD_BAD_OP;
    if (op.residual != BAYARD_NO_SLOT && !slot_ok(op.residual, slots)) return BAYARD_BAD_OP;
    if (op.out_column < 0) return BAYARD_BAD_SHAPE;
    if (op.code == BAYARD_OP_ADD && op.residual == BAYARD_NO_SLOT) return BAYARD_BAD_OP;
    const Needs n = needs(op);
    if (n.in > 0 && op.in >= 0 && widths[op.in] < n.in) return BAYARD_BAD_SHAPE;
    if (n.out > 0 && op.out >= 0 && widths[op.out] < n.out) return BAYARD_BAD_SHAPE;
    if (op.code == BAYARD_OP_ATTENTION && op.attention.head_dim % 16 != 0) return BAYARD_BAD_SHAPE;
  }
  for (const BayardOp& op : program->ops_)
    if (op.code == BAYARD_OP_LINEAR && op.out == BAYARD_LOGITS)
      program->logits_width_ = std::max(program->logits_width_, op.out_column + op.weight.n);
  // The copies point at their own weights.
  for (BayardOp& op : program->ops_) op.linear.weight = &op.weight;
  program->ns_.assign(static_cast<size_t>(count), 0);
  *out = program.release();
  return BAYARD_OK;
}

int Program::check(const BayardStep& step) const {
  if (step.tokens < 0 || step.logit_count < 0 || step.sequences < 0) return BAYARD_BAD_SHAPE;
  if (step.logit_count > 0 && (step.logits_stride < logits_width_ || (step.argmax && logits_width_ == 0)))
    return BAYARD_BAD_SHAPE;
  for (const BayardOp& op : ops_) {
    const bool paged = op.code == BAYARD_OP_ROPE_KV || op.code == BAYARD_OP_ATTENTION;
    if (paged && (op.layer < 0 || op.layer >= step.num_kv || op.group < 0 || op.group >= step.num_groups))
      return BAYARD_BAD_INDEX;
    if (op.code == BAYARD_OP_ATTENTION)
      if (int code = check_attention(step.kv[op.layer], attention_of(op, step), step.tokens)) return code;
    if (op.code == BAYARD_OP_EMBEDDING)
      for (int64_t i = 0; i < step.tokens; i++)
        if (step.token_ids[i] < 0 || step.token_ids[i] >= op.weight.n) return BAYARD_BAD_INDEX;
    if (op.code == BAYARD_OP_ROPE_KV) {
      const BayardKv& kv = step.kv[op.layer];
      const BayardGroup& group = step.groups[op.group];
      for (int64_t i = 0; i < step.tokens; i++) {
        if (op.cos_sin && (step.positions[i] < 0 || step.positions[i] >= op.cos_rows)) return BAYARD_BAD_INDEX;
        if (group.write_pages[i] < 0 || group.write_pages[i] >= kv.pages) return BAYARD_BAD_INDEX;
        if (group.write_offsets[i] < 0 || group.write_offsets[i] >= kv.page_tokens) return BAYARD_BAD_INDEX;
      }
    }
  }
  for (int64_t i = 0; i < step.logit_count; i++)
    if (step.logit_rows[i] < 0 || step.logit_rows[i] >= step.tokens) return BAYARD_BAD_INDEX;
  return BAYARD_OK;
}

Rows Program::rows(int32_t slot, int32_t which, const BayardStep& step) {
  const int64_t count = which ? step.logit_count : step.tokens;
  if (slot == BAYARD_LOGITS) return Rows{step.logits, step.logits_stride, count};
  const auto i = static_cast<size_t>(slot);
  return Rows{reinterpret_cast<float*>(align(buffers_[i].data())), strides_[i], count};
}

int Program::run(Pool& pool, const BayardStep& step) {
  if (int code = check(step)) return code;
  int64_t shared = 0;
  const int threads = pool.threads();
  try {
    const int64_t most = std::max(step.tokens, step.logit_count);
    buffers_.resize(widths_.size());
    strides_.resize(widths_.size());
    for (size_t i = 0; i < widths_.size(); i++) {
      strides_[i] = (widths_[i] + 15) / 16 * 16 + 16;  // odd in cache lines more often than not
      const auto bytes = static_cast<size_t>(most * strides_[i] * 4 + 64);
      if (buffers_[i].size() < bytes) buffers_[i].resize(bytes);
    }
    for (const BayardOp& op : ops_) {
      int64_t bytes = 0;
      if (op.code == BAYARD_OP_LINEAR) bytes = linear_shared_bytes(op.linear, op.rows ? step.logit_count : step.tokens);
      if (op.code == BAYARD_OP_ATTENTION) bytes = attention_shared_bytes(op.attention, attention_of(op, step), threads);
      if (bytes > shared) shared = bytes;
    }
    if (static_cast<int64_t>(shared_.size()) < shared + 64) shared_.resize(static_cast<size_t>(shared + 64));
  } catch (const std::bad_alloc&) {
    return BAYARD_NO_MEMORY;
  }
  struct Context {
    Program* program;
    const BayardStep* step;
  } context = {this, &step};
  pool.run(
      [](Team& team, void* p) {
        auto* c = static_cast<Context*>(p);
        c->program->steps(team, *c->step);
      },
      &context, threads);
  return BAYARD_OK;
}

AttentionStep Program::attention_of(const BayardOp& op, const BayardStep& step) const {
  const BayardGroup& g = step.groups[op.group];
  return AttentionStep{g.block_tables,    g.table_stride,    g.table_width,
                       step.query_starts, step.context_lens, step.sequences};
}

void Program::steps(Team& team, const BayardStep& step) {
  const bool timed = profiled_ && team.rank() == 0;
  int64_t before = timed ? now_ns() : 0;
  for (size_t i = 0; i < ops_.size(); i++) {
    one(team, ops_[i], step);
    if (timed) {
      const int64_t after = now_ns();
      ns_[i] = after - before;
      before = after;
    }
  }
  if (step.argmax) {
    run_argmax(team, Rows{step.logits, step.logits_stride, step.logit_count}, logits_width_, true, step.argmax);
  }
}

void Program::one(Team& team, const BayardOp& op, const BayardStep& step) {
  const auto in = [&] { return rows(op.in, op.rows, step); };
  const auto out = [&] { return rows(op.out, op.rows, step); };
  switch (op.code) {
    case BAYARD_OP_EMBEDDING:
      run_embedding(team, op.weight, op.weight_row_bytes, step.token_ids, out());
      break;
    case BAYARD_OP_LINEAR: {
      Rows add = op.residual == BAYARD_NO_SLOT ? Rows{} : rows(op.residual, op.rows, step), to = out();
      to.at += op.out_column;
      add.at += op.residual == BAYARD_NO_SLOT ? 0 : op.out_column;
      run_linear(team, op.linear, in(), op.residual == BAYARD_NO_SLOT ? nullptr : &add, to, align(shared_.data()));
      break;
    }
    case BAYARD_OP_NORM:
      run_norm(team, in(), width(op.in), op.norm_weight, op.eps, out());
      break;
    case BAYARD_OP_ROPE_KV:
      rope_kv(team, op, step);
      break;
    case BAYARD_OP_ATTENTION:
      run_attention(team, op.attention, in(), step.kv[op.layer], attention_of(op, step), out(), align(shared_.data()));
      break;
    case BAYARD_OP_GATHER: {
      const Rows from = rows(op.in, 0, step), to = rows(op.out, 1, step);
      const int64_t k = width(op.in);
      team.each(to.count, piece(team, to.count, 16), [&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; i++)
          std::memcpy(to.row(i), from.row(step.logit_rows[i]), static_cast<size_t>(k) * 4);
      });
      team.sync();
      break;
    }
    case BAYARD_OP_GATE_MUL:
      run_gate_mul(team, op.prepare, in(), width(op.out), out());
      break;
    default:
      elementwise(team, op, step);
  }
}

void Program::elementwise(Team& team, const BayardOp& op, const BayardStep& step) {
  const Rows x = rows(op.in, op.rows, step), to = rows(op.out, op.rows, step);
  const Rows add = op.code == BAYARD_OP_ADD ? rows(op.residual, op.rows, step) : Rows{};
  const int64_t k = width(op.in);
  team.each(x.count, piece(team, x.count, 4), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) {
      const float* a = x.row(i);
      float* o = to.row(i);
      if (op.code == BAYARD_OP_ADD) kernels().add_row(a, add.row(i), k, o);
      else if (op.code == BAYARD_OP_SCALE)
        for (int64_t j = 0; j < k; j++) o[j] = a[j] * op.scale;
      else
        for (int64_t j = 0; j < k; j++) o[j] = op.scale * std::tanh(a[j] / op.scale);
    }
  });
  team.sync();
}

void Program::rope_kv(Team& team, const BayardOp& op, const BayardStep& step) {
  const Rows x = rows(op.in, 0, step);
  const BayardAttention& a = op.attention;
  const BayardKv& kv = step.kv[op.layer];
  const BayardGroup& group = step.groups[op.group];
  const KernelTable& t = kernels();
  const int64_t dim = a.head_dim, heads = a.heads, kv_heads = a.kv_heads;
  team.each(x.count, piece(team, x.count, 8), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) {
      float* row = x.row(i);
      for (int64_t h = 0; h < heads + kv_heads; h++) {
        float* head = row + h * dim;
        const float* norm = h < heads ? op.norm_weight : op.norm_weight_k;
        if (norm) t.rms_norm_row(head, norm, op.eps, dim, head);
        if (op.cos_sin) t.rope_head(head, op.cos_sin + step.positions[i] * op.rotary, op.rotary / 2);
      }
      for (int64_t h = 0; h < kv_heads; h++)
        store_kv(t, kv, group.write_pages[i], h, group.write_offsets[i], dim, row + (heads + h) * dim,
                 row + (heads + kv_heads + h) * dim, op.kv_scales ? op.kv_scales[h] : 0.0f,
                 op.kv_scales ? op.kv_scales[kv_heads + h] : 0.0f);
    }
  });
  team.sync();
}

int64_t Program::bytes() const {
  int64_t sum = static_cast<int64_t>(shared_.size());
  for (const auto& b : buffers_) sum += static_cast<int64_t>(b.size());
  return sum;
}

}  // namespace bayard
