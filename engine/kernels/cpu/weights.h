// Weight matrices in the packed form that the kernels read (formats-inl.h), and rows of the form files hold.
#ifndef BAYARD_WEIGHTS_H
#define BAYARD_WEIGHTS_H

#include <cstdint>

#include "kernel_args.h"

namespace bayard {

struct Format {
  const char* name;
  int block_elements;   // of a block in a file
  int block_bytes;
  int64_t packed_head;  // bytes of a tile for each run of 8 blocks of 32, before the blocks (K kinds), else 0
  int64_t packed_block; // bytes of a tile for each block of 32
  bool integer;         // has an int8 form
  int row_head;         // bytes before the blocks of a row in memory
  int packed_first;     // bytes before the blocks of a tile
};

const Format& format(int kind);

// Bytes of one 16-row tile of K columns.
int64_t tile_bytes(int kind, int64_t k);

// Packs tiles [first, end) of a matrix of n rows whose rows lie row_stride bytes apart; missing rows become zero.
void pack_tiles(int kind, const uint8_t* rows, int64_t row_stride, int64_t n, int64_t k, int64_t first, int64_t end,
                uint8_t* packed);

// The numbers of one row as it lies in a file.
void decode_row(int kind, const uint8_t* row, int64_t k, float* out);

}  // namespace bayard

#endif
