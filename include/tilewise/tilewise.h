/* The C face of tilewise, and the one with a binary promise: exact attention, C99 and nothing else.
 *
 *   tw_problem  what is computed, no pointers          -> tw_plan_create -> tw_plan
 *   tw_inputs, tw_outputs, tw_gradients  where it lies  -> tw_forward, tw_backward
 *
 * The fields are those of the C++ face (problem.hpp, plan.hpp, attention.hpp), which says what each
 * means; docs/semantics.md has the formulas.
 *
 * Every struct begins with its size. Start from its tw_..._init(), which sets that and the
 * defaults, then fill in fields. So a program built against an older header, whose structs are
 * smaller, keeps working: what it doesn't know takes its default. A newer, larger struct is taken
 * as long as the fields that this library doesn't know are zero.
 *
 * A function that can fail returns a tw_status; tw_last_error() then says what was wrong, with the
 * argument's name, its value and what is accepted. Nothing here throws, prints or exits. Distinct
 * threads may use one plan at once, each with its own outputs and workspace.
 */
#ifndef TILEWISE_TILEWISE_H_
#define TILEWISE_TILEWISE_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tilewise/export.h"

#define TW_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, which may be newer than the header's TW_VERSION. */
TILEWISE_EXPORT const char* tw_version(void);

typedef enum tw_status {
  TW_OK = 0,
  TW_INVALID_ARGUMENT = 1, /* can never work */
  TW_UNSUPPORTED = 2,      /* a valid problem for which no kernel exists */
  TW_OUT_OF_MEMORY = 3,    /* host memory, or a workspace smaller than the plan asks for */
  TW_UNAVAILABLE = 4,      /* a device, driver or compiler that is not there */
  TW_INTERNAL = 5          /* a bug in the library */
} tw_status;

/* Why this thread's last failed call failed; "" before the first. Valid until the next one. */
TILEWISE_EXPORT const char* tw_last_error(void);

/* The values of the int32_t fields below. */
enum { TW_F32 = 0, TW_F16 = 1, TW_BF16 = 2, TW_I32 = 3 }; /* dtype */
enum { TW_CPU = 0, TW_CUDA = 1 };                         /* device_kind */
enum { TW_BOTTOM_RIGHT = 0, TW_TOP_LEFT = 1 };            /* align */
enum { TW_ALIBI_NONE = 0, TW_ALIBI_PER_HEAD = 1, TW_ALIBI_PER_BATCH_AND_HEAD = 2 }; /* alibi */
enum { TW_FORWARD = 0, TW_BACKWARD = 1 };                                           /* pass */
enum { TW_OUT_SAME = -1 }; /* out_dtype: the dtype of Q, K and V */

/* What is computed. Switches are 0 or 1. */
typedef struct tw_problem {
  size_t struct_size;
  int64_t batch, heads_q, heads_kv; /* heads_kv divides heads_q */
  int64_t seq_q, seq_kv;            /* with cu_seqlens: bounds of the longest sequence */
  int64_t head_dim, head_dim_v;
  int32_t dtype;     /* TW_F32, TW_F16 or TW_BF16 */
  int32_t out_dtype; /* TW_OUT_SAME, or one of those */
  int32_t has_scale; /* 0: 1/sqrt(head_dim) */
  float scale;
  float softcap; /* 0: off */
  int32_t causal;
  int64_t window_left, window_right; /* -1: unbounded */
  int32_t align;                     /* TW_BOTTOM_RIGHT or TW_TOP_LEFT */
  int32_t alibi;
  int32_t bias, bias_dtype;
  int32_t bias_broadcast_batch, bias_broadcast_heads, bias_broadcast_q, bias_broadcast_kv;
  int32_t sink;
  float dropout_p; /* in [0, 1) */
  int32_t cu_seqlens_q, cu_seqlens_kv;
  int32_t seqused_q, seqused_kv;
  int64_t total_q, total_kv; /* rows of packed Q; of packed K and V */
} tw_problem;

/* How it is computed. */
typedef struct tw_options {
  size_t struct_size;
  const char* kernel; /* NULL: "auto" */
  const char* isa;    /* NULL: "auto" */
  int32_t threads;    /* 0: as many as OpenMP gives */
  int32_t deterministic;
  int64_t tile_q, tile_kv;   /* 0: the plan chooses */
  int64_t fast_memory_bytes; /* 0: the device's */
} tw_options;

/* A view of memory that the caller owns. Strides in elements. */
typedef struct tw_tensor {
  size_t struct_size;
  void* data; /* null, in this struct: the tensor is not given */
  int32_t dtype;
  int32_t device_kind, device_index;
  int32_t rank; /* 1 to 4 */
  int64_t shape[4], strides[4];
} tw_tensor;

/* What attention reads; NULL where the problem has no such tensor. */
typedef struct tw_inputs {
  size_t struct_size;
  const tw_tensor *q, *k, *v; /* (B, S, H, D), or (total, H, D) with cu_seqlens */
  const tw_tensor* alibi_slopes;
  const tw_tensor* bias;
  const tw_tensor* sink;
  const tw_tensor *cu_seqlens_q, *cu_seqlens_kv;
  const tw_tensor *seqused_q, *seqused_kv;
  uint64_t dropout_seed, dropout_offset;
} tw_inputs;

/* What the forward writes. */
typedef struct tw_outputs {
  size_t struct_size;
  const tw_tensor* o;   /* (B, Sq, Hq, Dv) / (total_q, Hq, Dv) */
  const tw_tensor* lse; /* f32 (B, Hq, Sq) / (Hq, total_q); may be NULL */
} tw_outputs;

/* What the backward reads besides the inputs, and what it writes. */
typedef struct tw_gradients {
  size_t struct_size;
  const tw_tensor *o, *lse;       /* the forward's outputs */
  const tw_tensor *d_o, *d_lse;   /* d_lse may be NULL */
  const tw_tensor *dq, *dk, *dv;  /* written */
  const tw_tensor *dbias, *dsink; /* f32, written; may be NULL */
} tw_gradients;

/* Where it runs. */
typedef struct tw_launch {
  size_t struct_size;
  void* workspace; /* at least the pass' workspace_bytes, 64-byte aligned */
  size_t workspace_bytes;
  void* stream; /* CUstream on a GPU; ignored on the CPU */
} tw_launch;

/* One pass of a plan; the strings live as long as the plan. */
typedef struct tw_pass_info {
  size_t struct_size;
  const char* kernel; /* "": no kernel can run this pass, the refusals say why */
  const char* isa;
  int64_t tile_q, tile_kv;
  int32_t threads;
  int32_t refusals; /* candidates passed over; see tw_plan_refusal */
  size_t workspace_bytes;
  double flops;
  /* Slow-memory traffic that each loop order needs with fast_memory_bytes of fast memory. */
  double fast_memory_bytes, least_bytes, standard_bytes, fa1_bytes, fa2_bytes;
} tw_pass_info;

typedef struct tw_plan tw_plan;

/* Decides everything that needs no pointer. `options` may be NULL. On success *plan is to be freed
 * with tw_plan_destroy; on failure it is NULL. */
TILEWISE_EXPORT tw_status tw_plan_create(const tw_problem* problem, int32_t device_kind,
                                         int32_t device_index, const tw_options* options,
                                         tw_plan** plan);
TILEWISE_EXPORT void tw_plan_destroy(tw_plan* plan); /* NULL is fine */

/* The plan in words; lives as long as the plan. NULL if `plan` is, or if memory runs out. */
TILEWISE_EXPORT const char* tw_plan_describe(const tw_plan* plan);
TILEWISE_EXPORT tw_status tw_plan_pass(const tw_plan* plan, int32_t pass, tw_pass_info* info);
TILEWISE_EXPORT tw_status tw_plan_refusal(const tw_plan* plan, int32_t pass, int32_t index,
                                          const char** kernel, const char** reason);

/* `launch` may be NULL when the pass needs no workspace. */
TILEWISE_EXPORT tw_status tw_forward(const tw_plan* plan, const tw_inputs* in,
                                     const tw_outputs* out, const tw_launch* launch);
TILEWISE_EXPORT tw_status tw_backward(const tw_plan* plan, const tw_inputs* in,
                                      const tw_gradients* grads, const tw_launch* launch);

/* What tw_options::kernel and ::isa accept on this machine, best first, separated by commas. Valid
 * until this thread's next call of the same function; NULL on failure. */
TILEWISE_EXPORT const char* tw_kernel_names(int32_t device_kind, int32_t device_index);
TILEWISE_EXPORT const char* tw_isa_names(void);

static inline tw_problem tw_problem_init(void) {
  tw_problem p;
  memset(&p, 0, sizeof p);
  p.struct_size = sizeof p;
  p.batch = p.heads_q = p.heads_kv = 1;
  p.out_dtype = TW_OUT_SAME;
  p.window_left = p.window_right = -1;
  return p;
}

static inline tw_options tw_options_init(void) {
  tw_options o;
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o;
  return o;
}

static inline tw_inputs tw_inputs_init(void) {
  tw_inputs in;
  memset(&in, 0, sizeof in);
  in.struct_size = sizeof in;
  return in;
}

static inline tw_outputs tw_outputs_init(void) {
  tw_outputs out;
  memset(&out, 0, sizeof out);
  out.struct_size = sizeof out;
  return out;
}

static inline tw_gradients tw_gradients_init(void) {
  tw_gradients g;
  memset(&g, 0, sizeof g);
  g.struct_size = sizeof g;
  return g;
}

static inline tw_launch tw_launch_init(void) {
  tw_launch l;
  memset(&l, 0, sizeof l);
  l.struct_size = sizeof l;
  return l;
}

static inline tw_pass_info tw_pass_info_init(void) {
  tw_pass_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  return info;
}

/* A dense row-major CPU tensor. `shape` has `rank` extents, outermost first; a rank outside 1 to 4
 * is kept, for the call that takes the tensor to report. */
static inline tw_tensor tw_dense(void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  tw_tensor t;
  int64_t stride = 1;
  int32_t i;
  memset(&t, 0, sizeof t);
  t.struct_size = sizeof t;
  t.data = data;
  t.dtype = dtype;
  t.rank = rank;
  if (rank < 1 || rank > 4) return t;
  for (i = rank - 1; i >= 0; --i) {
    t.shape[i] = shape[i];
    t.strides[i] = stride;
    stride *= shape[i];
  }
  return t;
}

#ifdef __cplusplus
}
#endif

#endif
