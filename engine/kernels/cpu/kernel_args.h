// Plain structs between the drivers, which know no instruction set, and the kernels, which know nothing else.
#ifndef BAYARD_KERNEL_ARGS_H
#define BAYARD_KERNEL_ARGS_H

#include <stdint.h>

// The weight kinds, in the order of the function tables. The numbers are part of the C ABI.
enum BayardKind {
  BAYARD_F32 = 0,
  BAYARD_F16 = 1,
  BAYARD_BF16 = 2,
  BAYARD_Q4_0 = 3,
  BAYARD_Q4_1 = 4,
  BAYARD_Q5_0 = 5,
  BAYARD_Q5_1 = 6,
  BAYARD_Q8_0 = 7,
  BAYARD_Q4_K = 8,
  BAYARD_Q5_K = 9,
  BAYARD_Q6_K = 10,
  BAYARD_MXFP4 = 11,
  BAYARD_I8_ROW = 12,  // int8 with one float32 scale a row; a row in memory is the scale, then k bytes
  BAYARD_I4_G128 = 13,   // four bits, 128 numbers a block: float32 scale, nibbles as Q4_0's; a number is (q - 8) * scale
  BAYARD_I4Z_G128 = 14,  // ... float32 scale and offset before the nibbles: q * scale + offset
  BAYARD_KINDS = 15,
};

// Weight rows of one packed tile, and weights of one block along K.
enum { kTileRows = 16, kBlock = 32 };

// Quantised activations of one row: int8 values of a block are d * q; half[i] are sums of q over each half block and
// sum is d * (half[0] + half[1]). For I8_ROW weights d is one for the whole row and sum is that of all the row's q, a
// whole number.
struct BlockMeta {
  float d;
  float sum;
  int32_t half[2];
};

struct LinearArgs {
  const uint8_t* weight;     // packed tiles, tile_bytes apart
  int64_t tile_bytes;
  int64_t k_blocks;          // blocks of 32 along K, the last zero-padded
  const float* x;            // exact: row m at x + m * x_stride, padded to 32 * k_blocks with zeros
  int64_t x_stride;
  const int8_t* xq;          // int8: row m at xq + m * xq_stride
  int64_t xq_stride;
  const BlockMeta* xmeta;    // int8: row m at xmeta + m * k_blocks
  const uint16_t* xb;        // bf16: row m at xb + m * xb_stride, padded likewise
  int64_t xb_stride;
};

// One tile (16 weight rows) times m_count (1..the table's rows_*) activation rows from m -> out[row][16], not yet
// biased. kMaxRows is the most that any instruction set takes at once.
enum { kMaxRows = 32 };
typedef void (*LinearTileFn)(const LinearArgs* args, int64_t tile, int64_t m, int m_count, float* out);

// The form that CPUs with tile registers take: 1 or 2 weight tiles times up to kMaxRows rows, along K from step `first`
// to `end` (a step is 64 bytes of a prepared row). sums [tile][kMaxRows][16] come from the steps before and go to those
// after; after the last step they are the products.
typedef void (*LinearPairFn)(const LinearArgs* args, int64_t tile, int tiles, int64_t m, int m_count, int64_t first,
                             int64_t end, float* sums);
enum { kPairSums = 2 * kMaxRows * kTileRows };

struct AttentionArgs {
  const float* q;            // row t, head h at q + t * q_stride + h * head_dim
  int64_t q_stride;
  float* out;                // likewise
  int64_t out_stride;
  const uint8_t* kv;         // the layer's view; strides in bytes
  int64_t page_stride, v_offset, head_stride, token_stride;
  int kv_type;               // BAYARD_F32, BAYARD_F16, BAYARD_BF16, BAYARD_I8_ROW
  int page_tokens;
  int heads, kv_heads, head_dim;
  float scale, softcap;      // softcap 0: none
  int64_t window;            // 0: none
  const float* sinks;        // [heads] or null
};

// Rows [row, row + rows) of one sequence and one KV head against keys [key_begin, key_end) of one split.
struct AttentionTask {
  int64_t row;               // in q and out
  int rows;
  int64_t position;          // of the first row
  const int32_t* pages;      // the sequence's block table
  int kv_head;
  int64_t key_begin, key_end;
};

// Partial result of one (row, head) over one split: o is not divided by l.
struct AttentionState {
  float* m;                  // [rows * group]
  float* l;                  // [rows * group]
  float* o;                  // [rows * group, head_dim]
};

struct KernelTable {
  const char* name;
  LinearTileFn linear_exact[BAYARD_KINDS];
  LinearTileFn linear_int8[BAYARD_KINDS];   // null where the kind has no integer form
  LinearPairFn linear_bf16;                 // BF16 weights, rounded activations; null where the CPU has no such products
  LinearPairFn linear_i8_row;               // I8_ROW weights; null likewise
  int rows_exact, rows_int8;                // activation rows a call of each takes at most
  void (*quantise_row)(const float* x, int64_t k, int8_t* q, BlockMeta* meta);
  void (*quantise_whole_row)(const float* x, int64_t k, int8_t* q, BlockMeta* meta);  // for I8_ROW
  void (*rms_norm_row)(const float* x, const float* weight, float eps, int64_t k, float* out);
  void (*add_row)(const float* a, const float* b, int64_t k, float* out);
  void (*silu_mul_row)(const float* gate, const float* up, int64_t k, float* out);
  void (*gelu_mul_row)(const float* gate, const float* up, int64_t k, float* out);
  void (*swiglu_clamped_row)(const float* gate, const float* up, int64_t k, float* out);
  void (*rope_head)(float* head, const float* cos_sin, int64_t half);
  void (*store_row)(const float* x, int64_t k, int type, void* out);
  void (*store_scaled)(const float* x, int64_t k, int8_t* q, float* scale);  // int8; *scale 0: of the row's largest
  int64_t (*argmax_row)(const float* x, int64_t k, bool finite);
  void (*exp_row)(const float* x, int64_t k, float top, float divisor, float* out);  // e^((x - top) / divisor); may be x
  int64_t (*attention_scratch_floats)(int rows, int group, int head_dim);
  void (*attention_split)(const AttentionArgs*, const AttentionTask*, float* scratch, AttentionState*);
  void (*attention_merge)(float* m, float* l, float* o, const float* m2, const float* l2, const float* o2, int dim);
};

#endif
