#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops.h"

namespace bayard {
namespace {

constexpr int64_t kSplitTokens = 128;  // splits of the keys start at its multiples: part of the result's definition
constexpr int kTaskHeads = 64;         // query rows times group of one task, so that K is transposed once for many

// How a step's attention is cut: blocks of query rows of one sequence and KV head, and splits of their keys.
struct Plan {
  int group, block_rows;
  int64_t blocks;        // row blocks over all sequences
  int64_t tasks;         // blocks * kv heads
  bool split;            // splits go to different threads
  int64_t max_splits;    // of any block
  int64_t state_floats;  // of one (block, split)
};

int64_t first_key(const BayardAttention& op, int64_t position) {
  return op.window > 0 ? std::max<int64_t>(0, position - op.window + 1) : 0;
}

Plan plan_for(const BayardAttention& op, const AttentionStep& step, int threads) {
  Plan p = {};
  p.group = op.heads / op.kv_heads;
  p.block_rows = std::max(1, std::min(32, kTaskHeads / p.group));
  for (int64_t s = 0; s < step.sequences; s++) {
    const int64_t rows = step.query_starts[s + 1] - step.query_starts[s];
    p.blocks += (rows + p.block_rows - 1) / p.block_rows;
    if (rows == 0) continue;
    const int64_t last = step.context_lens[s], first = first_key(op, last - rows);
    p.max_splits = std::max(p.max_splits, (last + kSplitTokens - 1) / kSplitTokens - first / kSplitTokens);
  }
  p.tasks = p.blocks * op.kv_heads;
  p.split = threads > 1 && p.tasks < 4 * threads && p.max_splits > 1;
  // Blocks of fewer rows would still get this much: splitting is for few tasks.
  const int64_t rows = static_cast<int64_t>(p.block_rows) * p.group;
  p.state_floats = (rows * (op.head_dim + 2) + 15) / 16 * 16;
  return p;
}

AttentionState state_at(float* memory, const Plan& p) {
  const int64_t rows = static_cast<int64_t>(p.block_rows) * p.group;
  return AttentionState{memory, memory + rows, memory + 2 * rows};
}

// Block b of the step: its sequence, first row and rows.
struct Where {
  int64_t sequence, row, position;
  int rows;
};

Where find(const AttentionStep& step, const Plan& p, int64_t b) {
  for (int64_t s = 0;; s++) {
    const int64_t begin = step.query_starts[s], rows = step.query_starts[s + 1] - begin;
    const int64_t blocks = (rows + p.block_rows - 1) / p.block_rows;
    if (b < blocks) {
      // Later blocks see more keys: they go first, so that the last piece handed out is a small one.
      const int64_t from = (blocks - 1 - b) * p.block_rows;
      const int64_t count = std::min<int64_t>(p.block_rows, rows - from);
      return Where{s, begin + from, step.context_lens[s] - rows + from, static_cast<int>(count)};
    }
    b -= blocks;
  }
}

void finish(const BayardAttention& op, const AttentionArgs& a, const AttentionTask& t, int group,
            const AttentionState& total) {
  const int dim = op.head_dim;
  for (int i = 0; i < t.rows * group; i++) {
    const int head = t.kv_head * group + i % group;
    float m = total.m[i], l = total.l[i], factor = 1.0f;
    if (op.sinks) {
      const float top = std::max(m, op.sinks[head]);
      factor = std::exp(m - top);
      l = l * factor + std::exp(op.sinks[head] - top);
    }
    const float inverse = factor / l;
    float* to = a.out + (t.row + i / group) * a.out_stride + static_cast<int64_t>(head) * dim;
    const float* o = total.o + static_cast<int64_t>(i) * dim;
    for (int d = 0; d < dim; d++) to[d] = o[d] * inverse;
  }
}

void merge(const KernelTable& t, const AttentionState& into, const AttentionState& from, int rows, int dim) {
  for (int i = 0; i < rows; i++)
    t.attention_merge(into.m + i, into.l + i, into.o + static_cast<int64_t>(i) * dim, from.m + i, from.l + i,
                      from.o + static_cast<int64_t>(i) * dim, dim);
}

void clear(const AttentionState& s, int rows, int dim) {
  std::fill(s.m, s.m + rows, -1e30f);
  std::fill(s.l, s.l + rows, 0.0f);
  std::fill(s.o, s.o + static_cast<int64_t>(rows) * dim, 0.0f);
}

}  // namespace

int check_attention(const BayardKv& kv, const AttentionStep& step, int64_t rows) {
  if (step.query_starts[0] != 0 || step.query_starts[step.sequences] != rows) return BAYARD_BAD_SHAPE;
  for (int64_t s = 0; s < step.sequences; s++) {
    const int64_t count = step.query_starts[s + 1] - step.query_starts[s], context = step.context_lens[s];
    if (count < 0 || context < count) return BAYARD_BAD_SHAPE;
    const int64_t blocks = (context + kv.page_tokens - 1) / kv.page_tokens;
    if (count > 0 && blocks > step.table_width) return BAYARD_BAD_SHAPE;
    const int32_t* table = step.block_tables + s * step.table_stride;
    for (int64_t b = 0; b < blocks && count > 0; b++)
      if (table[b] < 0 || table[b] >= kv.pages) return BAYARD_BAD_INDEX;
  }
  return BAYARD_OK;
}

int64_t attention_shared_bytes(const BayardAttention& op, const AttentionStep& step, int threads) {
  const Plan p = plan_for(op, step, threads);
  return p.split ? p.tasks * p.max_splits * p.state_floats * 4 + 64 : 0;
}

void run_attention(Team& team, const BayardAttention& op, Rows q, const BayardKv& kv, const AttentionStep& step,
                   Rows out, uint8_t* shared) {
  const KernelTable& table = kernels();
  const Plan p = plan_for(op, step, team.size());
  AttentionArgs a = {};
  a.q = q.at;
  a.q_stride = q.stride;
  a.out = out.at;
  a.out_stride = out.stride;
  a.kv = static_cast<const uint8_t*>(kv.base);
  a.page_stride = kv.page_stride;
  a.v_offset = kv.v_offset;
  a.head_stride = kv.head_stride;
  a.token_stride = kv.token_stride;
  a.kv_type = kv.type;
  a.page_tokens = kv.page_tokens;
  a.heads = op.heads;
  a.kv_heads = op.kv_heads;
  a.head_dim = op.head_dim;
  a.scale = op.scale;
  a.softcap = op.softcap;
  a.window = op.window;
  a.sinks = op.sinks;

  const int64_t work = table.attention_scratch_floats(p.block_rows, p.group, op.head_dim);
  const int64_t aligned = (work + 15) / 16 * 16;
  float* scratch = reinterpret_cast<float*>(team.scratch((aligned + 2 * p.state_floats) * 4));
  const AttentionState total = state_at(scratch + aligned, p);

  const auto task_of = [&](int64_t index, AttentionTask* t) {
    const Where w = find(step, p, index / op.kv_heads);
    t->row = w.row;
    t->rows = w.rows;
    t->position = w.position;
    t->pages = step.block_tables + w.sequence * step.table_stride;
    t->kv_head = static_cast<int>(index % op.kv_heads);
  };
  // The splits that a task's rows see.
  const auto splits_of = [&](const AttentionTask& t, int64_t* begin, int64_t* end) {
    *begin = first_key(op, t.position) / kSplitTokens;
    *end = (t.position + t.rows + kSplitTokens - 1) / kSplitTokens;
  };

  if (!p.split) {
    const AttentionState part = state_at(scratch + aligned + p.state_floats, p);
    team.each(p.tasks, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++) {
        AttentionTask t = {};
        task_of(i, &t);
        int64_t begin, end;
        splits_of(t, &begin, &end);
        const int rows = t.rows * p.group;
        clear(total, rows, op.head_dim);
        for (int64_t s = begin; s < end; s++) {
          t.key_begin = s * kSplitTokens;
          t.key_end = t.key_begin + kSplitTokens;
          AttentionState into = part;
          table.attention_split(&a, &t, scratch, &into);
          merge(table, total, part, rows, op.head_dim);
        }
        finish(op, a, t, p.group, total);
      }
    });
    team.sync();
    return;
  }

  float* states = reinterpret_cast<float*>(shared);
  team.each(p.tasks * p.max_splits, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      AttentionTask t = {};
      task_of(i / p.max_splits, &t);
      int64_t begin, end;
      splits_of(t, &begin, &end);
      const int64_t s = begin + i % p.max_splits;
      if (s >= end) continue;
      t.key_begin = s * kSplitTokens;
      t.key_end = t.key_begin + kSplitTokens;
      AttentionState into = state_at(states + i * p.state_floats, p);
      table.attention_split(&a, &t, scratch, &into);
    }
  });
  team.sync();
  team.each(p.tasks, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      AttentionTask t = {};
      task_of(i, &t);
      int64_t begin, end;
      splits_of(t, &begin, &end);
      const int rows = t.rows * p.group;
      clear(total, rows, op.head_dim);
      for (int64_t s = begin; s < end; s++)
        merge(table, total, state_at(states + (i * p.max_splits + s - begin) * p.state_floats, p), rows, op.head_dim);
      finish(op, a, t, p.group, total);
    }
  });
  team.sync();
}

}  // namespace bayard
