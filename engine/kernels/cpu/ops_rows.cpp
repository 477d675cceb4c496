#include <cstring>

#include "ops.h"
#include "weights.h"

namespace bayard {
namespace {

constexpr int64_t kPieceElements = 16384;  // fewer are not worth another thread

int64_t rows_a_piece(const Team& team, int64_t rows, int64_t width) {
  return piece(team, rows, width < kPieceElements ? kPieceElements / (width > 0 ? width : 1) : 1);
}

}  // namespace

GateFn gate_row(int prepare) {
  if (prepare == BAYARD_GELU_MUL) return kernels().gelu_mul_row;
  if (prepare == BAYARD_SWIGLU_CLAMPED) return kernels().swiglu_clamped_row;
  return kernels().silu_mul_row;
}

void run_embedding(Team& team, const BayardWeight& table, int64_t row_bytes, const int64_t* ids, Rows out) {
  const uint8_t* base = static_cast<const uint8_t*>(table.packed);
  team.each(out.count, rows_a_piece(team, out.count, table.k), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) decode_row(table.kind, base + ids[i] * row_bytes, table.k, out.row(i));
  });
  team.sync();
}

void run_norm(Team& team, Rows x, int64_t k, const float* weight, float eps, Rows out) {
  team.each(x.count, rows_a_piece(team, x.count, k), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) kernels().rms_norm_row(x.row(i), weight, eps, k, out.row(i));
  });
  team.sync();
}

void run_add_norm(Team& team, Rows x, Rows residual, int64_t k, const float* weight, float eps, Rows total, Rows out) {
  team.each(x.count, rows_a_piece(team, x.count, k), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) {
      kernels().add_row(x.row(i), residual.row(i), k, total.row(i));
      kernels().rms_norm_row(total.row(i), weight, eps, k, out.row(i));
    }
  });
  team.sync();
}

void run_gate_mul(Team& team, int prepare, Rows gate_up, int64_t k, Rows out) {
  const GateFn gate_mul = gate_row(prepare);
  team.each(out.count, rows_a_piece(team, out.count, 8 * k), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) gate_mul(gate_up.row(i), gate_up.row(i) + k, k, out.row(i));
  });
  team.sync();
}

void run_rope(Team& team, Rows heads, int64_t head_stride, int64_t num_heads, const int64_t* positions,
              const float* cos_sin, int64_t rotary) {
  team.each(heads.count, rows_a_piece(team, heads.count, num_heads * rotary), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++)
      for (int64_t h = 0; h < num_heads; h++)
        kernels().rope_head(heads.row(i) + h * head_stride, cos_sin + positions[i] * rotary, rotary / 2);
  });
  team.sync();
}

void store_kv(const KernelTable& t, const BayardKv& kv, int64_t page, int64_t head, int64_t offset, int64_t dim,
              const float* k, const float* v, float k_scale, float v_scale) {
  uint8_t* base = static_cast<uint8_t*>(kv.base) + page * kv.page_stride + head * kv.head_stride;
  for (const float* from : {k, v}) {
    uint8_t* place = base + offset * kv.token_stride;
    if (kv.type == BAYARD_I8_ROW) {
      float scale = from == k ? k_scale : v_scale;
      t.store_scaled(from, dim, reinterpret_cast<int8_t*>(place), &scale);
      std::memcpy(base + kv.page_tokens * kv.token_stride + 4 * offset, &scale, 4);
    } else {
      t.store_row(from, dim, kv.type, place);
    }
    base += kv.v_offset;
  }
}

void run_kv_write(Team& team, Rows k, Rows v, int64_t kv_heads, int64_t dim, const BayardKv& kv, const int64_t* pages,
                  const int64_t* offsets, const float* scales) {
  team.each(k.count, rows_a_piece(team, k.count, 2 * kv_heads * dim), [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++)
      for (int64_t h = 0; h < kv_heads; h++)
        store_kv(kernels(), kv, pages[i], h, offsets[i], dim, k.row(i) + h * dim, v.row(i) + h * dim,
                 scales ? scales[h] : 0.0f, scales ? scales[kv_heads + h] : 0.0f);
  });
  team.sync();
}

void run_argmax(Team& team, Rows x, int64_t k, bool finite, int64_t* out) {
  team.each(x.count, 1, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) out[i] = kernels().argmax_row(x.row(i), k, finite);
  });
  team.sync();
}

}  // namespace bayard
