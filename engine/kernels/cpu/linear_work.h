// What a matrix product is made of: rows prepared once, then pieces of tiles and rows that threads take.
#ifndef BAYARD_LINEAR_WORK_H
#define BAYARD_LINEAR_WORK_H

#include "ops.h"

namespace bayard {

// Where prepared rows lie: floats, or int8 and their scales, or bf16.
struct Prepared {
  int64_t k_blocks, x_stride, q_stride, b_stride;
  float* x;
  int8_t* q;
  BlockMeta* meta;
  uint16_t* b;
};

int64_t prepared_row_bytes(const BayardLinear& op);
Prepared lay_out(const BayardLinear& op, int64_t m, uint8_t* memory);
// One row to its prepared place `to`. `scratch` holds a row of floats, padded to whole blocks.
void prepare_row(const BayardLinear& op, const float* from, const Prepared& p, int64_t to, float* scratch);

// How a product of m rows is cut: `chunks` pieces of tiles times `bands` of rows.
struct Cut {
  int64_t tiles, chunk, chunks, bands, band, strip;
  int rows;    // of a call of the kernel
  bool pairs;  // the kernel is one for pairs of tiles
  int64_t items() const { return chunks * bands; }
};
Cut cut(const Team& team, const BayardLinear& op, int64_t m, int64_t least_items);

// One item of a cut: rows `first`.. of the prepared ones give rows 0.. of out.
void multiply(const BayardLinear& op, const Prepared& p, const Cut& c, int64_t item, int64_t first, int64_t m,
              const Rows* residual, const Rows& out);

}  // namespace bayard

#endif
