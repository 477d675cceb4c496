// An MLP of experts: the rows of all tokens in the order of their experts, so that each expert's weights are read once.
#include <algorithm>

#include "linear_work.h"
#include "weights.h"

namespace bayard {

bool ExpertOrder::make(const int32_t* ids, int64_t tokens_count, int64_t choices, int64_t experts) {
  const int64_t rows = tokens_count * choices;
  starts.assign(static_cast<size_t>(experts) + 1, 0);
  for (int64_t i = 0; i < rows; i++) {
    if (ids[i] < 0 || ids[i] >= experts) return false;
    starts[static_cast<size_t>(ids[i]) + 1]++;
  }
  for (size_t e = 0; e < static_cast<size_t>(experts); e++) starts[e + 1] += starts[e];
  std::vector<int64_t> next(starts.begin(), starts.end() - 1);
  tokens.resize(static_cast<size_t>(rows));
  places.resize(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; i++) {
    const int64_t p = next[static_cast<size_t>(ids[i])]++;
    tokens[static_cast<size_t>(p)] = i / choices;
    places[static_cast<size_t>(i)] = p;
  }
  return true;
}

namespace {

struct Shape {
  BayardWeight gate_up, down;  // of expert 0
  BayardLinear first, second;
  int64_t gate_up_bytes, down_bytes;
};

// `shape` points into itself: fill it where it stays.
void fill(Shape* s, const BayardExperts& op) {
  s->gate_up = {op.gate_up, 2 * op.inner, op.hidden, op.gate_up_kind, 0};
  s->down = {op.down, op.hidden, op.inner, op.down_kind, 0};
  s->first = {&s->gate_up, op.gate_up_bias, nullptr, 0, op.mode, BAYARD_PLAIN, 0};
  s->second = {&s->down, op.down_bias, nullptr, 0, op.mode, op.gate, 0};
  s->gate_up_bytes = (2 * op.inner + kTileRows - 1) / kTileRows * tile_bytes(op.gate_up_kind, op.hidden);
  s->down_bytes = (op.hidden + kTileRows - 1) / kTileRows * tile_bytes(op.down_kind, op.inner);
}

int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// All experts' products: their items stand one after the other.
void multiply_all(Team& team, const BayardLinear& op, int64_t expert_bytes, const ExpertOrder& order, const Prepared& p,
                  Rows out) {
  const size_t experts = order.starts.size() - 1;
  std::vector<int64_t> before;  // items of the experts before; made by each thread for itself, alike
  std::vector<Cut> cuts;
  std::vector<size_t> used;
  int64_t items = 0;
  for (size_t e = 0; e < experts; e++) {
    const int64_t m = order.starts[e + 1] - order.starts[e];
    if (m == 0) continue;
    used.push_back(e);
    before.push_back(items);
    cuts.push_back(cut(team, op, m, 1));
    items += cuts.back().items();
  }
  team.each(items, 1, [&](int64_t first, int64_t end) {
    for (int64_t item = first; item < end; item++) {
      const auto i = static_cast<size_t>(std::upper_bound(before.begin(), before.end(), item) - before.begin() - 1);
      const int64_t e = static_cast<int64_t>(used[i]), row = order.starts[used[i]];
      BayardWeight w = *op.weight;
      w.packed = static_cast<const uint8_t*>(w.packed) + e * expert_bytes;
      BayardLinear one = op;
      one.weight = &w;
      if (one.bias) one.bias += e * w.n;
      multiply(one, p, cuts[i], item - before[i], row, order.starts[used[i] + 1] - row, nullptr,
               Rows{out.row(row), out.stride, 0});
    }
  });
  team.sync();
}

}  // namespace

int64_t experts_shared_bytes(const BayardExperts& op, int64_t rows) {
  Shape s;
  fill(&s, op);
  const int64_t prepared = rows * std::max(prepared_row_bytes(s.first), prepared_row_bytes(s.second));
  return padded(prepared) + padded(rows * 2 * op.inner * 4) + padded(rows * op.hidden * 4) + 64;
}

void run_experts(Team& team, const BayardExperts& op, Rows x, const ExpertOrder& order, const float* weights,
                 int64_t choices, Rows out, uint8_t* shared) {
  Shape s;
  fill(&s, op);
  const int64_t rows = static_cast<int64_t>(order.tokens.size());
  const int64_t prepared = rows * std::max(prepared_row_bytes(s.first), prepared_row_bytes(s.second));
  const Rows inner = {reinterpret_cast<float*>(shared + padded(prepared)), 2 * op.inner, rows};
  const Rows last = {inner.at + padded(rows * 2 * op.inner * 4) / 4, op.hidden, rows};
  float* row = reinterpret_cast<float*>(team.scratch((std::max(op.hidden, op.inner) + kBlock) * 4));

  const Prepared p1 = lay_out(s.first, rows, shared);
  team.each(rows, piece(team, rows, 1), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) prepare_row(s.first, x.row(order.tokens[static_cast<size_t>(i)]), p1, i, row);
  });
  team.sync();
  multiply_all(team, s.first, s.gate_up_bytes, order, p1, inner);
  const Prepared p2 = lay_out(s.second, rows, shared);
  team.each(rows, piece(team, rows, 1), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) prepare_row(s.second, inner.row(i), p2, i, row);
  });
  team.sync();
  multiply_all(team, s.second, s.down_bytes, order, p2, last);
  // A token's experts are added in the order of its choices.
  team.each(x.count, piece(team, x.count, 4), [&](int64_t first, int64_t end) {
    for (int64_t t = first; t < end; t++) {
      float* to = out.row(t);
      std::fill(to, to + op.hidden, 0.0f);
      for (int64_t c = 0; c < choices; c++) {
        const float* from = last.row(order.places[static_cast<size_t>(t * choices + c)]);
        const float weight = weights[t * choices + c];
        for (int64_t j = 0; j < op.hidden; j++) to[j] += weight * from[j];
      }
    }
  });
  team.sync();
}

}  // namespace bayard
