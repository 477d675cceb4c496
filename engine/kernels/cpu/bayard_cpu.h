// libbayard_cpu: Bayard's kernels for the host, as plain C. Nothing here allocates for the caller or keeps his pointers
// after it returns, except where said.
//
// Functions return 0, or a code that bayard_error_text() names. Matrices of floats are float32, row-major, with a row
// stride in elements; rows may start at any 4-byte boundary. Outputs must not overlap inputs unless said. All functions
// may be called from any thread; calls run one after the other, each on the whole pool. `kind` and KV types are
// BayardKind (kernel_args.h).
#ifndef BAYARD_CPU_H
#define BAYARD_CPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BAYARD_API __attribute__((visibility("default")))
#else
#define BAYARD_API
#endif

enum {
  BAYARD_OK = 0,
  BAYARD_UNKNOWN_ISA = 1,
  BAYARD_ISA_UNAVAILABLE = 2,
  BAYARD_BAD_KIND = 3,
  BAYARD_BAD_SHAPE = 4,
  BAYARD_NO_MEMORY = 5,
  BAYARD_BAD_OP = 6,
  BAYARD_BAD_INDEX = 7,
};

// Binding and library must agree on this number.
#define BAYARD_ABI_VERSION 9
BAYARD_API int bayard_abi_version(void);
// sizeof a struct of this header by name, -1 for no such: a binding checks its own against it.
BAYARD_API int64_t bayard_struct_bytes(const char* name);
BAYARD_API const char* bayard_error_text(int code);

// Instruction set: "scalar", "avx2", "avx512", "amx"; null or "" takes the best this CPU and kernel offer.
BAYARD_API int bayard_set_isa(const char* name);
BAYARD_API const char* bayard_isa(void);
BAYARD_API int bayard_isa_available(const char* name);
// Whether BAYARD_BF16_ROUNDED has products of its own here: in tiles, or with AVX512_BF16.
BAYARD_API int bayard_has_bf16(void);

// The pool. threads 0: one a usable core. Blocks until a running call has ended.
BAYARD_API int bayard_set_threads(int threads, int pin);
BAYARD_API int bayard_threads(void);
BAYARD_API int bayard_usable_cores(void);
// Where threads run, first thread first, among `count` allowed CPUs: one CPU a core, memory nodes in turns. The number
// of cores; cpus and nodes hold as many as count. root stands before /sys and is "" but in tests.
BAYARD_API int bayard_places(const char* root, const int32_t* allowed, int64_t count, int32_t* cpus, int32_t* nodes);
// Whole CPUs that control groups allow, 0 for any number; root as for bayard_places.
BAYARD_API int bayard_quota(const char* root);
// Spreads fresh memory over the nodes of the CPUs this process may use. The number of nodes, 1 if it stays as it is;
// bytes 0 only asks.
BAYARD_API int bayard_interleave(void* memory, int64_t bytes);

// Bytes of the packed form of an [n, k] matrix; k a multiple of the kind's block. -1 for a bad kind or shape.
BAYARD_API int64_t bayard_packed_bytes(int kind, int64_t n, int64_t k);
// Packs n rows that lie row_stride_bytes apart into packed (64-byte aligned for speed).
BAYARD_API int bayard_pack(int kind, const void* rows, int64_t row_stride_bytes, int64_t n, int64_t k, void* packed);

// A packed matrix. The caller keeps the memory.
typedef struct BayardWeight {
  const void* packed;
  int64_t n, k;
  int32_t kind;
  int32_t reserved;
} BayardWeight;

enum { BAYARD_EXACT = 0, BAYARD_INT8 = 1, BAYARD_BF16_ROUNDED = 2 };
enum { BAYARD_PLAIN = 0, BAYARD_RMS_NORM = 1, BAYARD_SILU_MUL = 2, BAYARD_GELU_MUL = 3, BAYARD_SWIGLU_CLAMPED = 4 };

// out [m, n] = prepare(x) times the weight's transpose, + bias [n], + residual [m, n] (which may be out itself).
// prepare: plain (x [m, k]); RMS norm with norm_weight [k] and eps (x [m, k]); a gate of the first k columns and the
// last k (x [m, 2k]). int8 rounds activations to 8 bits a block of 32, for I8_ROW weights a row; kinds without an int8
// form stay exact. bf16_rounded rounds them to bf16 for BF16 weights where the CPU multiplies those; else they stay exact.
typedef struct BayardLinear {
  const BayardWeight* weight;
  const float* bias;
  const float* norm_weight;
  float eps;
  int32_t mode;
  int32_t prepare;
  int32_t reserved;
} BayardLinear;

BAYARD_API int bayard_linear(const BayardLinear* op, const float* x, int64_t x_stride, int64_t m, const float* residual,
                             int64_t residual_stride, float* out, int64_t out_stride);

// Experts: gate_up and down are the packed matrices [2 * inner, hidden] and [hidden, inner] of each, one expert's whole
// packed bytes after the other's. gate: BAYARD_SILU_MUL, BAYARD_GELU_MUL or BAYARD_SWIGLU_CLAMPED.
typedef struct BayardExperts {
  const void* gate_up;
  const void* down;
  const float* gate_up_bias;   // [experts, 2 * inner] or null
  const float* down_bias;      // [experts, hidden] or null
  int64_t experts, hidden, inner;
  int32_t gate_up_kind, down_kind;
  int32_t mode, gate;
} BayardExperts;

// out [m, hidden] = the sum over choices of weights [m, choices] times that expert of x; ids [m, choices].
BAYARD_API int bayard_experts(const BayardExperts* op, const float* x, int64_t x_stride, int64_t m, const int32_t* ids,
                              const float* weights, int64_t choices, float* out, int64_t out_stride);

// Rows of a table as a file holds it: out [count, k].
BAYARD_API int bayard_embedding(int kind, const void* rows, int64_t row_stride_bytes, int64_t n, int64_t k,
                                const int64_t* ids, int64_t count, float* out, int64_t out_stride);

BAYARD_API int bayard_rms_norm(const float* x, int64_t x_stride, int64_t m, int64_t k, const float* weight, float eps,
                               float* out, int64_t out_stride);
// total = x + residual; out = norm of it. total may be x or residual.
BAYARD_API int bayard_add_rms_norm(const float* x, int64_t x_stride, const float* residual, int64_t residual_stride,
                                   int64_t m, int64_t k, const float* weight, float eps, float* total,
                                   int64_t total_stride, float* out, int64_t out_stride);
// gate_up [m, 2k], the gate first. prepare: BAYARD_SILU_MUL, BAYARD_GELU_MUL or BAYARD_SWIGLU_CLAMPED.
BAYARD_API int bayard_gate_mul(int prepare, const float* gate_up, int64_t stride, int64_t m, int64_t k, float* out,
                               int64_t out_stride);
// heads [count, heads, dim] in place; cos_sin [positions, rotary]: rotary / 2 cosines, then sines.
BAYARD_API int bayard_rope(float* heads, int64_t row_stride, int64_t head_stride, int64_t count, int64_t num_heads,
                           const int64_t* positions, const float* cos_sin, int64_t cos_rows, int64_t rotary);

// One layer's pages; strides in bytes, elements of a head side by side.
typedef struct BayardKv {
  void* base;
  int64_t page_stride, v_offset, head_stride, token_stride;
  int64_t pages;
  int32_t type;                  // F32, F16, BF16; I8_ROW: int8, and after a head's page_tokens rows of them, each
  int32_t page_tokens;           // token_stride bytes, their page_tokens float32 scales
} BayardKv;

// scales: of int8 pages, [2, kv_heads], of each head's K, then V; null: of each row's largest number.
BAYARD_API int bayard_kv_write(const float* k, int64_t k_stride, const float* v, int64_t v_stride, int64_t count,
                               int64_t kv_heads, int64_t dim, const BayardKv* kv, const int64_t* pages,
                               const int64_t* offsets, const float* scales);

typedef struct BayardAttention {
  int32_t heads, kv_heads, head_dim;
  float scale, softcap;      // softcap 0: none
  int32_t reserved;
  int64_t window;            // 0: none
  const float* sinks;        // [heads] or null
} BayardAttention;

// head_dim a multiple of 16. q and out: head h of row t at t * stride + h * head_dim.
BAYARD_API int bayard_attention(const BayardAttention* op, const float* q, int64_t q_stride, const BayardKv* kv,
                                const int32_t* block_tables, int64_t table_stride, int64_t table_width,
                                const int32_t* query_starts, const int32_t* context_lens, int64_t sequences,
                                int64_t rows, float* out, int64_t out_stride);

// The first place of each row's largest number; -1 where a number is NaN, or if `finite`, infinite.
BAYARD_API int bayard_argmax(const float* x, int64_t stride, int64_t m, int64_t k, int finite, int64_t* out);

// Tokens drawn from rows of logits [any, k]: out [count] of rows [count]; settings [count, 8] are temperature (0: the
// first largest), top_p, min_p, top_k, a uniform number in [0, 1), and the repetition, presence and frequency penalties,
// which hold for rows whose count_rows [count] is not -1: counts [tables, k] is twice a token's number of outputs, plus
// one if it is in the prompt.
BAYARD_API int bayard_choose(const float* logits, int64_t stride, int64_t num_rows, int64_t k, const int32_t* rows,
                             const float* settings, const int32_t* counts, int64_t tables, const int32_t* count_rows,
                             int64_t count, int32_t* out);

// ---- Sending: threads of their own that take host memory to a device. May be called from any thread, beside all else.

// What is used of a device's driver; each function gives 0, or an error of the driver's own that a waiter is told.
typedef struct BayardLink {
  int (*use)(void* context);                                                           // makes it the thread's own
  int (*pin)(void* memory, size_t bytes, unsigned flags);
  int (*unpin)(void* memory);
  int (*make_event)(void** event, unsigned flags);
  int (*copy)(uint64_t target, const void* source, size_t bytes, void* stream);        // queued
  int (*record)(void* event, void* stream);
  int (*wait)(void* event);
  void* context;
  void* stream;
  unsigned event_flags;
  unsigned reserved;
} BayardLink;

// Bytes in memory, or in an open file from an offset on.
typedef struct BayardStored {
  const void* memory;
  int64_t offset;
  int64_t bytes;
  int32_t file;  // -1: none, they are in memory
  int32_t reserved;
} BayardStored;

typedef struct BayardSender BayardSender;

// Null for a bad number. Each thread makes its two buffers at once, while the first job is on its way here.
BAYARD_API BayardSender* bayard_sender_new(const BayardLink* link, int threads, int64_t buffer_bytes);
// Sends what was put in, then ends the threads.
BAYARD_API void bayard_sender_free(BayardSender* sender);
// A job: parts [count] to the address target, side by side, by pieces. Its number, from 1 on, or -1. What holds the
// parts' bytes must stay until the job is done.
BAYARD_API int64_t bayard_sender_put(BayardSender* sender, const BayardStored* parts, int64_t count, uint64_t target,
                                     int64_t piece);
// Blocks until all of a job is queued on the stream and its parts were read. What the driver said, or the error of
// reading a file as a negative number.
BAYARD_API int bayard_sender_wait(BayardSender* sender, int64_t job);
// All jobs up to this number are done.
BAYARD_API int64_t bayard_sender_done(BayardSender* sender);

// ---- Programs: the ops of a whole step, recorded once and run in one call.

enum {
  BAYARD_OP_EMBEDDING = 0,  // out = rows of the table at token_ids
  BAYARD_OP_LINEAR = 1,     // out = linear of in, + residual slot if not -1
  BAYARD_OP_NORM = 2,       // out = RMS norm of in
  BAYARD_OP_ADD = 3,        // out = in + residual
  BAYARD_OP_ROPE_KV = 4,    // in = [q | k | v]: norms q and k if asked, rotates them, writes k and v to their pages
  BAYARD_OP_ATTENTION = 5,  // out = attention of the q part of in
  BAYARD_OP_GATHER = 6,     // out = rows of in at logit_rows
  BAYARD_OP_GATE_MUL = 7,   // out = the gate `prepare` of in's first half and its second
  BAYARD_OP_SCALE = 8,      // out = in * scale
  BAYARD_OP_SOFTCAP = 9,    // out = softcap * tanh(in / softcap)
};

// Slot numbers: >= 0 a buffer of the program; BAYARD_LOGITS: the step's logits.
enum { BAYARD_NO_SLOT = -1, BAYARD_LOGITS = -2 };

typedef struct BayardOp {
  int32_t code;
  int32_t in, out, residual;     // slots
  int32_t rows;                  // 0: a row a token; 1: a row a logit row
  int32_t layer, group;          // which BayardKv and BayardGroup of the step
  int32_t prepare;
  BayardLinear linear;
  BayardWeight weight;           // EMBEDDING: packed is the table's first row
  int64_t weight_row_bytes;      // EMBEDDING
  int64_t out_column;            // LINEAR: first column of out that is written
  const float* norm_weight;      // NORM; ROPE_KV: of each q head, or null
  const float* norm_weight_k;    // ROPE_KV: of each k head, or null
  const float* cos_sin;          // ROPE_KV, or null
  int64_t cos_rows, rotary;
  const float* kv_scales;        // ROPE_KV: as of bayard_kv_write, or null
  BayardAttention attention;     // ROPE_KV and ATTENTION
  float eps, scale;
} BayardOp;

typedef struct BayardGroup {
  const int32_t* block_tables;
  int64_t table_stride, table_width;
  const int64_t* write_pages;
  const int64_t* write_offsets;
} BayardGroup;

typedef struct BayardStep {
  int64_t tokens, sequences, logit_count;
  const int64_t* token_ids;
  const int64_t* positions;
  const int32_t* query_starts;
  const int32_t* context_lens;
  const int64_t* logit_rows;
  const BayardGroup* groups;
  const BayardKv* kv;
  int64_t num_groups, num_kv;
  float* logits;
  int64_t logits_stride;
  int64_t* argmax;               // [logit_count] or null: also the argmax of each row of logits, -1 where one is not finite
} BayardStep;

typedef struct BayardProgram BayardProgram;

// slot_widths: floats a row of each buffer. Copies ops; what they point at must outlive the program.
BAYARD_API int bayard_program_create(const int64_t* slot_widths, int64_t slots, const BayardOp* ops, int64_t num_ops,
                                     BayardProgram** out);
BAYARD_API void bayard_program_free(BayardProgram* program);
// Blocks until the step is done. Buffers grow to the largest step seen.
BAYARD_API int bayard_program_run(BayardProgram* program, const BayardStep* step);
// Nanoseconds each op took in the last run, as seen by the calling thread; 0s unless asked for before it.
BAYARD_API int bayard_program_profile(BayardProgram* program, int on, int64_t* ns, int64_t num_ops);
BAYARD_API int64_t bayard_program_bytes(const BayardProgram* program);

#ifdef __cplusplus
}
#endif
#endif
